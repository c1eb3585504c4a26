"""A cache of encoded Metadata responses. The cache exists because encoding thousands of partitions
takes long.

A response is valid until the MetadataView or the controller changes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

QUESTION_BYTES_MAX: Final = 16 * 1024
"""The maximum size (bytes) of a request whose response is cached."""
CACHED_BYTES_MAX: Final = 32 * 1024 * 1024
"""The maximum size (bytes) of all cached requests and responses together. The oldest responses are
evicted first."""


class Question(NamedTuple):
    """All parts of a request on which its response depends."""

    version: int
    listener: str
    body: bytes


class State(NamedTuple):
    """The state of the cluster that a cached response describes: the version of the MetadataView,
    and the controller's id."""

    view_version: int
    controller_id: int


class MetadataCache:
    """Cached Metadata responses by request. Invariant: `_bytes` is the size of all cached requests
    and responses, at most CACHED_BYTES_MAX."""

    def __init__(self) -> None:
        self._state = State(-1, -1)
        self._answers: dict[Question, bytes] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, state: State, question: Question) -> bytes | None:
        """Return the cached response, or None. If `state` is not that of the last call of `get`,
        empty the cache first."""
        if state != self._state:
            self._state = state
            self._answers.clear()
            self._bytes = 0
            return None
        return self._answers.get(question)

    def put(self, state: State, question: Question, answer: bytes) -> None:
        """Cache the response to `question`. Do nothing if the response is too large, or if `state`
        differs from the state that was passed to the last call of `get`."""
        size = len(question.body) + len(answer)
        if (
            state != self._state
            or question in self._answers
            or len(question.body) > QUESTION_BYTES_MAX
            or size > CACHED_BYTES_MAX
        ):
            return
        while self._bytes + size > CACHED_BYTES_MAX:
            oldest = next(iter(self._answers))
            self._bytes -= len(oldest.body) + len(self._answers.pop(oldest))
        self._answers[question] = answer
        self._bytes += size
