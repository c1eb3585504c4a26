"""The memory limit for the state of a broker's coordinators.

New transactional ids get only a part of the memory, so that a flood of them does not stop other
producers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from pybroker.applog.rate_limit import LogLimit
from pybroker.errors import BrokerError, ErrorCode
from pybroker.ports import Clock

log = logging.getLogger(__name__)

BYTES_MAX: Final = 256 << 20
"""The default limit, which is enough for a hundred thousand ordinary members."""
FULL_S: Final = 1.0
"""Once the limit is reached, this time (s) passes before the memory is measured again, because a
measurement visits every member."""


class MemoryLimit:
    """A limit for the memory of all objects of one kind, named `what` in error messages. `measure`
    returns the bytes in use. Later reservations are added to this number."""

    def __init__(
        self,
        clock: Clock,
        measure: Callable[[], int],
        bytes_max: int = BYTES_MAX,
        *,
        what: str = "group members",
    ) -> None:
        self._what = what
        self._clock = clock
        self._measure = measure
        self._bytes_max = bytes_max
        self._taken = 0
        self._full_until = 0.0
        self._log_limit = LogLimit(clock, lines=1)

    def take(self, size: int) -> None:
        """Reserve `size` bytes. Raises BrokerError COORDINATOR_NOT_AVAILABLE, which clients retry,
        if more than the limit would be in use."""
        self._take(size, self._bytes_max)

    def take_for_new(self, size: int) -> None:
        """Reserve `size` bytes for a new client. Raises BrokerError COORDINATOR_NOT_AVAILABLE if
        more than 7/8 of the limit would be in use."""
        self._take(size, self._bytes_max // 8 * 7)

    def _take(self, size: int, bytes_max: int) -> None:
        now = self._clock.monotonic()
        if self._taken + size > bytes_max and now >= self._full_until:
            self._taken = self._measure()
        if self._taken + size > bytes_max:
            if now >= self._full_until:
                self._full_until = now + FULL_S
            left_out = self._log_limit.allow()
            if left_out is not None:
                log.warning(
                    "memory limit reached of=%s bytes_used=%d bytes_max=%d lines_left_out=%d",
                    self._what,
                    self._taken,
                    bytes_max,
                    left_out,
                )
            raise BrokerError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"all {self._what} together use {self._taken} of at most {bytes_max} "
                f"bytes, so the coordinator refuses {size} more bytes; retry later",
            )
        self._taken += size
