"""Tests of shards while they serve, when they end, and after another broker has taken over."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from pybroker.coordinator.groups.fence import FenceOwner, take_fence
from pybroker.coordinator.runtime.shard import StoredMarker
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import BrokerError, ErrorCode
from pybroker.ports import CheckOp, KeyValue, Producer, SetOp
from unit_tests.coordinator.runtime.stage import FENCE, ME, OTHER, P0, Stage
from unit_tests.idle_loop import idle
from unit_tests.patience import in_time


async def code_of(call: Coroutine[Any, Any, object]) -> ErrorCode:
    with pytest.raises(BrokerError) as caught:
        await call
    return caught.value.code


# serving


async def test_commits_wait_for_the_high_watermark() -> None:
    async with Stage() as stage:
        coordinator = await stage.led()
        stage.log.holds = True
        end = coordinator.put(b"k", b"v")
        assert coordinator.values == {b"k": b"v"}
        waiting = asyncio.ensure_future(coordinator.context.committed(end))
        await idle()
        assert not waiting.done()
        stage.log.commit()
        await waiting


async def test_commits_time_out() -> None:
    async with Stage() as stage:
        coordinator = await stage.led()
        stage.log.holds = True
        stage.options.commit_timeout_s = 0.001
        code = await code_of(coordinator.context.committed(coordinator.put(b"k", b"v")))
        assert code is ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("how", ["resigned", "resign", "deposed", "stop"])
async def test_waiting_callers_get_not_coordinator_when_the_shard_ends(how: str) -> None:
    async with Stage() as stage:
        coordinator = await stage.led()
        stage.log.holds = True
        waiting = asyncio.ensure_future(coordinator.context.committed(coordinator.put(b"k", b"v")))
        await idle()
        if how == "resigned":
            stage.shards.resigned(0)
        elif how == "resign":
            coordinator.context.resign("a test")
        elif how == "deposed":
            stage.log.depose()
        else:
            await stage.shards.stop()
        with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
            await waiting
        if how != "deposed":
            assert coordinator.has_ended
            with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
                coordinator.put(b"k", b"later")
            with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
                coordinator.context.call_later(1, lambda: None)


async def test_a_failing_timer_does_not_end_the_shard() -> None:
    async with Stage() as stage:
        coordinator = await stage.led()
        called = asyncio.Event()

        def fail() -> None:
            raise ValueError("a test")

        coordinator.context.call_later(0, fail)
        coordinator.context.call_later(0, called.set)
        await called.wait()


async def test_no_timer_is_called_after_the_end() -> None:
    async with Stage() as stage:
        coordinator = await stage.led()
        called: list[str] = []
        coordinator.context.call_later(0, lambda: called.append("after the end"))
        stage.shards.resigned(0)
        loop_turns = asyncio.Event()
        asyncio.get_running_loop().call_later(0.001, loop_turns.set)
        await loop_turns.wait()
        assert called == []


async def test_a_shard_continues_in_a_new_epoch_of_the_same_leader() -> None:
    async with Stage() as stage:
        coordinator = await stage.led()
        stage.log.holds = True
        waiting = asyncio.ensure_future(coordinator.context.committed(coordinator.put(b"k", b"v")))
        await idle()
        await stage.store(ME, 1)
        stage.log.raise_epoch()
        stage.shards.led(0, 0)
        assert stage.shards.shard_for(0) is coordinator
        assert coordinator.context.leader_epoch == 1
        stage.log.commit()
        await waiting


async def test_may_be_elsewhere_is_true_if_another_broker_may_coordinate() -> None:
    async with Stage() as stage:
        assert not stage.shards.may_be_elsewhere(0)
        coordinator = await stage.led()
        assert not stage.shards.may_be_elsewhere(0)
        stage.log.is_connected = False
        assert stage.shards.may_be_elsewhere(0)
        stage.log.is_connected = True
        assert not stage.shards.may_be_elsewhere(0)
        coordinator.context.resign("a test")
        assert stage.shards.may_be_elsewhere(0)
        stage.shards.resigned(0)
        assert not stage.shards.may_be_elsewhere(0), "this broker knows that another broker leads"


async def test_a_broker_that_may_not_answer_does_not_coordinate() -> None:
    async with Stage() as stage:
        await stage.led()
        stage.is_fenced = True
        assert stage.refusal() is ErrorCode.NOT_COORDINATOR
        stage.is_fenced = False
        assert stage.refusal() is ErrorCode.NONE


async def test_a_broker_without_zookeeper_does_not_return_committed_offsets() -> None:
    async with Stage() as stage:
        coordinator = await stage.led()
        coordinator.context.require_current()
        stage.log.is_connected = False
        with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
            coordinator.context.require_current()
        assert stage.refusal() is ErrorCode.NONE, "requests that need followers are served"
        stage.shards.resigned(0)
        stage.log.is_connected = True
        with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
            coordinator.context.require_current()


async def test_a_broker_that_stops_has_no_coordinator() -> None:
    async with Stage() as stage:
        await stage.led()
        await stage.shards.stop()
        assert stage.refusal() is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_leaderships_from_before_the_start_are_loaded_at_the_start() -> None:
    async with Stage() as stage:
        await stage.shards.stop()
        stage.shards.led(0, 0)
        assert stage.made == []
        stage.shards.start()
        await stage.shards.settled()
        assert stage.refusal() is ErrorCode.NONE


# an old coordinator


async def test_a_paused_old_coordinator_writes_nothing() -> None:
    """The old coordinator was paused while another broker took over, and has not noticed it yet."""
    async with Stage() as stage:
        coordinator = await stage.led()
        coordinator.put(b"k", b"before")
        successor = stage.log.next_leader()
        await stage.store(OTHER, 1)
        owner = FenceOwner(P0, OTHER, 1, "theirs")
        assert await take_fence(stage.coord, owner) == coordinator.context.fence_version + 1
        before = successor.records()
        with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
            coordinator.put(b"k", b"after")
        assert coordinator.values == {b"k": b"before"}
        assert successor.records() == before
        with pytest.raises(Exception, match="BadVersion"):
            await stage.coord.multi(
                [CheckOp(FENCE, coordinator.context.fence_version), SetOp(paths.CONSUMERS, b"mine")]
            )


async def test_a_resigned_shard_of_the_leader_is_loaded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pybroker.coordinator.runtime.shards._BEGIN_AGAIN_S", 0.001)
    async with Stage() as stage:
        coordinator = await stage.led()
        await stage.begun.get()
        coordinator.put(b"k", b"v")
        coordinator.context.resign("a test")
        assert stage.refusal() is ErrorCode.NOT_COORDINATOR
        await in_time(stage.begun.get())
        await stage.shards.settled()
        again = stage.shards.shard_for(0)
        assert again.values == {b"k": b"v"}
        assert again.context.fence_version == coordinator.context.fence_version + 1


async def test_a_fenced_broker_begins_its_shard_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pybroker.coordinator.runtime.shards._BEGIN_AGAIN_S", 0.001)
    async with Stage() as stage:
        stage.is_fenced = True
        stage.shards.led(0, 0)
        assert stage.refusal() is ErrorCode.NOT_COORDINATOR
        stage.is_fenced = False
        await in_time(stage.begun.get())
        await stage.shards.settled()
        assert stage.refusal() is ErrorCode.NONE


async def test_a_shard_that_resigned_begins_at_once_with_a_new_leadership() -> None:
    async with Stage() as stage:
        coordinator = await stage.led()
        coordinator.context.resign("a test")
        assert await stage.led() is not coordinator


async def test_a_shard_that_resigned_is_not_loaded_after_the_leadership_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pybroker.coordinator.runtime.shards._BEGIN_AGAIN_S", 0.001)
    async with Stage() as stage:
        coordinator = await stage.led()
        coordinator.context.resign("a test")
        stage.shards.resigned(0)
        wake = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, wake.set)
        await wake.wait()
        assert len(stage.made) == 1


async def test_a_record_that_cannot_be_replayed_ends_the_shard() -> None:
    async with Stage() as stage:
        coordinator = await stage.led()
        with pytest.raises(BrokerError, match="UNKNOWN_SERVER_ERROR"):
            coordinator.put(b"k", b"poison")
        assert coordinator.has_ended
        assert stage.refusal() is ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize(
    ("log_code", "client_code"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_a_record_refused_by_the_log_has_no_effect(
    log_code: ErrorCode, client_code: ErrorCode
) -> None:
    async with Stage() as stage:
        coordinator = await stage.led()
        stage.log.refuse(log_code)
        with pytest.raises(BrokerError) as caught:
            coordinator.put(b"k", b"v")
        assert caught.value.code is client_code
        assert coordinator.values == {}


async def test_a_marker_that_cannot_be_replayed_ends_the_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Stage() as stage:
        coordinator = await stage.led()

        def poisoned(marker: StoredMarker) -> None:
            raise ValueError("poison")

        monkeypatch.setattr(coordinator, "replay_marker", poisoned)
        stage.shards.marker_written(0, StoredMarker(0, 5, 0, is_commit=True))
        assert coordinator.has_ended
        assert stage.refusal() is ErrorCode.NOT_COORDINATOR


async def test_records_of_a_transaction_are_replayed_with_their_producer() -> None:
    async with Stage() as stage:
        context = (await stage.led()).context
        producer = await context.verified("tx", Producer(5, 2))
        assert stage.log.verified_ids == ["tx"]
        assert context.append([KeyValue(b"k", b"v")], producer) == context.log_end == 1
        (record,) = stage.log.records()
        assert (record.producer_id, record.producer_epoch) == (5, 2)


@pytest.mark.parametrize(
    ("log_code", "client_code"),
    [
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    ],
)
async def test_errors_of_a_transactional_append_are_those_of_kafka(
    log_code: ErrorCode, client_code: ErrorCode
) -> None:
    async with Stage() as stage:
        context = (await stage.led()).context
        stage.log.refuse(log_code)
        stage.log.refuse_verification(log_code)
        with pytest.raises(BrokerError) as caught:
            context.append([KeyValue(b"k", b"v")], Producer(5, 0))
        assert caught.value.code is client_code
        assert await code_of(context.verified("tx", Producer(5, 0))) is client_code
        assert stage.log.records() == []
