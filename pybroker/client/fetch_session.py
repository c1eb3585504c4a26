"""The client's state of a fetch session with one broker (KIP-227). This module does no I/O.

The broker stores the partitions of a session and its last response for each. A request contains
only changed partitions, a response only partitions with changes. The caller selects the positions,
which may be any comparable values, and converts them to requests.

A session has at most one request in flight: `next`, then `handle` or `failed`.
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
    """The fields of the next FetchRequest that depend on the session."""

    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]


class FetchSession(Generic[P]):
    """A fetch session. `on_wire(partition, position)` returns the part of the request for one
    partition."""

    def __init__(self, on_wire: Callable[[int, P], FetchPartition]) -> None:
        self._on_wire = on_wire
        self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._asked: dict[TopicPartition, P] = {}
        """The partitions and positions of the broker's session after the last request."""

    @property
    def session_id(self) -> int:
        """The session id from the broker, 0 without a session."""
        return self._id

    def next(
        self,
        positions: Mapping[TopicPartition, P],
        changed: Iterable[TopicPartition] | None = None,
    ) -> SessionRequest:
        """Return the next request, after which the broker's session has exactly `positions`. The
        first request has all positions, a later request only the changes. `changed` names the
        partitions whose positions may differ from the last request; None: any may."""
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
        session is lost, or the broker returned partitions that are not in the session. The next
        request then starts a new session."""
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
        """Start a new session with the next request, because the broker may or may not have
        received the last request. The new session ends the old session."""
        self._begin_anew(self._id)

    def closing(self) -> SessionRequest | None:
        """Return the request that closes the broker's session, or None without a session."""
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
