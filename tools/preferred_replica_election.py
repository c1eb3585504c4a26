"""The command `pybroker preferred-replica-election`, equivalent to kafka-preferred-replica-election
of Kafka 2.8.

With --zookeeper, unlike Kafka's tool, the command waits until the election has ended. Then it
reports each preferred replica that is not the leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

import click

from pybroker.client.admin.elections import ElectionType
from pybroker.coordinator.controller.reading import read_states, read_topic_names, read_topics
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.errors import NodeExists, NoNode, RequestTooLarge
from pybroker.model import PartitionState, TopicPartition
from pybroker.ports import Coord, WatchEvent
from pybroker.tools import leader_election
from pybroker.tools._cli import Failure, Tool, client_options, config_file_option, run_async
from pybroker.tools._election_file import read_partitions
from pybroker.tools._zookeeper_session import cluster_nodes

ELECTION_WAIT_S = 30.0
API_TIMEOUT_MS = 60_000
REQUEST_TIMEOUT_MS = 30_000
DATA = "Preferred replica election data"

Replicas = dict[TopicPartition, tuple[int, ...]]


@click.command("preferred-replica-election", cls=Tool)
@click.option(
    "--zookeeper",
    metavar="HOST:PORT[,HOST:PORT][/CHROOT]",
    help="The ZooKeeper servers of the cluster, as in zookeeper.connect. Exactly one of"
    " --zookeeper and --bootstrap-server is required.",
)
@click.option(
    "--bootstrap-server",
    metavar="HOST:PORT[,HOST:PORT]",
    help="Brokers to contact first; they return the addresses of all brokers.",
)
@config_file_option("--admin.config", "--command-config")
@click.option(
    "--path-to-json-file",
    metavar="FILE",
    help='A JSON file with the partitions: {"partitions": [{"topic": "foo", "partition": 1}]}.'
    " Default: all partitions.",
)
def command(
    zookeeper: str | None,
    bootstrap_server: str | None,
    config_file: str | None,
    path_to_json_file: str | None,
) -> None:
    """Elect the preferred replica, the first assigned replica, as the leader of each partition.

    The exit code is 1 if a preferred replica is not the leader after the election.
    """
    if (zookeeper is None) == (bootstrap_server is None):
        raise Failure("Exactly one of '[bootstrap-server]' or '[zookeeper]' must be provided")
    wanted = None
    if path_to_json_file is not None:
        wanted = read_partitions(path_to_json_file, DATA, no_partitions=f"{DATA} is empty")
    if bootstrap_server is not None:
        _ask_broker(bootstrap_server, config_file, wanted)
    elif config_file is not None:
        raise Failure("--admin.config cannot be used with --zookeeper; leave out --admin.config")
    else:
        run_async(_ask_zookeeper(str(zookeeper), wanted))


def _ask_broker(
    bootstrap_server: str, config_file: str | None, wanted: list[TopicPartition] | None
) -> None:
    options = client_options(
        bootstrap_server,
        config_file,
        default_api_timeout_ms=API_TIMEOUT_MS,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
    )
    results = run_async(leader_election.elect(options, ElectionType.PREFERRED, wanted))
    leader_election.show(results, "preferred leader election", "Preferred replica")
    leader_election.check(results, "preferred replica")


async def _ask_zookeeper(connect: str, wanted: list[TopicPartition] | None) -> None:
    async with cluster_nodes(connect) as coord:
        await perform(coord, wanted)


async def perform(coord: Coord, wanted: list[TopicPartition] | None) -> None:
    """Request the election through ZooKeeper and report its result. Raises Failure, CoordError."""
    existing = await _existing(coord, wanted)
    chosen = sorted(existing) if wanted is None else [key for key in wanted if key in existing]
    await _write(coord, chosen)
    names = ",".join(map(str, chosen))
    click.echo(f"Created preferred replica election path with {names}")
    names = ", ".join(map(str, chosen))
    click.echo(f"Successfully started preferred replica election for partitions Set({names})")
    for key in wanted or ():
        if key not in existing:
            click.echo(
                f"Skipping preferred replica leader election for partition {key} since it doesn't"
                " exist."
            )
    if not await _removed(coord, paths.PREFERRED_ELECTION, ELECTION_WAIT_S):
        raise Failure(
            f"no controller has run the election within {ELECTION_WAIT_S:.0f} s; check that the"
            f" cluster has a controller (the node {paths.CONTROLLER} exists). The request is kept:"
            " the next controller runs the election"
        )
    await _report(coord, {key: existing[key] for key in chosen})


async def _existing(coord: Coord, wanted: Iterable[TopicPartition] | None) -> Replicas:
    """Return the replicas of all partitions of the topics in `wanted`, or of all topics if `wanted`
    is None."""
    names: Collection[str]
    if wanted is None:
        names = await read_topic_names(coord)
    else:
        names = {key.topic for key in wanted if "/" not in key.topic and key.topic}
    topics, _ = await read_topics(coord, names)
    return {
        TopicPartition(name, number): replicas
        for name, topic in topics.items()
        for number, replicas in topic.assignment.replicas.items()
    }


async def _write(coord: Coord, chosen: Collection[TopicPartition]) -> None:
    try:
        await coord.create(paths.PREFERRED_ELECTION, schemas.encode_partitions(chosen))
    except NodeExists as error:
        raise Failure(
            "Preferred replica leader election currently in progress for"
            f" {await _in_progress(coord)}. Aborting operation"
        ) from error
    except RequestTooLarge as error:
        raise Failure(
            f"{len(chosen)} partitions do not fit into one ZooKeeper node; choose fewer with"
            " --path-to-json-file, or use --bootstrap-server"
        ) from error


async def _in_progress(coord: Coord) -> str:
    try:
        data, _ = await coord.get(paths.PREFERRED_ELECTION)
    except NoNode:
        return ""
    return ",".join(map(str, schemas.decode_partitions(paths.PREFERRED_ELECTION, data)))


async def _removed(coord: Coord, path: str, timeout_s: float) -> bool:
    """Wait until the node is removed. Return False if the node still exists after `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                changed = asyncio.Event()
                if await coord.exists(path, _setter(changed)) is None:
                    return True
                await changed.wait()
    except TimeoutError:
        return False


def _setter(changed: asyncio.Event) -> Callable[[WatchEvent], None]:
    return lambda _: changed.set()


async def _report(coord: Coord, chosen: Replicas) -> None:
    """Print each preferred replica that is not the leader. Raises Failure if at least one preferred
    replica is not the leader."""
    await coord.sync(paths.TOPICS)
    states, _ = await read_states(coord, chosen)
    live = set(await coord.children(paths.BROKER_IDS))
    failed = 0
    for key, replicas in sorted(chosen.items()):
        node = states.get(key)
        state = None if node is None else node.state
        if state is None or state.leader != replicas[0]:
            failed += 1
            click.echo(
                f"Error completing preferred leader election for partition: {key}: replica"
                f" {replicas[0]} {_why_not(replicas[0], state, live)}"
            )
    if failed:
        raise Failure(f"{failed} preferred replica(s) could not be elected")


def _why_not(preferred: int, state: PartitionState | None, live: Collection[str]) -> str:
    if state is None:
        return "is not the leader; the partition has never had a leader"
    if str(preferred) not in live:
        return f"is not running; the leader is {state.leader}"
    if preferred not in state.isr:
        return f"is not in sync; the leader is {state.leader}"
    return f"is in sync, but the leader is {state.leader}"
