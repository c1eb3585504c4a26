"""Shrinking, on runners that fail for a reason that is known."""

from __future__ import annotations

from collections.abc import Callable

from pybroker.testing.simulation.schedule import FaultEvent, Options, Schedule
from pybroker.testing.simulation.shrink import Shrunk, shrink


def noisy(*events: FaultEvent, noise: int = 40) -> Schedule:
    """A schedule with these events among others."""
    others = [FaultEvent(index / 4, "reset", "1", index / 4) for index in range(noise)]
    options = Options(partitions=3, flush=1, producers=3, records_per_s=60.0, planted="some-bug")
    return Schedule("1", options).with_events([*others, *events])


def counted(fails: Callable[[Schedule], bool], schedule: Schedule, **limits: int) -> Shrunk:
    assert fails(schedule)
    runs = []

    def run(schedule: Schedule) -> bool:
        runs.append(str(schedule))
        return fails(schedule)

    shrunk = shrink(schedule, run, **limits)
    assert len(runs) == len(set(runs)) == shrunk.runs
    assert fails(shrunk.schedule)
    return shrunk


def kinds(schedule: Schedule) -> list[str]:
    return [event.kind for event in schedule.events]


def test_what_has_no_part_in_the_failure_goes() -> None:
    kill = FaultEvent(3.217, "kill", "leader/0", 7.9)
    cut = FaultEvent(5.123, "cut", "1>2", 9.871)

    def fails(schedule: Schedule) -> bool:
        return {"kill", "cut"} <= set(kinds(schedule))

    shrunk = counted(fails, noisy(kill, cut))
    assert kinds(shrunk.schedule) == ["kill", "cut"]
    assert shrunk.schedule.options == Options(
        partitions=1, producers=1, records_per_s=1.0, readers=0, planted="some-bug"
    )
    first, second = shrunk.schedule.events
    assert (first.at, second.at) == (3, 5)
    assert first.until - first.at < 0.2 and second.until - second.at < 0.5
    assert shrunk.runs < 120


def test_what_the_failure_needs_stays() -> None:
    slow = FaultEvent(2.5, "slow", "1-2", 9.0, (("usual_s", 0.25), ("most_s", 1.75)))

    def fails(schedule: Schedule) -> bool:
        return (
            any(
                event.kind == "slow" and event.parameter("most_s") > 1 and event.until > 6
                for event in schedule.events
            )
            and schedule.options.flush == 1
        )

    shrunk = counted(fails, noisy(slow))
    (event,) = shrunk.schedule.events
    assert event.parameters == slow.parameters
    assert event.until > 6
    assert shrunk.schedule.options.flush == 1


def test_a_failure_without_any_fault_has_none_left() -> None:
    assert counted(lambda schedule: True, noisy()).schedule.events == ()


def test_many_that_are_needed_together_all_stay() -> None:
    pauses = [FaultEvent(float(index), "pause", "1", index + 0.5) for index in range(8)]
    shrunk = counted(lambda each: kinds(each).count("pause") == 8, noisy(*pauses))
    assert kinds(shrunk.schedule) == ["pause"] * 8


def test_it_ends_when_its_runs_are_spent_with_the_best_so_far() -> None:
    kill = FaultEvent(3.217, "kill", "leader/0", 7.9)
    shrunk = counted(lambda each: "kill" in kinds(each), noisy(kill), runs_max=3)
    assert shrunk.runs == 3
    assert len(shrunk.schedule.events) < 41
