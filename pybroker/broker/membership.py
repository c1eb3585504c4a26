"""The broker's registration in ZooKeeper. When a session expires, the broker resigns as controller
and registers again. The logs stay open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from pybroker.background import BackgroundTask, TaskOwner
from pybroker.coordinator.controller.controller import Controller
from pybroker.errors import CoordError, PybrokerError
from pybroker.model import Broker
from pybroker.ports import Coord, SessionEvent
from pybroker.replication.manager import ReplicaManager

log = logging.getLogger(__name__)

_RETRY_S = 0.2

Register = Callable[[], Awaitable[Broker]]
"""Registers this broker in the current ZooKeeper session. Returns the broker with the epoch and the
incarnation that the registration gave it."""
Update = Callable[[], Awaitable[None]]
"""Writes this broker's current advertised addresses into its registration."""


class Membership:
    """Keeps the broker registered and its endpoints current. Calls `lost` with the reason if
    another process has taken the broker id."""

    def __init__(
        self,
        *,
        coord: Coord,
        register: Register,
        update: Update,
        replicas: ReplicaManager,
        controller: Controller,
        lost: Callable[[str], None],
    ) -> None:
        self._coord = coord
        self._register = register
        self._update = update
        self._replicas = replicas
        self._controller = controller
        self._lost = lost
        self._tasks = TaskOwner()
        self._rejoining: asyncio.Task[None] | None = None
        self._updating = BackgroundTask("registration")
        self._is_outdated = False
        """Whether the endpoints have changed since the registration was written."""
        self._stopped = False
        self.is_registered = False
        """Whether the broker is registered in its current session. If the session expires, this
        stays True until the broker learns of it."""

    async def join(self) -> None:
        """Register now, and again in each later ZooKeeper session. Raise StartupError if the broker
        id is taken, CoordError if ZooKeeper does not answer."""
        generation = -1
        # If the session ends during the registration, the next session needs its own registration.
        while generation != self._coord.generation:
            generation = self._coord.generation
            self._is_outdated = False
            broker = await self._register()
        self._registered(broker)
        self._coord.add_listener(self._on_session)
        log.info("registered in ZooKeeper broker=%d broker_epoch=%d", broker.id, broker.epoch)

    def endpoints_changed(self) -> None:
        """Write the broker's changed endpoints into its registration."""
        self._is_outdated = True
        if self.is_registered and not self._stopped:
            self._updating.start(self._write_endpoints)

    async def leave(self) -> None:
        """Stop keeping the broker registered. After this call, the broker does not register again,
        so the caller can remove the broker's registration. Idempotent."""
        self.is_registered = False
        self._stopped = True
        await self._tasks.close()
        await self._updating.stop()

    def _registered(self, broker: Broker) -> None:
        self._replicas.broker_epoch = broker.epoch
        self.is_registered = True
        if self._is_outdated:
            self.endpoints_changed()

    async def _write_endpoints(self) -> None:
        while self._is_outdated:
            self._is_outdated = False
            try:
                await self._update()
            except CoordError as error:
                log.warning("changed endpoints not registered yet, trying again error=%r", error)
                self._is_outdated = True
                await asyncio.sleep(_RETRY_S)

    def _on_session(self, event: SessionEvent) -> None:
        if self._stopped:
            return
        lost = event in (SessionEvent.SUSPENDED, SessionEvent.EXPIRED)
        log.log(logging.WARNING if lost else logging.INFO, "zookeeper session %s", event.value)
        if event in (SessionEvent.EXPIRED, SessionEvent.CONNECTED) and self._rejoining is not None:
            self._rejoining.cancel()  # its registration belongs to an earlier session
        if event is SessionEvent.EXPIRED:
            self.is_registered = False
            self._controller.session_expired()
        elif event is SessionEvent.CONNECTED:
            self._rejoining = self._tasks.start(self._rejoin(), "membership")

    async def _rejoin(self) -> None:
        generation = self._coord.generation
        while generation == self._coord.generation:
            self._is_outdated = False
            try:
                broker = await self._register()
            except CoordError as error:
                log.warning("registration in ZooKeeper failed, trying again error=%r", error)
                await asyncio.sleep(_RETRY_S)
                continue
            except PybrokerError as error:
                log.error("registration in ZooKeeper refused, the broker ends error=%s", error)
                self._lost(str(error))
                return
            self._registered(broker)
            self._controller.session_renewed()
            text = "registered in a new ZooKeeper session broker=%d broker_epoch=%d"
            log.info(text, broker.id, broker.epoch)
            return
