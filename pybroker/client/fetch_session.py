"""One fetch session with one broker, from the asker's side (KIP-227). Plain code.

The broker remembers the partitions of a session and what it last said of each; a request names only
what changed since the one before, an answer only partitions with news. What is asked for, and how a
question for one partition looks on the wire, is the user's: any values that can be compared.

There is at most one request of a session under way: `next`, then `handle` or `failed`.
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
    """What a session puts into the next FetchRequest."""

    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]


class FetchSession(Generic[P]):
    """`on_wire(partition, position)` makes the question for one partition of a topic."""

    def __init__(self, on_wire: Callable[[int, P], FetchPartition]) -> None:
        self._on_wire = on_wire
        self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._asked: dict[TopicPartition, P] = {}
        """What the broker knows once it has the last request."""

    @property
    def session_id(self) -> int:
        """The broker's number for the session, 0 if there is none."""
        return self._id

    def next(self, positions: Mapping[TopicPartition, P]) -> SessionRequest:
        """The request after which the broker's session holds exactly `positions`: all of them,
        in their order, to begin with; then what differs from the last ones."""
        asked = self._asked
        if self._epoch == INITIAL_EPOCH:
            news, gone = list(positions.items()), []
        else:
            news = [
                (key, position)
                for key, position in positions.items()
                if (known := asked.get(key)) is not position and known != position
            ]
            stays = asked.keys() <= positions.keys()
            gone = [] if stays else [key for key in asked if key not in positions]
        self._asked = dict(positions)
        topics: dict[str, FetchTopic] = {}
        for (topic, partition), position in news:
            topics.setdefault(topic, FetchTopic(topic=topic)).partitions.append(
                self._on_wire(partition, position)
            )
        return SessionRequest(self._id, self._epoch, list(topics.values()), _forgotten(gone))

    def handle(self, response: FetchResponse) -> bool:
        """Take in the answer to the last request. False if it says nothing of any partition: the
        session is lost, or the broker speaks of other partitions than were asked. The next request
        begins anew then."""
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
        """Nobody knows whether the last request arrived: begin anew, and end the old session with
        that."""
        self._begin_anew(self._id)

    def closing(self) -> SessionRequest | None:
        """The request that ends the session at the broker; None if there is none."""
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
