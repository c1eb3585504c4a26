"""Group members for tests, and waits for their state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from pybroker.client.consumer import Consumer
from pybroker.model import TopicPartition
from unit_tests.client.fake_broker import FakeBroker
from unit_tests.client.fake_groups import FakeGroup
from unit_tests.client.held_logs import QUICK
from unit_tests.patience import PATIENCE_S

QUICKLY: dict[str, Any] = {
    **QUICK,
    "group_id": "g",
    "auto_offset_reset": "earliest",
    "heartbeat_interval_ms": 10,
    "session_timeout_ms": 10_000,
}


def tp(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number)


@contextlib.asynccontextmanager
async def a_group(**topics: int) -> AsyncIterator[FakeGroup]:
    """Yield a broker with these topics (default: `t` with 4 partitions) and a group `g`."""
    async with FakeBroker(topics or {"t": 4}) as broker:
        yield FakeGroup(broker).attach()


class Reader:
    """A member that reads in its own task until the context ends. `calls` has the calls of its
    callbacks in order."""

    def __init__(
        self, group: FakeGroup, *topics: str, pattern: str | None = None, **options: Any
    ) -> None:
        self.consumer = Consumer(group.broker.address, **{**QUICKLY, **options})
        self.calls: list[tuple[str, list[int]]] = []
        self.values: list[bytes | None] = []
        self._changed = asyncio.Condition()
        self._topics = () if pattern else topics or ("t",)
        self._pattern = pattern
        self._task: asyncio.Task[None] | None = None

    def subscribe(self) -> None:
        def note(name: str) -> Any:
            return lambda found: self.calls.append((name, [item.partition for item in found]))

        self.consumer.subscribe(
            self._topics,
            pattern=self._pattern,
            on_assigned=note("assigned"),
            on_revoked=note("revoked"),
            on_lost=note("lost"),
        )

    async def __aenter__(self) -> Reader:
        await self.consumer.start()
        self.subscribe()
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._cancel()
        await self.consumer.close()

    async def give_up(self) -> None:
        """Cancel the call that reads, and continue to read."""
        await self._cancel()
        self._task = asyncio.create_task(self._read())

    async def _cancel(self) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _read(self) -> None:
        while True:
            found = await self.consumer.getmany(timeout_ms=20)
            self.values += [record.value for taken in found.values() for record in taken]
            async with self._changed:
                self._changed.notify_all()

    @property
    def numbers(self) -> list[int]:
        return sorted(item.partition for item in self.consumer.assignment())

    async def until(self, *numbers: int) -> None:
        """Return once these partitions are assigned."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(lambda: self.numbers == list(numbers))

    async def until_called(self, *calls: tuple[str, list[int]]) -> None:
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(lambda: self.calls == list(calls))

    async def until_read(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(lambda: len(self.values) >= count)


async def first(consumer: Consumer) -> bytes | None:
    async with asyncio.timeout(PATIENCE_S):
        return (await consumer.getone()).value


async def join(consumer: Consumer) -> None:
    """Return once the consumer is in a generation and has an assignment."""
    async with asyncio.timeout(PATIENCE_S):
        while not consumer.assignment():
            await consumer.getmany(timeout_ms=20)


def member(group: FakeGroup, **options: Any) -> Consumer:
    return Consumer(group.broker.address, **{**QUICKLY, **options})
