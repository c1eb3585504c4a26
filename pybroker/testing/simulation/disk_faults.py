"""Faults of a simulated disk, and the disk operation at which a process is killed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from pybroker.errors import DiskFull, StorageError

When = int | Callable[[str, str], bool]
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


class ProcessKilled(BaseException):
    """The simulated process that uses the disk was killed, at this operation or earlier."""


@dataclass(slots=True)
class CrashPoint:
    """The disk operation that kills a simulated process. `when` is the number of operations before
    it, or a function of (operation, path) that returns True for it. A write stores only its first
    `after_bytes` bytes. `action` marks the process as dead."""

    when: When
    action: Callable[[], object]
    after_bytes: int
    passed: int = 0
    """The number of operations since the crash point was set."""

    def is_here(self, operation: str, path: str) -> bool:
        if isinstance(self.when, int):
            here = self.passed == self.when
        else:
            here = self.when(operation, path)
        self.passed += not here
        return here


@dataclass(slots=True)
class Fault:
    """A disk fault. The next `times` operations named `operation` on a path that contains `part`
    fail with the error number `number`."""

    operation: str
    part: str
    times: int
    number: int


class DiskFaults:
    """The faults of one disk, and its crash point (the operation that kills the process). `is_any`
    is False if the disk has neither."""

    def __init__(self) -> None:
        self.is_any = False
        self._crash_point: CrashPoint | None = None
        self._faults: list[Fault] = []

    def kill_at(self, when: When, action: Callable[[], object], after_bytes: int) -> CrashPoint:
        self._crash_point = CrashPoint(when, action, after_bytes)
        self.is_any = True
        return self._crash_point

    def fail(self, operation: str, part: str, times: int, number: int) -> None:
        self._faults.append(Fault(operation, part, times, number))
        self.is_any = True

    def spare(self) -> None:
        """Remove the crash point: no operation kills the process."""
        self._crash_point = None
        self.is_any = bool(self._faults)

    def forget(self) -> None:
        """Remove the faults. Keep the crash point, which is the operation at which the process is
        killed."""
        self._faults.clear()
        self.is_any = self._crash_point is not None

    def death(self, operation: str, path: str) -> CrashPoint | None:
        """Return the crash point if this operation must kill the process, else None."""
        point = self._crash_point
        return point if point is not None and point.is_here(operation, path) else None

    def die(self, point: CrashPoint) -> NoReturn:
        """Kill the process at the crash point. Raises ProcessKilled."""
        self.spare()
        point.action()
        raise ProcessKilled(f"at operation {point.passed} of the disk")

    def meet(self, operation: str, path: str) -> None:
        """Raise OSError if a fault is set for this operation and path. A fault is removed after it
        has raised OSError `Fault.times` times."""
        for fault in self._faults:
            if fault.operation == operation and fault.part in path:
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.remove(fault)
                    self.is_any = bool(self._faults) or self._crash_point is not None
                raise os_error(fault.number)


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def refusal(operation: str, path: str, error: OSError, *, is_write: bool = False) -> StorageError:
    """Return the exception that a real `Disk` raises for `error`: DiskFull if a write finds the
    disk full, otherwise StorageError."""
    kind = DiskFull if is_write and error.errno in _NO_ROOM else StorageError
    return kind(f"{operation} {path}: {error.strerror}")
