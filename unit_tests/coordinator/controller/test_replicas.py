"""Tests of the statuses of replicas while their topic is being deleted, and the allowed
transitions, as tables."""

from __future__ import annotations

import itertools

import pytest

from pybroker.coordinator.controller.deletion import Deletion
from pybroker.coordinator.controller.replicas import LEGAL_MOVES, ReplicaStatus, moved
from pybroker.errors import IllegalMove
from unit_tests.coordinator.controller.cluster import key

NON_EXISTENT, ONLINE, OFFLINE, STARTED, SUCCESSFUL, INELIGIBLE = ReplicaStatus
KEY = (1, key("orders-0"))


def test_every_move_is_legal_or_refused() -> None:
    legal = {
        (NON_EXISTENT, ONLINE),
        (NON_EXISTENT, OFFLINE),
        (ONLINE, STARTED),
        (OFFLINE, INELIGIBLE),
        (STARTED, SUCCESSFUL),
        (STARTED, INELIGIBLE),
        (INELIGIBLE, STARTED),
        (SUCCESSFUL, STARTED),
        (SUCCESSFUL, NON_EXISTENT),
        (INELIGIBLE, NON_EXISTENT),
    }
    assert set(LEGAL_MOVES) == set(ReplicaStatus)
    for source, target in itertools.product(ReplicaStatus, ReplicaStatus):
        if (source, target) in legal:
            assert moved(KEY, source, target) is target
        else:
            with pytest.raises(IllegalMove, match=f"orders-0 broker=1 .* {source.value} to"):
                moved(KEY, source, target)


def deletion() -> Deletion:
    """Return the deletion of `orders`, with two partitions on brokers 1, 2 and 3. Broker 3 is not
    live."""
    return Deletion.begun("orders", {0: (1, 2, 3), 1: (2, 3, 1)}, live={1, 2})


ORDERS = (key("orders-0"), key("orders-1"))


def statuses(found: Deletion) -> list[ReplicaStatus]:
    """Return the statuses of the replicas on brokers 1, 2 and 3. The two replicas of a broker have
    the same status."""
    by_broker: dict[int, set[ReplicaStatus]] = {}
    for (broker_id, _), status in found.replicas.items():
        by_broker.setdefault(broker_id, set()).add(status)
    return [by_broker[broker_id].pop() for broker_id in (1, 2, 3)]


def test_a_deletion_waits_for_live_brokers_only() -> None:
    found = deletion()
    assert statuses(found) == [ONLINE, ONLINE, INELIGIBLE]
    found = found.expecting(1, ORDERS).expecting(2, ORDERS)
    assert statuses(found) == [STARTED, STARTED, INELIGIBLE]
    assert not found.is_confirmed
    found = found.confirmed(1, ORDERS).confirmed(2, ORDERS[:1])
    assert not found.is_confirmed
    found = found.confirmed(2, ORDERS[1:])
    assert statuses(found) == [SUCCESSFUL, SUCCESSFUL, INELIGIBLE]
    assert found.is_confirmed
    assert statuses(found.finished()) == [NON_EXISTENT] * 3


def test_a_deletion_waits_for_a_returned_broker_but_not_for_a_lost_one() -> None:
    found = deletion().expecting(1, ORDERS).expecting(2, ORDERS).confirmed(1, ORDERS)
    found = found.without_broker(1).without_broker(2).without_broker(3)
    assert statuses(found) == [SUCCESSFUL, INELIGIBLE, INELIGIBLE]
    assert found.is_confirmed
    for broker_id in (1, 2, 3):
        found = found.expecting(broker_id, ORDERS)
    assert statuses(found) == [STARTED] * 3


def test_a_confirmation_without_a_request_does_not_count() -> None:
    found = deletion().expecting(1, ORDERS).expecting(2, ORDERS)
    other = found.confirmed(3, ORDERS).confirmed(1, [key("orders-7")]).confirmed(7, ORDERS)
    assert other.replicas == found.replicas
    twice = found.confirmed(1, ORDERS).confirmed(1, ORDERS)
    assert twice.replicas == found.confirmed(1, ORDERS).replicas


def test_a_deletion_does_not_finish_before_all_confirmations() -> None:
    with pytest.raises(IllegalMove, match="DeletionStarted"):
        deletion().expecting(1, ORDERS).expecting(2, ORDERS).confirmed(1, ORDERS).finished()
