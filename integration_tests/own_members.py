"""Group members with our consumer, in the test's event loop or in a separate process that can be
killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from integration_tests.broker import Broker
from integration_tests.outside_members import OutsideMember, Reads
from integration_tests.process import ChildProcess
from pybroker.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from pybroker.testing.cluster import Cluster
from unit_tests.patience import PATIENCE_S

PARTITIONS: Final = 6


class Members:
    """Members with our consumer that read a topic in separate tasks, and all records that they have
    read.
    """

    def __init__(self, server: Broker | Cluster, topic: str) -> None:
        self.bootstrap = server.bootstrap
        self.topic = topic
        self.read: Counter[tuple[int, int]] = Counter()
        self.assigned: dict[str, list[int]] = {}
        self.rebalances: Counter[str] = Counter()
        """Member -> the number of its completed rebalances."""
        self._news = asyncio.Condition()

    async def make_topic(self, partitions: int = PARTITIONS) -> None:
        async with Admin(self.bootstrap) as admin:
            (made,) = await admin.create_topics([NewTopic(self.topic, partitions)])
            made.check()

    async def write(self, count: int) -> None:
        """Write `count` records to each partition."""
        async with Producer(self.bootstrap, linger_ms=5) as producer:
            sent = [
                await producer.send(self.topic, b"%d" % number, partition=partition)
                for number in range(count)
                for partition in range(PARTITIONS)
            ]
            await asyncio.gather(*sent)

    def consumer(self, **options: Any) -> Consumer:
        defaults = {
            "group_id": self.topic,
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": 200,
            "session_timeout_ms": 30_000,
        }
        return Consumer(self.bootstrap, **{**defaults, **options})

    @contextlib.asynccontextmanager
    async def member(self, name: str, **options: Any) -> AsyncIterator[Consumer]:
        """Run a member that reads until the context ends."""
        async with self.consumer(**options) as consumer:
            consumer.subscribe([self.topic], on_assigned=lambda _: self.rebalances.update([name]))
            stop = asyncio.Event()
            task = asyncio.create_task(self._read(name, consumer, stop))
            try:
                yield consumer
            finally:
                stop.set()
                await task
                del self.assigned[name]

    async def _read(self, name: str, consumer: Consumer, stop: asyncio.Event) -> None:
        while not stop.is_set():
            for records in (await consumer.getmany(timeout_ms=100)).values():
                self.read.update((record.partition, record.offset) for record in records)
            self.assigned[name] = sorted(item.partition for item in consumer.assignment())
            async with self._news:
                self._news.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(condition)

    def shares(self, *names: str, others: Sequence[OutsideMember] = ()) -> bool:
        """Return whether all partitions are assigned once to these members, and evenly."""
        found = [self.assigned.get(name, []) for name in names]
        found += [other.assigned() for other in others]
        sizes = [len(mine) for mine in found]
        everything = sorted(number for mine in found for number in mine)
        return everything == list(range(PARTITIONS)) and max(sizes) - min(sizes) <= 1

    async def committed(self) -> dict[int, int | None]:
        async with self.consumer() as consumer:
            found = await consumer.committed(
                [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
            )
        return {key.partition: offset.offset if offset else None for key, offset in found.items()}


class MemberProcess:
    """A member in a separate process."""

    def __init__(self, bootstrap: str, topic: str, **options: Any) -> None:
        words = {"group_id": topic, "auto_offset_reset": "earliest", **options}
        module = "integration_tests.own_members"
        self.process = ChildProcess(
            [sys.executable, "-m", module, bootstrap, topic, json.dumps(words)]
        )

    def _events(self) -> list[list[Any]]:
        lines = self.process.output.splitlines()
        return [json.loads(line) for line in lines if line.startswith("[")]

    def assigned(self) -> list[int]:
        """Return the currently assigned partitions, sorted."""
        mine: list[list[int]] = [row[1] for row in self._events() if row[0] == "assigned"]
        return mine[-1] if mine else []

    def read(self) -> Reads:
        return Counter((row[1], row[2]) for row in self._events() if row[0] == "read")

    def close(self) -> None:
        self.process.close()


async def _be_member(bootstrap: str, topic: str, options: str) -> None:
    before: list[int] | None = None
    async with Consumer(bootstrap, **json.loads(options)) as consumer:
        consumer.subscribe([topic])
        while True:
            found = await consumer.getmany(timeout_ms=50)
            mine = sorted(item.partition for item in consumer.assignment())
            if mine != before:
                print(json.dumps(["assigned", mine]), flush=True)
                before = mine
            for records in found.values():
                for record in records:
                    print(json.dumps(["read", record.partition, record.offset]), flush=True)


if __name__ == "__main__":
    asyncio.run(_be_member(*sys.argv[1:4]))
