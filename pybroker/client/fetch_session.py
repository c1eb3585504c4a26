"""The client's state of a fetch session with one broker (KIP-227). This module does no I/O.

The broker stores the partitions of a session and its last response for each. A request contains
only changed partitions, a response only partitions with changes. For each partition the caller
gives a value, for example its fetch offset and leader epoch. This module compares the values to
find the changed partitions, and the caller builds the request from them.

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
    """The parts of the next FetchRequest that depend on the session: its id and epoch, the
    partitions to add or change, and the partitions to remove."""

    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]


class FetchSession(Generic[P]):
    """The client's side of a fetch session with one broker. `on_wire` gets a partition number and a
    position, and returns the part of the FetchRequest for this partition."""

    def __init__(self, on_wire: Callable[[int, P], FetchPartition]) -> None:
        self._on_wire = on_wire
        self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._asked: dict[TopicPartition, P] = {}
        """The partitions that the broker's session has after the last request, with their
        positions."""

    @property
    def session_id(self) -> int:
        """The id that the broker gave the session, 0 without a session."""
        return self._id

    def next(
        self,
        positions: Mapping[TopicPartition, P],
        changed: Iterable[TopicPartition] | None = None,
    ) -> SessionRequest:
        """Return the next request, after which the broker's session has exactly the partitions and
        positions in `positions`. The first request has all of them, a later request only the
        changes. `changed` lists the partitions whose positions may differ from the last request;
        None means any."""
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
        """Process the response to the last request. Return False if the response is unusable,
        because the broker lost the session or returned partitions that are not in it. The next
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
        """Note that the last request got no response, so that the broker may or may not have
        received it. The next request starts a new session, which ends the broker's present
        session."""
        self._begin_anew(self._id)

    def closing(self) -> SessionRequest | None:
        """Return the request that ends the broker's session, or None without a session."""
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
