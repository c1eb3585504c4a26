"""Tests of TxnOffsetCommit at the coordinator of a group: the order of its checks, and the
memory limit."""

from __future__ import annotations

import pytest

from pybroker.coordinator.groups.calls import Identity
from pybroker.coordinator.groups.coordinator import GroupCoordinator
from pybroker.coordinator.groups.memory_limit import MemoryLimit
from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.groups.transactional_commit import TransactionalCommit, commit
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import Producer
from unit_tests.coordinator.groups.memory_offsets import MemoryOffsets
from unit_tests.coordinator.groups.test_coordinator import hosted, stable
from unit_tests.coordinator.runtime.vocabulary import MemoryShard

KEY = TopicPartition("load", 0)
NONE = ErrorCode.NONE


def request(
    member_id: str = "", generation: int = -1, instance_id: str | None = None
) -> TransactionalCommit:
    who = Identity(member_id, instance_id)
    offsets = {KEY: CommittedOffset(5, metadata="m" * 100)}
    return TransactionalCommit("g", who, generation, "tx", Producer(7, 0), offsets)


@pytest.fixture
async def shard() -> MemoryShard:
    return MemoryShard()


async def serving(shard: MemoryShard, offsets: MemoryOffsets) -> GroupCoordinator:
    coordinator = hosted(shard, offsets)
    await shard.load()
    return coordinator


async def test_a_member_commits_for_its_generation(shard: MemoryShard) -> None:
    offsets = MemoryOffsets()
    coordinator = await serving(shard, offsets)
    member = await stable(shard, coordinator)
    stale = request(member.member_id, member.generation + 1)
    assert await commit(coordinator, stale) == {KEY: ErrorCode.ILLEGAL_GENERATION}
    assert offsets.pending == set()
    present = request(member.member_id, member.generation)
    assert await commit(coordinator, present) == {KEY: NONE}
    assert offsets.pending == {"g"}
    assert shard.log.verified_ids == ["tx", "tx"]


@pytest.mark.parametrize("wait", ["verified", "prepare"])
async def test_a_member_that_leaves_during_a_wait_commits_nothing(
    shard: MemoryShard, wait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = MemoryOffsets()
    coordinator = await serving(shard, offsets)
    member = await stable(shard, coordinator)

    async def leave_then_verify(transactional_id: str, producer: Producer) -> Producer:
        coordinator.leave("g", [Identity(member.member_id)])
        return producer

    async def leave_then_prepare(group_id: str) -> None:
        coordinator.leave("g", [Identity(member.member_id)])

    if wait == "verified":
        monkeypatch.setattr(shard, "verified", leave_then_verify)
    else:
        monkeypatch.setattr(offsets, "prepare", leave_then_prepare)
    answer = await commit(coordinator, request(member.member_id, member.generation))
    assert answer == {KEY: ErrorCode.UNKNOWN_MEMBER_ID}
    assert offsets.pending == set()


async def test_the_transaction_is_verified_before_the_member(shard: MemoryShard) -> None:
    coordinator = await serving(shard, MemoryOffsets())
    shard.log.refuse_verification(ErrorCode.INVALID_TXN_STATE)
    with pytest.raises(BrokerError) as caught:
        await commit(coordinator, request("nobody", 3))
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE


async def test_offsets_beyond_the_memory_limit_are_refused(shard: MemoryShard) -> None:
    room = MemoryLimit(shard.clock, lambda: 900, bytes_max=2000)
    offsets = MemoryOffsets()
    coordinator = hosted(shard, offsets, take_memory=room.take)
    await shard.load()
    assert await commit(coordinator, request()) == {KEY: NONE}
    with pytest.raises(BrokerError) as caught:
        await commit(coordinator, request())
    assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert offsets.pending == {"g"}
    assert coordinator.size() >= offsets.undecided_bytes() > 0
