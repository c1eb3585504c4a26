"""Tests of TxnOffsetCommit through the whole broker, in both offset stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from pybroker.broker.group_coordination import GROUP_TOPIC
from pybroker.coordinator.groups import memory_limit
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.records.batch import read_header
from pybroker.records.control import ControlType, EndTransaction, build_end_transaction
from pybroker.replication.authority import Authority
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.group_admin import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from pybroker.wire.messages.groups import (
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from pybroker.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from unit_tests.handlers.bench import NOW_MS, Bench
from unit_tests.handlers.test_offsets import NONE, Asker
from unit_tests.idle_loop import loop_turns
from unit_tests.patience import until

LATEST = 3
UNSTABLE = (-1, "", -1, ErrorCode.UNSTABLE_OFFSET_COMMIT)


class TransactionalAsker(Asker):
    """A client of one group, and a producer that commits offsets of the group."""

    async def commit_in(
        self,
        offsets: Mapping[str, int],
        version: int = LATEST,
        *,
        producer: tuple[int, int] = (7, 0),
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        metadata: str | None = "",
    ) -> dict[str, int]:
        topics = [
            TxnOffsetCommitRequestTopic(
                name=key.rpartition("-")[0],
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=int(key.rpartition("-")[2]),
                        committed_offset=offset,
                        committed_leader_epoch=4 if version >= 2 else -1,
                        committed_metadata=metadata,
                    )
                ],
            )
            for key, offset in offsets.items()
        ]
        request = TxnOffsetCommitRequest(
            transactional_id="tx",
            group_id=self.group,
            producer_id=producer[0],
            producer_epoch=producer[1],
            generation_id=generation,
            member_id=member,
            group_instance_id=instance,
            topics=topics,
        )
        answer = await self.bench.ask(ApiKey.TXN_OFFSET_COMMIT, version, request)
        return {
            f"{topic.name}-{part.partition_index}": part.error_code
            for topic in answer.topics
            for part in topic.partitions
        }

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(GROUP_TOPIC, self.bench.app.groups.topic.partition_of(self.group))

    def end(self, *, is_commit: bool = True, producer: tuple[int, int] = (7, 0)) -> None:
        """Append a marker as the handler of WriteTxnMarkers does."""
        replicas, key = self.bench.app.replicas, self.partition
        marker = EndTransaction(ControlType.COMMIT if is_commit else ControlType.ABORT, 0)
        data = bytearray(
            build_end_transaction(
                marker, producer_id=producer[0], producer_epoch=producer[1], timestamp_ms=NOW_MS
            )
        )
        appended = replicas.leader(key).append(
            memoryview(data), read_header(data), acks=-1, now_ms=NOW_MS
        )
        replicas.on_marker(key, appended.first_offset, *producer, is_commit)

    async def settled(self) -> None:
        shard = self.bench.app.groups.service.shard_of(self.group)
        await until(lambda: not shard.offsets.undecided(self.group))

    async def join(self, instance: str | None = None, member: str = "") -> JoinGroupResponse:
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id=member,
            group_instance_id=instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        joined: JoinGroupResponse = await self.bench.ask(ApiKey.JOIN_GROUP, 6, request)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            return await self.join(instance, joined.member_id)
        sync = SyncGroupRequest(
            group_id=self.group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=instance,
            assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")],
        )
        synced = await self.bench.ask(ApiKey.SYNC_GROUP, 3, sync)
        assert synced.error_code == NONE
        return joined


@pytest.fixture(params=["zookeeper", "kafka"])
async def asker(
    tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[TransactionalAsker]:
    properties = {
        "offsets.storage": request.param,
        "offsets.topic.num.partitions": "3",
        "offsets.topic.replication.factor": "1",
        "offset.metadata.max.bytes": "20",
        "group.initial.rebalance.delay.ms": "0",
        "transaction.partition.verification.enable": "false",  # no test adds partitions
    }
    async with Bench(tmp_path, properties=properties) as bench:
        for topic in ("a", "b"):
            await bench.create(topic, partitions=2)
        await bench.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="g"))
        await bench.app.groups.shards.settled()
        yield TransactionalAsker(bench)


@pytest.mark.parametrize("version", range(LATEST + 1))
async def test_offsets_are_visible_after_the_commit_marker(
    asker: TransactionalAsker, version: int
) -> None:
    await asker.commit({"a-0": 1})
    codes = await asker.commit_in({"a-0": 5, "b-1": 6}, version, metadata="text")
    assert codes == {"a-0": NONE, "b-1": NONE}
    assert await asker.fetch("a-0") == {"a-0": (1, "", -1, NONE)}
    assert await asker.fetch("a-0", "b-1", "a-1", version=7, stable=True) == {
        "a-0": UNSTABLE,
        "b-1": UNSTABLE,
        "a-1": (-1, "", -1, NONE),
    }
    assert await asker.fetch(version=8, stable=True) == {"a-0": UNSTABLE, "b-1": UNSTABLE}
    asker.end()
    await asker.settled()
    epoch = 4 if version >= 2 else -1
    committed = {"a-0": (5, "text", epoch, NONE), "b-1": (6, "text", epoch, NONE)}
    assert await asker.fetch(version=7, stable=True) == committed
    assert await asker.fetch() == committed


async def test_aborted_offsets_are_never_visible(asker: TransactionalAsker) -> None:
    await asker.commit({"a-0": 1})
    await asker.commit_in({"a-0": 5, "b-0": 6})
    asker.end(is_commit=False)
    await asker.settled()
    assert await asker.fetch(version=7, stable=True) == {"a-0": (1, "", -1, NONE)}


async def test_several_batches_of_a_transaction_have_no_sequences(
    asker: TransactionalAsker,
) -> None:
    for offset in range(3):
        assert await asker.commit_in({"a-0": offset}) == {"a-0": NONE}
    asker.end()
    await asker.settled()
    assert await asker.fetch() == {"a-0": (2, "", 4, NONE)}


async def test_each_partition_has_its_own_fault(asker: TransactionalAsker) -> None:
    codes = await asker.commit_in({"no-0": 1, "a-9": 1, "a-0": 1}, metadata="x" * 20)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == {"no-0": unknown, "a-9": unknown, "a-0": NONE}
    too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert await asker.commit_in({"a-0": 2}, metadata="x" * 21) == {"a-0": too_large}
    assert await asker.commit_in({}) == {}


@pytest.mark.parametrize(
    ("producer", "code"),
    [
        ((-1, -1), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ((-5, 0), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ((7, -1), ErrorCode.INVALID_PRODUCER_EPOCH),
        ((7, 2), ErrorCode.INVALID_PRODUCER_EPOCH),
        ((7, 3), NONE),
        ((7, 4), NONE),
    ],
)
async def test_the_producer_has_to_be_the_present_one(
    asker: TransactionalAsker, producer: tuple[int, int], code: ErrorCode
) -> None:
    assert await asker.commit_in({"a-0": 1}, producer=(7, 3)) == {"a-0": NONE}
    asker.end(producer=(7, 3))
    assert await asker.commit_in({"a-0": 2}, producer=producer) == {"a-0": code}


async def test_group_metadata_has_to_be_that_of_a_member(asker: TransactionalAsker) -> None:
    joined = await asker.join(instance="static")
    member, generation = joined.member_id, joined.generation_id

    async def code(**fields: object) -> int:
        return (await asker.commit_in({"a-0": 1}, **fields))["a-0"]  # type: ignore[arg-type]

    assert await code(member=member, generation=generation) == NONE
    assert await code(member=member, generation=generation, instance="static") == NONE
    assert await code() == NONE, "old producers name no member"
    assert await code(version=2) == NONE
    assert await code(member=member, generation=generation + 1) == ErrorCode.ILLEGAL_GENERATION
    assert await code(member=member) == ErrorCode.ILLEGAL_GENERATION
    assert await code(member="other", generation=generation) == ErrorCode.UNKNOWN_MEMBER_ID
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert await code(member="other", generation=generation, instance="static") == fenced
    assert await code(member=member, generation=generation, instance="no") == (
        ErrorCode.UNKNOWN_MEMBER_ID
    )
    asker.group = "unknown"
    assert await code(member=member, generation=generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert await code() == NONE


async def test_invalid_group_ids_are_rejected(asker: TransactionalAsker) -> None:
    for asker.group in ("", "x" * 300):
        assert await asker.commit_in({"a-0": 1}) == {"a-0": ErrorCode.INVALID_GROUP_ID}


async def test_a_cut_off_coordinator_commits_no_offsets(
    asker: TransactionalAsker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asker.bench.app.replicas, "lease", Authority.COMMITTED)
    assert await asker.commit_in({"a-0": 6}) == {"a-0": ErrorCode.COORDINATOR_NOT_AVAILABLE}


@pytest.mark.parametrize("version", range(LATEST + 1))
async def test_old_producers_are_not_told_that_the_coordinator_loads(
    asker: TransactionalAsker, version: int
) -> None:
    groups = asker.bench.app.groups
    await asker.commit_in({"a-0": 1})
    partition = asker.partition.partition
    leading_since = asker.bench.app.replicas.leader(asker.partition).leading_since
    groups.shards.resigned(partition)
    groups.shards.led(partition, leading_since)
    is_old = version < 2
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert await asker.commit_in({"a-0": 2}, version) == {
        "a-0": ErrorCode.COORDINATOR_NOT_AVAILABLE if is_old else code
    }
    await groups.shards.settled()
    assert await asker.fetch("a-0", version=7, stable=True) == {"a-0": UNSTABLE}


async def test_a_marker_that_is_written_while_the_shard_loads_is_not_lost(
    asker: TransactionalAsker,
) -> None:
    groups = asker.bench.app.groups
    partition = asker.partition.partition
    leading_since = asker.bench.app.replicas.leader(asker.partition).leading_since
    for turns in range(12):
        assert await asker.commit_in({"a-0": turns}) == {"a-0": NONE}
        groups.shards.resigned(partition)
        groups.shards.led(partition, leading_since)
        await loop_turns(turns)
        asker.end()
        await groups.shards.settled()
        await asker.settled()
        assert await asker.fetch("a-0") == {"a-0": (turns, "", 4, NONE)}


async def test_a_group_with_pending_offsets_exists(asker: TransactionalAsker) -> None:
    bench = asker.bench
    await asker.commit_in({"a-0": 1})
    listed = await bench.ask(ApiKey.LIST_GROUPS, 4, ListGroupsRequest())
    assert [(group.group_id, group.group_state) for group in listed.groups] == [("g", "Empty")]
    described = await bench.ask(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=["g"]))
    assert [group.group_state for group in described.groups] == ["Empty"]
    assert await asker.delete("a-1") == {"a-1": NONE}
    assert await asker.fetch("a-0", version=7, stable=True) == {"a-0": UNSTABLE}
    deleted = await bench.ask(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=["g"]))
    assert [result.error_code for result in deleted.results] == [NONE]
    asker.end()
    await asker.settled()
    assert await asker.fetch() == {}
    listed = await bench.ask(ApiKey.LIST_GROUPS, 4, ListGroupsRequest())
    assert listed.groups == []


async def test_pending_offsets_are_within_the_memory_limit(
    asker: TransactionalAsker, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = asker.bench.app.groups._dependencies.take_memory.__self__  # type: ignore[attr-defined]
    assert isinstance(limit, memory_limit.MemoryLimit)
    monkeypatch.setattr(limit, "_bytes_max", 2500)
    monkeypatch.setattr(memory_limit, "FULL_S", 0.0)
    assert await asker.commit_in({"a-0": 1, "a-1": 1}) == {"a-0": NONE, "a-1": NONE}
    unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await asker.commit_in({"b-0": 1}, producer=(8, 0)) == {"b-0": unavailable}
    asker.end()
    await asker.settled()
    assert await asker.commit_in({"b-0": 1}, producer=(8, 0)) == {"b-0": NONE}
