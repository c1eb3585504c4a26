"""The broker's membership in the cluster over the life of its ZooKeeper sessions, and under which
addresses it is known there.

When a session expires, the controller role is dropped at once; when a new one exists, the broker
registers again and stands for election again. Partitions keep their logs; their roles come from the
controller, which sees a new broker epoch.
"""

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
"""Registers this broker in the current session; gives it back with epoch and incarnation."""
Update = Callable[[], Awaitable[None]]
"""Writes the endpoints of now into the registration of the current session."""


class Membership:
    """Owns the tasks that register again and that tell of other endpoints. `lost` is called, with
    the reason, when the cluster does not take us back: another process has our id."""

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
        """Whether the endpoints have changed since the broker last began to write them."""
        self._stopped = False
        self.is_registered = False
        """Whether the broker stands in ZooKeeper in its current session, as far as is known."""

    async def join(self) -> None:
        """Register for the first time and begin to watch over the session. Raises StartupError if
        the id is taken, CoordError if ZooKeeper does not answer."""
        generation = -1
        while generation != self._coord.generation:  # else it ended before anybody listened
            generation = self._coord.generation
            self._is_outdated = False
            broker = await self._register()
        self._registered(broker)
        self._coord.add_listener(self._on_session)
        log.info("registered broker=%d epoch=%d", broker.id, broker.epoch)

    def endpoints_changed(self) -> None:
        """Tell the cluster, by the registration of now or by the one that is under way."""
        self._is_outdated = True
        if self.is_registered and not self._stopped:
            self._updating.start(self._tell_endpoints)

    async def leave(self) -> None:
        """Stop reacting to the session; the registration is about to go. Idempotent."""
        self.is_registered = False
        self._stopped = True
        await self._tasks.close()
        await self._updating.stop()

    def _registered(self, broker: Broker) -> None:
        self._replicas.broker_epoch = broker.epoch
        self.is_registered = True
        if self._is_outdated:
            self.endpoints_changed()

    async def _tell_endpoints(self) -> None:
        while self._is_outdated:
            self._is_outdated = False
            try:
                await self._update()
            except CoordError as error:
                log.warning("endpoints not written, trying again error=%r", error)
                self._is_outdated = True
                await asyncio.sleep(_RETRY_S)

    def _on_session(self, event: SessionEvent) -> None:
        if self._stopped:
            return
        lost = event in (SessionEvent.SUSPENDED, SessionEvent.EXPIRED)
        log.log(logging.WARNING if lost else logging.INFO, "zookeeper session %s", event.value)
        if event in (SessionEvent.EXPIRED, SessionEvent.CONNECTED) and self._rejoining is not None:
            self._rejoining.cancel()  # what it registers is of an earlier session
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
                log.warning("registration failed, trying again error=%r", error)
                await asyncio.sleep(_RETRY_S)
                continue
            except PybrokerError as error:
                log.error("registration refused error=%s", error)
                self._lost(str(error))
                return
            self._registered(broker)
            self._controller.session_renewed()
            log.info("registered again broker=%d epoch=%d", broker.id, broker.epoch)
            return
