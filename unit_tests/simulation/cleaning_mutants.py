"""The replacements of the mutants that remove a rule of the log cleaner or of retention (see
`mutants.py`)."""

from __future__ import annotations

from typing import Any

from pybroker.compaction import cleaner

_EVERY_OFFSET = 2**62


def without_tombstones(_is_past_horizon: Any) -> Any:
    """Remove tombstones in the first pass."""
    return lambda self, header: True


def up_to_the_log_end(plan: Any) -> Any:
    def changed(log: Any, cleaned_to: Any, _high_watermark: int, now_ms: int) -> Any:
        return plan(log, cleaned_to, log.log_end_offset, now_ms)

    return changed


def nothing_aborted(_is_aborted: Any) -> Any:
    """Treat the records of aborted transactions as committed ones."""

    def changed(self: Any, header: Any) -> bool:
        _is_aborted(self, header)
        return False

    return changed


class _WithoutTransactions:
    """A log, or its producers, of which no transaction is open."""

    first_unstable = None

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return _WithoutTransactions(found) if name == "producers" else found


def past_open_transactions(_cleanable: Any) -> Any:
    """Clean the segments with records of open transactions, too."""

    def changed(log: Any, cleaned_to: int, high_watermark: int, now_ms: int) -> Any:
        return _cleanable(_WithoutTransactions(log), cleaned_to, high_watermark, now_ms)

    return changed


def past_high_watermark(expired: Any) -> Any:
    def changed(segments: Any, config: Any, **facts: Any) -> Any:
        return expired(segments, config, **{**facts, "high_watermark": _EVERY_OFFSET})

    return changed


def cleaned_before_swap(_clean: Any) -> Any:
    """Write the cleaner's checkpoint before the pass, and not after the replacement of the
    segments."""

    async def changed(self: Any, chosen: Any, thread: Any) -> None:
        write = self._logs.checkpoints.write_cleaned_to
        await cleaner._run(thread, write, chosen.log, chosen.generation, chosen.end)
        await _clean(self, chosen, thread)

    return changed
