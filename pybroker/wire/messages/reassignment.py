"""Leaders and replicas: ElectLeaders (43), versions 0-2 (KIP-460), AlterPartitionReassignments
(45), version 0, and ListPartitionReassignments (46), version 0."""

from __future__ import annotations

from pybroker.wire.schema import Message, array, int8, int16, int32, int32_array, message, string


@message
class TopicPartitions(Message):
    """A topic with the partitions in which to elect a leader: an element of
    `ElectLeadersRequest.topic_partitions`."""

    topic: str = string("The topic name.")
    partitions: list[int] = int32_array("The partition numbers.")


@message
class ElectLeadersRequest(Message):
    """Elects the preferred replica as leader or, in an unclean election, any live replica."""

    election_type: int = int8("The election type: 0 preferred, 1 unclean.", since=1)
    topic_partitions: list[TopicPartitions] | None = array(
        TopicPartitions,
        "The partitions for which to elect a leader; null for all partitions.",
        nullable_since=0,
        default=None,
    )
    timeout_ms: int = int32(
        "The time after which the broker answers with error 7 (REQUEST_TIMED_OUT), in ms.",
        default=60000,
    )


@message
class PartitionResult(Message):
    """The result for one partition: an element of `ReplicaElectionResult.partition_result`."""

    partition_id: int = int32("The partition number.")
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", nullable_since=0, default=None
    )


@message
class ReplicaElectionResult(Message):
    """A topic with the results for its partitions: an element of
    `ElectLeadersResponse.replica_election_results`."""

    topic: str = string("The topic name.")
    partition_result: list[PartitionResult] = array(PartitionResult, "The results, by partition.")


@message
class ElectLeadersResponse(Message):
    """The result of the election in each partition."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    error_code: int = int16("The error, or 0.", since=1)
    replica_election_results: list[ReplicaElectionResult] = array(
        ReplicaElectionResult, "The results, by topic."
    )


@message
class ReassignablePartition(Message):
    """A partition, and its new replicas: an element of `ReassignableTopic.partitions`."""

    partition_index: int = int32("The partition number.")
    replicas: list[int] | None = int32_array(
        "The broker ids of the new replicas; null cancels the current reassignment.",
        nullable_since=0,
        default=None,
    )


@message
class ReassignableTopic(Message):
    """A topic with the partitions to reassign: an element of
    `AlterPartitionReassignmentsRequest.topics`."""

    name: str = string("The topic name.")
    partitions: list[ReassignablePartition] = array(
        ReassignablePartition, "The partitions to reassign."
    )


@message
class AlterPartitionReassignmentsRequest(Message):
    """Reassigns partitions to other brokers, or cancels a reassignment (KIP-455)."""

    timeout_ms: int = int32(
        "The time after which the broker answers with error 7 (REQUEST_TIMED_OUT), in ms.",
        default=60000,
    )
    topics: list[ReassignableTopic] = array(
        ReassignableTopic, "The partitions to reassign, by topic."
    )


@message
class ReassignablePartitionResponse(Message):
    """The result for one partition: an element of `ReassignableTopicResponse.partitions`."""

    partition_index: int = int32("The partition number.")
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", nullable_since=0, default=None
    )


@message
class ReassignableTopicResponse(Message):
    """A topic with the results for its partitions: an element of
    `AlterPartitionReassignmentsResponse.responses`."""

    name: str = string("The topic name.")
    partitions: list[ReassignablePartitionResponse] = array(
        ReassignablePartitionResponse, "The results, by partition."
    )


@message
class AlterPartitionReassignmentsResponse(Message):
    """The result for each partition to reassign."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", nullable_since=0, default=None
    )
    responses: list[ReassignableTopicResponse] = array(
        ReassignableTopicResponse, "The results, by topic."
    )


@message
class ListPartitionReassignmentsTopics(Message):
    """A topic with the partitions to describe: an element of
    `ListPartitionReassignmentsRequest.topics`."""

    name: str = string("The topic name.")
    partition_indexes: list[int] = int32_array("The partition numbers.")


@message
class ListPartitionReassignmentsRequest(Message):
    """Requests the reassignments that are not finished (KIP-455)."""

    timeout_ms: int = int32(
        "The time after which the broker answers with error 7 (REQUEST_TIMED_OUT), in ms.",
        default=60000,
    )
    topics: list[ListPartitionReassignmentsTopics] | None = array(
        ListPartitionReassignmentsTopics,
        "The partitions to describe; null for all partitions.",
        nullable_since=0,
        default=None,
    )


@message
class OngoingPartitionReassignment(Message):
    """The reassignment of one partition: an element of `OngoingTopicReassignment.partitions`."""

    partition_index: int = int32("The partition number.")
    replicas: list[int] = int32_array(
        "All assigned replicas, including the replicas to add and to remove."
    )
    adding_replicas: list[int] = int32_array("The replicas that the reassignment adds.")
    removing_replicas: list[int] = int32_array("The replicas that the reassignment removes.")


@message
class OngoingTopicReassignment(Message):
    """A topic with the reassignments of its partitions: an element of
    `ListPartitionReassignmentsResponse.topics`."""

    name: str = string("The topic name.")
    partitions: list[OngoingPartitionReassignment] = array(
        OngoingPartitionReassignment, "The current reassignments, by partition."
    )


@message
class ListPartitionReassignmentsResponse(Message):
    """The reassignments that are not finished."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", nullable_since=0, default=None
    )
    topics: list[OngoingTopicReassignment] = array(
        OngoingTopicReassignment, "The current reassignments, by topic."
    )
