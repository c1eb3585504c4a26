"""Transactions for operators (KIP-664): DescribeProducers (61), DescribeTransactions (65),
ListTransactions (66), version 0 each, flexible.
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
    """One element of `DescribeProducersRequest.topics`."""

    name: str = string("The topic's name.")
    partition_indexes: list[int] = int32_array("The partitions' numbers.")


@message
class DescribeProducersRequest(Message):
    """Asks for the producers of partitions (KIP-664)."""

    topics: list[DescribeProducersTopic] = array(DescribeProducersTopic, "Where to look, by topic.")


@message
class ProducerState(Message):
    """One element of `DescribeProducersPartitionResponse.active_producers`."""

    producer_id: int = int64("The producer's id.")
    producer_epoch: int = int32("The producer's epoch.")
    last_sequence: int = int32("The sequence number of the last record, or -1.", default=-1)
    last_timestamp: int = int64("The time of the last batch in ms, or -1.", default=-1)
    coordinator_epoch: int = int32("The epoch of the coordinator that wrote the last marker.")
    current_txn_start_offset: int = int64("Where the open transaction began, or -1.", default=-1)


@message
class DescribeProducersPartitionResponse(Message):
    """One element of `DescribeProducersTopicResponse.partitions`."""

    partition_index: int = int32("The partition's number.")
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error in words, or null.", nullable_since=0, default=None
    )
    active_producers: list[ProducerState] = array(
        ProducerState, "The producers that the partition remembers."
    )


@message
class DescribeProducersTopicResponse(Message):
    """One element of `DescribeProducersResponse.topics`."""

    name: str = string("The topic's name.")
    partitions: list[DescribeProducersPartitionResponse] = array(
        DescribeProducersPartitionResponse, "The results, by partition."
    )


@message
class DescribeProducersResponse(Message):
    """The producers of each partition."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    topics: list[DescribeProducersTopicResponse] = array(
        DescribeProducersTopicResponse, "The results, by topic."
    )


@message
class DescribeTransactionsRequest(Message):
    """Asks for the state of transactions (KIP-664)."""

    transactional_ids: list[str] = string_array("The transactional ids.")


@message
class TransactionTopicData(Message):
    """One element of `DescribedTransaction.topics`."""

    topic: str = string("The topic's name.")
    partitions: list[int] = int32_array("The partitions' numbers.")


@message
class DescribedTransaction(Message):
    """One element of `DescribeTransactionsResponse.transaction_states`."""

    error_code: int = int16("The error, or 0.")
    transactional_id: str = string("The transactional id.")
    transaction_state: str = string("The state's name, as in Ongoing.")
    transaction_timeout_ms: int = int32("After how many ms it is aborted.")
    transaction_start_time_ms: int = int64("When it began in ms, or -1.")
    producer_id: int = int64("The producer's id.")
    producer_epoch: int = int16("The producer's epoch.")
    topics: list[TransactionTopicData] = array(TransactionTopicData, "Where it has written.")


@message
class DescribeTransactionsResponse(Message):
    """The state of each transaction."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    transaction_states: list[DescribedTransaction] = array(
        DescribedTransaction, "One result for each id."
    )


@message
class ListTransactionsRequest(Message):
    """Asks which transactions this broker coordinates (KIP-664)."""

    state_filters: list[str] = string_array("The states to list; empty all.")
    producer_id_filters: list[int] = int64_array("The producer ids to list; empty all.")


@message
class ListedTransaction(Message):
    """One element of `ListTransactionsResponse.transaction_states`."""

    transactional_id: str = string("The transactional id.")
    producer_id: int = int64("The producer's id.")
    transaction_state: str = string("The state's name, as in Ongoing.")


@message
class ListTransactionsResponse(Message):
    """The transactions."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    error_code: int = int16("The error, or 0.")
    unknown_state_filters: list[str] = string_array("The states of the request that do not exist.")
    transaction_states: list[ListedTransaction] = array(
        ListedTransaction, "The transactions that this broker coordinates."
    )
