"""The errors of the client. The client raises an error after its own retries have failed.

- `retriable`: may a retry help?
- `definite`: is it certain that the broker did *not* process the operation? If not, sending a write
  again may store it twice.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from pybroker import errors
from pybroker.errors import ErrorCode, PybrokerError
from pybroker.model import TopicPartition

FieldName = Literal["key", "value"]
"""The name of a field of a record."""
_NAMED_MAX = 10
"""The maximum number of partitions that an error message names."""
WRITE_IN_DOUBT = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,  # also if the leader was replaced after the append
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""The error codes of Produce responses after which the batch may still be in the log."""


class ClientError(PybrokerError):
    """The base class of all errors of the client."""

    retriable = False
    definite = True


class ConfigError(ClientError, errors.ConfigError):
    """Options of a client are invalid. `faults` has a message for each."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A failed attempt to connect to an address, with the reason."""

    address: str
    reason: str


class NoBrokers(ClientError):
    """No broker is reachable. The message names each address and the reason."""

    retriable = True

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        tried = "; ".join(f"{attempt.address}: {attempt.reason}" for attempt in attempts)
        super().__init__(f"no broker could be reached ({tried or 'no address was given'})")
        self.attempts = tuple(attempts)


class ConnectFailed(ClientError):
    """A connection to one address could not be opened. Nothing was sent on it."""

    retriable = True

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.attempt = Attempt(address, reason)


class ConnectionLost(ClientError):
    """The connection ended before the response arrived. The broker may have processed the
    request."""

    retriable = True
    definite = False


class AnswerTooLarge(ConnectionLost):
    """The response is larger than `receive_message_max_bytes`. A retry does not help. Increase the
    limit, or request less data."""

    retriable = False


class RequestTimedOut(ClientError):
    """No response arrived in time. The broker may have processed the request, or may do so
    later."""

    retriable = True
    definite = False


class NotConnected(ClientError):
    """The request was not sent: the connection had ended, or the metadata lacks the broker."""

    retriable = True


class UnsupportedByBroker(ClientError):
    """The broker supports no version of the API that can represent the request."""


class ResponseError(ClientError):
    """The broker returned an error code of Kafka. The message has the code's name, a text, and
    `place` (the object or the step that failed, such as "topic orders"). The text is
    `broker_sentence` (from the broker), else `detail`, else Kafka's text."""

    def __init__(
        self,
        code: ErrorCode,
        detail: str = "",
        *,
        definite: bool = True,
        place: str = "",
        broker_sentence: str = "",
    ) -> None:
        self.detail = broker_sentence or detail or code.text
        if place:
            self.detail += f" ({place})"
        super().__init__(f"{code.name}: {self.detail}")
        self.code = code
        self.broker_sentence = broker_sentence
        self.retriable = code.retriable
        self.definite = definite


class DeliveryFailed(ClientError):
    """A record was not acknowledged. If `definite` is true, the record was certainly not written.
    `__cause__` is the last error; None if there was none."""

    def __init__(self, topic_partition: TopicPartition, reason: str, *, definite: bool) -> None:
        doubt = "" if definite else " (it may have been written)"
        super().__init__(f"record for {topic_partition} was not delivered: {reason}{doubt}")
        self.topic_partition = topic_partition
        self.definite = definite


class SerializationFailed(ClientError):
    """A serializer raised an error (`__cause__`), or returned something other than bytes or None.
    The record was not accepted. `index` is the record's index in `send_many`."""

    def __init__(
        self,
        topic: str,
        partition: int | None,
        field: FieldName,
        cause: Exception,
        index: int | None = None,
    ) -> None:
        place = topic if partition is None else TopicPartition(topic, partition)
        record = "a record" if index is None else f"record {index}"
        super().__init__(f"the {field} of {record} for {place} was not serialized: {cause!r}")
        self.topic = topic
        self.partition = partition
        self.field = field
        self.index = index


class RecordTooLarge(ClientError):
    """The record exceeds max.request.size or buffer.memory and cannot be sent."""


class BufferExhausted(ClientError):
    """The producer's buffer (buffer.memory) was full for max.block.ms, so the record was not
    accepted. `accepted` is the number of records that `send_many` accepted before; 0 for `send`."""

    retriable = True

    def __init__(self, text: str, *, accepted: int = 0) -> None:
        super().__init__(text)
        self.accepted = accepted


class WouldBlock(ClientError):
    """`send_nowait` cannot accept the record without waiting; `await send(...)` waits."""

    retriable = True


class TopicUnavailable(ClientError):
    """The metadata did not have the topic or the partition within the time limit. A retry helps
    only if the error is `retriable`."""

    def __init__(self, text: str, *, retriable: bool = True) -> None:
        super().__init__(text)
        self.retriable = retriable


class DeadlinePassed(ClientError):
    """The operation was not completed within its time limit. If `definite` is true, the last
    attempt certainly did nothing."""

    retriable = True

    def __init__(self, text: str, *, definite: bool = True) -> None:
        super().__init__(text)
        self.definite = definite


class OffsetUnavailable(ClientError):
    """The consumer has no valid offset, and auto.offset.reset is "none". Either no offset is
    committed, or the consumer's offset is outside the log."""

    def __init__(self, partitions: Collection[TopicPartition], reason: str) -> None:
        names = ", ".join(str(item) for item in sorted(partitions))
        super().__init__(f"no valid offset for {names}: {reason}")
        self.partitions = frozenset(partitions)


class LogTruncated(OffsetUnavailable):
    """An unclean election truncated records that the consumer has read. Seek to `offset` to read
    the records that replaced the truncated ones."""

    def __init__(self, topic_partition: TopicPartition, position: int, offset: int) -> None:
        super().__init__(
            [topic_partition],
            f"an unclean election truncated the log to offset {offset}, but the "
            f"position of the consumer is {position}: seek to {offset} to continue",
        )
        self.topic_partition = topic_partition
        self.position = position
        self.offset = offset


class SubscriptionConflict(ClientError):
    """The call does not fit the state of the consumer, or an option is missing. Call `unsubscribe`
    before you change between subscription and manual assignment."""


class NotAssigned(ClientError):
    """The partition is not assigned to this consumer. Partitions of subscribed topics are assigned
    during calls that read, such as `getmany`. Without a subscription, call `assign`."""

    def __init__(
        self, topic_partition: TopicPartition, assigned: Collection[TopicPartition]
    ) -> None:
        names = [str(item) for item in sorted(assigned)]
        shown = ", ".join(names[:_NAMED_MAX]) or "nothing"
        rest = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
        super().__init__(
            f"{topic_partition} is not assigned to this consumer, which has {shown}{rest}: "
            "call assign() first; a consumer that subscribes gets its partitions "
            "during getmany()"
        )
        self.topic_partition = topic_partition


class GroupError(ClientError):
    """The base class of errors about a consumer group."""

    def __init__(self, group_id: str, text: str) -> None:
        super().__init__(f"group {group_id}: {text}")
        self.group_id = group_id


class CommitFailed(GroupError):
    """The offsets were not committed, because other members can already own the partitions. If the
    time between two reading calls (`getmany`, `getone`) was too long, increase max.poll.interval.ms
    or decrease max.poll.records."""


class RebalanceInProgress(CommitFailed):
    """The offsets were not committed, because the group is rebalancing. Call `getmany` to rejoin,
    then commit the offsets of the partitions that are still assigned."""

    retriable = True


class FencedInstance(GroupError):
    """Another member with the same group.instance.id has replaced this member. Set a different
    group.instance.id for each process."""


class JoinRefused(GroupError):
    """The consumer cannot join the group. `code` is the error code in the coordinator's response.
    If the assignment from the group's leader cannot be decoded, `code` is
    INCONSISTENT_GROUP_PROTOCOL."""

    def __init__(self, group_id: str, code: ErrorCode, text: str) -> None:
        super().__init__(group_id, f"{code.name}: {text}")
        self.code = code


class InvalidSessionTimeout(JoinRefused):
    """session.timeout.ms is outside the broker's limits (group.min.session.timeout.ms to
    group.max.session.timeout.ms)."""


class TransactionError(ClientError):
    """The base class of the errors of a transaction. If `definite` is false, the coordinator may
    have committed the transaction."""

    def __init__(self, transactional_id: str, text: str, *, definite: bool = True) -> None:
        super().__init__(f"transactional.id {transactional_id}: {text}")
        self.transactional_id = transactional_id
        self.definite = definite
        self._text = text

    def again(self) -> Self:
        """Return a copy of this error for a later call. The cause of the copy is this error."""
        copy = type(self)(self.transactional_id, self._text, definite=self.definite)
        copy.__cause__ = self
        return copy


class AbortableTransactionError(TransactionError):
    """The transaction can only be aborted: call `abort_transaction`, or let this error end the
    `async with` block of `transaction`. The producer can then begin the next transaction."""

    retriable = True


class FatalTransactionError(TransactionError):
    """The producer cannot be used any more. Close it, remove the cause, and start a new producer
    with the same transactional id."""


class ProducerFenced(TransactionError):
    """Another producer was started with the same transactional id, or the transaction was open for
    longer than transaction.timeout.ms. Close the producer."""


class TransactionConflict(ClientError):
    """The call does not fit the state of the transaction. For example, `send` of a transactional
    producer needs an open transaction."""


class DamagedRecords(ClientError):
    """A fetched batch does not match its CRC or cannot be decoded. `offset` is the batch's first
    offset. To read on, seek beyond the batch."""

    def __init__(self, topic_partition: TopicPartition, offset: int, reason: str) -> None:
        super().__init__(f"batch at offset {offset} of {topic_partition} is damaged: {reason}")
        self.topic_partition = topic_partition
        self.offset = offset


class DeserializationFailed(ClientError):
    """A deserializer raised an error (`__cause__`) for the bytes `data`. The consumer's position is
    already after the record."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        offset: int,
        field: FieldName,
        data: bytes | None,
        cause: Exception,
    ) -> None:
        super().__init__(
            f"the {field} of the record at offset {offset} of {topic_partition}"
            f" was not deserialized: {cause!r}"
        )
        self.topic_partition = topic_partition
        self.offset = offset
        self.field = field
        self.data = data


class Closed(ClientError):
    """The client is not running: it was closed, or not started."""
