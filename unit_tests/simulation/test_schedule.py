"""Tests of schedules: seeds generate all kinds of faults and all options, and the same schedule
each time, also after printing and parsing.
"""

from __future__ import annotations

from collections import Counter

import pytest

from pybroker.testing.simulation import fault_sequences
from pybroker.testing.simulation.kinds import BY_NAME
from pybroker.testing.simulation.schedule import parse
from pybroker.testing.simulation.swarm import generate

SEEDS = [str(number) for number in range(400)]


def test_a_seed_always_gives_the_same_schedule_which_its_text_preserves() -> None:
    for seed in SEEDS:
        schedule = generate(seed)
        assert generate(seed) == schedule
        assert parse(str(schedule)) == schedule


def test_seeds_draw_every_kind_of_fault_and_every_value_of_an_option() -> None:
    schedules = [generate(seed) for seed in SEEDS]
    kinds = Counter(event.kind for schedule in schedules for event in schedule.events)
    assert kinds.keys() == BY_NAME.keys()
    assert min(kinds.values()) >= 10
    for each in ("min_isr", "flush", "session_s", "crash_mean_s", "fetch_bytes"):
        assert len({getattr(schedule.options, each) for schedule in schedules}) > 1
    assert min(len(each.events) for each in schedules) >= 1
    assert max(len(each.events) for each in schedules) <= 50


def test_some_seeds_have_a_fault_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    with_sequences = [generate(seed) for seed in SEEDS]
    monkeypatch.setattr(fault_sequences, "SHARE", 0.0)
    plain = [generate(seed) for seed in SEEDS]
    told = sum(one.events != other.events for one, other in zip(with_sequences, plain, strict=True))
    assert 0.08 < told / len(SEEDS) < 0.16


def test_records_are_lost_only_if_unclean_elections_are_allowed() -> None:
    """The broker that lacks the most records restarts first, and the run waits for its election."""
    schedules = [generate(seed) for seed in SEEDS]
    lossy = [each for each in schedules if each.options.lossy]
    assert 0.03 < len(lossy) / len(SEEDS) < 0.12
    for schedule in lossy:
        _, told = fault_sequences.with_loss(schedule.seed, schedule.options)
        first, *others = told
        assert {event.target for event in told} == {"1", "2", "3"}
        assert max(event.at for event in others) < first.until
        assert first.until < min(event.until for event in others) <= schedule.options.faults_s
        assert set(told) <= set(schedule.events)
    assert not any(
        fault_sequences.with_loss("1", each.options)[1] for each in schedules if each not in lossy
    )


def test_some_seeds_have_transactions_but_none_with_unclean_elections() -> None:
    options = [generate(seed).options for seed in SEEDS]
    transactional = [each for each in options if each.writers or each.loops]
    assert 0.08 < len(transactional) / len(SEEDS) < 0.22
    assert {each.loops for each in transactional} == {0, 1}
    assert not any(each.lossy for each in transactional)
    targets = {event.target for seed in SEEDS for event in generate(seed).events}
    assert "transactions/0" in targets
