"""The broker's ZooKeeper lease: which requests the broker may answer while ZooKeeper does not
answer.

The broker rejects each request whose answer would be wrong if another broker leads now, such as
Produce with acks=1. Produce with acks=all is safe, because a change of the ISR is a conditional
write in ZooKeeper. After a pause of the process longer than the session timeout, the broker answers
nothing.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final

from pybroker.aligned_timers import aligned_due
from pybroker.ports import Clock, SessionEvent
from pybroker.replication.authority import Authority

log = logging.getLogger(__name__)

_SILENCE_OF_SESSION_MAX: Final = 2 / 3
_BEATS_PER_SESSION: Final = 12


class ZooKeeperLease:
    """Determines `level`: which requests the broker may answer. Before `start`, the level is
    ALL. Call `check` for every request: the timer that `start` begins may notice an expired
    lease late."""

    def __init__(
        self,
        *,
        clock: Clock,
        silence: Callable[[], float],
        session_s: Callable[[], float],
        is_registered: Callable[[], bool],
        knows_roles: Callable[[], bool],
        fences: bool,
        changed: Callable[[Authority], None],
    ) -> None:
        """`silence` returns for how long (s, boottime) ZooKeeper has not answered. `knows_roles`
        returns whether the controller has sent a complete LeaderAndIsr request since the last
        registration. With `fences` (pybroker.zookeeper.loss), a broker cut off from ZooKeeper
        answers nothing."""
        self._clock = clock
        self._silence = silence
        self._session_s = session_s
        self._is_registered = is_registered
        self._knows_roles = knows_roles
        self._fences = fences
        self._changed = changed
        self._timer: asyncio.TimerHandle | None = None
        self._beat_at = math.inf
        # The time (boottime) at which the last long pause of the process ended. It is inf if there
        # was no such pause, or if ZooKeeper has confirmed the session since.
        self._woke_at = math.inf
        self.level = Authority.ALL
        self.is_valid = True
        """Whether ZooKeeper answers and the broker is registered in its current session. A broker
        may act as controller only while this is True."""
        # The lease is valid up to this boottime.
        self._valid_until = math.inf

    def start(self) -> None:
        self._beat_at = self._clock.boottime()
        self._beat()

    def stop(self) -> None:
        """Stop the periodic check of the lease. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def session_changed(self, event: SessionEvent) -> None:
        """Determine again which requests the broker may answer, because of an event of the
        ZooKeeper session."""
        if self._timer is not None:
            self.look()

    def check(self) -> None:
        """Determine again which requests the broker may answer (`level`), if the lease has expired
        or `level` does not allow all requests."""
        if self._clock.boottime() > self._valid_until:
            self.look()

    def look(self) -> None:
        """Determine which requests the broker may answer now (`level`). Call `changed` if `level`
        has changed."""
        now, session_s = self._clock.boottime(), self._session_s()
        if now - self._beat_at > session_s:
            log.warning(
                "the process was paused for longer than the ZooKeeper session timeout, "
                "the broker answers nothing until ZooKeeper answers paused_s=%.1f",
                now - self._beat_at,
            )
            self._woke_at = now
        self._beat_at = now
        heard_at = now - self._silence()
        silent_from = heard_at + session_s * _SILENCE_OF_SESSION_MAX
        knows = self._woke_at == math.inf or heard_at >= self._woke_at
        is_registered, knows_roles = self._is_registered(), self._knows_roles()
        self.is_valid = knows and now <= silent_from and is_registered
        # A broker that registered again may still hold logs of a topic that was recreated.
        is_outdated = is_registered and not knows_roles
        if self.is_valid and knows_roles:
            self._woke_at = math.inf
            level = Authority.ALL
        elif self._fences or is_outdated or self._woke_at != math.inf:
            level = Authority.NOTHING
        else:
            level = Authority.COMMITTED
        self._valid_until = silent_from if level is Authority.ALL else -math.inf
        if level is not self.level:
            self.level = level
            # A broker that has just registered receives its roles soon, so this is no warning.
            say = log.info if self.is_valid else log.warning
            say(
                "zookeeper lease answers=%s zookeeper_silent_s=%.1f roles_known=%s",
                level.name.lower(),
                now - heard_at,
                "yes" if self._knows_roles() else "no",
            )
            self._changed(level)

    def _beat(self) -> None:
        self.look()
        loop = asyncio.get_running_loop()
        due_s = aligned_due(loop.time(), self._session_s() / _BEATS_PER_SESSION)
        self._timer = loop.call_at(due_s, self._beat)
