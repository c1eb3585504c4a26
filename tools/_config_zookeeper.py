"""`configs --zookeeper`: options changed in ZooKeeper itself, as before brokers took them. Topics
at any time; brokers only while they do not run, since nobody would tell them what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

from pybroker.config.broker_config import BrokerConfig
from pybroker.config.layered_config import usable_values
from pybroker.config.topic_config import topic_config_faults
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.config_store import change_config, read_config
from pybroker.coordinator.zookeeper.paths import DEFAULT_ENTITY, ConfigEntity
from pybroker.coordinator.zookeeper.session import KazooCoord
from pybroker.tools import _without_effect
from pybroker.tools._cli import Failure, write_json
from pybroker.tools._config_wish import BROKERS, TOPICS, Wish
from pybroker.tools._zookeeper_session import cluster_nodes

_WHY_NOT: Final = (
    "Broker configuration operations using ZooKeeper are only supported if the affected broker(s)"
    " are not running."
)


async def change_in_zookeeper(connect: str, wish: Wish) -> None:
    """Raises Failure, PybrokerError."""
    if wish.type not in (TOPICS, BROKERS):
        raise Failure(
            f"--zookeeper cannot be used for {wish.type}: there are no users with credentials yet"
        )
    async with cluster_nodes(connect) as coord:
        await (_alter if wish.alter else _describe)(coord, wish)


async def _alter(coord: KazooCoord, wish: Wish) -> None:
    name = wish.name or DEFAULT_ENTITY
    entity = ConfigEntity(((wish.type, name),))
    if wish.type == BROKERS:
        added = ", ".join(f"{key}={value}" for key, value in wish.add.items())
        doing = f"update brokers configs: {{add: {{{added}}}, delete: List({_joined(wish)})}}"
        await _check_not_running(coord, wish, doing)

    def change(current: Mapping[str, str]) -> dict[str, str]:
        if invalid := [key for key in wish.delete if key not in current]:
            raise Failure(f"Invalid config(s): {','.join(invalid)}")
        _check_values(wish)
        return {key: v for key, v in {**current, **wish.add}.items() if key not in wish.delete}

    owner = name if wish.type == TOPICS else None
    if not await change_config(coord, entity, change, owner=owner):
        raise Failure(f"The topic '{name}' does not exist.")
    if wish.type == TOPICS:
        _without_effect.warn(name, wish.add)
    if wish.as_json:
        write_json({"altered": wish.type, "name": name})
    else:
        click.echo(f"Completed updating config for entity: {_shown(wish.type, name)}.")


def _joined(wish: Wish) -> str:
    return ", ".join(wish.delete)


def _check_values(wish: Wish) -> None:
    if wish.type == TOPICS:
        faults = topic_config_faults(BrokerConfig(), wish.add)
    else:
        faults = usable_values(wish.add, per_broker=bool(wish.name))[1]
    if faults:
        raise Failure("; ".join(faults))


async def _check_not_running(coord: KazooCoord, wish: Wish, doing: str) -> None:
    start = f"requirement failed: --bootstrap-server option must be specified to {doing} - "
    if wish.name:
        if await coord.exists(paths.broker(int(wish.name))) is not None:
            raise Failure(f"{start}broker {wish.name} is running. {_WHY_NOT}")
    elif running := await coord.children(paths.BROKER_IDS):
        raise Failure(f"{start}{len(running)} brokers are running. {_WHY_NOT}")


async def _describe(coord: KazooCoord, wish: Wish) -> None:
    if wish.type == BROKERS:
        await _check_not_running(coord, wish, "describe brokers")
    if wish.name is not None:
        names = [wish.name or DEFAULT_ENTITY]
    else:
        below = await coord.children(f"{paths.CONFIG}/{wish.type}")
        names = sorted(paths.decode_name(component) for component in below)
    for name in names:
        values = await read_config(coord, ConfigEntity(((wish.type, name),)))
        if wish.as_json:
            write_json({"type": wish.type, "name": name, "configs": values})
            continue
        pairs = ",".join(f"{key}={value}" for key, value in values.items())
        click.echo(f"Configs for {_shown(wish.type, name)} are {pairs}")


def _shown(kind: str, name: str) -> str:
    """As Kafka writes an entity in this mode."""
    word = "topic" if kind == TOPICS else kind
    return f"default {word}" if name == DEFAULT_ENTITY else f"{word} '{name}'"
