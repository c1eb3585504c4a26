"""CreateTopics (19), versions 0-7, DeleteTopics (20), versions 0-6, DeleteRecords (21), versions
0-2, CreatePartitions (37), versions 0-3.

- The client itself pauses for the throttle time (KIP-219) from CreateTopics 3, DeleteTopics 2,
  DeleteRecords 1 and CreatePartitions 1 on.
- CreateTopics 4 adds the broker's defaults for partitions and replicas (-1).
- DeleteTopics 3 adds error 73 (TOPIC_DELETION_DISABLED).
- CreateTopics 6, DeleteTopics 5 and CreatePartitions 3 add error 89 (THROTTLING_QUOTA_EXCEEDED).
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
    """A partition, and the brokers of its replicas: an element of `CreatableTopic.assignments`."""

    partition_index: int = int32("The partition number.")
    broker_ids: list[int] = int32_array(
        "The broker ids of the replicas, the preferred leader first."
    )


@message
class CreatableTopicConfig(Message):
    """An option of the topic, and its value: an element of `CreatableTopic.configs`."""

    name: str = string("The name of the option.")
    value: str | None = string("The value of the option.", nullable_since=0, default=None)


@message
class CreatableTopic(Message):
    """A topic to create: an element of `CreateTopicsRequest.topics`."""

    name: str = string("The topic name.")
    num_partitions: int = int32(
        "The number of partitions; -1 for the broker's default, or if the request assigns replicas."
    )
    replication_factor: int = int16(
        "The replication factor; -1 for the broker's default, or if the request assigns replicas."
    )
    assignments: list[CreatableReplicaAssignment] = array(
        CreatableReplicaAssignment,
        "The replicas of each partition; if empty, the broker assigns replicas.",
    )
    configs: list[CreatableTopicConfig] = array(
        CreatableTopicConfig, "The options to set for the topic."
    )


@message
class CreateTopicsRequest(Message):
    """Creates topics."""

    topics: list[CreatableTopic] = array(CreatableTopic, "The topics to create.")
    timeout_ms: int = int32(
        "The time after which the broker answers with error 7 (REQUEST_TIMED_OUT), in ms.",
        default=60000,
    )
    validate_only: bool = boolean(
        "Whether the broker only validates the request and changes nothing.", since=1
    )


@message
class CreatableTopicConfigs(Message):
    """An option of the created topic, and its value: an element of
    `CreatableTopicResult.configs`."""

    name: str = string("The name of the option.")
    value: str | None = string(
        "The value; null if the option is sensitive.", nullable_since=0, default=None
    )
    read_only: bool = boolean("Whether the option is read-only.")
    config_source: int = int8(
        "The source of the value: 1 topic, 4 properties file of the broker, 5 default.", default=-1
    )
    is_sensitive: bool = boolean("Whether the option is sensitive, such as a password.")


@message
class CreatableTopicResult(Message):
    """The result for one topic: an element of `CreateTopicsResponse.topics`."""

    name: str = string("The topic name.")
    topic_id: uuid.UUID = identifier(
        "The topic id; the zero UUID if the topic has none.", since=7, ignorable=True
    )
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", since=1, nullable_since=1, ignorable=True, default=None
    )
    topic_config_error_code: int = int16(
        "The error for which the response omits the configuration, or 0 (KIP-525).",
        since=5,
        tag=0,
        ignorable=True,
    )
    num_partitions: int = int32(
        "The number of partitions, or -1.", since=5, ignorable=True, default=-1
    )
    replication_factor: int = int16(
        "The replication factor, or -1.", since=5, ignorable=True, default=-1
    )
    configs: list[CreatableTopicConfigs] | None = array(
        CreatableTopicConfigs,
        "All options of the topic; null if the client is not authorized to describe them.",
        since=5,
        nullable_since=5,
        ignorable=True,
    )


@message
class CreateTopicsResponse(Message):
    """The result for each topic, with partition count, replication factor and configuration."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none.",
        since=2,
        ignorable=True,
    )
    topics: list[CreatableTopicResult] = array(
        CreatableTopicResult, "One result for each topic of the request."
    )


@message
class DeleteTopicState(Message):
    """A topic to delete: an element of `DeleteTopicsRequest.topics`."""

    name: str | None = string(
        "The topic name; null if the request names the topic by id.", nullable_since=0, default=None
    )
    topic_id: uuid.UUID = identifier("The topic id; the zero UUID if the topic has none.")


@message
class DeleteTopicsRequest(Message):
    """Deletes topics."""

    topics: list[DeleteTopicState] = array(
        DeleteTopicState, "The topics to delete, by name or by id.", since=6
    )
    topic_names: list[str] = string_array("The topic names.", until=5, ignorable=True)
    timeout_ms: int = int32(
        "The time after which the broker answers with error 7 (REQUEST_TIMED_OUT), in ms."
    )


@message
class DeletableTopicResult(Message):
    """The result for one topic: an element of `DeleteTopicsResponse.responses`."""

    name: str | None = string("The topic name; null if the topic id is unknown.", nullable_since=6)
    topic_id: uuid.UUID = identifier(
        "The topic id; the zero UUID if the topic has none.", since=6, ignorable=True
    )
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", since=5, nullable_since=5, ignorable=True, default=None
    )


@message
class DeleteTopicsResponse(Message):
    """The result for each topic: the deletion has begun, or an error."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none.",
        since=1,
        ignorable=True,
    )
    responses: list[DeletableTopicResult] = array(
        DeletableTopicResult, "One result for each topic of the request."
    )


@message
class DeleteRecordsPartition(Message):
    """A partition, and the offset below which to delete its records: an element of
    `DeleteRecordsTopic.partitions`."""

    partition_index: int = int32("The partition number.")
    offset: int = int64("The new log start offset; -1 for the high watermark.")


@message
class DeleteRecordsTopic(Message):
    """A topic with the partitions whose records are deleted: an element of
    `DeleteRecordsRequest.topics`."""

    name: str = string("The topic name.")
    partitions: list[DeleteRecordsPartition] = array(
        DeleteRecordsPartition, "The new log start offset of each partition."
    )


@message
class DeleteRecordsRequest(Message):
    """Deletes the records below a given offset in each listed partition."""

    topics: list[DeleteRecordsTopic] = array(
        DeleteRecordsTopic, "The new log start offsets, by topic."
    )
    timeout_ms: int = int32(
        "The time after which the broker answers with error 7 (REQUEST_TIMED_OUT), in ms."
    )


@message
class DeleteRecordsPartitionResult(Message):
    """The result for one partition: an element of `DeleteRecordsTopicResult.partitions`."""

    partition_index: int = int32("The partition number.")
    low_watermark: int = int64(
        "The low watermark: the smallest log start offset of the replicas, or -1."
    )
    error_code: int = int16("The error, or 0.")


@message
class DeleteRecordsTopicResult(Message):
    """A topic with the results for its partitions: an element of `DeleteRecordsResponse.topics`."""

    name: str = string("The topic name.")
    partitions: list[DeleteRecordsPartitionResult] = array(
        DeleteRecordsPartitionResult, "The results, by partition."
    )


@message
class DeleteRecordsResponse(Message):
    """The low watermark of each partition."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    topics: list[DeleteRecordsTopicResult] = array(
        DeleteRecordsTopicResult, "The results, by topic."
    )


@message
class CreatePartitionsAssignment(Message):
    """The brokers of the replicas of one new partition: an element of
    `CreatePartitionsTopic.assignments`."""

    broker_ids: list[int] = int32_array(
        "The broker ids of the replicas, the preferred leader first."
    )


@message
class CreatePartitionsTopic(Message):
    """A topic that gets more partitions: an element of `CreatePartitionsRequest.topics`."""

    name: str = string("The topic name.")
    count: int = int32("The new number of partitions.")
    assignments: list[CreatePartitionsAssignment] | None = array(
        CreatePartitionsAssignment,
        "The replicas of each new partition; if null, the broker assigns replicas.",
        nullable_since=0,
        default=None,
    )


@message
class CreatePartitionsRequest(Message):
    """Adds partitions to topics."""

    topics: list[CreatePartitionsTopic] = array(
        CreatePartitionsTopic, "The topics that get more partitions."
    )
    timeout_ms: int = int32(
        "The time after which the broker answers with error 7 (REQUEST_TIMED_OUT), in ms."
    )
    validate_only: bool = boolean(
        "Whether the broker only validates the request and changes nothing."
    )


@message
class CreatePartitionsTopicResult(Message):
    """The result for one topic: an element of `CreatePartitionsResponse.results`."""

    name: str = string("The topic name.")
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", nullable_since=0, default=None
    )


@message
class CreatePartitionsResponse(Message):
    """The result for each topic that gets more partitions."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    results: list[CreatePartitionsTopicResult] = array(
        CreatePartitionsTopicResult, "One result for each topic of the request."
    )
