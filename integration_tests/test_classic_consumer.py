"""Tests of the classic consumer with a real broker and a real ZooKeeper: members join, leave, are
killed and stopped under load, also beside Kafka's own programs of the ZooKeeper era.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any, Final

import kazoo.client  # type: ignore[import-untyped]
import kazoo.exceptions  # type: ignore[import-untyped]
import pytest

from integration_tests.apache import session_at
from integration_tests.conftest import or_skip
from integration_tests.old_tools import OldTools
from integration_tests.process import ChildProcess
from integration_tests.test_documents import output_of, program
from pybroker.classic import ClassicConsumer, GroupIsCoordinated, Stream
from pybroker.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from pybroker.client.errors import JoinRefused
from pybroker.records.consumed import ConsumerRecord
from pybroker.testing.cluster import Cluster
from unit_tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.ours

PARTITIONS: Final = 6
SESSION_MS: Final = 20_000
"""A session timeout in ms so long that it does not expire while the machine stalls: a consumer
whose event loop stalls for two thirds of the timeout ends its session.
"""
QUICK: Final[Mapping[str, str]] = {
    "auto.offset.reset": "smallest",
    "auto.commit.interval.ms": "100",
    "zookeeper.session.timeout.ms": str(SESSION_MS),
    "zookeeper.connection.timeout.ms": "20000",
    "rebalance.backoff.ms": "500",
    "rebalance.max.retries": "40",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # The broker never dies: it keeps its session, and creates topics, even if the machine is slow.
    config = {"zookeeper.session.timeout.ms": 18_000}
    with Cluster(1, data=tmp_path_factory.mktemp("cluster"), config=config) as cluster:
        yield cluster


async def make_topic(cluster: Cluster, topic: str, partitions: int) -> None:
    async with Admin(cluster.bootstrap) as admin:
        (made,) = await admin.create_topics([NewTopic(topic, partitions)])
        made.check()


async def send(cluster: Cluster, topic: str, numbers: range, partitions: int) -> None:
    """Send each number as a value to the partitions in turn."""
    async with Producer(cluster.bootstrap, linger_ms=5) as producer:
        sent = [
            await producer.send(topic, b"%d" % number, partition=number % partitions)
            for number in numbers
        ]
        for each in sent:
            await each


async def read(stream: Stream, count: int) -> list[ConsumerRecord]:
    async with asyncio.timeout(PATIENCE_S):
        return [await stream.getone() for _ in range(count)]


async def shell(cluster: Cluster, *words: str) -> str:
    """Return the last line of `pybroker zookeeper-shell`. The members in our event loop keep
    running meanwhile.
    """
    command = [sys.executable, "-m", "pybroker", "zookeeper-shell", cluster.zookeeper, *words]

    def printed() -> str:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=True
        ).stdout

    return (await asyncio.to_thread(printed)).strip().splitlines()[-1]


async def until_nobody_is_in(cluster: Cluster, group: str) -> None:
    """Wait until the group has no member nodes, because the coordinator answers LeaveGroup before
    it removes the member's node.
    """
    with session_at(cluster.zookeeper) as client:

        def is_empty() -> bool:
            try:
                return not client.get_children(f"/consumers/{group}/ids")
            except kazoo.exceptions.NoNodeError:
                return True

        await asyncio.to_thread(wait_until, is_empty, what=f"{group} has no members")


async def test_one_member_then_two(cluster: Cluster, topic: str) -> None:
    """The test reads the nodes with zookeeper-shell."""
    await make_topic(cluster, topic, 2)
    await send(cluster, topic, range(100), 2)
    group = f"of-{topic}"
    keys = [TopicPartition(topic, number) for number in range(2)]
    options: dict[str, Any] = {"group_id": group, **QUICK}
    async with ClassicConsumer(cluster.zookeeper, consumer_id="a", **options) as first:
        (one,) = (await first.subscribe({topic: 1}))[topic]
        assert {int(record.value or b"") for record in await read(one, 100)} == set(range(100))
        assert first.owned() == dict.fromkeys(keys, f"{group}_a-0")
        assert await shell(cluster, "ls", f"/consumers/{group}/ids") == f"[{group}_a]"
        registered = json.loads(await shell(cluster, "get", f"/consumers/{group}/ids/{group}_a"))
        assert registered.pop("timestamp").isdigit()
        assert registered == {"version": 1, "subscription": {topic: 1}, "pattern": "static"}
        assert await shell(cluster, "get", f"/consumers/{group}/owners/{topic}/1") == f"{group}_a-0"
        await first.commit()
        assert await shell(cluster, "get", f"/consumers/{group}/offsets/{topic}/0") == "50"
        async with ClassicConsumer(cluster.zookeeper, consumer_id="b", **options) as second:
            (two,) = (await second.subscribe({topic: 1}))[topic]
            assert (first.owned(), second.owned()) == (
                {keys[0]: f"{group}_a-0"},
                {keys[1]: f"{group}_b-0"},
            )
            await send(cluster, topic, range(100, 110), 2)
            assert {int(record.value or b"") % 2 for record in await read(one, 5)} == {0}
            assert {int(record.value or b"") % 2 for record in await read(two, 5)} == {1}
            await second.commit()
        assert await shell(cluster, "get", f"/consumers/{group}/offsets/{topic}/1") == "55"
        assert await shell(cluster, "ls", f"/consumers/{group}/ids") == f"[{group}_a]"
        await send(cluster, topic, range(110, 120), 2)
        assert {int(record.value or b"") for record in await read(one, 10)} == set(range(110, 120))


async def test_a_group_is_coordinated_or_classic(cluster: Cluster, topic: str) -> None:
    """Members of the first kind stay in the group and continue to read."""
    await make_topic(cluster, topic, 2)
    group = f"of-{topic}"
    options: dict[str, Any] = {"group_id": group, **QUICK}
    async with Consumer(cluster.bootstrap, group_id=group) as coordinated:
        coordinated.subscribe([topic])
        async with asyncio.timeout(PATIENCE_S):
            while len(coordinated.assignment()) < 2:
                await coordinated.getmany(timeout_ms=1_000)
        async with ClassicConsumer(cluster.zookeeper, **options) as refused:
            with pytest.raises(GroupIsCoordinated, match=group):
                await refused.subscribe([topic])
        await coordinated.getmany(timeout_ms=1_000)
        assert len(coordinated.assignment()) == 2
    await until_nobody_is_in(cluster, group)
    async with ClassicConsumer(cluster.zookeeper, **options) as classic:
        (stream,) = (await classic.subscribe([topic]))[topic]
        async with Consumer(cluster.bootstrap, group_id=group) as refused_too:
            refused_too.subscribe([topic])
            with pytest.raises(JoinRefused, match="INCONSISTENT_GROUP_PROTOCOL"):
                await refused_too.getmany(timeout_ms=20_000)
        await send(cluster, topic, range(10), 2)
        assert {int(record.value or b"") for record in await read(stream, 10)} == set(range(10))


@pytest.mark.parametrize("version", ["0.9.0.1", "1.1.1"])
async def test_kafkas_tools_know_our_members_offsets_and_lag(
    cluster: Cluster, topic: str, version: str
) -> None:
    old = or_skip(lambda: OldTools(version, cluster.zookeeper))
    await make_topic(cluster, topic, 2)
    await send(cluster, topic, range(20), 2)
    group = f"of-{topic}"
    options: dict[str, Any] = {"group_id": group, **QUICK}
    async with ClassicConsumer(cluster.zookeeper, consumer_id="a", **options) as consumer:
        await consumer.subscribe([topic])
        await consumer.commit({TopicPartition(topic, number): 3 + number for number in range(2)})
        asked: list[tuple[str, ...]] = [("consumer-groups", "--describe", "--group", group)]
        if version == "0.9.0.1":
            asked.append(("consumer-offset-checker", "--group", group, "--topic", topic))

        def told(*words: str) -> list[list[str]]:
            """Wait until the tool prints these values. It prints a dash for an offset that it does
            not get soon.
            """
            ran = old(*words)
            assert ran.code == 0, ran
            rows = [line.replace(",", " ").split() for line in ran.lines if topic in line]
            return [[*row[-4:-1], row[-1].removesuffix("-0")] for row in rows]

        right = [["3", "10", "7", f"{group}_a"], ["4", "10", "6", f"{group}_a"]]
        for words in asked:
            is_told = partial(lambda words: told(*words) == right, words)
            await asyncio.to_thread(wait_until, is_told, what=f"{words} gives {right}")


def test_the_program_of_the_page(cluster: Cluster) -> None:
    code = program("docs/classic.rst", "import asyncio")
    for written, real in (
        ("127.0.0.1:9092", cluster.bootstrap),
        ("127.0.0.1:2181", cluster.zookeeper),
    ):
        assert written in code
        code = code.replace(written, real)
    for count in (2, 4):  # the second run continues at the group's committed offsets
        printed = output_of("-c", code).splitlines()
        assert sorted(printed[:8]) == sorted(f"{n % 4} b'{n} EUR'" for n in range(8))
        assert printed[8:] == [f"bills-{n} {n // 2} has {count}" for n in range(4)]


class Member:
    """A member in a separate process, and the events that it has printed."""

    def __init__(self, cluster: Cluster, group: str, name: str, topic: str) -> None:
        self.name = name
        self.ended_at: float | None = None
        """The time of the member's kill or pause, until which it owned its unreleased
        partitions.
        """
        words = [f"{option}={value}" for option, value in QUICK.items()]
        self.process = ChildProcess(
            [
                sys.executable,
                *("-m", "integration_tests.classic_member"),
                *(cluster.zookeeper, group, name, topic, *words),
            ]
        )

    def said(self, event: str) -> list[dict[str, Any]]:
        lines = [line for line in self.process.output.splitlines() if line.startswith("{")]
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [entry for entry in found if entry["event"] == event]

    def values(self) -> set[int]:
        return {entry["value"] for entry in self.said("record")}

    def spans(self) -> list[tuple[int, float, float]]:
        """Return (partition, begin, end) of each ownership of a partition, in monotonic seconds."""
        ends = {"lost", "expired"}
        since: dict[int, float] = {}
        found = []
        entries = [entry for name in ("got", *ends) for entry in self.said(name)]
        for entry in sorted(entries, key=lambda entry: float(entry["at"])):
            for partition in entry["partitions"]:
                if entry["event"] == "got":
                    since[partition] = entry["at"]
                    continue
                end = entry["at"] if entry["event"] == "lost" else self.ended_at
                assert end is not None
                found.append((partition, since.pop(partition), end))
        assert self.ended_at is not None or not since
        found += [(partition, start, self.ended_at or 0.0) for partition, start in since.items()]
        return found


class Load:
    """A thread that sends numbers to the partitions of a topic in turn, until it is stopped."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.sent = 0
        self._topic = topic
        self._cluster = cluster
        self._ending = False

    async def run(self) -> None:
        async with Producer(self._cluster.bootstrap, linger_ms=2) as producer:
            while not self._ending:
                number = self.sent
                sending = await producer.send(
                    self._topic, b"%d" % number, partition=number % PARTITIONS
                )
                await sending
                self.sent += 1

    def end(self) -> None:
        self._ending = True


class Group:
    """The members of a group under load, and their nodes in ZooKeeper."""

    def __init__(self, cluster: Cluster, topic: str, client: kazoo.client.KazooClient) -> None:
        self.name = f"of-{topic}"
        self.members: dict[str, Member] = {}
        self.committed: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        """Partition -> the offsets that were observed in its node, in order."""
        self._cluster = cluster
        self._topic = topic
        self._client = client
        for number in range(PARTITIONS):
            path = f"/consumers/{self.name}/offsets/{topic}/{number}"
            client.DataWatch(path, partial(self._note, number))

    def _note(self, number: int, data: bytes | None, *_: object) -> None:
        if data:
            self.committed[number].append(int(data))

    def owners(self) -> list[str]:
        """Return the name of the owning member, for each owned partition."""
        found = []
        path = f"/consumers/{self.name}/owners/{self._topic}"
        for number in range(PARTITIONS):
            with suppress(kazoo.exceptions.NoNodeError):
                text = self._client.get(f"{path}/{number}")[0].decode()
                found.append(text.removeprefix(f"{self.name}_").rpartition("-")[0])
        return found

    async def share(self, *names: str) -> None:
        """Wait until these members own all partitions, each its share, and new records have been
        read.
        """
        want = sorted(names[number % len(names)] for number in range(PARTITIONS))
        await asyncio.to_thread(
            wait_until, lambda: sorted(self.owners()) == want, what=f"{want} own everything"
        )
        before = self.count()
        await asyncio.to_thread(wait_until, lambda: self.count() > before + 50, what="progress")

    def count(self) -> int:
        """Return the number of reads of records. A record that is read again counts again."""
        outputs = [member.process.output for member in self.members.values()]
        return sum(output.count('"record"') for output in outputs)

    def read(self) -> set[int]:
        return {value for member in self.members.values() for value in member.values()}

    def start(self, name: str) -> Member:
        self.members[name] = Member(self._cluster, self.name, name, self._topic)
        return self.members[name]

    def kill(self, name: str) -> None:
        member = self.members[name]
        member.ended_at = time.monotonic()
        member.process.kill9()

    async def oversleep(self, name: str) -> None:
        """Pause a member for longer than its session timeout."""
        member = self.members[name]
        member.ended_at = time.monotonic()
        member.process.signal(signal.SIGSTOP)
        path = f"/consumers/{self.name}/ids/{self.name}_{name}"
        await asyncio.to_thread(
            wait_until, lambda: not self._client.exists(path), what="the session is over"
        )

    def wake(self, name: str) -> None:
        self.members[name].process.signal(signal.SIGCONT)
        self.members[name].process.wait_for_line('"expired"')

    def check(self, sent: int) -> None:
        """Check that each record was read, that committed offsets never decreased, and that no two
        members owned a partition at the same time.
        """
        assert self.read() == set(range(sent))
        for offsets in self.committed.values():
            assert offsets == sorted(offsets)
        spans = sorted(span for member in self.members.values() for span in member.spans())
        assert len(spans) > PARTITIONS
        for (partition, _, end), (other, start, _) in pairwise(spans):
            assert partition != other or end <= start


async def test_members_join_leave_die_and_lose_their_sessions_under_load(
    cluster: Cluster, topic: str
) -> None:
    await make_topic(cluster, topic, PARTITIONS)
    load = Load(cluster, topic)
    with session_at(cluster.zookeeper) as client:
        group = Group(cluster, topic, client)
        sending = asyncio.create_task(load.run())
        try:
            group.start("a")
            await group.share("a")
            group.start("b")
            await group.share("a", "b")
            group.start("c")
            group.start("d")
            await group.share("a", "b", "c", "d")
            group.kill("b")
            await group.share("a", "c", "d")
            await group.oversleep("c")
            await group.share("a", "d")
            group.wake("c")
            await group.share("a", "c", "d")
            assert group.members["a"].process.stop() == 0
            await group.share("c", "d")
            group.start("e")
            await group.share("c", "d", "e")
            load.end()
            await sending
            ends = [-(-(load.sent - number) // PARTITIONS) for number in range(PARTITIONS)]
            await asyncio.to_thread(
                wait_until,
                lambda: [seen[-1] for seen in group.committed.values()] == ends,
                what="everything is committed",
            )
            for name in ("c", "d", "e"):
                group.members[name].process.stop()
        finally:
            load.end()
            for member in group.members.values():
                member.process.close()
        group.check(load.sent)
