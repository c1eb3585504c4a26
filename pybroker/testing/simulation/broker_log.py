"""The error lines that simulated brokers log. An error line that no fault of the run explains is a
violation."""

from __future__ import annotations

import contextlib
import logging
import re
from asyncio import events
from collections.abc import Iterable, Iterator
from typing import Final

from pybroker.testing.simulation.environment import Environment
from pybroker.testing.simulation.loop import ProcessLoop

_ROOTS: Final = ("pybroker",)
_STORAGE: Final = (
    "log directory failed|log directory offline|log directory lost|log directory full"
    "|log damaged|log not served|damaged replica"
    "|partition directory missing|partition cannot be opened|replica failed|KAFKA_STORAGE_ERROR"
    "|write refused|append failed"
    "|housekeeping failed|suspect replica"
    "|log cannot be|move failed|move not possible"
)
_ROTTEN: Final = r"|copying pauses .* error=CORRUPT_MESSAGE"
"""The log line of a follower whose leader sends a corrupt batch, while no other replica can
lead."""
_EXPLAINED: Final = {
    "disk-full": _STORAGE,
    "sync-error": _STORAGE,
    "flip": _STORAGE + _ROTTEN,
    "wipe": _STORAGE,
    "lose-directory": _STORAGE,
    "power": _STORAGE,
    "blackout": _STORAGE,
}
"""For each kind of fault that explains error lines: a pattern of these lines."""
_FENCED: Final = "another member has joined with group.instance.id"
"""An error that a static member may get in any run: a coordinator assigned its member id, but could
not store the id before another coordinator replaced it. The new coordinator rejects the member, and
the simulation restarts the member's process."""
_LOSS: Final = "loss receipt partition=|the loss receipt cannot be read"


def explained_by(kinds: Iterable[str], *, is_lossy: bool = False) -> re.Pattern[str]:
    """Return a pattern of the error lines that are expected under these kinds of faults. If
    `is_lossy`, lines about loss receipts (notes of possible data losses) are also expected."""
    found = [_FENCED]
    found += [_EXPLAINED[kind] for kind in sorted(set(kinds)) if kind in _EXPLAINED]
    if is_lossy:
        found.append(_LOSS)
    return re.compile("|".join(found))


class BrokerLog(logging.Handler):
    """A log handler that collects the error lines of brokers. If the environment keeps its trace as
    text, the handler also adds all lines of level INFO and above to the trace."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(logging.ERROR if environment.lines is None else logging.INFO)
        self.errors: list[str] = []
        self._environment = environment
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        loop = events._get_running_loop()
        name = loop.name if isinstance(loop, ProcessLoop) else "a thread"
        line = f"{self._environment.now:.6f} {name}: {self.format(record)}"
        if self._environment.lines is not None:
            self._environment.lines.append(line)
        if record.levelno >= logging.ERROR:
            self.errors.append(line)

    def unexplained(self, explained: re.Pattern[str]) -> list[str]:
        return [line for line in self.errors if not explained.search(line)]

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Return a context manager that sends all log lines of the brokers to this handler only."""
        loggers = [logging.getLogger(name) for name in _ROOTS]
        before = [(each.level, each.propagate, each.handlers) for each in loggers]
        for each in loggers:
            each.setLevel(self.level)
            each.propagate, each.handlers = False, [self]
        try:
            yield
        finally:
            for each, (level, propagate, handlers) in zip(loggers, before, strict=True):
                each.setLevel(level)
                each.propagate, each.handlers = propagate, handlers
