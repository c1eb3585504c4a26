"""Tests of the authority of a leader: each combination of the roles by the controller, the
answers of ZooKeeper, and the fetches of followers."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from pybroker.model import TopicPartition
from pybroker.replication.authority import NEEDED, SHORT_OF, Authority, authority
from pybroker.replication.leader_state import FollowerFetch
from unit_tests.replication.vocabulary import ME, T0, Replicas, facts
from unit_tests.sources import ROOT

OTHER = 2

TRUTH = """
granted  lease      replicated  heard  asked  authority

NOTHING  *          *           *      *      NOTHING
*        NOTHING    *           *      *      NOTHING
READ     *          *           *      *      READ
ALL      COMMITTED  yes         *      *      COMMITTED
ALL      *          *           no     *      ALONE
ALL      *          *           yes    yes    CONFIRMED
ALL      *          *           yes    no     ALL
"""
"""The first line that matches gives the authority."""
GRANTED = (Authority.NOTHING, Authority.READ, Authority.ALL)
LEASES = (Authority.NOTHING, Authority.COMMITTED, Authority.ALL)
EITHER = (False, True)
COMBINATIONS = list(itertools.product(GRANTED, LEASES, EITHER, EITHER, EITHER))


def word(value: Authority | bool) -> str:
    if isinstance(value, Authority):
        return value.name
    return "yes" if value else "no"


def line_for(combination: tuple[Authority | bool, ...]) -> list[str]:
    words = [word(each) for each in combination]
    lines = [line.split() for line in TRUTH.splitlines()[3:]]
    return next(
        line
        for line in lines
        if all(meant in ("*", found) for meant, found in zip(line, words, strict=False))
    )


@pytest.mark.parametrize("combination", COMBINATIONS, ids=lambda each: "-".join(map(word, each)))
def test_each_combination_has_the_authority_of_its_line(
    combination: tuple[Authority, Authority, bool, bool, bool],
) -> None:
    assert authority(*combination) is Authority[line_for(combination)[-1]]


def test_each_line_is_the_first_for_some_combination() -> None:
    used = {tuple(line_for(each)) for each in COMBINATIONS}
    assert used == {tuple(line.split()) for line in TRUTH.splitlines()[3:]}
    assert {line[-1] for line in used} == {each.name for each in Authority}


def test_each_authority_but_the_last_has_a_reason_not_to_have_more() -> None:
    assert [*SHORT_OF] == list(Authority)[:-1]


def test_handlers_use_exactly_the_rows_of_the_table() -> None:
    text = "".join(
        path.read_text()
        for path in (ROOT / "pybroker").rglob("*.py")
        if path.name != "authority.py"
    )
    rows = {row for row in NEEDED if f'"{row}"' in text}
    assert rows == NEEDED.keys()
    assert set(re.findall(r'NEEDED\["([^"]*)"\]', text)) <= NEEDED.keys()


@pytest.fixture
def replicas(tmp_path: Path) -> Replicas:
    return Replicas(tmp_path)


def reached(replicas: Replicas, key: TopicPartition = T0) -> dict[Authority, Authority]:
    """Return the authority under each lease."""
    manager = replicas.manager
    partition = manager.partition(key)
    return {lease: manager.authority(partition, lease, Authority.ALL) for lease in LEASES}


def under(*authorities: Authority) -> dict[Authority, Authority]:
    return dict(zip(LEASES, authorities, strict=True))


async def test_a_leader_without_other_replicas_needs_no_lease(replicas: Replicas) -> None:
    await replicas.told(facts(isr=(ME,), replicas=(ME,)))
    everything = under(Authority.NOTHING, Authority.ALL, Authority.ALL)
    assert reached(replicas) == everything
    replicas.manager.leadership_yield.add(T0, "its disk is full")
    replicas.clock.advance(1_000)
    assert reached(replicas) == everything


async def test_a_follower_has_no_authority(replicas: Replicas) -> None:
    await replicas.told(facts(leader=OTHER, isr=(ME, OTHER), replicas=(ME, OTHER)))
    assert set(reached(replicas).values()) == {Authority.NOTHING}


async def test_a_replaced_leader_serves_committed_records(replicas: Replicas) -> None:
    await replicas.told(facts(isr=(ME, OTHER), replicas=(ME, OTHER)))
    replicas.partition().superseded(is_replaced=True)
    assert reached(replicas) == under(Authority.NOTHING, Authority.READ, Authority.READ)
    await replicas.told(facts(epoch=1, isr=(ME, OTHER), replicas=(ME, OTHER)))
    assert reached(replicas)[Authority.ALL] is Authority.ALL


async def test_a_leader_without_fetches_of_followers_does_not_return_the_log_end(
    replicas: Replicas,
) -> None:
    manager, clock = replicas.manager, replicas.clock
    await replicas.told(facts(isr=(ME, OTHER), replicas=(ME, OTHER)))

    def with_all() -> Authority:
        assert reached(replicas)[Authority.COMMITTED] is Authority.COMMITTED
        return reached(replicas)[Authority.ALL]

    assert with_all() is Authority.ALL
    manager.leadership_yield.add(T0, "its disk is full")
    assert with_all() is Authority.CONFIRMED
    clock.advance(manager.lag_max_s + 1)
    assert with_all() is Authority.ALONE
    for _ in range(2):  # a fetch is sent after the one before was answered
        manager.follower_fetched(
            replicas.partition(), FollowerFetch(OTHER, 0, 0), clock.monotonic()
        )
    assert with_all() is Authority.CONFIRMED
    manager.leadership_yield.remove(T0)
    assert with_all() is Authority.CONFIRMED
    clock.advance(2 * manager.lag_max_s + 1)
    for _ in range(2):
        manager.follower_fetched(
            replicas.partition(), FollowerFetch(OTHER, 0, 0), clock.monotonic()
        )
    assert with_all() is Authority.ALL
