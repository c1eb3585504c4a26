"""Tests of the loading of a shard, and its fence."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pybroker.coordinator.runtime.live_shard import HAND_OVER_S
from pybroker.coordinator.runtime.shard import StoredMarker
from pybroker.errors import BrokerError, ConnectionLoss, ErrorCode, NoNode
from pybroker.ports import KeyValue
from unit_tests.coordinator.runtime.stage import FENCE, ME, OTHER, Stage
from unit_tests.coordinator.runtime.vocabulary import NOW_MS, MemoryPartitionLog
from unit_tests.idle_loop import idle, loop_turns
from unit_tests.patience import PATIENCE_S


async def test_the_leader_replays_the_log_and_takes_the_fence() -> None:
    async with Stage() as stage:
        for number in range(100):
            stage.log.append([KeyValue(b"%d" % number, b"v" * 50)], NOW_MS)
        stage.log.append_transactional([KeyValue(b"t", b"1")], producer_id=5)
        stage.log.append_marker(producer_id=5)
        assert stage.refusal() is ErrorCode.NOT_COORDINATOR
        coordinator = await stage.led()
        assert len(coordinator.values) == 101
        assert coordinator.markers == [StoredMarker(101, 5, 0, is_commit=True)]
        assert coordinator.context.fence_version == stage.fence == 0
        assert stage.log.reads > 1, "the log must be read in several pieces"
        node = stage.tree.node(FENCE)
        assert node is not None
        content = json.loads(node[0])
        assert (content["broker"], content["leader_epoch"]) == (ME, 0)
        assert stage.shards.load_times.partitions == 1


async def test_requests_wait_until_what_was_loaded_is_committed() -> None:
    async with Stage() as stage:
        stage.log.holds = True
        stage.log.append([KeyValue(b"k", b"v")], NOW_MS)
        stage.shards.led(0, 0)
        await idle()
        assert stage.refusal() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert stage.fence == -1
        stage.log.commit()
        await stage.shards.settled()
        assert stage.shards.shard_for(0).values == {b"k": b"v"}


async def test_damaged_batches_and_records_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    async with Stage() as stage:
        for number in range(6):
            stage.log.append([KeyValue(b"%d" % number, b"v")], NOW_MS)
        stage.log.append([KeyValue(b"bad", b"poison"), KeyValue(b"7", b"v")], NOW_MS)
        damage(stage.log, 2)
        coordinator = await stage.led()
        assert set(coordinator.values) == {b"0", b"1", b"3", b"4", b"5", b"7"}
        lines = [line for line in caplog.messages if line.startswith("skipped ")]
        assert len(lines) == 2
        where = f"of {stage.log.topic_partition} while loading"
        assert lines[0] == f"skipped the batch at offset 2 {where}: its checksum is wrong"
        assert lines[1].startswith(f"skipped the record at offset 6 {where}: its replay failed: ")
        assert "poison" in lines[1]


def damage(log: MemoryPartitionLog, batch: int) -> None:
    flipped = bytearray(log.batches[batch])
    flipped[-1] ^= 1
    log.batches[batch] = bytes(flipped)


async def suspected(log: MemoryPartitionLog) -> int:
    """Return the next offset that is reported as suspect."""
    async with asyncio.timeout(PATIENCE_S):
        return await log.suspects.get()


class Refusing(MemoryPartitionLog):
    """A log that cannot be read at offset 3."""

    async def read(self, offset: int, bytes_max: int) -> Any:
        found = await super().read(offset, 1)
        if offset == 3:
            raise BrokerError(ErrorCode.CORRUPT_MESSAGE, "a test")
        return found


@pytest.mark.parametrize("kind", [MemoryPartitionLog, Refusing])
async def test_a_damaged_log_is_not_served_if_another_replica_may_lead(
    kind: type[MemoryPartitionLog], caplog: pytest.LogCaptureFixture
) -> None:
    """A fetch must not answer "no committed offset" for a commit in a damaged batch: the consumer
    would start at the beginning or the end of the partition."""
    async with Stage() as stage:
        stage.log = kind()
        stage.log.has_other_copies = True
        for number in range(6):
            stage.log.append([KeyValue(b"%d" % number, b"v")], NOW_MS)
        if kind is MemoryPartitionLog:
            damage(stage.log, 3)
        stage.shards.led(0, 0)
        assert [await suspected(stage.log) for _ in range(3)] == [3, 3, 3]
        assert stage.refusal() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert "skipped" not in caplog.text
        stage.log.depose()
        await stage.shards.settled()
        assert stage.refusal() is ErrorCode.NOT_COORDINATOR
        assert stage.made[0].has_ended and stage.fence == -1


@pytest.mark.parametrize("why", ["no replica takes over", "no other replica exists"])
async def test_the_undamaged_records_are_served_if_no_other_replica_can_lead(
    why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Stage() as stage:
        stage.log.has_other_copies = True
        for number in range(6):
            stage.log.append([KeyValue(b"%d" % number, b"v")], NOW_MS)
        damage(stage.log, 2)
        stage.shards.led(0, 0)
        await suspected(stage.log)
        stage.clock.advance(HAND_OVER_S - 1)
        await suspected(stage.log)
        assert stage.refusal() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if why == "no replica takes over":
            stage.clock.advance(1)
        else:
            stage.log.has_other_copies = False
        await stage.shards.settled()
        assert set(stage.shards.shard_for(0).values) == {b"0", b"1", b"3", b"4", b"5"}
        (line,) = [line for line in caplog.messages if line.startswith("skipped ")]
        assert "the batch at offset 2" in line and line.endswith("its checksum is wrong")


async def test_a_record_that_cannot_be_replayed_is_skipped_at_once() -> None:
    """Another replica would not help, because every replica has the same record."""
    async with Stage() as stage:
        stage.log.has_other_copies = True
        stage.log.append([KeyValue(b"bad", b"poison"), KeyValue(b"7", b"v")], NOW_MS)
        assert set((await stage.led()).values) == {b"7"}
        assert stage.log.suspects.empty()


async def test_unreadable_offsets_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    class Unreadable(MemoryPartitionLog):
        async def read(self, offset: int, bytes_max: int) -> Any:
            if 3 <= offset < 40:
                raise BrokerError(ErrorCode.CORRUPT_MESSAGE, "a test")
            return await super().read(offset, 1)

    async with Stage() as stage:
        stage.log = Unreadable()
        for number in range(60):
            stage.log.append([KeyValue(b"%d" % number, b"v")], NOW_MS)
        coordinator = await stage.led()
        assert set(coordinator.values) == {b"%d" % number for number in (*range(3), *range(40, 60))}
        assert "skipped offsets 3 to 39 of " in caplog.text


async def test_a_failed_read_is_repeated() -> None:
    class Failing(MemoryPartitionLog):
        failures = 2

        async def read(self, offset: int, bytes_max: int) -> Any:
            if self.failures:
                self.failures -= 1
                raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "a test")
            return await super().read(offset, bytes_max)

    async with Stage() as stage:
        stage.log = Failing()
        stage.log.append([KeyValue(b"k", b"v")], NOW_MS)
        assert (await stage.led()).values == {b"k": b"v"}


async def test_loaded_is_called_again_after_an_error() -> None:
    async with Stage() as stage:

        async def fail() -> None:
            stage.made[0].load_failures = [ConnectionLoss("a test"), NoNode("a test")]

        stage.fence_hooks = [fail]
        assert (await stage.led()).loads == 3


async def test_a_later_leader_ends_the_loading_of_this_one() -> None:
    async with Stage() as stage:
        stage.log.holds = True
        stage.log.append([KeyValue(b"k", b"v")], NOW_MS)
        stage.shards.led(0, 0)
        await idle()
        stage.shards.resigned(0)
        assert stage.refusal() is ErrorCode.NOT_COORDINATOR
        assert stage.made[0].has_ended
        stage.log = stage.log.next_leader().next_leader()
        await stage.store(ME, 2)
        coordinator = await stage.led()
        assert coordinator is stage.made[1]
        assert coordinator.context.leader_epoch == 2


# the fence


async def test_a_state_that_changes_meanwhile_is_read_again() -> None:
    async with Stage() as stage:
        await stage.coord.create(FENCE, b"of somebody")
        real_multi, calls = stage.coord.multi, []

        async def multi(ops: Any) -> Any:
            calls.append(ops)
            if len(calls) == 1:
                await stage.store(ME, 0)  # an ISR change: another version, the same epoch
            return await real_multi(ops)

        stage.coord.multi = multi  # type: ignore[method-assign]
        coordinator = await stage.led()
        assert len(calls) == 2
        assert coordinator.context.fence_version == stage.fence == 1


async def test_another_leader_is_found_by_the_fence() -> None:
    async with Stage() as stage:
        await stage.store(OTHER, 1)
        stage.shards.led(0, 0)
        await stage.shards.settled()
        assert stage.refusal() is ErrorCode.NOT_COORDINATOR
        assert stage.fence == -1
        assert stage.made[0].has_ended and stage.made[0].loads == 0


async def test_the_shard_waits_for_leader_and_isr_of_its_stored_epoch() -> None:
    async with Stage() as stage:
        await stage.store(ME, 1)

        async def leader_and_isr() -> None:
            stage.log.raise_epoch()
            stage.shards.led(0, 0)

        async def not_yet() -> None: ...

        stage.fence_hooks = [not_yet, leader_and_isr]
        coordinator = await stage.led()
        assert coordinator is stage.made[0]
        assert coordinator.context.leader_epoch == 1
        assert stage.fence == 0


@pytest.mark.parametrize("applied", [True, False])
async def test_a_fence_write_with_a_lost_reply_is_read_back(applied: bool) -> None:
    async with Stage() as stage:

        async def lose() -> None:
            real_multi = stage.coord.multi

            async def multi(ops: Any) -> Any:
                stage.coord.multi = real_multi  # type: ignore[method-assign]
                stage.coord.lose_reply(applied=applied)
                return await real_multi(ops)

            stage.coord.multi = multi  # type: ignore[method-assign]

        stage.fence_hooks = [lose]
        coordinator = await stage.led()
        assert coordinator.context.fence_version == stage.fence == 0


async def test_every_shard_takes_the_fence_again_in_the_same_epoch() -> None:
    async with Stage() as stage:
        first = await stage.led()
        stage.shards.resigned(0)
        second = await stage.led()
        assert second is not first
        assert (first.context.fence_version, second.context.fence_version) == (0, 1)


@pytest.mark.parametrize("turns", range(25))
async def test_a_marker_is_replayed_once_whenever_it_is_written(turns: int) -> None:
    """Loading reads the marker from the log, or the shard passes the marker on."""
    async with Stage() as stage:
        for number in range(3):
            stage.log.append([KeyValue(b"%d" % number, b"v" * 900)], NOW_MS)
        stage.shards.led(0, stage.log.leader_epoch)
        await loop_turns(turns)
        stage.log.append_marker(producer_id=5)
        stage.shards.marker_written(0, StoredMarker(3, 5, 0, is_commit=True))
        await stage.shards.settled()
        coordinator = stage.shards.shard_for(0)
        assert coordinator.markers == [StoredMarker(3, 5, 0, is_commit=True)]
        stage.shards.marker_written(0, StoredMarker(4, 6, 0, is_commit=False))
        assert coordinator.markers[1:] == [StoredMarker(4, 6, 0, is_commit=False)]
        stage.shards.resigned(0)
        stage.shards.marker_written(0, StoredMarker(5, 6, 0, is_commit=False))
        assert len(coordinator.markers) == 2
