"""Tests of valid but large requests: the answers are bounded, and the broker yields to the event
loop meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.errors import ErrorCode, MalformedInput
from pybroker.handlers.metadata import CREATIONS_MAX
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from pybroker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from pybroker.wire.primitives import REQUEST_ELEMENTS_MAX
from pybroker.yield_every import ITEMS_PER_YIELD
from unit_tests.handlers.bench import Bench, code, the_only


def metadata_of(*names: str, create: bool = False) -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=create,
    )


async def test_more_elements_than_a_request_may_have_close_the_connection(bench: Bench) -> None:
    with pytest.raises(MalformedInput, match="too many elements"):
        await bench.ask(ApiKey.METADATA, 8, metadata_of(*["t"] * (REQUEST_ELEMENTS_MAX + 1)))


async def test_one_request_creates_a_limited_number_of_topics_and_retries_create_the_rest(
    bench: Bench,
) -> None:
    names = [f"t{number:03}" for number in range(CREATIONS_MAX + 30)]
    answer = await bench.ask(ApiKey.METADATA, 8, metadata_of(*names, create=True))
    codes = {topic.name: code(topic) for topic in answer.topics}
    assert codes == {
        name: ErrorCode.NONE if number < CREATIONS_MAX else ErrorCode.LEADER_NOT_AVAILABLE
        for number, name in enumerate(names)
    }
    answer = await bench.ask(ApiKey.METADATA, 8, metadata_of(*names, create=True))
    assert {code(topic) for topic in answer.topics} == {ErrorCode.NONE}


COUNT = 5 * ITEMS_PER_YIELD
MANY = {
    ApiKey.LIST_OFFSETS: ListOffsetsRequest(
        topics=[
            ListOffsetsTopic(
                name="t",
                partitions=[
                    ListOffsetsPartition(partition_index=number, timestamp=-1)
                    for number in range(COUNT)
                ],
            )
        ]
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: OffsetForLeaderEpochRequest(
        topics=[
            OffsetForLeaderTopic(
                topic="t",
                partitions=[OffsetForLeaderPartition(partition=number) for number in range(COUNT)],
            )
        ]
    ),
}


@pytest.mark.parametrize("key", MANY)
async def test_looking_up_many_partitions_yields_to_other_tasks(bench: Bench, key: ApiKey) -> None:
    await bench.create("t")
    looking = asyncio.ensure_future(bench.ask(key, 3, MANY[key]))
    turns = 0
    while not looking.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 5
    assert len(the_only((await looking).topics).partitions) == COUNT
