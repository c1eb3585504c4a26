"""Waits for conditions of a cluster, each with a deadline. The error after the deadline shows the
brokers' last log lines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from pybroker.model import TopicPartition
from pybroker.testing.cluster_parts import BrokerProcess, ClusterError
from pybroker.testing.cluster_view import UNREACHABLE, ZooKeeperView, lagging, metadata

_POLL_S: Final = 0.025
_NAMED_MAX: Final = 10


class Waits:
    """Methods that wait for conditions of a cluster. `reachable` returns the brokers that are
    neither paused nor cut off."""

    def __init__(
        self,
        brokers: Mapping[int, BrokerProcess],
        reachable: Callable[[], Sequence[BrokerProcess]],
        zookeeper: Callable[[], str],
    ) -> None:
        self._brokers = brokers
        self._reachable = reachable
        self.view = ZooKeeperView(zookeeper)

    async def ready(self, seconds: float, *, launched: Sequence[BrokerProcess] = ()) -> None:
        """Wait until every broker that is neither paused nor isolated serves clients, and has all
        these brokers in its metadata. Raises ClusterError after `seconds`, or at once if the
        process of one of these brokers or of a broker in `launched` has ended."""
        expected = self._reachable()
        wanted = {process.id for process in expected}

        async def missing() -> str:
            for process in (*launched, *expected):
                if not process.is_running:
                    raise ClusterError(f"broker {process.id} ended\n{process.last_lines()}")
            for process in expected:
                answer = await metadata(process.place.host, process.client_port)
                if answer is None:
                    return f"broker {process.id} serves"
                known = {broker.node_id for broker in answer.brokers}
                if not wanted <= known:
                    return (
                        f"broker {process.id} has brokers {sorted(wanted - known)} in its metadata"
                    )
            return ""

        await self._until(missing, seconds)

    async def in_sync(self, topic: str | None, seconds: float) -> None:
        """Wait until ZooKeeper and every reachable broker's metadata show a leader and a full
        ISR for all partitions of the topic (None: of all topics). Raises ClusterError after
        `seconds`."""

        async def missing() -> str:
            stored = await self.view.lagging(topic)
            if stored:
                return f"all replicas of {', '.join(stored[:_NAMED_MAX])} in sync"
            for process in self._reachable():
                answer = await metadata(process.place.host, process.client_port, topic)
                if answer is None:
                    return f"broker {process.id} serves"
                if told := lagging(answer):
                    named = ", ".join(told[:_NAMED_MAX])
                    return f"broker {process.id} reports all replicas of {named} in sync"
            return ""

        await self._until(missing, seconds)

    async def controller(self, other_than: int | None, seconds: float) -> int:
        """Wait until a running broker other than `other_than` is the controller. Return the id of
        this broker. Raises ClusterError after `seconds`."""

        async def named() -> int | None:
            return await self.view.controller()

        return await self._running(named, "the controller", other_than, seconds)

    async def leader(self, key: TopicPartition, other_than: int | None, seconds: float) -> int:
        """Wait until a running broker other than `other_than` leads the partition. Return the id of
        this broker. Raises ClusterError after `seconds`."""

        async def named() -> int | None:
            state = await self.view.state(key)
            return None if state is None else state.leader

        return await self._running(named, f"the leader of {key}", other_than, seconds)

    async def _running(
        self,
        named: Callable[[], Awaitable[int | None]],
        what: str,
        other_than: int | None,
        seconds: float,
    ) -> int:
        found: list[int] = []

        async def missing() -> str:
            broker = await named()
            process = None if broker is None else self._brokers.get(broker)
            if process is None or process.id == other_than or not process.is_running:
                return f"{what} is a broker that runs (it is {broker})"
            found[:] = [process.id]
            return ""

        await self._until(missing, seconds)
        return found[0]

    async def _until(self, missing: Callable[[], Awaitable[str]], seconds: float) -> None:
        """Call `missing` again and again until it returns "". Any other result describes a
        condition that does not hold. Raises ClusterError with the latest of these descriptions
        after `seconds`."""
        text = "the cluster answers"
        try:
            async with asyncio.timeout(seconds):
                while True:
                    text = await _named(missing)
                    if not text:
                        return
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            lines = "\n".join(process.last_lines() for process in self._brokers.values())
            raise ClusterError(f"condition not met within {seconds:g} s: {text}\n{lines}") from None


async def _named(missing: Callable[[], Awaitable[str]]) -> str:
    try:
        return await missing()
    except UNREACHABLE as error:
        return f"ZooKeeper answers ({error!r})"
