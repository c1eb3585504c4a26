"""Tests that followers of idle leaders let their fetches wait longer, until something changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from pybroker.replication.catch_up import CatchUp
from pybroker.replication.fetcher import _IDLE_SHARE, _QUIET_FETCHES
from pybroker.replication.leader_state import LOOK_SHARE, REVIEW_SHARE
from unit_tests.replication.copying import Group

USUAL_MS = 3
IDLE_MS = 60


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Group]:
    group = Group(tmp_path)
    group.options = replace(
        group.options,
        replica_fetch_wait_max_ms=USUAL_MS,
        pybroker_replica_fetch_idle_wait_max_ms=IDLE_MS,
    )
    await group.reopen(2)
    yield group
    await group.close()


async def reopen(group: Group, **options: int) -> None:
    group.options = replace(group.options, **options)  # type: ignore[arg-type]
    await group.reopen(2)


async def until_longer(group: Group) -> list[int]:
    """Wait until a fetch may wait longer than usual. Return the waits of the fetches since the
    last call."""
    group.waits_ms.clear()
    await group.until(lambda: group.waits_ms[-1:] > [USUAL_MS])
    return list(group.waits_ms)


async def test_a_fetch_waits_longer_after_quiet_fetches_and_not_after_a_change(
    pair: Group,
) -> None:
    await pair.lead(1, 0)
    assert (await until_longer(pair))[-1] == IDLE_MS
    pair[1].append(b"a")
    # The first one reports the new log end.
    assert await until_longer(pair) == [USUAL_MS] * (_QUIET_FETCHES + 1) + [IDLE_MS]


async def test_a_moved_high_watermark_ends_the_longer_waits(tmp_path: Path) -> None:
    trio = Group(tmp_path, 3)
    await reopen(
        trio,
        replica_fetch_wait_max_ms=USUAL_MS,
        pybroker_replica_fetch_idle_wait_max_ms=IDLE_MS,
    )
    trio.cut.add((3, 1))
    await trio.lead(1, 0)
    trio[1].append(b"a")
    await until_longer(trio)
    trio.cut.clear()
    await trio.until(lambda: trio[2].partition().high_watermark == 1)
    assert len(await until_longer(trio)) > 1  # not the next fetch
    await trio.close()


async def test_a_failure_ends_the_longer_waits(pair: Group) -> None:
    await pair.lead(1, 0)
    await until_longer(pair)
    pair.cut.add((2, 1))
    pair.waits_ms.clear()
    await pair.until(lambda: len(pair.waits_ms) > 3)
    assert set(pair.waits_ms) == {USUAL_MS}
    pair.cut.clear()
    assert len(await until_longer(pair)) > _QUIET_FETCHES


async def test_the_lag_time_limits_the_longer_waits(pair: Group) -> None:
    await reopen(pair, replica_lag_time_max_ms=5 * 10)
    await pair.lead(1, 0)
    assert (await until_longer(pair))[-1] == 10


async def test_a_shorter_idle_wait_has_no_effect(pair: Group) -> None:
    await reopen(pair, pybroker_replica_fetch_idle_wait_max_ms=USUAL_MS - 1)
    await pair.lead(1, 0)
    await pair.until(lambda: len(pair.waits_ms) > 3 * _QUIET_FETCHES)
    assert set(pair.waits_ms) == {USUAL_MS}


async def test_a_fetch_waits_as_usual_while_a_replica_is_incomplete(
    pair: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def incomplete(*_: object) -> bool:
        return True

    monkeypatch.setattr(CatchUp, "look", incomplete)
    await pair.lead(1, 0)
    await pair.until(lambda: len(pair.waits_ms) > 3 * _QUIET_FETCHES)
    assert set(pair.waits_ms) == {USUAL_MS}


def test_the_times_of_a_leader_without_proof_fit_into_the_lag_time() -> None:
    assert 2 * _IDLE_SHARE < LOOK_SHARE, "idle followers would make the leader ask ZooKeeper"
    assert LOOK_SHARE + REVIEW_SHARE < 0.9, "ZooKeeper's answer needs time"
