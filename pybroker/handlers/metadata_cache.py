"""A cache of encoded Metadata answers by request. Many clients send equal requests, and describing
thousands of partitions takes longer than anything else on the event loop.

An answer is valid for one version of the MetadataView and one controller. The answer to a request
that creates topics is not cached.
"""

from __future__ import annotations

from typing import Final, NamedTuple

QUESTION_BYTES_MAX: Final = 16 * 1024
"""The answer to a longer request is not cached."""
CACHED_BYTES_MAX: Final = 32 * 1024 * 1024
"""The limit of all requests and answers together. The oldest are evicted first."""


class Question(NamedTuple):
    """Everything in a request that its answer depends on."""

    version: int
    listener: str
    body: bytes


class State(NamedTuple):
    """The state that the answers describe: the version of the MetadataView, and the controller."""

    view_version: int
    controller_id: int


class MetadataCache:
    """Invariant: `_bytes` is the sum over all questions and answers, at most CACHED_BYTES_MAX."""

    def __init__(self) -> None:
        self._state = State(-1, -1)
        self._answers: dict[Question, bytes] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, state: State, question: Question) -> bytes | None:
        """Return the cached answer of this state, or None. Another state empties the cache."""
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
