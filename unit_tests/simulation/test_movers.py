"""Tests of the clients that request moves between log directories, and of the checks of the
results.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pybroker.client import Replica
from pybroker.client.errors import RequestTimedOut
from pybroker.model import TopicPartition
from pybroker.replication.manager import ReplicaManager
from pybroker.storage.manager import LogManager
from pybroker.testing.simulation.cluster import SimCluster
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.environment import Environment
from pybroker.testing.simulation.movers import MOVED, ONE_PLACE, Moves
from pybroker.testing.simulation.workload import Workload


@pytest.fixture
def moves() -> Iterator[Moves]:
    """Yield finished moves of the replicas of broker 1."""
    environment = Environment("moves")
    with SimCluster(environment, log_dirs=2) as cluster:
        workload = Workload(
            environment, cluster.machine, cluster.network.sockets, cluster.bootstrap
        )
        cluster.start()
        assert cluster.run_until_ready()
        workload.start()
        assert cluster.run_until(lambda: workload.is_ready, 20)
        moves = Moves(cluster)
        stop = moves.ask(cluster.brokers[1], 0.05, environment.rng("moves"))
        environment.run(environment.now + 3)
        stop()
        assert cluster.run_until(lambda: moves.are_finished, 20)
        yield moves


def rules(moves: Moves, *, disks_were_harmed: bool = False) -> set[str]:
    return {each.rule for each in moves.judge((), disks_were_harmed=disks_were_harmed)}


def test_replicas_move_under_load_and_no_rule_is_broken(moves: Moves) -> None:
    assert moves.counts["accepted"] > 20
    assert not moves.failures
    assert not rules(moves)
    rooms = moves.cluster.brokers[1].rooms
    assert rooms is not None
    assert {rooms.logs.home(key) for key in rooms.logs.all()} == {
        "/broker-1/data",
        "/broker-1/data-2",
    }


@pytest.mark.parametrize("name", ["{}", "{}." + "0" * 32 + "-future"])
def test_a_replica_in_two_directories_breaks_a_rule(moves: Moves, name: str) -> None:
    broker = moves.cluster.brokers[1]
    assert broker.rooms is not None
    partition = next(iter(broker.rooms.logs.all()))
    home = broker.rooms.logs.home(partition)
    (other,) = {*broker.log_dirs} - {home}
    DiskView(broker.disk).make_dirs(f"{other}/{name.format(partition)}")
    assert rules(moves) == {ONE_PLACE}


def test_a_remaining_marker_file_of_a_move_breaks_a_rule(moves: Moves) -> None:
    broker = moves.cluster.brokers[1]
    assert broker.rooms is not None
    log = next(iter(broker.rooms.logs.all().values()))
    DiskView(broker.disk).replace(f"{log.directory}/pybroker.moved", b"")
    assert rules(moves) == {ONE_PLACE}


def test_a_replica_outside_the_requested_directory_breaks_a_rule(
    moves: Moves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogManager, "home", lambda self, partition: "/elsewhere")
    assert rules(moves) == {MOVED}
    assert not rules(moves, disks_were_harmed=True)


def test_an_unanswered_request_to_a_starting_broker_may_replace_a_later_move(
    moves: Moves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A starting broker has opened its logs, but has no replicas yet."""
    broker = moves.cluster.brokers[1]
    rooms = broker.rooms
    assert rooms is not None
    first, second, *_ = rooms.logs.all()
    with monkeypatch.context() as starting:
        starting.setattr(ReplicaManager, "partitions", {})
        request(moves, first, "/broker-1/data", RequestTimedOut("no answer"))
    request(moves, first, "/elsewhere", None)
    assert not rules(moves)
    request(moves, second, "/elsewhere", None)
    assert rules(moves) == {MOVED}


def request(moves: Moves, partition: TopicPartition, directory: str, error: object) -> None:
    broker = moves.cluster.brokers[1]
    before = moves.asked(broker, partition)
    moves.answered(broker, Replica(partition, 1), directory, before, error)
