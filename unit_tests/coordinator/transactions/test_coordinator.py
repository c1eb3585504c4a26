"""Tests of the coordinator of one shard that its scripts (`test_scripts.py`) cannot express."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.coordinator.transactions.coordinator import TOMBSTONES_BYTES_MAX
from pybroker.coordinator.transactions.decisions import Init
from pybroker.coordinator.transactions.entry import size_of
from pybroker.coordinator.transactions.records import encode_key
from pybroker.coordinator.transactions.service import TransactionService
from pybroker.coordinator.transactions.transaction import ProducerIdAndEpoch
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import KeyValue
from unit_tests.coordinator.transactions.stage import Stage, stored
from unit_tests.idle_loop import idle

P0 = TopicPartition("t", 0)


async def loaded(options: dict[str, str] | None = None) -> Stage:
    stage = Stage(options)
    await stage.prepare()
    return stage


async def test_records_that_cannot_be_decoded_are_skipped() -> None:
    stage = await loaded()
    await stage.play("init p")
    stage.shard.log.append(
        [
            KeyValue(encode_key("broken"), b"\x00\x09"),
            KeyValue(b"\x00\x07unknown", b"x"),
            KeyValue(b"\x00", b"x"),
        ],
        0,
    )
    stage.shard = stage.shard.fail_over()
    stage.coordinator = stage.host()
    await stage.shard.load()
    [found] = stage.coordinator.transactions()
    assert found.transactional_id == "p"
    await stage.close()


async def test_first_requests_of_an_id_at_the_same_time_get_one_producer_id() -> None:
    stage = await loaded()
    stage.shard.log.holds = True
    calls = [stage.coordinator.init_producer_id("p", Init(60_000)) for _ in range(5)]
    tasks = [asyncio.ensure_future(call) for call in calls]
    await idle()
    stage.shard.log.commit()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [each.code for each in found if isinstance(each, BrokerError)]
    assert errors == [ErrorCode.CONCURRENT_TRANSACTIONS] * 4
    [given] = [each for each in found if isinstance(each, ProducerIdAndEpoch)]
    assert given.epoch == 0
    assert len(stage.shard.log.records()) == 1
    await stage.close()


async def test_markers_are_sent_although_the_producer_has_disconnected() -> None:
    stage = await loaded()
    await stage.play("init p")
    await stage.play("add p t-0")
    stage.shard.log.holds = True
    ending = asyncio.ensure_future(
        stored(lambda: stage.coordinator.end("p", ProducerIdAndEpoch(1000, 0), is_commit=True))
    )
    await idle()
    ending.cancel()
    await idle()
    assert stage.completions == []
    stage.shard.log.commit()
    await idle()
    [completion] = stage.completions
    assert completion.remaining == {P0}
    await stage.close()


async def test_end_of_the_shard_fails_waiting_requests_and_cancels_markers() -> None:
    stage = await loaded()
    await stage.play("init p")
    await stage.play("add p t-0")
    await stage.play("commit p")
    [completion] = stage.completions
    await stage.play("init q")
    stage.shard.log.holds = True
    adding = asyncio.ensure_future(
        stored(
            lambda: stage.coordinator.add_partitions(
                "q", ProducerIdAndEpoch(1001, 0), frozenset({P0})
            )
        )
    )
    await idle()
    stage.shard.end()
    with pytest.raises(BrokerError) as failed:
        await adding
    assert failed.value.code is ErrorCode.NOT_COORDINATOR
    assert completion.is_over
    completion.written([P0])
    with pytest.raises(BrokerError) as refused:
        await stage.coordinator.init_producer_id("p", Init(60_000))
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    await stage.close()


async def test_completions_that_are_not_appended_are_counted() -> None:
    stage = await loaded()
    for command in ("init p", "add p t-0", "commit p", "refuse NOT_ENOUGH_REPLICAS", "write"):
        assert stage.coordinator.completions_to_append == 0
        await stage.play(command)
    assert stage.coordinator.completions_to_append == 1
    await stage.play("wait 1")
    assert stage.coordinator.completions_to_append == 0
    assert stage.coordinator.count() == 1
    await stage.close()


async def test_longest_transactional_id_is_coordinated_and_expires() -> None:
    options = {"transactional.id.expiration.ms": "1000000"}
    stage = await loaded(options)
    names = ["x" * 30_000 + str(number) for number in range(3)]
    for name in names:
        found = await stage.coordinator.init_producer_id(name, Init(60_000))
        assert stage.coordinator.add_partitions(name, found, frozenset({P0})) is None
        assert stage.coordinator.end(name, found, is_commit=True) is None
    await stage.play("write")
    assert stage.coordinator.size() >= 3 * 30_000
    await stage.play("wait 1200")
    assert list(stage.coordinator.transactions()) == []
    assert stage.coordinator.size() == 0
    tombstones = [each for each in stage.shard.log.records() if each.value is None]
    assert len(tombstones) == 3
    assert len(names[0]) > TOMBSTONES_BYTES_MAX
    await stage.close()


async def test_memory_is_reserved_for_new_ids_and_partitions_only() -> None:
    stage = await loaded()
    taken: list[int] = []
    new: list[int] = []
    object.__setattr__(stage.coordinator._dependencies, "take_memory", taken.append)
    object.__setattr__(stage.coordinator._dependencies, "take_memory_for_new", new.append)
    found = await stage.coordinator.init_producer_id("p", Init(60_000))
    assert (new, taken) == ([size_of("p", 0)], [])
    found = await stage.coordinator.init_producer_id("p", Init(60_000))
    assert stage.coordinator.add_partitions("p", found, frozenset({P0})) is None
    assert sum(new + taken) == size_of("p", 1) == stage.coordinator.size()
    await stored(lambda: stage.coordinator.add_partitions("p", found, frozenset({P0})))
    assert stage.coordinator.end("p", found, is_commit=False) is None
    assert sum(new + taken) == size_of("p", 1)
    await stage.close()


async def test_a_coordinator_answers_after_its_followers_have_followed() -> None:
    stage = Stage()
    stage.shard.log.is_followed.clear()
    loading = asyncio.ensure_future(stage.shard.load())
    await idle()
    assert not loading.done()
    stage.shard.log.is_followed.set()
    await loading
    await stage.close()


class OneShard:
    """Shards of which one serves, unless there is an error."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.loading: list[int] = []
        self.error: ErrorCode | None = None

    def shard_for(self, partition: int) -> object:
        if self.error is not None:
            raise BrokerError(self.error)
        return self._stage.coordinator

    def may_be_elsewhere(self, partition: int) -> bool:
        return False

    def serving(self) -> dict[int, object]:
        return {0: self._stage.coordinator}


async def test_service_refuses_empty_and_unknown_ids_and_lists_only_what_is_loaded() -> None:
    stage = await loaded()
    shards = OneShard(stage)
    service = TransactionService(shards, lambda name: 0)  # type: ignore[arg-type]
    found = await service.init_producer_id("p", Init(60_000))
    assert service.describe("p").producer == found
    assert [each.transactional_id for each in service.transactions()] == ["p"]
    for name, code in (
        ("", ErrorCode.INVALID_REQUEST),
        ("unknown", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
    ):
        with pytest.raises(BrokerError) as refused:
            service.describe(name)
        assert refused.value.code is code
    shards.error = ErrorCode.NOT_COORDINATOR
    with pytest.raises(BrokerError) as elsewhere:
        service.end("p", found, is_commit=True)
    assert elsewhere.value.code is ErrorCode.NOT_COORDINATOR
    shards.loading = [1]
    with pytest.raises(BrokerError) as unloaded:
        list(service.transactions())
    assert unloaded.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await stage.close()
