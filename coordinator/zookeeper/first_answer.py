"""The wait for ZooKeeper's first answer. A broker waits for the whole
zookeeper.connection.timeout.ms, because ZooKeeper may start after the broker. A tool gives up when
every server has refused the connection a few times."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from pybroker.coordinator.zookeeper.connect_string import ConnectString
from pybroker.coordinator.zookeeper.handshake import NoServer, open_and_close
from pybroker.errors import StartupError

log = logging.getLogger(__name__)

TOOL_REFUSALS_MAX: Final = 3
"""A tool stops waiting when all servers have refused this number of times in a row. One or two
refusals may also come from a restarting server or a busy name server."""
_RETRY_S: Final = 0.05
_RETRY_MAX_S: Final = 1.0
_ATTEMPT_S: Final = 2.0


class FirstAnswer:
    """Waits until a ZooKeeper server answers. The caller must set a time limit for the wait."""

    def __init__(self, connect: ConnectString, *, refusals_max: int | None) -> None:
        """An attempt to connect tries each server once. The method `granted_ms` fails after
        `refusals_max` consecutive attempts without an accepted connection (None: no limit)."""
        self._connect = connect
        self._refusals_max = refusals_max
        self._reason = "no answer"

    async def granted_ms(self, session_timeout_ms: int, timeout_s: float) -> int:
        """Wait until a server grants a session, and return the granted session timeout. The caller
        limits the wait: `timeout_s` is only for log messages. Raises StartupError after
        `refusals_max` attempts in a row in which no server accepts the connection."""
        delay_s = _RETRY_S
        refusals = 0
        while True:
            try:
                granted = await open_and_close(
                    self._connect.hosts, timeout_ms=session_timeout_ms, timeout_s=_ATTEMPT_S
                )
                if granted.timeout_ms > 0:
                    return granted.timeout_ms
                reason = "the server grants no session"
            except NoServer as error:
                reason = str(error)
                refusals = refusals + 1 if error.refused else 0
                if refusals == self._refusals_max:
                    raise StartupError(
                        f"ZooKeeper cannot be reached: {reason}; check the address and that the"
                        " server runs"
                    ) from None
                if error.refused and self._refusals_max is not None:
                    self._reason = reason  # not logged: a tool soon has an answer or an error
            if reason != self._reason:
                self._reason = reason
                log.warning("zookeeper not reached timeout_s=%g reason=%s", timeout_s, reason)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _RETRY_MAX_S)

    def complaint(self, timeout_s: float) -> str:
        """Return the error message for a wait that the caller ended after `timeout_s` seconds."""
        return (
            f"ZooKeeper at {self._connect.servers} does not answer within {timeout_s:g} s:"
            f" {self._reason}; check that the server runs, and the address in zookeeper.connect"
            " (tools: --zookeeper)"
        )
