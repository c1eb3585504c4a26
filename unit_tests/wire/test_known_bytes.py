"""Tests of bodies against bytes that were derived by hand, mostly for versions that no other codec
supports."""

from __future__ import annotations

import uuid

import pytest

from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.codec import decode_message, encode_message
from pybroker.wire.messages.cluster import ApiVersion, ApiVersionsResponse
from pybroker.wire.messages.fetch import FetchRequest
from pybroker.wire.messages.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    AlterReplicaLogDirTopicResult,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from pybroker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from pybroker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from pybroker.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from pybroker.wire.schema import Message

RECORDS = b"RR"
PRODUCE = ProduceRequest(
    acks=-1,
    timeout_ms=1000,
    topic_data=[
        TopicProduceData(name="t", partition_data=[PartitionProduceData(index=2, records=RECORDS)])
    ],
)
PRODUCED = ProduceResponse(
    responses=[
        TopicProduceResponse(
            name="t",
            partition_responses=[
                PartitionProduceResponse(index=2, base_offset=5, log_start_offset=1)
            ],
        )
    ],
    throttle_time_ms=9,
)

KNOWN: dict[str, tuple[ApiKey, int, Message, str]] = {
    "WriteTxnMarkers request 0": (
        ApiKey.WRITE_TXN_MARKERS,
        0,
        WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=7,
                    producer_epoch=1,
                    transaction_result=True,
                    topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0, 3])],
                    coordinator_epoch=4,
                )
            ]
        ),
        "00000001 0000000000000007 0001 0100000001 0001 74 00000002 00000000 00000003 00000004",
    ),
    "WriteTxnMarkers response 0": (
        ApiKey.WRITE_TXN_MARKERS,
        0,
        WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=7,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name="t",
                            partitions=[
                                WritableTxnMarkerPartitionResult(partition_index=3, error_code=6)
                            ],
                        )
                    ],
                )
            ]
        ),
        "00000001 0000000000000007 00000001 0001 74 00000001 00000003 0006",
    ),
    "AlterReplicaLogDirs request 0": (
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        0,
        AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path="/d", topics=[AlterReplicaLogDirTopic(name="t", partitions=[1])]
                )
            ]
        ),
        "00000001 0002 2f64 00000001 0001 74 00000001 00000001",
    ),
    "AlterReplicaLogDirs response 0": (
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        0,
        AlterReplicaLogDirsResponse(
            results=[
                AlterReplicaLogDirTopicResult(
                    topic_name="t",
                    partitions=[
                        AlterReplicaLogDirPartitionResult(partition_index=1, error_code=57)
                    ],
                )
            ]
        ),
        "00000000 00000001 0001 74 00000001 00000001 0039",
    ),
    "DescribeLogDirs request 0": (
        ApiKey.DESCRIBE_LOG_DIRS,
        0,
        DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="t", partitions=[1])]),
        "00000001 0001 74 00000001 00000001",
    ),
    "DescribeLogDirs request 0, everything": (
        ApiKey.DESCRIBE_LOG_DIRS,
        0,
        DescribeLogDirsRequest(topics=None),
        "ffffffff",
    ),
    "Produce request 2": (
        ApiKey.PRODUCE,
        2,
        PRODUCE,
        "ffff 000003e8 00000001 0001 74 00000001 00000002 00000002 5252",
    ),
    "Produce request 3": (
        ApiKey.PRODUCE,
        3,
        PRODUCE,
        "ffff ffff 000003e8 00000001 0001 74 00000001 00000002 00000002 5252",
    ),
    "Produce request 9": (
        ApiKey.PRODUCE,
        9,
        PRODUCE,
        "00 ffff 000003e8 02 02 74 02 00000002 03 5252 00 00 00",
    ),
    "Produce response 5, throttle time last": (
        ApiKey.PRODUCE,
        5,
        PRODUCED,
        "00000001 0001 74 00000001 00000002 0000 0000000000000005 ffffffffffffffff"
        "0000000000000001 00000009",
    ),
    "Produce response 9": (
        ApiKey.PRODUCE,
        9,
        PRODUCED,
        "02 02 74 02 00000002 0000 0000000000000005 ffffffffffffffff 0000000000000001"
        "01 00 00 00 00000009 00",
    ),
    "Metadata request 0, all topics": (ApiKey.METADATA, 0, MetadataRequest(), "00000000"),
    "Metadata request 1, all topics": (
        ApiKey.METADATA,
        1,
        MetadataRequest(topics=None),
        "ffffffff",
    ),
    "Metadata request 9, all topics": (
        ApiKey.METADATA,
        9,
        MetadataRequest(topics=None),
        "00 01 00 00 00",
    ),
    "Metadata request 9, no topics": (ApiKey.METADATA, 9, MetadataRequest(), "01 01 00 00 00"),
    "Metadata request 12, by id": (
        ApiKey.METADATA,
        12,
        MetadataRequest(topics=[MetadataRequestTopic(topic_id=uuid.UUID(int=258), name=None)]),
        "02 00000000000000000000000000000102 00 00 01 00 00",
    ),
    "ApiVersions response 0, refusal": (
        ApiKey.API_VERSIONS,
        0,
        ApiVersionsResponse(
            error_code=35, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)]
        ),
        "0023 00000001 0012 0000 0004",
    ),
    "ApiVersions response 3, features": (
        ApiKey.API_VERSIONS,
        3,
        ApiVersionsResponse(
            api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)],
            finalized_features_epoch=2,
            zk_migration_ready=True,
        ),
        "0000 02 0012 0000 0004 00 00000000 02 01 08 0000000000000002 03 01 01",
    ),
    "Fetch request 12, our own tag": (
        ApiKey.FETCH,
        12,
        FetchRequest(replica_id=1, replica_incarnation=5, session_epoch=0),
        "00000001 00000000 00000000 7fffffff 00 00000000 00000000 01 01 01"
        "01 904e 08 0000000000000005",
    ),
}


@pytest.mark.parametrize("row", KNOWN.values(), ids=KNOWN)
def test_bodies_equal_known_bytes(row: tuple[ApiKey, int, Message, str]) -> None:
    key, version, message, text = row
    flexible = APIS[key].is_flexible(version)
    assert encode_message(message, version, flexible).hex() == bytes.fromhex(text).hex()
    assert decode_message(type(message), version, flexible, bytes.fromhex(text)) == message
