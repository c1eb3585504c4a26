"""Tests that programs of two clients consume, transform and produce in transactions, on three
brokers, while coordinators, leaders and the programs are killed: each record is in the output
once and in order."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Final

import pytest

from integration_tests.ranges import make_topic
from integration_tests.test_offsets import tree
from integration_tests.test_transactions import (
    CLUSTER,
    GROUP_KEY,
    TRANSACTION_KEY,
    coordinator_of,
    produce,
)
from integration_tests.transformers import (
    Output,
    Transformer,
    aborted_records,
    input_value,
    output_topic,
)
from pybroker.testing.cluster import Cluster
from unit_tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.ours

PARTITIONS: Final = 2
SLICE: Final = 150
"""Records of each partition."""
CLIENTS: Final = ("java", "confluent")
CONFIG: Final = CLUSTER | {
    "offsets.topic.replication.factor": 3,
    "group.min.session.timeout.ms": 1000,
    "group.initial.rebalance.delay.ms": 0,
}


class Run:
    """Running programs and their cluster. The test writes the input in slices, and kills a process
    while the programs copy a slice."""

    def __init__(self, cluster: Cluster, programs: Sequence[Transformer], output: Output) -> None:
        self.cluster = cluster
        self.programs = programs
        self.output = output
        self._made = 0

    def give(self, records: int) -> None:
        """Write the next slice to each partition of the input. Return when the first records of the
        slice are in the output."""
        before = self._made
        self._made += records
        values = {
            n: [input_value(n, number) for number in range(before, self._made)]
            for n in range(PARTITIONS)
        }
        produce(self.cluster.bootstrap, "input", values)
        self._wait_for(before + 1)

    def finish(self) -> None:
        """Wait until all records of the input are in the output."""
        self._wait_for(self._made)

    def _wait_for(self, records: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.output.count < records:
            assert time.monotonic() < deadline, self._report()
            self.output.poll()
            for program in self.programs:
                program.revive()

    def _report(self) -> str:
        lines = [line for each in self.programs for line in each.report().splitlines()]
        return "\n".join([f"{self.output.count} of {self._made} records are there", *lines])

    def kill_broker(self, choose: Callable[[], int], *, and_programs_of: Sequence[str] = ()) -> int:
        """Kill a broker, and one program of each of some clients. Return the broker when the
        programs have copied the slice without it."""
        self.give(SLICE)
        broker = choose()
        self.cluster.kill(broker)
        self._kill_programs(and_programs_of)
        self.finish()
        return broker

    def restart(self, broker: int) -> None:
        self.cluster.restart(broker)
        self.cluster.wait_until_in_sync()

    def kill_programs(self) -> None:
        """Kill one program of each client."""
        self.give(SLICE)
        self._kill_programs(CLIENTS)
        self.finish()

    def pause_programs(self) -> None:
        """Stop one program of each client for so long that the group removes it. When it continues,
        it may not commit what the others have copied."""
        self.give(SLICE)
        paused = self._first_programs()
        for program in paused:
            program.process.signal(signal.SIGSTOP)
        self.finish()
        for program in paused:
            program.process.signal(signal.SIGCONT)
        self.give(SLICE)
        self.finish()

    def _kill_programs(self, clients: Sequence[str]) -> None:
        for program in self._first_programs():
            if program.client in clients:
                program.kill()

    def _first_programs(self) -> Collection[Transformer]:
        return {each.client: each for each in self.programs}.values()

    def transaction_coordinator(self) -> int:
        return self._coordinator(self.programs[0].name, TRANSACTION_KEY)

    def group_coordinator(self) -> int:
        return self._coordinator(self.programs[0].group, GROUP_KEY)

    def leader(self) -> int:
        return self.cluster.leader(self.programs[0].output, 0)

    def _coordinator(self, name: str, kind: int) -> int:
        address = self.cluster.address(self.cluster.running[0])
        return coordinator_of(address, name, kind)


@contextmanager
def running(
    members: int = 1, *, is_renamed: bool = False, coordinator: int | None = None
) -> Iterator[Run]:
    """Run `members` programs of each client. Check the end of their output. If `coordinator` is
    given, this broker coordinates all groups and transactions."""
    outputs = [output_topic(client) for client in CLIENTS]
    internal = 1 if coordinator is None else 3
    config = CONFIG | {
        "transaction.state.log.num.partitions": internal,
        "offsets.topic.num.partitions": internal,
    }
    with Cluster(3, config=config) as cluster, ExitStack() as stack:
        bootstrap = cluster.bootstrap
        for topic in ("input", *outputs):
            make_topic(bootstrap, topic, PARTITIONS, replicas=3)
        output = stack.enter_context(closing(Output(bootstrap, outputs, PARTITIONS)))
        programs: list[Transformer] = []
        for client in CLIENTS:
            group = name_at(bootstrap, client, GROUP_KEY, coordinator)
            for number in range(members):
                name = name_at(bootstrap, f"{client}-{number}", TRANSACTION_KEY, coordinator)
                program = Transformer(bootstrap, client, group, name, is_renamed=is_renamed)
                programs.append(stack.enter_context(closing(program)))
        run = Run(cluster, programs, output)
        yield run
        run.finish()
        check_end(run)


def name_at(bootstrap: str, prefix: str, kind: int, coordinator: int | None) -> str:
    """Return a name of a group or a transactional id that this broker coordinates."""
    names = (f"{prefix}-{number}" for number in itertools.count())
    return next(
        each for each in names if coordinator in (None, coordinator_of(bootstrap, each, kind))
    )


def test_each_record_is_transformed_once_under_kills(jars: str) -> None:
    """The program of librdkafka is killed with its coordinator, because it might hang until its
    watchdog ends it."""
    assert jars
    coordinator = 1
    with running(coordinator=coordinator) as run:
        run.kill_broker(lambda: coordinator, and_programs_of=["confluent"])
        run.kill_programs()


@pytest.mark.parametrize("is_renamed", [False, True], ids=["same-ids", "new-ids"])
def test_each_record_is_transformed_once_under_many_kills(jars: str, is_renamed: bool) -> None:
    """With new transactional ids, the transactions of a dead program end at their timeout, and
    until then its successor may not read the committed offsets."""
    assert jars
    with running(members=2, is_renamed=is_renamed) as run:
        for choose in (run.transaction_coordinator, run.group_coordinator, run.leader):
            run.restart(run.kill_broker(choose))
        run.kill_programs()
        run.restart(run.kill_broker(run.group_coordinator, and_programs_of=CLIENTS))
        run.pause_programs()


def check_end(run: Run) -> None:
    """Check that transactions were aborted, and that the committed offsets are in ZooKeeper."""
    cluster, end = run.cluster, b"%d" % run.output.count
    for program in run.programs:
        assert aborted_records(cluster.bootstrap, program.output, PARTITIONS) > 0
        folder = f"/consumers/{program.group}/offsets/input"
        ends = {f"{folder}/{number}": end for number in range(PARTITIONS)}
        wait_until(
            lambda folder=folder, ends=ends: (  # type: ignore[misc]
                ends.items() <= tree(cluster.zookeeper, folder).items()
            ),
            what="the offsets of the last transactions are in ZooKeeper",
        )
