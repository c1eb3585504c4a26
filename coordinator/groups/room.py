"""How much memory all members of a broker's groups may take together: what they say of themselves
is kept for as long as their sessions last, and it costs a client nothing to say it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from pybroker.applog.rate_limit import LogLimit
from pybroker.errors import BrokerError, ErrorCode
from pybroker.ports import Clock

log = logging.getLogger(__name__)

BYTES_MAX: Final = 256 << 20
"""Of a hundred thousand ordinary members."""
FULL_S: Final = 1.0
"""So long nobody looks again whether there is room, for that takes as long as there are members."""


class Room:
    """`measure` gives the bytes that are taken at the moment; it is asked only when what was asked
    for since the last time could have filled the room."""

    def __init__(
        self, clock: Clock, measure: Callable[[], int], bytes_max: int = BYTES_MAX
    ) -> None:
        self._clock = clock
        self._measure = measure
        self._bytes_max = bytes_max
        self._taken = 0
        self._full_until = 0.0
        self._log_limit = LogLimit(clock, lines=1)

    def take(self, size: int) -> None:
        """Raises BrokerError COORDINATOR_NOT_AVAILABLE, upon which clients ask again later."""
        now = self._clock.monotonic()
        if self._taken + size > self._bytes_max and now >= self._full_until:
            self._taken = self._measure()
        if self._taken + size > self._bytes_max:
            if now >= self._full_until:
                self._full_until = now + FULL_S
            left_out = self._log_limit.allow()
            if left_out is not None:
                log.warning(
                    "no room for members of groups taken=%d limit=%d left_out=%d",
                    self._taken,
                    self._bytes_max,
                    left_out,
                )
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no room for more members")
        self._taken += size
