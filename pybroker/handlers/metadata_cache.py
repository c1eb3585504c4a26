"""Encoded answers to Metadata requests, by what was asked: many clients ask the same, and to
describe thousands of partitions takes longer than anything else on the event loop.

An answer holds for one state of the cluster's picture; requests that may make topics never come
here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

QUESTION_BYTES_MAX: Final = 16 * 1024
"""A longer request is not remembered."""
CACHED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of questions and answers together; the oldest go first."""


class Question(NamedTuple):
    """All that an answer depends on, besides the state of the cluster."""

    version: int
    listener: str
    body: bytes


class State(NamedTuple):
    """What the answers are about: the version of the MetadataView, and who is the controller."""

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
        """The body that was answered in this state, or None."""
        if state != self._state:
            self._state = state
            self._answers.clear()
            self._bytes = 0
            return None
        return self._answers.get(question)

    def put(self, state: State, question: Question, answer: bytes) -> None:
        """Remember an answer of the state that the last `get` was about."""
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
