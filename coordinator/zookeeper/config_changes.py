"""Watches for changed configurations: a notification under /config/changes names the entity. Each
new ZooKeeper session begins with a read of all configurations, because notifications may have been
missed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from pybroker.background import RetryLoop
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.coordinator.zookeeper.paths import ConfigEntity
from pybroker.errors import CoordError, MalformedNode, NoNode, PybrokerError
from pybroker.ports import Clock, Coord, SessionEvent, WatchEvent

log = logging.getLogger(__name__)

NOTIFICATION_LIFE_MS: Final = 15 * 60 * 1000
"""The time after which a notification is deleted, as in Kafka. By then every running broker has
applied it. A stopped broker does not need it, because it reads all configurations when it
starts."""
_RETRY_S: Final = 0.5

Apply = Callable[[Collection[ConfigEntity] | None], Awaitable[None]]
"""A function that reads and applies the configurations of these entities (None: of every entity).
If it raises CoordError, it is called again with the same entities."""


class ConfigChanges:
    """Applies changed configurations. Owns a task, between `start` and `stop`."""

    def __init__(self, *, coord: Coord, clock: Clock, apply: Apply) -> None:
        self._coord = coord
        self._clock = clock
        self._apply = apply
        self._seen: set[str] = set()
        self._everything = False
        """Whether notifications may have been missed, so that every entity has to be read."""
        self._fails = False
        self._loop = RetryLoop("config-changes", self._look, _RETRY_S)
        self._stopped = False
        # Listen before the first read: if the session ends during the read, its watch is lost.
        coord.add_listener(self._on_session)

    async def start(self) -> None:
        """Apply all configurations, and begin to watch for changes. Raises CoordError; `start` can
        then be called again."""
        self._everything = True
        await self._process()
        self._loop.start()

    async def stop(self) -> None:
        """End the task. Idempotent."""
        self._stopped = True
        await self._loop.stop()

    def _on_session(self, event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTED and not self._stopped:
            self._everything = True
            self._loop.wake()

    def _on_change(self, event: WatchEvent) -> None:
        self._loop.wake()

    async def _look(self) -> bool:
        """Apply new notifications. Return True if ZooKeeper failed; then the caller has to repeat
        the call."""
        try:
            await self._process()
        except CoordError as error:
            if not self._fails:
                log.warning(
                    "config changes not read error=%r: the broker tries again after a pause", error
                )
            self._fails = True
            return True
        except PybrokerError as error:
            log.error("config changes not applied error=%r", error)
        self._fails = False
        return False

    async def _process(self) -> None:
        """Apply new notifications. If this fails, the next call handles the same notifications
        again."""
        everything, self._everything = self._everything, False
        try:
            names = await self._coord.children(paths.CONFIG_CHANGES, self._on_change)
            await self._apply_new(names, everything=everything)
        except NoNode:
            log.error(
                "config changes missing path=%s: this broker learns no changes of configurations"
                " until a starting broker creates the node",
                paths.CONFIG_CHANGES,
            )
            return
        except CoordError:
            self._everything |= everything
            raise
        self._seen = set(names)
        await self._purge(sorted(names))

    async def _apply_new(self, names: list[str], *, everything: bool) -> None:
        if everything:
            await self._apply(None)
            return
        new = sorted(name for name in names if name not in self._seen)
        entities = [entity for name in new if (entity := await self._entity(name)) is not None]
        if entities:
            await self._apply(list(dict.fromkeys(entities)))

    async def _entity(self, name: str) -> ConfigEntity | None:
        """Return the entity of a notification; None if the notification is gone or malformed."""
        path = f"{paths.CONFIG_CHANGES}/{name}"
        try:
            data, _ = await self._coord.get(path)
            text = schemas.decode_config_change(path, data)
        except NoNode:
            return None
        except MalformedNode as error:
            log.warning("config change ignored path=%s error=%s", path, error)
            return None
        entity = paths.parse_config_entity_path(text)
        if entity is None:
            log.warning("config change ignored path=%s entity_path=%s", path, text)
        return entity

    async def _purge(self, names: list[str]) -> None:
        """Remove the notifications older than NOTIFICATION_LIFE_MS."""
        for name in names:
            path = f"{paths.CONFIG_CHANGES}/{name}"
            stat = await self._coord.exists(path)
            if stat is None:
                continue
            if self._clock.wall_ms() - stat.ctime_ms <= NOTIFICATION_LIFE_MS:
                return
            try:
                await self._coord.delete(path)
            except NoNode:
                continue
            log.debug("config change purged path=%s", path)
