"""Tests of the partition's statuses and the allowed transitions, as tables."""

from __future__ import annotations

import itertools

import pytest

from pybroker.coordinator.controller.partitions import (
    LEGAL_MOVES,
    NO_VERSION,
    Partition,
    PartitionStatus,
    StateNode,
    found,
    registered_since,
    stored,
)
from pybroker.errors import IllegalMove
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
    ("node_written", "registered", "expected"),
    [
        pytest.param(None, 50, NEW, id="no-state"),
        pytest.param(60, 50, ONLINE, id="appointed-after-it-registered"),
        pytest.param(40, 50, OFFLINE, id="registered-again-since"),
        pytest.param(60, None, OFFLINE, id="not-registered"),
    ],
)
def test_the_status_of_a_partition_in_a_new_controller(
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


def test_isr_members_registered_after_the_last_write_are_found() -> None:
    node = StateNode(state(1, (1, 2, 3)), 4, written=60, data=b"{}")
    brokers = {1: Broker(1, (), epoch=50), 2: Broker(2, (), epoch=61), 4: Broker(4, (), epoch=62)}
    assert registered_since(node, brokers) == {2}
    assert found(KEY, (1, 2, 3), node, brokers).status is ONLINE
