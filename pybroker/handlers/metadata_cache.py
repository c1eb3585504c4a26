"""A cache of encoded Metadata answers. Many clients send equal requests, and describing thousands
of partitions takes longer than any other work on the event loop.

A cached answer is valid for one version of the MetadataView and one controller. The answer to a
request that creates topics is not cached.
"""

from __future__ import annotations

from typing import Final, NamedTuple

QUESTION_BYTES_MAX: Final = 16 * 1024
"""The answer to a request longer than this is not cached."""
CACHED_BYTES_MAX: Final = 32 * 1024 * 1024
"""The maximal size of all cached requests and answers. The oldest ones are evicted first."""


class Question(NamedTuple):
    """All fields of a request that its answer depends on."""

    version: int
    listener: str
    body: bytes


class State(NamedTuple):
    """The state that the cached answers describe: the version of the MetadataView, and the
    controller."""

    view_version: int
    controller_id: int


class MetadataCache:
    """Cached answers by request. Invariant: `_bytes` is the sum over all requests and answers, at
    most CACHED_BYTES_MAX."""

    def __init__(self) -> None:
        self._state = State(-1, -1)
        self._answers: dict[Question, bytes] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, state: State, question: Question) -> bytes | None:
        """Return the cached answer for this state, or None. If the state differs from that of the
        last call, empty the cache."""
        if state != self._state:
            self._state = state
            self._answers.clear()
            self._bytes = 0
            return None
        return self._answers.get(question)

    def put(self, state: State, question: Question, answer: bytes) -> None:
        """Cache an answer, if `state` is that of the last `get`."""
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
