"""Binds the HTTP listener. Starts the HTTP server when the broker serves clients, but at the latest
after PATIENCE_S. This module must not import an HTTP library, because the import would delay the
broker's start."""

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
"""After this time (s) the HTTP server starts even if the broker does not serve clients yet, so that
operators can observe a slow start."""
_BACKLOG: Final = 64


def bind_http(config: BrokerConfig) -> socket.socket | None:
    """Return the listening socket. Return None if HTTP is disabled, or if another process uses the
    port and `pybroker.http.listener` is not set. Raise StartupError for every other failure to bind
    the port."""
    address = config.http_address
    if address is None:
        return None
    host, port = address
    opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted connections inherit it
    try:
        opened.bind((host, port))
        opened.listen(_BACKLOG)
    except OSError as error:
        opened.close()
        taken = error.errno == errno.EADDRINUSE
        reason = "another process uses the port" if taken else error.strerror or str(error)
        if taken and OPTION not in config.given:
            log.warning(
                "HTTP is disabled: %s=%s:%d cannot be bound, %s; set the option to another port or "
                "to an empty value to disable HTTP",
                OPTION,
                host,
                port,
                reason,
            )
            return None
        raise StartupError(
            f"{OPTION}={config.pybroker_http_listener} cannot be bound: {reason}; "
            "set the option to another port, or to an empty value to disable HTTP"
        ) from error
    opened.setblocking(False)
    return opened


class AdminService:
    """Owns the HTTP server from `start` to `close`. The pages show `view`. The code that starts the
    broker updates `view`."""

    def __init__(self, view: BrokerView, listening: socket.socket) -> None:
        self.view = view
        self._listening = listening
        self._serves = asyncio.Event()
        self._task = BackgroundTask("http")

    def start(self) -> None:
        """Start a background task. The task starts the HTTP server when `broker_serves` is called,
        but at the latest after PATIENCE_S."""
        self._task.start(self._serve)

    def broker_serves(self) -> None:
        """Set the broker's phase in `view` to RUNNING, and start the HTTP server."""
        self.view.phase = Phase.RUNNING
        self._serves.set()

    async def close(self) -> None:
        """Stop the HTTP server and close its listening socket. Idempotent."""
        await self._task.stop()
        self._listening.close()

    async def _serve(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._serves.wait()
        except TimeoutError:
            pass
        # An import statement at the top of the module would delay every start. The thread lets the
        # broker serve clients during the import.
        try:
            module = await asyncio.to_thread(importlib.import_module, "pybroker.admin.http")
            host, port = self._listening.getsockname()[:2]
            log.info("http on %s:%d", host, port)
            await module.serve(self.view, self._listening)
        except Exception:
            # A failure of the HTTP server must not stop the broker.
            log.exception("http server failed, the broker runs on without it")
            self._listening.close()
