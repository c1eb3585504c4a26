"""Tests of the classic consumer in one group with Kafka's own ZooKeeper consumers, on an Apache
broker (those consumers use message formats that our broker does not support), and of Kafka's tools
on our groups.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import kazoo.exceptions  # type: ignore[import-untyped]
import pytest

from integration_tests.apache import ApacheKafka, session_at
from integration_tests.conftest import or_skip
from integration_tests.old_tools import OldTools
from integration_tests.process import ChildProcess
from pybroker.classic import ClassicConsumer
from pybroker.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from unit_tests.patience import PATIENCE_S, wait_until

PARTITIONS: Final = 8
QUICK: Final[Mapping[str, str]] = {
    "auto.commit.interval.ms": "100",
    "zookeeper.session.timeout.ms": "20000",
    "rebalance.backoff.ms": "500",
    "rebalance.max.retries": "40",
}
"""The options that both kinds of consumers have."""


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory, jars: str) -> Iterator[ApacheKafka]:
    kafka = ApacheKafka(tmp_path_factory.mktemp("apache"), heap_mib=512)
    try:
        kafka.start()
        yield kafka
    finally:
        kafka.close()


@pytest.fixture
def old(apache: ApacheKafka, request: pytest.FixtureRequest) -> OldTools:
    return or_skip(lambda: OldTools(str(request.param), apache.zookeeper_connect))


class Scene:
    """A topic, a group, and their nodes in ZooKeeper."""

    def __init__(self, apache: ApacheKafka, topic: str, folder: Path, **options: str) -> None:
        self.topic = topic
        self.group = f"of-{topic}"
        self.options = {**QUICK, **options}
        self.sent = 0
        self._apache = apache
        self._folder = folder

    async def make_topic(self) -> None:
        async with Admin(self._apache.bootstrap) as admin:
            (made,) = await admin.create_topics([NewTopic(self.topic, PARTITIONS)])
            made.check()

    async def send(self) -> set[int]:
        """Send ten more numbers to each partition."""
        numbers = range(self.sent, self.sent + 10 * PARTITIONS)
        async with Producer(self._apache.bootstrap) as producer:
            for number in numbers:
                await (
                    await producer.send(self.topic, b"%d" % number, partition=number % PARTITIONS)
                )
        self.sent = numbers.stop
        return set(numbers)

    def theirs(self, old: OldTools) -> ChildProcess:
        """Start Kafka's own consumer as the member `theirs`."""
        options = {"group.id": self.group, "consumer.id": "theirs", **self.options}
        path = self._folder / "consumer.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in options.items()))
        return old.start("console-consumer", "--topic", self.topic, "--consumer.config", str(path))

    def ours(self) -> ClassicConsumer:
        """Start our consumer as the member `ours`."""
        given: dict[str, Any] = {**self.options, "auto.offset.reset": "smallest"}
        return ClassicConsumer(
            self._apache.zookeeper_connect, group_id=self.group, consumer_id="ours", **given
        )

    def owners(self) -> dict[int, str]:
        """Return partition -> the owning consumer thread, without the group's prefix."""
        found = {}
        with session_at(self._apache.zookeeper_connect) as client:
            for number in range(PARTITIONS):
                path = f"/consumers/{self.group}/owners/{self.topic}/{number}"
                with suppress(kazoo.exceptions.NoNodeError):
                    found[number] = client.get(path)[0].decode().removeprefix(f"{self.group}_")
        return found

    def offsets(self) -> dict[int, int]:
        found = {}
        with session_at(self._apache.zookeeper_connect) as client:
            for number in range(PARTITIONS):
                path = f"/consumers/{self.group}/offsets/{self.topic}/{number}"
                with suppress(kazoo.exceptions.NoNodeError):
                    found[number] = int(client.get(path)[0])
        return found

    async def until_owned(self, *names: str) -> dict[int, str]:
        """Wait until exactly these members own partitions, each its share."""
        found: dict[int, str] = {}

        def is_shared() -> bool:
            found.clear()
            found.update(self.owners())
            members = [thread.rpartition("-")[0] for thread in found.values()]
            return sorted(members) == sorted(names * (PARTITIONS // len(names)))

        await asyncio.to_thread(wait_until, is_shared, what=f"{names} own everything")
        return dict(found)

    async def until_committed(self, offset: int) -> None:
        await asyncio.to_thread(
            wait_until,
            lambda: self.offsets() == dict.fromkeys(range(PARTITIONS), offset),
            what=f"offset {offset} everywhere",
        )


def numbers(process: ChildProcess) -> set[int]:
    """Return the numbers that a console consumer has printed."""
    return {int(line) for line in process.output.splitlines() if line.isdigit()}


async def until_printed(process: ChildProcess, expected: set[int]) -> None:
    """Wait until exactly these numbers are printed, because a record may be committed before it is
    printed.
    """
    await asyncio.to_thread(wait_until, lambda: numbers(process) == expected, what=f"{expected}")


@asynccontextmanager
async def reading(consumer: ClassicConsumer, topic: str) -> AsyncIterator[list[int]]:
    """Read in the background. Yield the growing list of values."""
    found: list[int] = []

    async def read() -> None:
        async for record in stream:
            found.append(int(record.value or b"-1"))

    async with consumer:
        (stream,) = (await consumer.subscribe({topic: 1}))[topic]
        task = asyncio.create_task(read())
        try:
            yield found
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.mark.parametrize(
    ("old", "strategy"),
    [("1.1.1", "range"), ("0.9.0.1", "range"), ("0.9.0.1", "roundrobin")],
    indirect=["old"],
)
async def test_consumers_of_both_kinds_share_a_group(
    apache: ApacheKafka, old: OldTools, strategy: str, topic: str, tmp_path: Path
) -> None:
    """Both consumers compute the same assignment, neither reads a partition of the other, and each
    continues at the other's committed offsets.
    """
    scene = Scene(apache, topic, tmp_path, **{"partition.assignment.strategy": strategy})
    await scene.make_topic()
    await scene.send()
    async with reading(scene.ours(), topic) as values:
        await scene.until_committed(10)
        assert set(values) == set(range(80))
        theirs = scene.theirs(old)
        try:
            owners = await scene.until_owned("ours", "theirs")
            new = await scene.send()
            await scene.until_committed(20)
            mine = {number for number, thread in owners.items() if thread == "ours-0"}
            assert set(values[80:]) == {number for number in new if number % PARTITIONS in mine}
            if strategy == "range":
                assert mine == {0, 1, 2, 3}
            rest = {number for number in new if number % PARTITIONS not in mine}
            await until_printed(theirs, rest)
            theirs.signal(signal.SIGTERM)
            await scene.until_owned("ours")
        finally:
            theirs.close()
        before = len(values)
        new = await scene.send()
        await scene.until_committed(30)
        assert set(values[before:]) == new
    theirs = scene.theirs(old)
    try:
        await scene.until_owned("theirs")
        new = await scene.send()
        await scene.until_committed(40)
        await until_printed(theirs, new)
    finally:
        theirs.close()


@pytest.mark.parametrize("old", ["1.1.1", "0.9.0.1"], indirect=True)
@pytest.mark.parametrize("dual", ["true", "false"])
async def test_consumers_of_both_kinds_commit_offsets_to_the_coordinator(
    apache: ApacheKafka, old: OldTools, dual: str, topic: str, tmp_path: Path
) -> None:
    storage = {"offsets.storage": "kafka", "dual.commit.enabled": dual}
    scene = Scene(apache, topic, tmp_path, **storage)
    await scene.make_topic()
    await scene.send()
    keys = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    async with Consumer(apache.bootstrap, group_id=scene.group) as looking:

        async def until_committed(offset: int) -> None:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    found = (await looking.committed(keys)).values()
                    if [row.offset if row else None for row in found] == [offset] * PARTITIONS:
                        return

        async with reading(scene.ours(), topic) as values:
            await until_committed(10)
            assert set(values) == set(range(80))
        assert scene.offsets() == ({} if dual == "false" else dict.fromkeys(range(8), 10))
        theirs = scene.theirs(old)
        try:
            await scene.until_owned("theirs")
            new = await scene.send()
            await until_committed(20)
            await until_printed(theirs, new)
            theirs.signal(signal.SIGTERM)
            theirs.wait()
        finally:
            theirs.close()
        async with reading(scene.ours(), topic) as values:
            new = await scene.send()
            await until_committed(30)
            assert set(values) == new


@pytest.mark.parametrize("old", ["1.1.1", "0.9.0.1"], indirect=True)
async def test_kafkas_tools_know_our_members_offsets_and_lag(
    apache: ApacheKafka, old: OldTools, topic: str, tmp_path: Path
) -> None:
    scene = Scene(apache, topic, tmp_path)
    await scene.make_topic()
    await scene.send()
    async with scene.ours() as consumer:
        await consumer.subscribe({topic: 1})
        keys = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        await consumer.commit({key: 3 + key.partition for key in keys})
        rows = [
            [str(3 + number), "10", str(7 - number), f"{scene.group}_ours"]
            for number in range(PARTITIONS)
        ]
        described = await asyncio.to_thread(
            old, "consumer-groups", "--describe", "--group", scene.group
        )
        assert described.code == 0, described
        told = [line.replace(",", " ").split() for line in described.lines if topic in line]
        assert [[*row[-4:-1], row[-1].removesuffix("-0")] for row in told] == rows
        listed = await asyncio.to_thread(old, "consumer-groups", "--list")
        assert scene.group in listed.lines
        if old.version == "0.9.0.1":
            checked = await asyncio.to_thread(
                old, "consumer-offset-checker", "--group", scene.group, "--topic", topic
            )
            assert checked.code == 0, checked
            told = [line.split() for line in checked.lines if topic in line]
            assert [[*row[-4:-1], row[-1].removesuffix("-0")] for row in told] == rows
