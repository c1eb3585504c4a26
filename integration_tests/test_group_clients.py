"""Tests of the common client libraries as group members on our broker: they join, leave, are paused
and killed while records are written, and the checker checks the log of each member.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

import pytest

from integration_tests.broker import Broker, PybrokerProcess
from integration_tests.conftest import or_skip
from integration_tests.faults import final
from integration_tests.faults.settings import Settings
from integration_tests.members.members import Member, Members
from integration_tests.process import ChildProcess
from pybroker.client import Admin, NewTopic
from pybroker.testing.history.checker import check, report
from pybroker.testing.history.loader import load
from pybroker.testing.history.model import History
from pybroker.testing.history.ops import OpsLog

pytestmark = pytest.mark.ours

PARTITIONS: Final = 6
OFFSETS_PARTITIONS: Final = 5
OVERRIDES: Final = {
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "log.segment.bytes": "65536",
}

SESSION_MS: Final = 4_000
STATIC_SESSION_MS: Final = 15_000
"""A session timeout in ms longer than a machine stalls: after its expiry a restarted static member
may be fenced permanently.
"""


class Kind(NamedTuple):
    library: str
    strategy: str
    static: bool = False
    storage: str = "zookeeper"


KINDS: Final = {
    "confluent-range": Kind("confluent-kafka", "range"),
    "confluent-cooperative": Kind("confluent-kafka", "cooperative-sticky", storage="kafka"),
    "confluent-static": Kind("confluent-kafka", "range", static=True),
    "kafka-python": Kind("kafka-python", "cooperative-sticky"),
    "aiokafka": Kind("aiokafka", "roundrobin", storage="kafka"),
    "kafkajs": Kind("kafkajs", "roundrobin"),
    "java-cooperative": Kind("java", "cooperative-sticky"),
    "java-static": Kind("java", "range", static=True, storage="kafka"),
    "pybroker": Kind("pybroker", "cooperative-sticky"),
}


class Brokers:
    """One broker for each offset store, created at its first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, PybrokerProcess] = {}

    def __getitem__(self, storage: str) -> Broker:
        if storage not in self._made:
            overrides = {**OVERRIDES, "offsets.storage": storage}
            self._made[storage] = PybrokerProcess(self._folder / storage, overrides=overrides)
            self._made[storage].start()
        return self._made[storage]

    def close(self) -> None:
        for broker in self._made.values():
            broker.close()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with contextlib.closing(Brokers(tmp_path_factory.mktemp("brokers"))) as made:
        yield made


class Trial(Members):
    """A topic, a producer that writes to it continuously, and group members that read it."""

    def __init__(self, broker: Broker, folder: Path, topic: str, partitions: int) -> None:
        self._topic = topic
        self._partitions = partitions
        asyncio.run(self._create(broker.bootstrap))
        super().__init__(
            broker.bootstrap, folder, {topic: partitions}, offsets_partitions=OFFSETS_PARTITIONS
        )
        settings = Settings(
            folder=str(folder),
            bootstrap=broker.bootstrap,
            topic=topic,
            partitions=partitions,
            clients=("idempotent",),
        )
        module = "integration_tests.faults.workload"
        self._load = ChildProcess(
            [sys.executable, "-m", module, settings.encode()], interactive=True
        )
        self._load.wait_for_line("workload runs")

    async def _create(self, bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            (made,) = await admin.create_topics([NewTopic(self._topic, self._partitions, 1)])
            made.check()

    def finish(self, members: Sequence[Member]) -> History:
        """Stop the producer, wait until all records are processed, let all members leave, and check
        the history.
        """
        self._load.ask("stop-producers", "producers stopped")
        with contextlib.closing(OpsLog(self.folder, "final")) as log:
            ends = final.read_all(self.bootstrap, self._topic, self._partitions, log)
        self.wait_until_all_is_committed({(self._topic, p): end for p, end in ends.items()})
        self.note_calm()
        self.leave_all(members)
        self._load.ask("stop", "workload stopped")
        history = load(self.folder)
        violations = check(history)
        assert not violations, report(violations)
        assert history.groups.processed and history.groups.answers
        return history

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._load.close()
        super().__exit__(kind, error, traceback)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_members_come_go_freeze_and_die(
    brokers: Brokers, tmp_path: Path, topic: str, kind: Kind
) -> None:
    """A group grows from one to three members; one member is paused for longer than its session
    timeout, and one is killed.
    """
    with Trial(brokers[kind.storage], tmp_path, topic, PARTITIONS) as trial:

        def join(name: str) -> Member:
            library, strategy, static = kind.library, kind.strategy, kind.static
            again = functools.partial(trial.join, strategy=strategy, static=static)
            session_ms = STATIC_SESSION_MS if static else SESSION_MS
            return or_skip(lambda: again(library, name, group=topic, session_ms=session_ms))

        a = join("a")
        trial.wait_until_shared(a)
        trial.wait_for_commits(topic)
        b, c = join("b"), join("c")
        trial.wait_until_shared(a, b, c)
        trial.wait_for_commits(topic)

        b.freeze()
        trial.wait_until_shared(a, c)
        trial.wait_for_commits(topic)
        b.wake()
        trial.wait_until_shared(a, b, c)
        trial.wait_for_commits(topic)

        c.kill()
        trial.wait_until_shared(a, b)
        a.leave()
        trial.wait_until_shared(b)
        trial.finish([b])


@pytest.mark.parametrize("library", ["java", "pybroker"])
def test_a_restarted_static_member_disturbs_no_other_member(
    brokers: Brokers, tmp_path: Path, topic: str, library: str
) -> None:
    with Trial(brokers["zookeeper"], tmp_path, topic, PARTITIONS) as trial:

        def join(name: str) -> Member:
            # The next life has to begin within the session of the one before.
            again = functools.partial(trial.join, static=True, session_ms=60_000)
            return or_skip(lambda: again(library, name, group=topic))

        members = [join("a"), join("b")]
        generation = trial.wait_until_shared(*members)
        trial.wait_for_commits(topic)
        before = members[1].held[1]
        members[1].leave()
        members[1] = join("b")
        assert trial.wait_until_shared(*members) == generation
        assert members[1].held[1] == before
        trial.finish(members)


def test_clients_of_all_kinds_in_one_group(brokers: Brokers, tmp_path: Path, topic: str) -> None:
    """Six members of all available libraries agree on the assignor `range`."""
    libraries = ["confluent-kafka", "kafka-python", "aiokafka", "pybroker", "java"]
    with Trial(brokers["zookeeper"], tmp_path, topic, PARTITIONS) as trial:
        members = []
        for library in libraries:
            with contextlib.suppress(pytest.skip.Exception):
                join = functools.partial(trial.join, library, library, group=topic)
                members.append(or_skip(join))
        members.append(trial.join("confluent-kafka", "sixth", group=topic))
        trial.wait_until_shared(*members)
        trial.wait_for_commits(topic)
        trial.leave_all(members[1:3])
        del members[1:3]
        trial.wait_until_shared(*members)
        trial.finish(members)


def test_groups_beside_each_other_and_members_in_reserve(
    brokers: Brokers, tmp_path: Path, topic: str
) -> None:
    """Each group gets every record, and within a group one member gets each record. An idle member
    takes over when another member dies.
    """
    with Trial(brokers["kafka"], tmp_path, topic, 2) as trial:
        workers = ("confluent-kafka", "pybroker", "pybroker", "confluent-kafka")
        queue = [
            trial.join(library, f"q{number}", group=f"{topic}-queue")
            for number, library in enumerate(workers)
        ]
        alone = trial.join("pybroker", "s", group=f"{topic}-subscriber")
        trial.wait_until_shared(*queue, idle=2)
        trial.wait_until_shared(alone)
        trial.wait_for_commits(f"{topic}-queue")
        busy = next(member for member in queue if member.held[1])
        busy.kill()
        queue.remove(busy)
        trial.wait_until_shared(*queue, idle=1)
        history = trial.finish([*queue, alone])
    done: dict[str, set[tuple[tuple[str, int], int]]] = defaultdict(set)
    for each in history.groups.processed:
        done[each.group].add((each.partition, each.offset))
    assert len(done) == 2 and done[f"{topic}-queue"] == done[f"{topic}-subscriber"]
