"""Tests of decisions: the next state of a partition for each combination of circumstances, as
tables."""

from __future__ import annotations

import pytest

from pybroker.coordinator.controller.decisions import Circumstances, decide_repair
from pybroker.coordinator.controller.leaders import Elected, offline
from pybroker.coordinator.controller.partitions import (
    NO_VERSION,
    Partition,
    PartitionStatus,
    Reason,
    StateWrite,
)
from pybroker.model import NO_LEADER, PartitionState
from unit_tests.coordinator.controller.cluster import key

KEY = key("orders-0")
NON_EXISTENT, NEW, ONLINE, OFFLINE = PartitionStatus


def state(
    leader: int, isr: tuple[int, ...], eligible: tuple[int, ...] = (), epoch: int = 3
) -> PartitionState:
    return PartitionState(leader, epoch, isr, controller_epoch=1, eligible=eligible)


@pytest.mark.parametrize(
    ("replicas", "before", "live", "stale", "unclean", "expected"),
    [
        pytest.param((1, 2, 3), state(9, (3, 2)), {1, 2, 3}, (), False, Elected(2, (3, 2)),
                     id="first-assigned-in-sync-and-live"),
        pytest.param((1, 2, 3), state(1, (1, 2, 3)), {2, 3}, (), False, Elected(2, (2, 3)),
                     id="isr-shrinks-to-the-live"),
        pytest.param((1, 2, 3), state(1, (1, 2, 3)), {1, 2, 3}, (1,), False, Elected(2, (2, 3)),
                     id="a-restarted-leader-is-replaced"),
        pytest.param((1, 2), state(1, (1,), (2,)), {1, 2}, (1,), False, Elected(1, (1,)),
                     id="a-restarted-last-member-comes-before-the-eligible"),
        pytest.param((1, 2, 3), state(1, (3, 2)), {2, 3}, (2, 3), False, Elected(2, (2,)),
                     id="of-several-restarted-one-leads-and-the-others-catch-up"),
        pytest.param((1, 2), state(1, (1,)), {2}, (), False, None, id="no-in-sync-replica-is-live"),
        pytest.param((1, 2), state(1, (1,)), {2}, (), True, Elected(2, (2,), unclean=True),
                     id="unclean-only-if-asked"),
        pytest.param((1, 2), state(1, (1,)), {1, 2}, (), True, Elected(1, (1,)),
                     id="unclean-allowed-but-not-needed"),
        pytest.param((1, 2), state(1, (1,)), {1, 2}, (1,), True, Elected(1, (1,)),
                     id="in-sync-before-its-restart-precedes-unclean"),
        pytest.param((1, 2, 3), state(1, (1,), (3, 2)), {2, 3}, (), True, Elected(2, (2,)),
                     id="eligible-before-unclean"),
        pytest.param((1, 2), state(1, (1,), (2,)), set(), (), True, None, id="no-replica-is-live"),
        pytest.param((2,), state(1, (1, 2)), {1, 2}, (), False, Elected(2, (1, 2)),
                     id="only-assigned-replicas-lead"),
    ],
)  # fmt: skip
def test_offline_election(
    replicas: tuple[int, ...],
    before: PartitionState,
    live: set[int],
    stale: tuple[int, ...],
    unclean: bool,
    expected: Elected | None,
) -> None:
    assert offline(replicas, before, live, stale=stale, unclean=unclean) == expected


@pytest.mark.parametrize(
    ("replicas", "live", "leader", "isr"),
    [((1, 2, 3), {1, 2, 3}, 1, (1, 2, 3)), ((3, 1, 2), {2, 1}, 1, (1, 2)), ((3,), {3}, 3, (3,))],
)
def test_opening_a_new_partition(
    replicas: tuple[int, ...], live: set[int], leader: int, isr: tuple[int, ...]
) -> None:
    write = decide_repair(Partition(KEY, replicas, NEW), Circumstances(live, live, 6))
    opened = PartitionState(leader, 0, isr, 6)
    assert write == StateWrite(KEY, opened, NO_VERSION, Reason.NEW_PARTITION)
    assert write.creates


def test_a_new_partition_without_a_live_replica_waits() -> None:
    assert decide_repair(Partition(KEY, (1, 2), NEW), Circumstances({3}, {3}, 6)) is None


def repaired(
    before: PartitionState,
    live: set[int],
    *,
    stale: tuple[int, ...] = (),
    required: int = 1,
    unclean: bool = False,
    leaving: set[int] = frozenset(),  # type: ignore[assignment]
) -> StateWrite | None:
    """Return the decision for a partition on the brokers 1, 2 and 3."""
    status = ONLINE if before.leader in live and before.leader not in stale else OFFLINE
    now = Circumstances(live, live - leaving, 6, stale, required, unclean)
    write = decide_repair(Partition(KEY, (1, 2, 3), status, before, 8), now)
    if write is not None:
        assert write.state.leader_epoch == before.leader_epoch + 1
        assert write.state.controller_epoch == 6
        assert write.state.leader in (*write.state.isr, NO_LEADER)
        assert set(write.state.isr).isdisjoint(write.state.eligible)
        assert write.expected_version == 8
    return write


@pytest.mark.parametrize(
    ("before", "live", "after"),
    [
        pytest.param(state(1, (1, 2, 3)), {1, 2, 3}, None, id="nothing-is-wrong"),
        pytest.param(state(1, (1, 2, 3)), {2, 3}, (2, (2, 3)), id="leader"),
        pytest.param(state(1, (1, 2, 3)), {1, 3}, (1, (1, 3)), id="follower"),
        pytest.param(state(1, (1, 3)), {1, 3}, None, id="out-of-sync-follower"),
        pytest.param(state(1, (1,)), {2, 3}, (-1, (1,)), id="last-in-sync-is-kept"),
        pytest.param(state(1, (1, 2)), {3}, (-1, (1, 2)), id="all-in-sync-are-kept"),
        pytest.param(state(-1, (1, 2)), {3}, None, id="leaderless-stays"),
        pytest.param(state(-1, (1, 2)), {2, 3}, (2, (2,)), id="leaderless-gets-a-leader"),
        pytest.param(state(1, (1,), (2,)), {2}, (2, (2,)), id="eligible-takes-over"),
    ],
)
def test_the_stored_state_when_brokers_are_lost(
    before: PartitionState, live: set[int], after: tuple[int, tuple[int, ...]] | None
) -> None:
    write = repaired(before, live)
    assert (None if write is None else (write.state.leader, write.state.isr)) == after


@pytest.mark.parametrize(
    ("before", "stale", "after"),
    [
        pytest.param(state(1, (1, 2, 3)), (2,), (1, (1, 3)), id="follower"),
        pytest.param(state(1, (1, 2, 3)), (1,), (2, (2, 3)), id="leader"),
        pytest.param(state(1, (1, 2, 3)), (1, 2), (3, (3,)), id="leader-and-follower"),
        pytest.param(state(1, (1,)), (1,), (1, (1,)), id="the-last-leads-with-a-new-epoch"),
        pytest.param(state(1, (1, 2)), (1, 2), (1, (1,)), id="all"),
    ],
)
def test_a_restarted_replica_leaves_the_isr_before_it_gets_a_role(
    before: PartitionState, stale: tuple[int, ...], after: tuple[int, tuple[int, ...]]
) -> None:
    write = repaired(before, {1, 2, 3}, stale=stale)
    assert write is not None
    assert (write.state.leader, write.state.isr) == after


@pytest.mark.parametrize(
    ("before", "live", "required", "eligible"),
    [
        pytest.param(state(1, (1, 2, 3)), {1, 2}, 2, (), id="large-enough"),
        pytest.param(state(1, (1, 2, 3)), {1}, 2, (2, 3), id="too-small"),
        pytest.param(state(1, (1, 2)), {2}, 2, (1,), id="by-an-election"),
        pytest.param(state(1, (1, 2), (3,)), {1}, 3, (2, 3), id="the-earlier-stay"),
        pytest.param(state(1, (1,), (2, 3)), {2, 3}, 2, (1, 3), id="one-of-them-leads"),
        pytest.param(state(1, (1,), (2, 3)), {2, 3}, 1, (), id="no-longer-asked-for"),
        pytest.param(state(1, (1,), (2,)), {3}, 2, (2,), id="no-replica-leads"),
    ],
)
def test_a_replica_that_leaves_a_too_small_isr_stays_eligible(
    before: PartitionState, live: set[int], required: int, eligible: tuple[int, ...]
) -> None:
    write = repaired(before, live, required=required)
    assert write is not None
    assert write.state.eligible == eligible


def test_after_an_unclean_election_no_other_replica_is_eligible() -> None:
    write = repaired(state(1, (1,)), {3}, required=2, unclean=True)
    assert write is not None
    assert (write.state.leader, write.state.isr, write.state.eligible) == (3, (3,), ())
    assert write.unclean
    assert write.reason is Reason.UNCLEAN_ELECTION


def test_a_broker_that_is_about_to_stop_is_not_elected_but_leads_on() -> None:
    assert repaired(state(1, (1, 2)), {1, 2}, leaving={1}) is None
    write = repaired(state(3, (3, 1, 2)), {1, 2}, leaving={1})
    assert write is not None
    assert (write.state.leader, write.state.isr) == (2, (2,))
