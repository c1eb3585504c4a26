"""Tests that producer ids are unique in the whole cluster, even after lost replies and restarts."""

from __future__ import annotations

import asyncio
import json

import pytest

from pybroker.coordinator.transactions.producer_ids import (
    ATTEMPTS_MAX,
    BLOCK_SIZE,
    RESERVE_BELOW,
    ProducerIds,
)
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import BrokerError, ErrorCode
from pybroker.ports import NodeStat
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.memory_coord import MemoryCoord


async def client(tree: MemoryTree) -> MemoryCoord:
    coord = MemoryCoord(tree)
    await coord.start()
    return coord


async def draw(ids: ProducerIds, count: int) -> list[int]:
    return [await ids.next_id() for _ in range(count)]


def block(tree: MemoryTree) -> dict[str, object]:
    node = tree.node(paths.PRODUCER_ID_BLOCK)
    assert node is not None
    content: dict[str, object] = json.loads(node[0])
    return content


async def test_the_first_block_begins_at_zero_and_its_bounds_are_strings() -> None:
    tree = MemoryTree()
    ids = ProducerIds(await client(tree), 3)
    assert await draw(ids, 3) == [0, 1, 2]
    assert block(tree) == {"version": 1, "broker": 3, "block_start": "0", "block_end": "999"}
    await ids.close()


async def test_brokers_never_share_an_id() -> None:
    tree = MemoryTree()
    one, two = ProducerIds(await client(tree), 1), ProducerIds(await client(tree), 2)
    drawn = await asyncio.gather(draw(one, 2 * BLOCK_SIZE + 1), draw(two, BLOCK_SIZE + 1))
    everything = [number for numbers in drawn for number in numbers]
    assert len(set(everything)) == len(everything)
    await one.close()
    await two.close()


async def test_concurrent_callers_never_share_an_id() -> None:
    ids = ProducerIds(await client(MemoryTree()), 1)
    drawn = await asyncio.gather(*(ids.next_id() for _ in range(BLOCK_SIZE + 50)))
    assert sorted(drawn) == list(range(BLOCK_SIZE + 50))
    await ids.close()


async def test_the_next_block_is_taken_before_the_current_one_is_used_up() -> None:
    tree = MemoryTree()
    coord = await client(tree)
    ids = ProducerIds(coord, 1)
    await draw(ids, BLOCK_SIZE - RESERVE_BELOW + 1)
    await coord.sync()
    await coord.sync()
    assert block(tree)["block_end"] == "1999"
    coord.suspend()
    assert await draw(ids, RESERVE_BELOW + 5) == list(
        range(BLOCK_SIZE - RESERVE_BELOW + 1, BLOCK_SIZE + 6)
    )
    await ids.close()


async def test_a_restarted_broker_begins_a_new_block() -> None:
    tree = MemoryTree()
    first = ProducerIds(await client(tree), 1)
    await draw(first, 5)
    second = ProducerIds(await client(tree), 1)
    assert await second.next_id() == BLOCK_SIZE
    await first.close()
    await second.close()


class LosesFirstSet(MemoryCoord):
    """Applies the first set, and loses its reply."""

    lost = False

    async def set(self, path: str, data: bytes, version: int = -1) -> NodeStat:
        if not self.lost:
            self.lost = True
            self.lose_reply(applied=True)
        return await super().set(path, data, version)


async def test_after_a_lost_reply_another_block_is_taken() -> None:
    tree = MemoryTree()
    coord = LosesFirstSet(tree)
    await coord.start()
    await coord.create("/latest_producer_id_block")
    ids = ProducerIds(coord, 1)
    assert await ids.next_id() == BLOCK_SIZE
    assert block(tree)["block_end"] == "1999"
    await ids.close()


async def test_without_zookeeper_the_error_is_retriable() -> None:
    coord = await client(MemoryTree())
    ids = ProducerIds(coord, 1)
    for _ in range(ATTEMPTS_MAX):
        coord.lose_reply(applied=False)
    with pytest.raises(BrokerError) as caught:
        await ids.next_id()
    assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert caught.value.code.retriable
    assert await ids.next_id() == 0
    await ids.close()
