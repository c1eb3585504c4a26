"""The partition's statuses, the legal moves, and the decisions, as tables."""

from __future__ import annotations

import itertools

import pytest

from pybroker.coordinator.controller.leaders import Elected, offline
from pybroker.coordinator.controller.partitions import (
    LEGAL_MOVES,
    NO_VERSION,
    IllegalMove,
    Partition,
    PartitionStatus,
    StateNode,
    StateWrite,
    decide_online,
    found,
    stored,
)
from pybroker.coordinator.controller.replicas import decide_loss
from pybroker.model import Broker, PartitionState, TopicPartition

KEY = TopicPartition("orders", 0)
NON_EXISTENT, NEW, ONLINE, OFFLINE = PartitionStatus


def state(
    leader: int, isr: tuple[int, ...], epoch: int = 3, eligible: tuple[int, ...] = ()
) -> PartitionState:
    return PartitionState(leader, epoch, isr, controller_epoch=1, eligible=eligible)


def partition(
    status: PartitionStatus, stored_state: PartitionState | None, replicas: tuple[int, ...]
) -> Partition:
    return Partition(KEY, replicas, status, stored_state, NO_VERSION if stored_state is None else 8)


def test_every_move_is_legal_or_refused() -> None:
    legal = {
        (NON_EXISTENT, NEW),
        (NEW, ONLINE),
        (ONLINE, ONLINE),
        (OFFLINE, ONLINE),
        (NEW, OFFLINE),
        (ONLINE, OFFLINE),
        (OFFLINE, OFFLINE),
        (OFFLINE, NON_EXISTENT),
    }
    assert set(LEGAL_MOVES) == set(PartitionStatus)
    for source, target in itertools.product(PartitionStatus, PartitionStatus):
        moving = Partition(KEY, (1,), source)
        if (source, target) in legal:
            assert moving.moved(target).status is target
        else:
            with pytest.raises(IllegalMove, match=source.value):
                moving.moved(target)


@pytest.mark.parametrize(
    ("replicas", "stored_state", "live", "unclean", "expected"),
    [
        pytest.param((1, 2, 3), state(9, (3, 2)), {1, 2, 3}, False, Elected(2, (3, 2), ()),
                     id="first-assigned-in-sync-and-live"),
        pytest.param((1, 2, 3), state(1, (1, 2, 3)), {2, 3}, False, Elected(2, (2, 3), ()),
                     id="isr-shrinks-to-the-live"),
        pytest.param((1, 2), state(1, (1,)), {2}, False, None, id="nobody-in-sync-is-live"),
        pytest.param((1, 2), state(1, (1,)), {2}, True, Elected(2, (2,), (), unclean=True),
                     id="unclean-only-if-asked"),
        pytest.param((1, 2), state(1, (1,)), {1, 2}, True, Elected(1, (1,), ()),
                     id="unclean-allowed-but-not-needed"),
        pytest.param((1, 2, 3), state(1, (1,), eligible=(3, 2)), {2, 3}, True,
                     Elected(2, (2,), (3,)), id="eligible-before-unclean"),
        pytest.param((1, 2, 3), state(1, (1, 2), eligible=(3,)), {2, 3}, False,
                     Elected(2, (2,), (3,)), id="eligible-are-kept"),
        pytest.param((1, 2), state(1, (1,), eligible=(2,)), set(), True, None, id="nobody-lives"),
        pytest.param((2,), state(1, (1, 2)), {1, 2}, False, Elected(2, (1, 2), ()),
                     id="only-assigned-replicas-lead"),
    ],
)  # fmt: skip
def test_offline_election(
    replicas: tuple[int, ...],
    stored_state: PartitionState,
    live: set[int],
    unclean: bool,
    expected: Elected | None,
) -> None:
    assert offline(replicas, stored_state, live, unclean=unclean) == expected


@pytest.mark.parametrize(
    ("replicas", "live", "leader", "isr"),
    [((1, 2, 3), {1, 2, 3}, 1, (1, 2, 3)), ((3, 1, 2), {2, 1}, 1, (1, 2)), ((3,), {3}, 3, (3,))],
)
def test_opening_a_new_partition(
    replicas: tuple[int, ...], live: set[int], leader: int, isr: tuple[int, ...]
) -> None:
    write = decide_online(partition(NEW, None, replicas), live, controller_epoch=6)
    assert write == StateWrite(KEY, PartitionState(leader, 0, isr, 6), NO_VERSION)
    assert write.creates


def test_a_new_partition_without_a_live_replica_waits() -> None:
    assert decide_online(partition(NEW, None, (1, 2)), {3}, controller_epoch=6) is None


def test_an_election_raises_the_leader_epoch_at_the_known_version() -> None:
    write = decide_online(partition(OFFLINE, state(1, (1, 2)), (1, 2)), {2}, controller_epoch=6)
    assert write == StateWrite(KEY, PartitionState(2, 4, (2,), 6), 8)


@pytest.mark.parametrize(
    ("before", "lost", "live", "after"),
    [
        pytest.param(state(1, (1, 2, 3)), {1}, {2, 3}, (2, (2, 3)), id="leader"),
        pytest.param(state(1, (1, 2, 3)), {2}, {1, 3}, (1, (1, 3)), id="follower"),
        pytest.param(state(1, (1, 3)), {2}, {1, 3}, None, id="out-of-sync-follower"),
        pytest.param(state(1, (1,)), {1}, {2, 3}, (-1, (1,)), id="last-in-sync-is-kept"),
        pytest.param(state(1, (1, 2)), {1, 2}, {3}, (-1, (1, 2)), id="all-in-sync-are-kept"),
        pytest.param(state(-1, (1, 2)), {2}, {3}, None, id="leaderless-stays"),
        pytest.param(state(1, (1,), eligible=(2,)), {1}, {2}, (2, (2,)), id="eligible-takes-over"),
    ],
)
def test_loss_of_brokers(
    before: PartitionState,
    lost: set[int],
    live: set[int],
    after: tuple[int, tuple[int, ...]] | None,
) -> None:
    write = decide_loss(partition(ONLINE, before, (1, 2, 3)), lost, live, controller_epoch=6)
    if after is None:
        assert write is None
        return
    assert write is not None
    assert (write.state.leader, write.state.isr) == after
    assert write.state.leader_epoch == before.leader_epoch + 1
    assert write.state.controller_epoch == 6
    assert write.state.leader in (*write.state.isr, -1)
    assert write.expected_version == 8


@pytest.mark.parametrize(
    ("node_written", "registered", "expected"),
    [
        pytest.param(None, 50, NEW, id="no-state"),
        pytest.param(60, 50, ONLINE, id="appointed-after-it-registered"),
        pytest.param(40, 50, OFFLINE, id="registered-again-since"),
        pytest.param(60, None, OFFLINE, id="not-registered"),
    ],
)
def test_how_a_new_controller_finds_a_partition(
    node_written: int | None, registered: int | None, expected: PartitionStatus
) -> None:
    node = None if node_written is None else StateNode(state(1, (1,)), 4, node_written, b"{}")
    brokers = {} if registered is None else {1: Broker(1, (), epoch=registered)}
    partition_found = found(KEY, (1,), node, brokers)
    assert partition_found.status is expected
    assert (partition_found.state is None) == (node is None)


def test_a_stored_state_without_leader_is_offline() -> None:
    online = partition(ONLINE, state(1, (1,)), (1,))
    assert stored(online, state(-1, (1,)), 9, b"").status is OFFLINE
    assert stored(online, state(1, (1,)), 9, b"").version == 9
