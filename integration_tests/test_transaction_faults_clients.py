"""Fault tests of librdkafka's transactions: a producer that was paused wakes up after a later
producer, and brokers are restarted in turn.
"""

from __future__ import annotations

import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest

from integration_tests.process import ChildProcess
from integration_tests.ranges import make_topic
from integration_tests.test_transactions import CLUSTER, finish, new_producer, read
from integration_tests.test_transformers import SLICE, running
from integration_tests.transaction_writer import FENCED, PARTITIONS, PER_PARTITION, value_of
from pybroker.host.child_process import wait_until_stopped
from pybroker.testing.cluster import Cluster

pytestmark = pytest.mark.ours

ROUNDS = 6
COMMITS = 3
"""Each writer is paused after that number of commits."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, config=CLUSTER) as started:
        yield started


class Writer:
    """A process that commits transactions."""

    def __init__(self, bootstrap: str, transactional_id: str, topic: str, name: str) -> None:
        module = "integration_tests.transaction_writer"
        words = [bootstrap, transactional_id, topic, name]
        self.name = name
        self.process = ChildProcess([sys.executable, "-m", module, *words])

    def numbers(self, event: str) -> list[int]:
        """Return the numbers of the transactions that the process has reported as `begun` or
        `committed`."""
        return [int(each) for each in re.findall(rf"^{event} (\d+)$", self.process.output, re.M)]

    def pause(self, event: str) -> None:
        """Pause the process after that event of the transaction number COMMITS."""
        self.process.wait_for_line(f"^{event} {COMMITS}$")
        self.process.signal(signal.SIGSTOP)
        wait_until_stopped(self.process.pid)

    def check(self, committed: Sequence[bytes]) -> None:
        """Check a partition's committed values: all records of each acknowledged transaction, all
        or none of a transaction whose commit has no answer, and nothing else."""
        own = Counter(each for each in committed if each.startswith(f"{self.name}:".encode()))
        visible = {int(each.split(b":")[1]) for each in own}
        whole = [value_of(self.name, n, k) for n in visible for k in range(PER_PARTITION * 2)]
        assert set(own) <= set(whole)
        assert set(own.values()) <= {1}, own
        assert len(own) == PER_PARTITION * len(visible), own
        acknowledged = set(self.numbers("committed"))
        assert acknowledged <= visible <= set(self.numbers("begun")), (acknowledged, visible)
        assert len(visible - acknowledged) <= 1


def test_paused_producers_that_wake_up_write_nothing(cluster: Cluster) -> None:
    """Each writer is paused, alternately with an open transaction and while it commits. It wakes
    up when the next writer has committed transactions."""
    topic = "zombies"
    make_topic(cluster.bootstrap, topic, PARTITIONS, replicas=3)
    with ExitStack() as stack:
        writers: list[Writer] = []
        for number in range(ROUNDS):
            writer = Writer(cluster.bootstrap, "same", topic, f"w{number}")
            stack.callback(writer.process.close)
            writer.pause("committed" if number % 2 else "begun")
            if writers:
                writers[-1].process.signal(signal.SIGCONT)
                assert writers[-1].process.wait() == FENCED, writers[-1].process.output
            writers.append(writer)
        writers[-1].process.kill9()
        later = Writer(cluster.bootstrap, "same", topic, "later")
        stack.callback(later.process.close)
        later.process.wait_for_line("^committed 1$")
        later.process.kill9()
        ending = Writer(cluster.bootstrap, "same", topic, "ending")
        stack.callback(ending.process.close)
        ending.process.wait_for_line("^begun 0$")
        ending.process.kill9()
    new_producer(cluster.bootstrap, "same")  # it ends the last transaction
    finish(cluster.bootstrap, topic, PARTITIONS)
    committed = read(cluster.bootstrap, topic, PARTITIONS)
    written = read(cluster.bootstrap, topic, PARTITIONS, "read_uncommitted")
    for partition in range(PARTITIONS):
        for writer in (*writers, later, ending):
            writer.check(committed[partition])
        names = [each.split(b":")[0] for each in written[partition]]
        in_order = [name for at, name in enumerate(names) if names[at - 1 : at] != [name]]
        assert len(in_order) == len(set(in_order)), "a writer wrote after a later one"


def test_each_record_is_transformed_once_while_brokers_are_restarted(jars: str) -> None:
    """Each broker stops by a controlled shutdown while programs of two clients are at work."""
    assert jars
    with running() as run:
        for broker in run.cluster.ids:
            run.give(SLICE)
            assert run.cluster.terminate(broker) == 0
            run.finish()
            run.give(SLICE)
            run.restart(broker)
            run.finish()
