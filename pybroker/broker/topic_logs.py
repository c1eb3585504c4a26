"""Turns the topic configurations in ZooKeeper into the options of the topics' logs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from pybroker.config.broker_config import BrokerConfig
from pybroker.config.broker_options import COMPACTION
from pybroker.config.declaration import first_faults
from pybroker.config.topic_config import usable_overrides
from pybroker.config.without_effect import options_without_effect, sentence
from pybroker.coordinator.controller.reading import read_each
from pybroker.coordinator.zookeeper.config_store import read_config
from pybroker.coordinator.zookeeper.paths import config_root, decode_name, topic_entity
from pybroker.errors import MalformedNode, NoNode
from pybroker.ports import Coord
from pybroker.storage.log_config import UNLIMITED, LogConfig

log = logging.getLogger(__name__)

_CLEANUP_POLICY: Final = "cleanup.policy"
_RETENTION: Final = (_CLEANUP_POLICY, "retention.bytes", "retention.ms")


def topic_log_config(
    broker: BrokerConfig, topic: str, overrides: Mapping[str, str] | None
) -> LogConfig:
    """Return the options of a topic's logs. `overrides` is None if the topic's configuration node
    is malformed. If an option about retention cannot be read, the logs keep all records."""
    usable, faults = usable_overrides(broker, overrides or {})
    for fault in first_faults(faults):
        log.warning("topic option ignored topic=%s fault=%s", topic, fault)
    config = LogConfig.parse(broker, usable)
    unknown = [
        name for name in _RETENTION if overrides is None or name in overrides.keys() - usable.keys()
    ]
    if not unknown:
        return config
    log.error("retention disabled topic=%s reason=its retention options cannot be read", topic)
    if _CLEANUP_POLICY in unknown:  # a gap may then be from compaction, not from damage
        config = replace(config, cleanup_policy=(*config.cleanup_policy, COMPACTION))
    return replace(config, retention_ms=UNLIMITED, retention_bytes=UNLIMITED)


async def read_log_configs(
    coord: Coord,
    broker: Callable[[], BrokerConfig],
    topics: Collection[str],
    held: Callable[[str], LogConfig | None],
) -> dict[str, LogConfig]:
    """Return the options of the topics' logs, read from ZooKeeper after a sync. If a topic's
    configuration node is malformed, the options that `held` returns stay in force. If `held`
    returns None, retention is disabled. Raise CoordError."""

    async def one(topic: str) -> LogConfig:
        overrides = await _read(coord, topic)
        known = held(topic)
        if overrides is None and known is not None:
            return known
        config = topic_log_config(broker(), topic, overrides)
        warned = [] if known is None else options_without_effect(known.overrides)
        for option in sorted(options_without_effect(config.overrides)):
            if option not in warned:
                log.warning("%s", sentence(topic, option))
        return config

    await coord.sync(config_root("topics"))
    return await read_each(one, topics)


async def topic_log_configs(coord: Coord, broker: BrokerConfig) -> dict[str, LogConfig]:
    """Return the options of the logs of every topic that has options of its own. Raise
    CoordError."""

    async def one(topic: str) -> LogConfig | None:
        overrides = await _read(coord, topic)
        return None if overrides == {} else topic_log_config(broker, topic, overrides)

    try:
        names = await coord.children(config_root("topics"))
    except NoNode:
        return {}
    return await read_each(one, [decode_name(name) for name in names])


async def _read(coord: Coord, topic: str) -> dict[str, str] | None:
    """Return the topic's own options (name -> text) in ZooKeeper, or None if its node is
    malformed."""
    try:
        return await read_config(coord, topic_entity(topic))
    except MalformedNode as error:
        log.error("topic options ignored topic=%s error=%s", topic, error)
        return None
