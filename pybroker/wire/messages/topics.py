"""CreateTopics (19) 0-7, DeleteTopics (20) 0-6, DeleteRecords (21) 0-2, CreatePartitions (37) 0-3.

CreateTopics: 1 dry run, error texts. 2 throttle time. 3 the client throttles itself. 4 default
counts (-1). 5 flexible, the created configuration (KIP-525). 6 error 89 possible. 7 topic ids.
DeleteTopics: 1 throttle time. 2 the client throttles itself. 3 error 73 possible. 4 flexible.
5 error texts, error 89. 6 deletion by id.
DeleteRecords: 1 the client throttles itself. 2 flexible.
CreatePartitions: 1 the client throttles itself. 2 flexible. 3 error 89 possible.
"""

from __future__ import annotations

import uuid

from pybroker.wire.schema import (
    Message,
    array,
    boolean,
    identifier,
    int8,
    int16,
    int32,
    int32_array,
    int64,
    message,
    string,
    string_array,
)


@message
class CreatableReplicaAssignment(Message):
    """One element of `CreatableTopic.assignments`."""

    partition_index: int = int32("The partition's number.")
    broker_ids: list[int] = int32_array("The brokers, the preferred leader first.")


@message
class CreatableTopicConfig(Message):
    """One element of `CreatableTopic.configs`."""

    name: str = string("The option's name.")
    value: str | None = string("The option's value.", nullable_since=0, default=None)


@message
class CreatableTopic(Message):
    """One element of `CreateTopicsRequest.topics`."""

    name: str = string("The topic's name.")
    num_partitions: int = int32("How many partitions; -1 the default, or as assigned.")
    replication_factor: int = int16("How many replicas; -1 the default, or as assigned.")
    assignments: list[CreatableReplicaAssignment] = array(
        CreatableReplicaAssignment,
        "Which brokers hold which partition; empty lets the controller choose.",
    )
    configs: list[CreatableTopicConfig] = array(
        CreatableTopicConfig, "The topic's own configuration."
    )


@message
class CreateTopicsRequest(Message):
    """Creates topics."""

    topics: list[CreatableTopic] = array(CreatableTopic, "The topics to create.")
    timeout_ms: int = int32(
        "How long the broker may take before it answers with error 7, in ms.", default=60000
    )
    validate_only: bool = boolean("Whether only to check what would happen.", since=1)


@message
class CreatableTopicConfigs(Message):
    """One element of `CreatableTopicResult.configs`."""

    name: str = string("The option's name.")
    value: str | None = string("Its value; null if sensitive.", nullable_since=0, default=None)
    read_only: bool = boolean("Whether it cannot be changed.")
    config_source: int = int8(
        "Where the value comes from: 1 topic, 4 broker's file, 5 default.", default=-1
    )
    is_sensitive: bool = boolean("Whether the value is a secret.")


@message
class CreatableTopicResult(Message):
    """One element of `CreateTopicsResponse.topics`."""

    name: str = string("The topic's name.")
    topic_id: uuid.UUID = identifier("The topic's id; zero if none.", since=7, ignorable=True)
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error in words, or null.", since=1, nullable_since=1, ignorable=True, default=None
    )
    topic_config_error_code: int = int16(
        "Why the configuration is not shown, or 0 (KIP-525).", since=5, tag=0, ignorable=True
    )
    num_partitions: int = int32(
        "How many partitions there are, or -1.", since=5, ignorable=True, default=-1
    )
    replication_factor: int = int16(
        "How many replicas each has, or -1.", since=5, ignorable=True, default=-1
    )
    configs: list[CreatableTopicConfigs] | None = array(
        CreatableTopicConfigs,
        "The whole configuration of the topic; null if not allowed to see.",
        since=5,
        nullable_since=5,
        ignorable=True,
    )


@message
class CreateTopicsResponse(Message):
    """Whether each topic was created, and how it looks."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all.",
        since=2,
        ignorable=True,
    )
    topics: list[CreatableTopicResult] = array(CreatableTopicResult, "One result for each topic.")


@message
class DeleteTopicState(Message):
    """One element of `DeleteTopicsRequest.topics`."""

    name: str | None = string(
        "The topic's name, or null if an id is given.", nullable_since=0, default=None
    )
    topic_id: uuid.UUID = identifier("The topic's id; zero if none.")


@message
class DeleteTopicsRequest(Message):
    """Deletes topics."""

    topics: list[DeleteTopicState] = array(
        DeleteTopicState, "The topics, by name or by id.", since=6
    )
    topic_names: list[str] = string_array("The topics' names.", until=5, ignorable=True)
    timeout_ms: int = int32("How long the broker may take before it answers with error 7, in ms.")


@message
class DeletableTopicResult(Message):
    """One element of `DeleteTopicsResponse.responses`."""

    name: str | None = string("The topic's name; null if the id is unknown.", nullable_since=6)
    topic_id: uuid.UUID = identifier("The topic's id; zero if none.", since=6, ignorable=True)
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error in words, or null.", since=5, nullable_since=5, ignorable=True, default=None
    )


@message
class DeleteTopicsResponse(Message):
    """Whether the deletion of each topic has begun."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all.",
        since=1,
        ignorable=True,
    )
    responses: list[DeletableTopicResult] = array(
        DeletableTopicResult, "One result for each topic."
    )


@message
class DeleteRecordsPartition(Message):
    """One element of `DeleteRecordsTopic.partitions`."""

    partition_index: int = int32("The partition's number.")
    offset: int = int64("The first offset to keep; -1 the high watermark.")


@message
class DeleteRecordsTopic(Message):
    """One element of `DeleteRecordsRequest.topics`."""

    name: str = string("The topic's name.")
    partitions: list[DeleteRecordsPartition] = array(
        DeleteRecordsPartition, "Where to cut, by partition."
    )


@message
class DeleteRecordsRequest(Message):
    """Deletes the oldest records of partitions."""

    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic, "Where to cut, by topic.")
    timeout_ms: int = int32("How long the broker may take before it answers with error 7, in ms.")


@message
class DeleteRecordsPartitionResult(Message):
    """One element of `DeleteRecordsTopicResult.partitions`."""

    partition_index: int = int32("The partition's number.")
    low_watermark: int = int64("The lowest first offset of all replicas, or -1.")
    error_code: int = int16("The error, or 0.")


@message
class DeleteRecordsTopicResult(Message):
    """One element of `DeleteRecordsResponse.topics`."""

    name: str = string("The topic's name.")
    partitions: list[DeleteRecordsPartitionResult] = array(
        DeleteRecordsPartitionResult, "The results, by partition."
    )


@message
class DeleteRecordsResponse(Message):
    """Where each partition begins now."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    topics: list[DeleteRecordsTopicResult] = array(
        DeleteRecordsTopicResult, "The results, by topic."
    )


@message
class CreatePartitionsAssignment(Message):
    """One element of `CreatePartitionsTopic.assignments`."""

    broker_ids: list[int] = int32_array("The brokers, the preferred leader first.")


@message
class CreatePartitionsTopic(Message):
    """One element of `CreatePartitionsRequest.topics`."""

    name: str = string("The topic's name.")
    count: int = int32("How many partitions there shall be.")
    assignments: list[CreatePartitionsAssignment] | None = array(
        CreatePartitionsAssignment,
        "Brokers of each new partition; null lets the controller choose.",
        nullable_since=0,
        default=None,
    )


@message
class CreatePartitionsRequest(Message):
    """Adds partitions to topics."""

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic, "The topics to grow.")
    timeout_ms: int = int32("How long the broker may take before it answers with error 7, in ms.")
    validate_only: bool = boolean("Whether only to check what would happen.")


@message
class CreatePartitionsTopicResult(Message):
    """One element of `CreatePartitionsResponse.results`."""

    name: str = string("The topic's name.")
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error in words, or null.", nullable_since=0, default=None
    )


@message
class CreatePartitionsResponse(Message):
    """Whether each topic was changed."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    results: list[CreatePartitionsTopicResult] = array(
        CreatePartitionsTopicResult, "One result for each topic."
    )
