"""Tests of OffsetCommit, OffsetFetch and OffsetDelete through the whole broker, in both stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TypeVar

import pytest

from pybroker.coordinator.zookeeper import paths
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.replication.authority import Authority
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.group_admin import DeleteGroupsRequest
from pybroker.wire.messages.groups import FindCoordinatorRequest
from pybroker.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from pybroker.wire.schema import Message
from unit_tests.handlers.bench import Bench

T = TypeVar("T")
NONE = ErrorCode.NONE
NOTHING = (-1, "", -1, NONE)
Answer = tuple[int, str | None, int, int]
"""(offset, metadata, leader epoch, error)"""


class Asker:
    """A client of one group."""

    def __init__(self, bench: Bench, group: str = "g") -> None:
        self.bench = bench
        self.group = group

    async def commit(
        self,
        offsets: Mapping[str, int],
        version: int = 8,
        *,
        metadata: str | None = None,
        member: str = "",
        generation: int = -1,
        epoch: int = -1,
        **more: int,
    ) -> dict[str, int]:
        topics = [
            OffsetCommitRequestTopic(
                name=key.rpartition("-")[0],
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=int(key.rpartition("-")[2]),
                        committed_offset=offset,
                        committed_leader_epoch=epoch,
                        committed_metadata=metadata,
                    )
                ],
            )
            for key, offset in offsets.items()
        ]
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id=generation,
            member_id=member,
            topics=topics,
            **more,  # type: ignore[arg-type]
        )
        answer = await self.bench.ask(ApiKey.OFFSET_COMMIT, version, request)
        return {
            f"{topic.name}-{part.partition_index}": part.error_code
            for topic in answer.topics
            for part in topic.partitions
        }

    async def fetch(
        self, *keys: str, version: int = 5, stable: bool = False
    ) -> dict[str, Answer] | int:
        """Fetch offsets (without keys: all). Return the code if the answer has one for the
        group."""
        topics = _topics(OffsetFetchRequestTopic, keys)
        request: Message = OffsetFetchRequest(
            group_id=self.group, topics=topics if keys else None, require_stable=stable
        )
        if version >= 8:
            some = _topics(OffsetFetchRequestTopics, keys)
            group = OffsetFetchRequestGroup(group_id=self.group, topics=some if keys else None)
            request = OffsetFetchRequest(groups=[group], require_stable=stable)
        answer = await self.bench.ask(ApiKey.OFFSET_FETCH, version, request)
        found = answer.groups[0] if version >= 8 else answer
        if found.error_code:
            return int(found.error_code)
        return {
            f"{topic.name}-{part.partition_index}": (
                part.committed_offset,
                part.metadata,
                part.committed_leader_epoch,
                part.error_code,
            )
            for topic in found.topics
            for part in topic.partitions
        }

    async def delete(self, *keys: str) -> dict[str, int] | int:
        request = OffsetDeleteRequest(
            group_id=self.group,
            topics=[
                OffsetDeleteRequestTopic(
                    name=key.rpartition("-")[0],
                    partitions=[
                        OffsetDeleteRequestPartition(partition_index=int(key.rpartition("-")[2]))
                    ],
                )
                for key in keys
            ],
        )
        answer = await self.bench.ask(ApiKey.OFFSET_DELETE, 0, request)
        if answer.error_code:
            return int(answer.error_code)
        return {
            f"{topic.name}-{part.partition_index}": part.error_code
            for topic in answer.topics
            for part in topic.partitions
        }

    def node(self, key: str) -> bytes | None:
        topic, _, number = key.rpartition("-")
        found = self.bench.tree.node(paths.offset(self.group, TopicPartition(topic, int(number))))
        return None if found is None else found[0]


def _topics(kind: Callable[..., T], keys: tuple[str, ...]) -> list[T]:
    return [
        kind(name=key.rpartition("-")[0], partition_indexes=[int(key.rpartition("-")[2])])
        for key in keys
    ]


@pytest.fixture(params=["zookeeper", "kafka"])
async def asker(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Asker]:
    properties = {
        "offsets.storage": request.param,
        "offsets.topic.num.partitions": "3",
        "offsets.topic.replication.factor": "1",
        "offset.metadata.max.bytes": "20",
    }
    async with Bench(tmp_path, properties=properties) as bench:
        for topic in ("a", "b"):
            await bench.create(topic, partitions=2)
        await bench.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="g"))
        await bench.app.groups.shards.settled()
        yield Asker(bench)


async def test_every_version_returns_the_fields_that_it_has(asker: Asker) -> None:
    for version in range(1, 9):
        asker.group = f"g{version}"
        epoch = 4 if version >= 6 else -1
        codes = await asker.commit({"a-0": 7, "a-1": 8}, version, metadata="text", epoch=epoch)
        assert codes == {"a-0": NONE, "a-1": NONE}
        fetched = await asker.fetch("a-0", "b-1", "no-9", version=version)
        seen_epoch = epoch if version >= 5 else -1
        assert fetched == {"a-0": (7, "text", seen_epoch, NONE), "b-1": NOTHING, "no-9": NOTHING}
        if version >= 2:
            everything = await asker.fetch(version=version)
            assert isinstance(everything, dict)
            assert list(everything) == ["a-0", "a-1"]


async def test_version_0_is_the_classic_node_of_any_group(asker: Asker) -> None:
    asker.group = "classic/one"
    assert await asker.commit({"a-0": 7, "no-0": 1}, 0) == {
        "a-0": NONE,
        "no-0": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert asker.node("a-0") == b"7"
    assert await asker.commit({"a-0": 6}, 0) == {"a-0": NONE}
    unknown = (-1, "", -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert await asker.fetch("a-0", "a-1", "no-0", version=0) == {
        "a-0": (6, "", -1, NONE),
        "a-1": unknown,
        "no-0": unknown,
    }


async def test_each_partition_has_its_own_fault(asker: Asker) -> None:
    codes = await asker.commit({"no-0": 1, "a-9": 1, "a-0": 1}, metadata="x" * 20)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == {"no-0": unknown, "a-9": unknown, "a-0": NONE}
    too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert await asker.commit({"a-0": 2}, metadata="x" * 21) == {"a-0": too_large}
    assert await asker.commit({"a-0": 2}, 0, metadata="x" * 21) == {"a-0": too_large}
    assert await asker.fetch("a-0") == {"a-0": (1, "x" * 20, -1, NONE)}


async def test_repeated_partitions_are_answered_as_in_kafka(asker: Asker) -> None:
    topic = OffsetCommitRequestTopic(
        name="a",
        partitions=[
            OffsetCommitRequestPartition(
                partition_index=0, committed_offset=offset, committed_metadata=None
            )
            for offset in (1, 2)
        ],
    )
    request = OffsetCommitRequest(group_id="g", topics=[topic, topic])
    answer = await asker.bench.ask(ApiKey.OFFSET_COMMIT, 8, request)
    assert [len(each.partitions) for each in answer.topics] == [2, 2]
    wanted = OffsetFetchRequestTopic(name="a", partition_indexes=[0, 0, 1])
    request_all = OffsetFetchRequest(group_id="g", topics=[wanted, wanted])
    fetched = await asker.bench.ask(ApiKey.OFFSET_FETCH, 5, request_all)
    offsets = [[part.committed_offset for part in each.partitions] for each in fetched.topics]
    assert offsets == [[2, -1]]
    many = OffsetFetchRequestTopic(name="a", partition_indexes=[0, *range(-9, 2500), 0])
    request_many = OffsetFetchRequest(group_id="g", topics=[many, wanted])
    fetched = await asker.bench.ask(ApiKey.OFFSET_FETCH, 5, request_many)
    offsets = [[part.committed_offset for part in each.partitions] for each in fetched.topics]
    assert offsets == [[2, *[-1] * 9, *[-1] * 2499]]


async def test_invalid_group_ids_are_rejected(asker: Asker) -> None:
    invalid = ErrorCode.INVALID_GROUP_ID
    for asker.group in ("", "x" * 300, "/" * 100):
        for version in (0, 1, 8):
            assert await asker.commit({"a-0": 1}, version) == {"a-0": invalid}
        for version in (0, 1):
            assert await asker.fetch("a-0", version=version) == {"a-0": (-1, "", -1, invalid)}
        for version in (2, 8):
            assert await asker.fetch("a-0", version=version) == invalid
        assert await asker.delete("a-0") == invalid


async def test_group_ids_that_are_no_path_are_escaped(asker: Asker) -> None:
    for number, asker.group in enumerate(["a/b", "..", ".", "%2F", "\u00e9" * 40]):
        assert await asker.commit({"a-0": number}) == {"a-0": NONE}
        assert await asker.fetch() == {"a-0": (number, "", -1, NONE)}
    asker.group = "other"
    assert await asker.fetch() == {}


async def test_an_unknown_member_commits_nothing(asker: Asker) -> None:
    codes = await asker.commit({"a-0": 1}, member="somebody", generation=3)
    assert codes == {"a-0": ErrorCode.ILLEGAL_GENERATION}
    assert await asker.fetch() == {}


async def test_several_groups_in_one_request(asker: Asker) -> None:
    await asker.commit({"a-0": 5})
    asker.group = "h"
    await asker.commit({"b-0": 6})
    topics = [OffsetFetchRequestTopics(name="a", partition_indexes=[0, 1])]
    groups = [
        OffsetFetchRequestGroup(group_id="g", topics=topics),
        OffsetFetchRequestGroup(group_id="", topics=None),
        OffsetFetchRequestGroup(group_id="h", topics=None),
        OffsetFetchRequestGroup(group_id="nobody", topics=None),
    ]
    answer = await asker.bench.ask(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=groups))
    seen = [
        (
            group.group_id,
            group.error_code,
            [part.committed_offset for topic in group.topics for part in topic.partitions],
        )
        for group in answer.groups
    ]
    assert seen == [
        ("g", NONE, [5, -1]),
        ("", ErrorCode.INVALID_GROUP_ID, []),
        ("h", NONE, [6]),
        ("nobody", NONE, []),
    ]


async def test_offsets_of_a_repeated_group_are_returned_once(
    asker: Asker,
) -> None:
    """A group name has a few bytes, its committed offsets may have megabytes."""
    await asker.commit({"a-0": 5})
    some = [OffsetFetchRequestTopics(name="a", partition_indexes=[0])]
    groups = [
        OffsetFetchRequestGroup(group_id="g", topics=some),
        *[OffsetFetchRequestGroup(group_id="g", topics=None)] * 1000,
        OffsetFetchRequestGroup(group_id="g", topics=some),
    ]
    answer = await asker.bench.ask(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=groups))
    offsets = [group.topics[0].partitions[0].committed_offset for group in answer.groups]
    assert offsets == [5]


@pytest.mark.parametrize("version", [0, 1, 5, 7, 8])
async def test_offsets_of_a_repeated_partition_are_returned_once(
    asker: Asker, version: int
) -> None:
    """A partition number has 4 bytes, the metadata of its committed offset may have thousands."""
    await asker.commit({"a-0": 5}, metadata="m" * 4000)
    numbers = [0, 1] * 1000
    topics = [OffsetFetchRequestTopic(name="a", partition_indexes=numbers)] * 2
    request = OffsetFetchRequest(group_id="g", topics=topics)
    if version >= 8:
        some = [OffsetFetchRequestTopics(name="a", partition_indexes=numbers)] * 2
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id="g", topics=some)] * 3
        )
    answer = await asker.bench.ask(ApiKey.OFFSET_FETCH, version, request)
    told = [topics for group in answer.groups for topics in group.topics] or answer.topics
    rows = [(topic.name, part.partition_index) for topic in told for part in topic.partitions]
    assert rows == [("a", 0), ("a", 1)]


async def test_deleting_offsets(asker: Asker) -> None:
    assert await asker.delete("a-0") == ErrorCode.GROUP_ID_NOT_FOUND
    await asker.commit({"a-0": 5, "b-0": 6})
    assert await asker.delete("a-0", "no-0", "a-1") == {
        "a-0": NONE,
        "no-0": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "a-1": NONE,
    }
    assert await asker.fetch() == {"b-0": (6, "", -1, NONE)}
    answer = await asker.bench.ask(
        ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=["g", "nobody"])
    )
    codes = {result.group_id: result.error_code for result in answer.results}
    assert codes == {"g": NONE, "nobody": ErrorCode.GROUP_ID_NOT_FOUND}
    assert await asker.fetch() == {}
    assert not [path for path in asker.bench.tree.paths() if path.startswith("/consumers/")]


async def test_the_retention_of_an_offset_commit_is_stored(asker: Asker) -> None:
    await asker.commit({"a-0": 5}, 3, retention_time_ms=60_000)
    shard = asker.bench.app.groups.service.shard_of("g")
    ((_, committed),) = (await shard.offsets.fetch("g", None)).items()
    assert abs(committed.expire_ms - committed.commit_ms - 60_000) < 60_000


async def test_a_retention_beyond_the_largest_timestamp_never_expires(asker: Asker) -> None:
    codes = await asker.commit({"a-0": 5}, 3, metadata="m", retention_time_ms=2**63 - 1)
    assert codes == {"a-0": NONE}
    shard = asker.bench.app.groups.service.shard_of("g")
    ((_, committed),) = (await shard.offsets.fetch("g", None)).items()
    assert (committed.metadata, committed.expire_ms) == ("m", 2**63 - 1)


async def test_a_cut_off_coordinator_commits_no_offsets(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asker.commit({"a-0": 5})
    monkeypatch.setattr(asker.bench.app.replicas, "lease", Authority.COMMITTED)
    unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
    for version in (0, 8):
        assert await asker.commit({"a-0": 6}, version) == {"a-0": unavailable}


async def test_offsets_are_stored_in_the_configured_store(asker: Asker) -> None:
    await asker.commit({"a-0": 5})
    options = asker.bench.app.live.current
    assert (asker.node("a-0") == b"5") is (options.offsets_storage == "zookeeper")
