"""The client's state of a fetch session with one broker (KIP-227).

The caller gives each partition a value, such as its fetch offset. A request contains only
partitions with a changed value. A session has at most one request in flight: call `next`, then
`handle` or `failed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.wire.messages.fetch import (
    FetchPartition,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = (1 << 31) - 1

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """The session's part of the next FetchRequest: its id and epoch, the partitions to add or
    change, and those to remove."""

    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]


class FetchSession(Generic[P]):
    """The client's side of a fetch session with one broker. `on_wire(partition number, position)`
    returns the partition's part of the FetchRequest."""

    def __init__(self, on_wire: Callable[[int, P], FetchPartition]) -> None:
        self._on_wire = on_wire
        self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._asked: dict[TopicPartition, P] = {}
        """The partitions that the broker's session has after the last request, with their
        positions."""

    @property
    def session_id(self) -> int:
        """The id from the broker; 0 without a session."""
        return self._id

    def next(
        self,
        positions: Mapping[TopicPartition, P],
        changed: Iterable[TopicPartition] | None = None,
    ) -> SessionRequest:
        """Return a request that sets the session's partitions to `positions`. `changed` must have
        each partition that was added, removed or changed since the last request (None: compare
        all)."""
        news: list[tuple[TopicPartition, P]] = []
        gone = []
        if self._epoch == INITIAL_EPOCH:
            news, self._asked = list(positions.items()), dict(positions)
        else:
            asked = self._asked
            if changed is None:
                changed = [*positions, *(key for key in asked if key not in positions)]
            for key in changed:
                position, known = positions.get(key), asked.get(key)
                if position is known or position == known:
                    continue
                if position is None:
                    del asked[key]
                    gone.append(key)
                else:
                    asked[key] = position
                    news.append((key, position))
        topics: dict[str, FetchTopic] = {}
        for (topic, partition), position in news:
            topics.setdefault(topic, FetchTopic(topic=topic)).partitions.append(
                self._on_wire(partition, position)
            )
        return SessionRequest(self._id, self._epoch, list(topics.values()), _forgotten(gone))

    def handle(self, response: FetchResponse) -> bool:
        """Process the response to the last request. Return False if the response is unusable: the
        next request then starts a new session."""
        begins = self._epoch == INITIAL_EPOCH
        if response.error_code:
            unknown = response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            self._begin_anew(NO_SESSION if unknown else self._id)
            return False
        answered = {
            (topic.topic, part.partition_index)
            for topic in response.responses
            for part in topic.partitions
        }
        asked = self._asked.keys()
        if answered != asked if begins else not answered <= asked:
            self._begin_anew(NO_SESSION if begins else self._id)
            return False
        if response.session_id == NO_SESSION:
            self._begin_anew(NO_SESSION)
        else:
            self._id = response.session_id
            self._epoch = self._epoch + 1 if self._epoch < _EPOCH_MAX else 1
        return True

    def failed(self) -> None:
        """Record that the last request got no response. The next request ends the broker's session
        and starts a new one."""
        self._begin_anew(self._id)

    def closing(self) -> SessionRequest | None:
        """Return the request that ends the broker's session; None without a session."""
        if self._id == NO_SESSION:
            return None
        request = SessionRequest(self._id, FINAL_EPOCH, [], [])
        self._begin_anew(NO_SESSION)
        return request

    def _begin_anew(self, session_id: int) -> None:
        self._id = session_id
        self._epoch = INITIAL_EPOCH
        self._asked = {}


def _forgotten(gone: Iterable[TopicPartition]) -> list[ForgottenTopic]:
    topics: dict[str, ForgottenTopic] = {}
    for topic, partition in gone:
        topics.setdefault(topic, ForgottenTopic(topic=topic)).partitions.append(partition)
    return list(topics.values())
