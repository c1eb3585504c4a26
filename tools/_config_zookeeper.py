"""`configs --zookeeper`: reads and changes options in ZooKeeper, for topics and stopped brokers
only, because a running broker must validate its options itself."""

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
from pybroker.tools._config_args import BROKERS, TOPICS, Args
from pybroker.tools._zookeeper_session import cluster_nodes

_WHY_NOT: Final = (
    "Broker configuration operations using ZooKeeper are only supported if the affected broker(s)"
    " are not running."
)


async def change_in_zookeeper(connect: str, args: Args) -> None:
    """Alter or describe the options of topics or brokers. Raises Failure, PybrokerError."""
    if args.type not in (TOPICS, BROKERS):
        raise Failure(
            f"--zookeeper cannot be used for {args.type}: the brokers do not support"
            " SCRAM credentials yet"
        )
    async with cluster_nodes(connect) as coord:
        await (_alter if args.alter else _describe)(coord, args)


async def _alter(coord: KazooCoord, args: Args) -> None:
    name = args.name or DEFAULT_ENTITY
    entity = ConfigEntity(((args.type, name),))
    if args.type == BROKERS:
        added = ", ".join(f"{key}={value}" for key, value in args.add.items())
        doing = f"update brokers configs: {{add: {{{added}}}, delete: List({_joined(args)})}}"
        await _check_not_running(coord, args, doing)

    def change(current: Mapping[str, str]) -> dict[str, str]:
        if invalid := [key for key in args.delete if key not in current]:
            raise Failure(f"Invalid config(s): {','.join(invalid)}")
        _check_values(args)
        return {key: v for key, v in {**current, **args.add}.items() if key not in args.delete}

    owner = name if args.type == TOPICS else None
    if not await change_config(coord, entity, change, owner=owner):
        raise Failure(f"The topic '{name}' does not exist.")
    if args.type == TOPICS:
        _without_effect.warn(name, args.add)
    if args.as_json:
        write_json({"altered": args.type, "name": name})
    else:
        click.echo(f"Completed updating config for entity: {_shown(args.type, name)}.")


def _joined(args: Args) -> str:
    return ", ".join(args.delete)


def _check_values(args: Args) -> None:
    if args.type == TOPICS:
        faults = topic_config_faults(BrokerConfig(), args.add)
    else:
        faults = usable_values(args.add, per_broker=bool(args.name))[1]
    if faults:
        raise Failure("; ".join(faults))


async def _check_not_running(coord: KazooCoord, args: Args, doing: str) -> None:
    start = f"requirement failed: --bootstrap-server option must be specified to {doing} - "
    if args.name:
        if await coord.exists(paths.broker(int(args.name))) is not None:
            raise Failure(f"{start}broker {args.name} is running. {_WHY_NOT}")
    elif running := await coord.children(paths.BROKER_IDS):
        raise Failure(f"{start}{len(running)} brokers are running. {_WHY_NOT}")


async def _describe(coord: KazooCoord, args: Args) -> None:
    if args.type == BROKERS:
        await _check_not_running(coord, args, "describe brokers")
    if args.name is not None:
        names = [args.name or DEFAULT_ENTITY]
    else:
        below = await coord.children(f"{paths.CONFIG}/{args.type}")
        names = sorted(paths.decode_name(component) for component in below)
    for name in names:
        values = await read_config(coord, ConfigEntity(((args.type, name),)))
        if args.as_json:
            write_json({"type": args.type, "name": name, "configs": values})
            continue
        pairs = ",".join(f"{key}={value}" for key, value in values.items())
        click.echo(f"Configs for {_shown(args.type, name)} are {pairs}")


def _shown(kind: str, name: str) -> str:
    """Return the entity's name as Kafka's tool prints it with --zookeeper."""
    word = "topic" if kind == TOPICS else kind
    return f"default {word}" if name == DEFAULT_ENTITY else f"{word} '{name}'"
