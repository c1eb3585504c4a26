"""The errors of the client, sorted by what the user should do next.

Two questions decide that, and every class answers both:

- `retriable`: may a retry help?
- `definite`: is it certain that the operation was *not* carried out? A write whose failure is not
  definite may be in the log; sending it again may store it twice.

The client retries by itself within its time limit; an error of this module is what remains. No
class here knows about sockets.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pybroker import errors
from pybroker.errors import ErrorCode, PybrokerError
from pybroker.model import TopicPartition

_NAMED_MAX = 10
"""The number of partitions that a message names."""
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
"""Error codes of Produce after which the batch may nevertheless be in the log."""


class ClientError(PybrokerError):
    """Base of all errors of the client, never raised itself."""

    retriable = False
    definite = True


class ConfigError(ClientError, errors.ConfigError):
    """One or more options of a client are wrong; `faults` has one sentence for each. Nothing was
    opened."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One address that could not be reached."""

    address: str
    reason: str


class NoBrokers(ClientError):
    """No broker could be reached. The message names each address and the reason."""

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
    """The connection ended before the answer came; the request may have been carried out."""

    retriable = True
    definite = False


class AnswerTooLarge(ConnectionLost):
    """The answer exceeds `receive_message_max_bytes`, and a retry would exceed it again: raise the
    limit, or request less."""

    retriable = False


class RequestTimedOut(ClientError):
    """No answer came in time; the request may have been carried out, or may be later."""

    retriable = True
    definite = False


class NotConnected(ClientError):
    """The connection ended before the request was written. Nothing was sent."""

    retriable = True


class UnsupportedByBroker(ClientError):
    """The broker does not offer this API in a version that can express the request."""


class ResponseError(ClientError):
    """The broker answered with one of Kafka's error codes.

    `detail` is a whole sentence: by default Kafka's own for the code, followed by `place`, which
    names the subject of the request. `broker_sentence` is the broker's own, "" if it sent none.
    """

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
    """A record was not acknowledged. `definite`: it is certain that it was not written. `__cause__`
    is the last error, or None."""

    def __init__(self, topic_partition: TopicPartition, reason: str, *, definite: bool) -> None:
        doubt = "" if definite else " (it may have been written)"
        super().__init__(f"record for {topic_partition} was not delivered: {reason}{doubt}")
        self.topic_partition = topic_partition
        self.definite = definite


class RecordTooLarge(ClientError):
    """The record can never be sent: it is larger than max.request.size or buffer.memory."""


class BufferExhausted(ClientError):
    """buffer.memory stayed full for max.block.ms; the record was not accepted."""

    retriable = True


class TopicUnavailable(ClientError):
    """The topic or partition did not become known within the time limit or, if not `retriable`,
    never will."""

    def __init__(self, text: str, *, retriable: bool = True) -> None:
        super().__init__(text)
        self.retriable = retriable


class DeadlinePassed(ClientError):
    """The operation was not completed within its time limit; `definite` as for its last attempt."""

    retriable = True

    def __init__(self, text: str, *, definite: bool = True) -> None:
        super().__init__(text)
        self.definite = definite


class OffsetUnavailable(ClientError):
    """The consumer has no position to read from, and auto.offset.reset is none."""

    def __init__(self, partitions: Collection[TopicPartition], reason: str) -> None:
        names = ", ".join(str(item) for item in sorted(partitions))
        super().__init__(f"no valid offset for {names}: {reason}")
        self.partitions = frozenset(partitions)


class LogTruncated(OffsetUnavailable):
    """Records that were read are gone from the log, because an unclean election chose a replica
    without them, and auto.offset.reset is none. `position` is that of the consumer; up to `offset`
    the log is as it was read: seek there to read the records that replaced them."""

    def __init__(self, topic_partition: TopicPartition, position: int, offset: int) -> None:
        super().__init__(
            [topic_partition],
            f"the log was cut at {offset} by an unclean election, and read up to {position};"
            f" seek to {offset} to go on",
        )
        self.topic_partition = topic_partition
        self.position = position
        self.offset = offset


class SubscriptionConflict(ClientError):
    """Topics, a pattern and manual assignment exclude each other; call `unsubscribe` in between. Or
    the operation needs an option that is not set, such as group.id."""


class NotAssigned(ClientError):
    """The consumer does not read this partition, so it has no position there. `assign` gives it
    one; partitions of subscribed topics are assigned during the calls that read."""

    def __init__(
        self, topic_partition: TopicPartition, assigned: Collection[TopicPartition]
    ) -> None:
        names = [str(item) for item in sorted(assigned)]
        shown = ", ".join(names[:_NAMED_MAX]) or "nothing"
        rest = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
        super().__init__(
            f"{topic_partition} is not assigned to this consumer, which has {shown}{rest}; call"
            " assign() first, or, for a subscribed topic, getmany() until the partition is assigned"
        )
        self.topic_partition = topic_partition


class GroupError(ClientError):
    """Base of errors of a coordinator that a retry does not cure, never raised itself."""

    def __init__(self, group_id: str, text: str) -> None:
        super().__init__(f"group {group_id}: {text}")
        self.group_id = group_id


class CommitFailed(GroupError):
    """The offsets were not committed: the member is no longer in the generation in which it read
    them, and other members may read these partitions already. Records read since the last commit
    may be read again.

    If the member left because too much time passed between two calls that read, raise
    max.poll.interval.ms or lower max.poll.records.
    """


class RebalanceInProgress(CommitFailed):
    """The group is rebalancing, and this member joins again: read on (`getmany`), then commit the
    offsets of the partitions that are still assigned."""

    retriable = True


class FencedInstance(GroupError):
    """Another member has taken over this group.instance.id. Two processes must not use the same
    one; this consumer cannot continue in its group."""


class JoinRefused(GroupError):
    """The coordinator refuses the member; `code` says why."""

    def __init__(self, group_id: str, code: ErrorCode, text: str) -> None:
        super().__init__(group_id, f"{code.name}: {text}")
        self.code = code


class InvalidSessionTimeout(JoinRefused):
    """session.timeout.ms is outside the broker's limits (group.min.session.timeout.ms to
    group.max.session.timeout.ms)."""


class DamagedRecords(ClientError):
    """A fetched batch does not match its CRC or cannot be decoded. The position stays before it;
    seek past `offset` to skip it."""

    def __init__(self, topic_partition: TopicPartition, offset: int, reason: str) -> None:
        super().__init__(f"batch at offset {offset} of {topic_partition} is damaged: {reason}")
        self.topic_partition = topic_partition
        self.offset = offset


class Closed(ClientError):
    """The client has been closed, or was not started."""
