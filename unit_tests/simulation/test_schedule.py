"""Schedules: the same for a seed, the same after printing and reading."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from pybroker.testing.simulation import plots
from pybroker.testing.simulation.kinds import BY_NAME, KINDS, Harm, Target, is_target
from pybroker.testing.simulation.schedule import FaultEvent, Options, ScheduleError, parse
from pybroker.testing.simulation.shrink import shrink
from pybroker.testing.simulation.swarm import generate

SEEDS = [str(number) for number in range(400)]
TEXT = """\
# a schedule of pybroker's simulation, form 1
seed 17
option partitions 3
option session_s 1.5
option planted no-fetch-fencing
0.25 kill leader/0 until=2.5
3 cut 1>2 until=4
5 clock controller jump_s=-60
"""


def test_a_schedule_prints_as_it_was_read() -> None:
    schedule = parse(TEXT)
    assert str(schedule) == TEXT
    assert schedule.options == Options(partitions=3, session_s=1.5, planted="no-fetch-fencing")
    assert schedule.events[0] == FaultEvent(0.25, "kill", "leader/0", 2.5)
    assert schedule.events[2].parameter("jump_s") == -60


def test_what_is_not_said_is_as_usual() -> None:
    (event,) = parse("seed 1\n1 slow 1-2 until=5 usual_s=0.25").events
    assert (event.parameter("usual_s"), event.parameter("most_s")) == (0.25, 0.5)


def test_comments_and_the_order_of_lines_do_not_matter() -> None:
    schedule = parse("seed x # of nothing\n\n5 reset 1\n2 reset 2\n")
    assert [event.at for event in schedule.events] == [2, 5]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("1 kill", "expected: seconds, kind, target"),
        ("1 kick 1", "there is no fault kick; known are kill,"),
        ("1 kill 1-2", "kill befalls a broker"),
        ("1 cut 1", "cut befalls two brokers"),
        ("soon kill 1", "could not convert"),
        ("2 kill 1 until=1", "expected 0 <= 2.0 <= 1.0"),
        ("-1 kill 1", "expected 0 <= -1.0"),
        ("1 kill 1 force=9", "kill knows no force"),
        ("option colour red", "there is no option colour"),
        ("option partitions many", "invalid literal"),
        ("seed", "not enough values"),
    ],
)
def test_what_is_no_schedule_is_refused_with_its_line(line: str, why: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse(f"seed 1\n{line}\n")
    assert f"line 2, {line!r}: " in str(caught.value)
    assert why in str(caught.value)


def test_a_schedule_needs_a_seed() -> None:
    with pytest.raises(ScheduleError, match="seed 17"):
        parse("1 kill 1\n")


def test_every_seed_gives_the_same_schedule_again_and_survives_its_text() -> None:
    for seed in SEEDS:
        schedule = generate(seed)
        assert generate(seed) == schedule
        assert parse(str(schedule)) == schedule


def test_every_kind_and_every_value_of_an_option_comes_up() -> None:
    schedules = [generate(seed) for seed in SEEDS]
    kinds = Counter(event.kind for schedule in schedules for event in schedule.events)
    assert kinds.keys() == BY_NAME.keys()
    assert min(kinds.values()) >= 10
    for each in ("min_isr", "flush", "session_s", "crash_mean_s", "fetch_bytes"):
        assert len({getattr(schedule.options, each) for schedule in schedules}) > 1
    assert min(len(each.events) for each in schedules) >= 1
    assert max(len(each.events) for each in schedules) <= 50


def test_a_seed_asks_for_nothing_that_must_lose_what_was_promised() -> None:
    for seed in SEEDS:
        schedule = generate(seed)
        for event in schedule.events:
            kind = BY_NAME[event.kind]
            if kind.target is Target.ALL and kind.harm is not Harm.NONE:
                assert schedule.options.flush
            assert is_target(kind.target, event.target)
            assert 0 <= event.at <= schedule.options.faults_s


def test_fewer_kinds_leave_the_dice_of_the_others_alone() -> None:
    """A fault that is new in the table changes nothing in what the others do."""
    pair = tuple(kind for kind in KINDS if kind.name in ("kill", "pause"))
    compared = 0
    for seed in SEEDS:
        both = generate(seed, kinds=pair).events
        if {event.kind for event in both} == {"pause"}:
            assert both == generate(seed, kinds=pair[1:]).events
            compared += 1
    assert compared > 20


def test_some_seeds_have_a_plot_beside_what_they_have_anyway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Faults and options that the plot does not name are as without it."""
    with_plots = {seed: generate(seed) for seed in SEEDS}
    monkeypatch.setattr(plots, "SHARE", 0.0)
    names = {each.name for each in dataclasses.fields(Options)}
    told = 0
    for seed, schedule in with_plots.items():
        plain = generate(seed)
        changed = {
            name for name in names
            if getattr(schedule.options, name) != getattr(plain.options, name)
        }  # fmt: skip
        assert changed <= {"groups", "members", "records_per_s"}
        assert changed == set() or schedule.events != plain.events
        if not changed:
            assert set(plain.events) <= set(schedule.events)
        told += schedule.events != plain.events
    assert 0.08 < told / len(SEEDS) < 0.16


def test_what_is_made_smaller_loses_nothing_by_itself() -> None:
    """All machines lose power at once, and what they had not synced: it was promised to nobody."""
    schedule = parse("seed 1\noption flush 1\noption partitions 2\n1 blackout all\n2 reset 1\n")
    shrunk = shrink(schedule, lambda each: any(event.kind == "blackout" for event in each.events))
    assert shrunk.schedule.options.flush == 1
    assert [str(event) for event in shrunk.schedule.events] == ["1 blackout all"]
