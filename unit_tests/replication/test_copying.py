"""Followers copy their leaders' logs: the same bytes, the same epochs, whatever happens between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from unit_tests.replication.copying import Group
from unit_tests.replication.vocabulary import T1


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Group]:
    group = Group(tmp_path)
    yield group
    await group.close()


async def test_a_follower_copies_what_its_leader_has(pair: Group) -> None:
    await pair.lead(1, 0)
    for value in (b"a", b"b", b"c"):
        pair[1].append(value)
    await pair.copied(1)
    assert pair[2].bytes_of() == pair[1].bytes_of() != b""
    assert pair[2].epochs() == pair[1].epochs() == [(0, 0)]


async def test_the_high_watermark_of_the_leader_waits_for_the_follower(pair: Group) -> None:
    pair.cut.add((2, 1))
    await pair.lead(1, 0)
    pair[1].append(b"a")
    assert pair[1].partition().high_watermark == 0
    pair.cut.clear()
    await pair.copied(1)


async def test_a_partition_that_is_added_does_not_wait_for_a_fetch_that_waits(pair: Group) -> None:
    await pair.lead(1, 0)
    await pair.copied(1)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await pair.lead(1, 0, keys=[T1])
    await pair.until(lambda: any(T1 in asked for _, asked in pair.asked))
    assert loop.time() - begun < 0.3
