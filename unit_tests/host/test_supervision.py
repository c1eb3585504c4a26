"""Tests of the supervision of several brokers: when it starts, restarts and stops each of them."""

from __future__ import annotations

import pytest

from pybroker.host.supervision import (
    EXIT_REFUSED,
    PAUSE_MAX_S,
    STEADY_S,
    AllServe,
    Finish,
    Kill,
    Launch,
    LaunchLater,
    State,
    Supervision,
    Terminate,
)

KILLED = -9


def serving(count: int = 3) -> Supervision:
    """Return a supervision whose brokers have all served since second 0."""
    supervision = Supervision(count)
    supervision.begin()
    for broker in range(count):
        supervision.served(broker, 0.0)
    return supervision


def test_all_brokers_are_started_at_once() -> None:
    assert Supervision(3).begin() == [Launch(0), Launch(1), Launch(2)]


def test_readiness_of_all_brokers_is_reported_once() -> None:
    supervision = Supervision(2)
    supervision.begin()
    assert supervision.served(1, 0.0) == []
    assert supervision.served(0, 0.0) == [AllServe()]
    supervision.ended(0, KILLED, 1.0)
    supervision.due(0)
    assert supervision.served(0, 2.0) == []


def test_a_broker_that_ends_is_restarted_alone() -> None:
    supervision = serving()
    (later,) = supervision.ended(1, KILLED, 5.0)
    assert later == LaunchLater(1, 1.0)
    assert supervision.due(1) == [Launch(1)]
    assert [supervision.state(broker) for broker in (0, 2)] == [State.SERVING] * 2


@pytest.mark.parametrize("exit_code", [KILLED, 0, EXIT_REFUSED])
def test_a_broker_that_has_served_is_restarted_after_any_exit_code(exit_code: int) -> None:
    supervision = serving()
    supervision.ended(1, KILLED, 5.0)
    supervision.due(1)
    (later,) = supervision.ended(1, exit_code, 6.0)
    assert isinstance(later, LaunchLater)


def test_restart_pauses_grow_to_a_limit_and_reset_after_steady_service() -> None:
    supervision = serving()
    pauses = []
    for second in range(8):
        (later,) = supervision.ended(1, KILLED, float(second))
        assert isinstance(later, LaunchLater)
        pauses.append(later.pause_s)
        supervision.due(1)
        supervision.served(1, float(second))
    assert pauses == [1, 2, 4, 8, 16, PAUSE_MAX_S, PAUSE_MAX_S, PAUSE_MAX_S]
    assert supervision.ended(1, KILLED, 7 + STEADY_S) == [LaunchLater(1, 1.0)]


def test_a_broker_that_fails_its_first_start_ends_all() -> None:
    supervision = Supervision(3)
    supervision.begin()
    supervision.served(0, 0.0)
    assert supervision.ended(2, EXIT_REFUSED, 1.0) == [Terminate(1)]
    assert supervision.ended(1, 0, 2.0) == [Terminate(0)]
    assert supervision.ended(0, 0, 3.0) == [Finish(EXIT_REFUSED)]


def test_a_broker_killed_before_it_served_is_restarted() -> None:
    supervision = Supervision(2)
    supervision.begin()
    assert supervision.ended(1, KILLED, 1.0) == [LaunchLater(1, 1.0)]


def test_brokers_stop_one_after_another_the_last_one_first() -> None:
    supervision = serving()
    assert supervision.stop() == [Terminate(2)]
    assert supervision.ended(2, 0, 1.0) == [Terminate(1)]
    assert supervision.ended(1, 0, 2.0) == [Terminate(0)]
    assert supervision.ended(0, 0, 3.0) == [Finish(0)]


def test_a_second_stop_stops_all_remaining_brokers_at_once() -> None:
    supervision = serving()
    supervision.stop()
    assert supervision.stop() == [Terminate(1), Terminate(0)]
    assert supervision.stop() == []
    assert supervision.ended(1, 0, 1.0) == []
    assert supervision.ended(2, 0, 1.0) == []
    assert supervision.ended(0, 0, 1.0) == [Finish(0)]


def test_a_broker_that_ends_during_the_stop_is_not_restarted() -> None:
    supervision = serving()
    supervision.stop()
    assert supervision.ended(0, KILLED, 1.0) == []
    assert supervision.ended(2, 0, 1.0) == [Terminate(1)]
    assert supervision.ended(1, 0, 1.0) == [Finish(0)]


def test_a_pausing_broker_is_not_restarted_after_a_stop() -> None:
    supervision = serving(2)
    supervision.ended(1, KILLED, 1.0)
    assert supervision.stop() == [Terminate(0)]
    assert supervision.due(1) == []
    assert supervision.ended(0, 0, 2.0) == [Finish(0)]


def test_a_starting_broker_is_stopped_too() -> None:
    supervision = Supervision(2)
    supervision.begin()
    assert supervision.stop() == [Terminate(1)]
    assert supervision.served(1, 1.0) == []
    assert supervision.ended(1, 0, 1.0) == [Terminate(0)]


def test_a_broker_that_does_not_stop_is_killed_and_the_exit_code_is_1() -> None:
    supervision = serving(2)
    supervision.stop()
    assert supervision.overdue(1) == [Kill(1)]
    assert supervision.ended(1, KILLED, 61.0) == [Terminate(0)]
    assert supervision.overdue(1) == []
    assert supervision.ended(0, 0, 62.0) == [Finish(1)]


def test_a_stop_before_the_first_start_is_the_end() -> None:
    assert Supervision(3).stop() == [Finish(0)]
