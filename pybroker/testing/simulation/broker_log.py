"""What the brokers of a run log: errors that no fault explains are violations, too."""

from __future__ import annotations

import contextlib
import logging
import re
from asyncio import events
from collections.abc import Iterable, Iterator
from typing import Final

from pybroker.testing.simulation.loop import ProcessLoop
from pybroker.testing.simulation.world import World

_ROOTS: Final = ("pybroker",)
_STORAGE: Final = (
    r"log directory (failed|offline|lost|full)|log damaged|log not served|damaged replica"
    r"|partition directory missing|partition cannot be opened|replica failed|KAFKA_STORAGE_ERROR"
    r"|write refused|append failed"
    r"|read failed|search failed|look-up failed|housekeeping failed|suspect replica"
    r"|log cannot be|move failed|move not possible"
)
_ROTTEN: Final = r"|copying pauses .* error=CORRUPT_MESSAGE"
"""From a leader whose batch is bent, and whom nobody can replace."""
_EXPLAINED: Final = {
    "disk-full": _STORAGE,
    "sync-error": _STORAGE,
    "flip": _STORAGE + _ROTTEN,
    "wipe": _STORAGE,
    "lose-directory": _STORAGE,
    "power": _STORAGE,
    "blackout": _STORAGE,
}
"""What a kind of fault makes brokers say."""
_FENCED: Final = "another member has taken over group.instance.id"
"""What a static member is told by the next coordinator, if its id was given to it by one that could
not store it any more; its clients' processes are started again."""
_LOSS: Final = "loss_receipt|the loss receipt cannot be read"


def explained_by(kinds: Iterable[str], *, is_lossy: bool = False) -> re.Pattern[str]:
    """What errors may look like where these faults came, and what may always be said.
    `is_lossy`: whether unclean elections are allowed, of which brokers tell, or cannot yet."""
    found = [_FENCED]
    found += [_EXPLAINED[kind] for kind in sorted(set(kinds)) if kind in _EXPLAINED]
    if is_lossy:
        found.append(_LOSS)
    return re.compile("|".join(found))


class BrokerLog(logging.Handler):
    """Keeps errors; where the world keeps the text of its trace, every line stands there, too."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR if world.lines is None else logging.INFO)
        self.errors: list[str] = []
        self._world = world
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        loop = events._get_running_loop()
        name = loop.name if isinstance(loop, ProcessLoop) else "a thread"
        line = f"{self._world.now:.6f} {name}: {self.format(record)}"
        if self._world.lines is not None:
            self._world.lines.append(line)
        if record.levelno >= logging.ERROR:
            self.errors.append(line)

    def unexplained(self, explained: re.Pattern[str]) -> list[str]:
        return [line for line in self.errors if not explained.search(line)]

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hear the brokers; nobody else does meanwhile."""
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
