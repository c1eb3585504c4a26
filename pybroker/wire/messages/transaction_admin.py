"""Administration of transactions (KIP-664): DescribeProducers (61) and DescribeTransactions (65),
version 0, and ListTransactions (66), versions 0-1. All are flexible.

ListTransactions, change in version 1: the filter by duration (KIP-994).
"""

from __future__ import annotations

from pybroker.wire.schema import (
    Message,
    array,
    int16,
    int32,
    int32_array,
    int64,
    int64_array,
    message,
    string,
    string_array,
)


@message
class DescribeProducersTopic(Message):
    """A topic with the partitions to describe: an element of `DescribeProducersRequest.topics`."""

    name: str = string("The topic name.")
    partition_indexes: list[int] = int32_array("The partition numbers.")


@message
class DescribeProducersRequest(Message):
    """Requests the active producers of partitions (KIP-664)."""

    topics: list[DescribeProducersTopic] = array(
        DescribeProducersTopic, "The partitions to describe, by topic."
    )


@message
class ProducerState(Message):
    """The state of one active producer: an element of
    `DescribeProducersPartitionResponse.active_producers`."""

    producer_id: int = int64("The producer id.")
    producer_epoch: int = int32("The producer epoch.")
    last_sequence: int = int32(
        "The sequence number of the producer's last record, or -1.", default=-1
    )
    last_timestamp: int = int64(
        "The timestamp of the producer's last batch, in ms, or -1.", default=-1
    )
    coordinator_epoch: int = int32("The epoch of the coordinator that wrote the last marker.")
    current_txn_start_offset: int = int64(
        "The first offset of the open transaction, or -1.", default=-1
    )


@message
class DescribeProducersPartitionResponse(Message):
    """The active producers of one partition: an element of
    `DescribeProducersTopicResponse.partitions`."""

    partition_index: int = int32("The partition number.")
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", nullable_since=0, default=None
    )
    active_producers: list[ProducerState] = array(
        ProducerState, "The producers in the partition's producer state."
    )


@message
class DescribeProducersTopicResponse(Message):
    """A topic with the active producers of its partitions: an element of
    `DescribeProducersResponse.topics`."""

    name: str = string("The topic name.")
    partitions: list[DescribeProducersPartitionResponse] = array(
        DescribeProducersPartitionResponse, "The results, by partition."
    )


@message
class DescribeProducersResponse(Message):
    """The active producers of each partition."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    topics: list[DescribeProducersTopicResponse] = array(
        DescribeProducersTopicResponse, "The results, by topic."
    )


@message
class DescribeTransactionsRequest(Message):
    """Requests the state of transactions (KIP-664)."""

    transactional_ids: list[str] = string_array("The transactional ids.")


@message
class TransactionTopicData(Message):
    """A topic with its partitions in the transaction: an element of
    `DescribedTransaction.topics`."""

    topic: str = string("The topic name.")
    partitions: list[int] = int32_array("The partition numbers.")


@message
class DescribedTransaction(Message):
    """The state of one transaction: an element of
    `DescribeTransactionsResponse.transaction_states`."""

    error_code: int = int16("The error, or 0.")
    transactional_id: str = string("The transactional id.")
    transaction_state: str = string("The name of the state, for example Ongoing.")
    transaction_timeout_ms: int = int32("The transaction timeout, in ms.")
    transaction_start_time_ms: int = int64(
        "The start time of the transaction, in ms since 1970, or -1."
    )
    producer_id: int = int64("The producer id.")
    producer_epoch: int = int16("The producer epoch.")
    topics: list[TransactionTopicData] = array(
        TransactionTopicData, "The partitions of the transaction, by topic."
    )


@message
class DescribeTransactionsResponse(Message):
    """The state of each transaction."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    transaction_states: list[DescribedTransaction] = array(
        DescribedTransaction, "One result for each id of the request."
    )


@message
class ListTransactionsRequest(Message):
    """Requests the transactions that this broker coordinates (KIP-664)."""

    state_filters: list[str] = string_array(
        "The states of the transactions to list; empty for all states."
    )
    producer_id_filters: list[int] = int64_array(
        "The producer ids of the transactions to list; empty for all producers."
    )
    duration_filter: int = int64(
        "List only transactions that have lasted longer than this time in ms; negative: all.",
        since=1,
        default=-1,
    )


@message
class ListedTransaction(Message):
    """A transaction that the broker coordinates: an element of
    `ListTransactionsResponse.transaction_states`."""

    transactional_id: str = string("The transactional id.")
    producer_id: int = int64("The producer id.")
    transaction_state: str = string("The name of the state, for example Ongoing.")


@message
class ListTransactionsResponse(Message):
    """The transactions that this broker coordinates."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    error_code: int = int16("The error, or 0.")
    unknown_state_filters: list[str] = string_array(
        "The requested states that the broker does not know."
    )
    transaction_states: list[ListedTransaction] = array(
        ListedTransaction, "The transactions that this broker coordinates."
    )
