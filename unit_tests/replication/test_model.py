"""Tests of the replication model: no world violates an invariant, and without any single rule some
world does.

`PYBROKER_MODEL=full` also checks larger models, for some minutes. `pytest -s` shows a shortest way
to each violation.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Final

import pytest

from unit_tests.replication.model import Model
from unit_tests.replication.model_checker import search
from unit_tests.replication.model_worlds import Bounds, Rules

ELECTIONS: Final = Bounds(epochs=2, changes=0, isr=(1, 0, 2))
REPLIES: Final = Bounds(epochs=1, changes=2, lost_replies=1, isr=(0, 1))
WIPES: Final = Bounds(epochs=1, wipes=1, isr=(0, 1))
TWO_OF_THREE: Final = Bounds(epochs=1, required=2, isr=(0, 1), restarts=1)
LOWERED: Final = Bounds(epochs=0, changes=2, required=2, isr=(0, 1), lowered=1)
ALONE: Final = Bounds(epochs=1, required=2, isr=(0,))
"""The ISR of a topic that was created while only one broker was up."""
RECREATED: Final = Bounds(epochs=0, changes=1, recreated=1, isr=(0,))

WITHOUT: Final = {
    "fence_fetches": ELECTIONS,
    "truncate_by_epoch": ELECTIONS,
    "diverging_fetch_counts_not": ELECTIONS,
    "join_from_high_watermark": WIPES,
    "join_from_epoch_start": TWO_OF_THREE,
    "pending_join_counts": WIPES,
    "shrink_counts_when_stored": REPLIES,
    "lost_reply_proves_nothing": REPLIES,
    "writes_are_conditional": REPLIES,
    "incarnation_is_checked": WIPES,
    "small_isr_commits_nothing": ALONE,
    "eligible_commits_nothing": LOWERED,
    "topic_is_checked": RECREATED,
}

SMALL: Final = (ELECTIONS, REPLIES, WIPES, TWO_OF_THREE, LOWERED, ALONE, RECREATED)
FULL: Final = os.environ.get("PYBROKER_MODEL") == "full"
LARGER: Final = (
    Bounds(epochs=2, changes=1),
    Bounds(epochs=1, changes=2, lost_replies=1, wipes=1, required=2, isr=(0, 1)),
    Bounds(epochs=2, changes=1, restarts=1, required=2, isr=(0, 1)),
    Bounds(records=2, epochs=2, changes=1, isr=(1, 0, 2)),
    Bounds(epochs=1, changes=2, recreated=1, lost_replies=1, isr=(0, 1)),
    Bounds(epochs=1, changes=1, recreated=2, restarts=1, isr=(0, 1)),
)


def test_every_rule_is_switched_off_once() -> None:
    assert WITHOUT.keys() == {field.name for field in dataclasses.fields(Rules)}


@pytest.mark.timeout(3600 if FULL else 300)
@pytest.mark.parametrize("bounds", SMALL + (LARGER if FULL else ()), ids=str)
def test_no_committed_record_is_lost(bounds: Bounds) -> None:
    found = search(Model(bounds), worlds_max=20_000_000)
    print(f"{found.worlds} worlds", *found.trace, sep="\n    ")
    assert found.trace == []
    assert found.worlds > 200


@pytest.mark.parametrize("rule", WITHOUT)
def test_each_rule_is_needed(rule: str) -> None:
    found = search(Model(WITHOUT[rule], Rules(**{rule: False})))
    assert found.trace, f"nothing happens without {rule} in {found.worlds} worlds"
    print(f"\nwithout {rule}:", *found.trace, sep="\n    ")
