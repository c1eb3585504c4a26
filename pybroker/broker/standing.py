"""What this broker may still answer while it does not hear from ZooKeeper.

A leader that is cut off may have been replaced, and cannot know it. Changes of the ISR are
conditional, so what is committed stays right: reading it, and writing with acks=all, which waits
for the in-sync replicas, may go on. Everything that a leader, or a controller, would promise alone
may not. And a process that was stopped for longer than its session first finds out whether that
still lives.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final

from pybroker.ports import Clock, SessionEvent
from pybroker.replication.authority import Authority

log = logging.getLogger(__name__)

_SILENCE_OF_SESSION_MAX: Final = 2 / 3
_BEATS_PER_SESSION: Final = 12


class Standing:
    """Between `start` and `stop`; before, everything may be answered.

    Every request calls `check`. The first one after a pause finds that the lease has run out,
    whatever timers are still to run.
    """

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
        """`silence`: since when (s, boottime) ZooKeeper has not answered. `is_registered`: whether
        the broker stands there in the session that it has; `knows_roles`: whether it has been told
        its roles since. `fences`: cut off, answer nothing (pybroker.zookeeper.loss=fence).
        `changed` hears of a new level."""
        self._clock = clock
        self._silence = silence
        self._session_s = session_s
        self._is_registered = is_registered
        self._knows_roles = knows_roles
        self._fences = fences
        self._changed = changed
        self._timer: asyncio.TimerHandle | None = None
        self._beat_at = math.inf
        # When we came to after a pause of which the consequences are not known; inf if there are
        # none to find out.
        self._woke_at = math.inf
        self.level = Authority.ALL
        self.is_heard = True
        """Whether ZooKeeper answers, in a session in which the broker is registered: what a
        controller needs."""
        # In boottime: up to then `level` is ALL without looking.
        self._valid_until = math.inf

    def start(self) -> None:
        self._beat_at = self._clock.boottime()
        self._beat()

    def stop(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def heard(self, event: SessionEvent) -> None:
        """Of the session with ZooKeeper."""
        if self._timer is not None:
            self.look()

    def check(self) -> None:
        """See what may be answered now, unless it is certain that everything may."""
        if self._clock.boottime() > self._valid_until:
            self.look()

    def look(self) -> None:
        """See what may be answered now."""
        now, session_s = self._clock.boottime(), self._session_s()
        if now - self._beat_at > session_s:
            log.warning("stopped for %.1f s, longer than the session", now - self._beat_at)
            self._woke_at = now
        self._beat_at = now
        heard_at = now - self._silence()
        silent_from = heard_at + session_s * _SILENCE_OF_SESSION_MAX
        knows = self._woke_at == math.inf or heard_at >= self._woke_at
        is_registered, knows_roles = self._is_registered(), self._knows_roles()
        self.is_heard = knows and now <= silent_from and is_registered
        # Who is registered again may be meant for the next topic of a name, and has the one before.
        is_outdated = is_registered and not knows_roles
        if self.is_heard and knows_roles:
            self._woke_at = math.inf
            level = Authority.ALL
        elif self._fences or is_outdated or self._woke_at != math.inf:
            level = Authority.NOTHING
        else:
            level = Authority.COMMITTED
        self._valid_until = silent_from if level is Authority.ALL else -math.inf
        if level is not self.level:
            self.level = level
            # Who has just registered is told its roles in a moment: nothing is wrong.
            say = log.info if self.is_heard else log.warning
            say(
                "standing answers=%s zookeeper_silent_s=%.1f roles_known=%s",
                level.name.lower(),
                now - heard_at,
                "yes" if self._knows_roles() else "no",
            )
            self._changed(level)

    def _beat(self) -> None:
        self.look()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._session_s() / _BEATS_PER_SESSION, self._beat)
