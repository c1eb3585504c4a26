"""Leaders and replicas: ElectLeaders (43) 0-2, AlterPartitionReassignments (45) 0,
ListPartitionReassignments (46) 0.

ElectLeaders: 1 unclean elections, an error for the whole (KIP-460). 2 flexible. The other two are
flexible from the start (KIP-455).
"""

from __future__ import annotations

from pybroker.wire.schema import Message, array, int8, int16, int32, int32_array, message, string


@message
class TopicPartitions(Message):
    """One element of `ElectLeadersRequest.topic_partitions`."""

    topic: str = string("The topic's name.")
    partitions: list[int] = int32_array("The partitions' numbers.")


@message
class ElectLeadersRequest(Message):
    """Elects the preferred or, on demand, any live replica as leader."""

    election_type: int = int8("0 the preferred replica, 1 any live one (unclean).", since=1)
    topic_partitions: list[TopicPartitions] | None = array(
        TopicPartitions, "The partitions; null all.", nullable_since=0, default=None
    )
    timeout_ms: int = int32(
        "How long the broker may take before it answers with error 7, in ms.", default=60000
    )


@message
class PartitionResult(Message):
    """One element of `ReplicaElectionResult.partition_result`."""

    partition_id: int = int32("The partition's number.")
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error in words, or null.", nullable_since=0, default=None
    )


@message
class ReplicaElectionResult(Message):
    """One element of `ElectLeadersResponse.replica_election_results`."""

    topic: str = string("The topic's name.")
    partition_result: list[PartitionResult] = array(PartitionResult, "The results, by partition.")


@message
class ElectLeadersResponse(Message):
    """Whether each partition has a new leader."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    error_code: int = int16("The error, or 0.", since=1)
    replica_election_results: list[ReplicaElectionResult] = array(
        ReplicaElectionResult, "The results, by topic."
    )


@message
class ReassignablePartition(Message):
    """One element of `ReassignableTopic.partitions`."""

    partition_index: int = int32("The partition's number.")
    replicas: list[int] | None = int32_array(
        "The brokers that shall hold it; null cancels a move under way.",
        nullable_since=0,
        default=None,
    )


@message
class ReassignableTopic(Message):
    """One element of `AlterPartitionReassignmentsRequest.topics`."""

    name: str = string("The topic's name.")
    partitions: list[ReassignablePartition] = array(
        ReassignablePartition, "The partitions to move."
    )


@message
class AlterPartitionReassignmentsRequest(Message):
    """Moves partitions to other brokers, or cancels a move (KIP-455)."""

    timeout_ms: int = int32(
        "How long the broker may take before it answers with error 7, in ms.", default=60000
    )
    topics: list[ReassignableTopic] = array(ReassignableTopic, "The partitions to move, by topic.")


@message
class ReassignablePartitionResponse(Message):
    """One element of `ReassignableTopicResponse.partitions`."""

    partition_index: int = int32("The partition's number.")
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error in words, or null.", nullable_since=0, default=None
    )


@message
class ReassignableTopicResponse(Message):
    """One element of `AlterPartitionReassignmentsResponse.responses`."""

    name: str = string("The topic's name.")
    partitions: list[ReassignablePartitionResponse] = array(
        ReassignablePartitionResponse, "The results, by partition."
    )


@message
class AlterPartitionReassignmentsResponse(Message):
    """Whether each move was accepted."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error in words, or null.", nullable_since=0, default=None
    )
    responses: list[ReassignableTopicResponse] = array(
        ReassignableTopicResponse, "The results, by topic."
    )


@message
class ListPartitionReassignmentsTopics(Message):
    """One element of `ListPartitionReassignmentsRequest.topics`."""

    name: str = string("The topic's name.")
    partition_indexes: list[int] = int32_array("The partitions' numbers.")


@message
class ListPartitionReassignmentsRequest(Message):
    """Asks which moves are under way (KIP-455)."""

    timeout_ms: int = int32(
        "How long the broker may take before it answers with error 7, in ms.", default=60000
    )
    topics: list[ListPartitionReassignmentsTopics] | None = array(
        ListPartitionReassignmentsTopics,
        "The partitions asked about; null all.",
        nullable_since=0,
        default=None,
    )


@message
class OngoingPartitionReassignment(Message):
    """One element of `OngoingTopicReassignment.partitions`."""

    partition_index: int = int32("The partition's number.")
    replicas: list[int] = int32_array("All replicas, those to add and to remove included.")
    adding_replicas: list[int] = int32_array("The replicas on their way in.")
    removing_replicas: list[int] = int32_array("The replicas on their way out.")


@message
class OngoingTopicReassignment(Message):
    """One element of `ListPartitionReassignmentsResponse.topics`."""

    name: str = string("The topic's name.")
    partitions: list[OngoingPartitionReassignment] = array(
        OngoingPartitionReassignment, "The moves under way, by partition."
    )


@message
class ListPartitionReassignmentsResponse(Message):
    """The moves under way."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error in words, or null.", nullable_since=0, default=None
    )
    topics: list[OngoingTopicReassignment] = array(
        OngoingTopicReassignment, "The moves under way, by topic."
    )
