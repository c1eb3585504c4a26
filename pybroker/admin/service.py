"""The HTTP listener in the life of a broker: bound with the other ports, loaded later.

The HTTP libraries take longer to load than the rest of the broker. So they are loaded in a thread
once the broker serves, or during a start that takes long. A client that connects before waits in
the listener's backlog. This module is loaded with the broker and imports none of them.
"""

from __future__ import annotations

import asyncio
import errno
import importlib
import logging
import socket
from typing import Final

from pybroker.admin.view import BrokerView, Phase
from pybroker.background import BackgroundTask
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import StartupError

log = logging.getLogger(__name__)

OPTION: Final = "pybroker.http.listener"
PATIENCE_S: Final = 2.0
"""If the start takes longer, HTTP is served before its end, so that an operator can look into
it."""
_BACKLOG: Final = 64


def bind_http(config: BrokerConfig) -> socket.socket | None:
    """The listening socket; None if HTTP is switched off.

    Raises StartupError if the address cannot be used. If the option is not set and the default
    port is taken (most often by a second broker on the machine), there is a warning and no HTTP.
    """
    address = config.http_address
    if address is None:
        return None
    host, port = address
    opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # for the connections accepted
    try:
        opened.bind((host, port))
        opened.listen(_BACKLOG)
    except OSError as error:
        opened.close()
        taken = error.errno == errno.EADDRINUSE
        reason = "another process has the port" if taken else error.strerror or str(error)
        if taken and OPTION not in config.given:
            log.warning(
                "no HTTP: %s=%s:%d cannot be used, %s; give the option another port, or nothing "
                "to switch HTTP off",
                OPTION,
                host,
                port,
                reason,
            )
            return None
        raise StartupError(
            f"{OPTION}={config.pybroker_http_listener} cannot be used: {reason}; "
            "choose another port, or nothing to switch HTTP off"
        ) from error
    opened.setblocking(False)
    return opened


class AdminService:
    """Owns the HTTP server, between `start` and `close`. The code that starts the broker keeps
    `view` up to date."""

    def __init__(self, view: BrokerView, listening: socket.socket) -> None:
        self.view = view
        self._listening = listening
        self._serves = asyncio.Event()
        self._task = BackgroundTask("http")

    def start(self) -> None:
        """Start the background task that serves once the broker serves, or once the start takes
        long."""
        self._task.start(self._serve)

    def broker_serves(self) -> None:
        """The broker accepts connections: load the HTTP server now."""
        self.view.phase = Phase.RUNNING
        self._serves.set()

    async def close(self) -> None:
        """Idempotent."""
        await self._task.stop()
        self._listening.close()

    async def _serve(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._serves.wait()
        except TimeoutError:
            pass
        # By name: an import statement at the top would delay every start. In a thread: the broker
        # serves clients meanwhile.
        try:
            module = await asyncio.to_thread(importlib.import_module, "pybroker.admin.http")
            host, port = self._listening.getsockname()[:2]
            log.info("http on %s:%d", host, port)
            await module.serve(self.view, self._listening)
        except Exception:
            # A failure of the HTTP server must not end the broker.
            log.exception("http ended")
            self._listening.close()
