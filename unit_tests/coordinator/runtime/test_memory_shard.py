"""Tests that the test doubles of the coordinators' tests keep the contracts of the ports."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.coordinator.runtime.shard import Coordinator, ShardContext, StoredMarker
from pybroker.errors import BrokerError, ErrorCode
from pybroker.ports import KeyValue, PartitionLog
from unit_tests.coordinator.runtime.vocabulary import LastValues, MemoryPartitionLog, MemoryShard
from unit_tests.idle_loop import idle


async def test_the_test_doubles_fit_the_ports() -> None:
    log: PartitionLog = MemoryPartitionLog()
    shard: ShardContext = MemoryShard()
    coordinator: Coordinator = LastValues(shard)
    assert log.leader_epoch == shard.leader_epoch == 0
    await coordinator.loaded()


async def test_the_next_leader_replays_all_appended_records() -> None:
    shard = MemoryShard()
    coordinator = shard.host(LastValues)
    await shard.load()
    coordinator.put(b"a", b"1")
    coordinator.put(b"b", b"2")
    coordinator.put(b"b", None)
    shard.log.append_transactional([KeyValue(b"c", b"3")], producer_id=7)
    shard.log.append_marker(producer_id=7)
    following = shard.fail_over()
    again = following.host(LastValues)
    await following.load()
    assert again.values == {b"a": b"1", b"b": None, b"c": b"3"}
    assert again.markers == [StoredMarker(4, 7, 0, is_commit=True)]
    assert (following.leader_epoch, following.fence_version) == (1, 2)
    assert coordinator.has_ended and again.loads == 1
    with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
        coordinator.put(b"a", b"2")


async def test_committed_waits_for_the_commit_or_the_end_of_the_shard() -> None:
    shard = MemoryShard()
    coordinator = shard.host(LastValues)
    shard.log.holds = True
    end = coordinator.put(b"a", b"1")
    assert coordinator.values == {b"a": b"1"}
    waiting = asyncio.ensure_future(shard.committed(end))
    await idle()
    assert not waiting.done()
    shard.log.commit()
    await waiting
    waiting = asyncio.ensure_future(shard.committed(coordinator.put(b"a", b"2")))
    await idle()
    shard.resign("a test")
    with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
        await waiting
    assert shard.reasons == ["a test"]


@pytest.mark.parametrize(
    ("log_code", "client_code"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_a_refused_append_has_no_effect(log_code: ErrorCode, client_code: ErrorCode) -> None:
    shard = MemoryShard()
    coordinator = shard.host(LastValues)
    shard.log.refuse(log_code)
    with pytest.raises(BrokerError) as caught:
        coordinator.put(b"a", b"1")
    assert caught.value.code is client_code
    assert coordinator.values == {}
    assert shard.log.records() == []


async def test_time_passes_only_in_advance_and_timers_fire_in_order() -> None:
    shard = MemoryShard()
    called: list[str] = []
    shard.call_later(2, lambda: called.append("second"))
    shard.call_later(1, lambda: called.append("first"))
    shard.call_later(1.5, lambda: called.append("never")).cancel()
    assert shard.due_s == [1, 2]
    shard.advance(1)
    assert called == ["first"]
    shard.advance(1)
    assert called == ["first", "second"]
    shard.call_later(1, lambda: called.append("never"))
    shard.end()
    shard.advance(5)
    assert called == ["first", "second"]
