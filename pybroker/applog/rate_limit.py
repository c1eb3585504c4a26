"""A limit on log lines that a peer can cause, so that a hostile peer does not fill the disk."""

from __future__ import annotations

from typing import Final

from pybroker.ports import Clock

KINDS_MAX: Final = 64
"""The maximum number of kinds of lines that have limits of their own. All further kinds share one
limit."""
_OTHERS: Final = "others"


class LogLimit:
    """Allows at most `lines` log lines of each kind per interval. An interval begins with a line of
    the kind, and takes `interval_s` seconds.

    Usage::

        left_out = limit.allow("refused")
        if left_out is not None:
            log.info("connection refused peer=%s lines_left_out=%d", peer, left_out)
    """

    __slots__ = ("_clock", "_interval_s", "_kinds", "_lines")

    def __init__(self, clock: Clock, *, lines: int = 10, interval_s: float = 10.0) -> None:
        self._clock = clock
        self._lines = lines
        self._interval_s = interval_s
        self._kinds: dict[str, _Kind] = {}

    def allow(self, kind: str = "") -> int | None:
        """Return None if the caller must not log this line. Otherwise return the number of lines of
        this kind that were left out since the last allowed line. `kind` must never be text from a
        peer, because only KINDS_MAX kinds have limits of their own."""
        now = self._clock.monotonic()
        state = self._kinds.get(kind)
        if state is None:
            if len(self._kinds) >= KINDS_MAX:
                kind = _OTHERS
            state = self._kinds.setdefault(kind, _Kind(now))
        if now - state.began >= self._interval_s:
            state.began, state.lines = now, 0
        if state.lines >= self._lines:
            state.left_out += 1
            return None
        state.lines += 1
        left_out, state.left_out = state.left_out, 0
        return left_out


class _Kind:
    __slots__ = ("began", "left_out", "lines")

    def __init__(self, began: float) -> None:
        self.began = began
        self.lines = 0
        self.left_out = 0
