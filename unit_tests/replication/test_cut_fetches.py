"""Tests of a fetcher whose fetch waits at the leader when partitions are added, or when the fetcher
stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pybroker.errors import BrokerError, ErrorCode
from pybroker.ports import FetchedPartition
from unit_tests.patience import PATIENCE_S
from unit_tests.replication.copying import Group
from unit_tests.replication.vocabulary import T0, T1


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Group]:
    """Two brokers; a fetch of the second one waits at the first one."""
    group = Group(tmp_path)
    group.options = replace(group.options, replica_fetch_wait_max_ms=3_600_000)
    await group.reopen(2)
    await group.lead(1, 0)
    await group.until(lambda: group.questions(2, T0) > 0)
    yield group
    await group.close()


async def test_an_added_partition_does_not_wait_for_the_end_of_a_waiting_fetch(pair: Group) -> None:
    await pair.lead(1, 0, keys=[T1])
    await pair.until(lambda: pair.questions(2, T1) > 0)
    assert T0 in pair.asked[-1][1]


async def test_a_fetcher_ends_although_its_fetch_is_cut_short_at_the_same_time(
    pair: Group,
) -> None:
    (fetcher,) = pair[2].fetchers._fetchers.values()
    fetcher._cut_short()
    async with asyncio.timeout(PATIENCE_S):
        await fetcher.stop()


async def test_a_fetcher_survives_a_cut_fetch_that_fails_in_another_way(pair: Group) -> None:
    (fetcher,) = pair[2].fetchers._fetchers.values()
    channel, asked = fetcher._channel, asyncio.Event()

    async def fetch(*_: object) -> Sequence[FetchedPartition]:
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            fetcher._channel = channel
            raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "the test") from None
        raise AssertionError

    fetcher._channel = SimpleNamespace(fetch=fetch, close=channel.close)
    fetcher._cut_short()
    await asked.wait()
    for _ in range(2):
        before = pair.questions(2, T0)
        fetcher._cut_short()
        await pair.until(lambda before=before: pair.questions(2, T0) > before)  # type: ignore[misc]
