"""`pybroker topics`: Kafka's kafka-topics. Texts are those of its 2.8 to 3.9 releases."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import click

from pybroker.client.admin import Admin
from pybroker.client.admin_configs import ConfigEntry, ConfigResource
from pybroker.client.admin_topics import NewTopic
from pybroker.client.metadata import PartitionInfo, TopicInfo
from pybroker.errors import ErrorCode
from pybroker.model import NO_LEADER, NO_TOPIC_ID, encode_uuid
from pybroker.tools._cli import (
    Failure,
    Tool,
    bootstrap_option,
    client_options,
    config_file_option,
    format_option,
    run_async,
    write_json,
)

ACTIONS = ("create", "list", "describe", "delete")
COLLISION_WARNING = (
    "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_')"
    " could collide. To avoid issues it is best to use either, but not both."
)
REPLICATION_FACTOR_MAX = 32_767
ONLY_WITH: Mapping[str, tuple[str, ...]] = {
    "partitions": ("create",),
    "replication_factor": ("create",),
    "replica_assignment": ("create",),
    "config": ("create",),
    "if_not_exists": ("create",),
    "if_exists": ("describe", "delete"),
    "under_replicated_partitions": ("describe",),
    "unavailable_partitions": ("describe",),
    "exclude_internal": ("list", "describe"),
}
"""Flag -> the actions that it goes with."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The command line."""

    action: str
    topic: str | None
    partitions: int | None
    replication_factor: int | None
    replica_assignment: str | None
    config: tuple[str, ...]
    if_exists: bool
    if_not_exists: bool
    exclude_internal: bool
    under_replicated_partitions: bool
    unavailable_partitions: bool
    as_json: bool

    @property
    def filtered(self) -> bool:
        return self.under_replicated_partitions or self.unavailable_partitions


@click.command(
    "topics", cls=Tool, error_prefix="Error while executing topic command : ", no_args_is_help=False
)
@bootstrap_option()
@click.option("--create", is_flag=True, help="Create a topic.")
@click.option("--list", "list_", is_flag=True, help="Print the names of topics.")
@click.option("--describe", is_flag=True, help="Print partitions, leaders and replicas of topics.")
@click.option("--delete", is_flag=True, help="Delete topics.")
@click.option(
    "--topic",
    help="The topic. A regular expression for all actions but --create; required by --create and"
    " --delete.",
)
@click.option("--partitions", type=int, help="How many partitions; default: the cluster's.")
@click.option(
    "--replication-factor", type=int, help="How many replicas of each; default: the cluster's."
)
@click.option(
    "--replica-assignment",
    metavar="0:1,1:2,...",
    help="The brokers of each partition, the preferred leader first.",
)
@click.option(
    "--config", multiple=True, metavar="NAME=VALUE", help="An option of the topic; repeatable."
)
@click.option("--if-exists", is_flag=True, help="Do nothing if the topic does not exist.")
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic exists already.")
@click.option("--exclude-internal", is_flag=True, help="Leave out the cluster's own topics.")
@click.option(
    "--under-replicated-partitions",
    is_flag=True,
    help="Only partitions with fewer replicas in sync than they have.",
)
@click.option("--unavailable-partitions", is_flag=True, help="Only partitions without a leader.")
@config_file_option("--command-config", "--admin.config")
@format_option()
def command(bootstrap_server: str, config_file: str | None, **flags: object) -> None:
    """Create, list, describe and delete topics."""
    wish = parse_wish(flags)
    options = client_options(bootstrap_server, config_file)

    async def work() -> None:
        async with Admin(**options) as admin:
            await perform(admin, wish)

    run_async(work())


def parse_wish(flags: Mapping[str, object]) -> Wish:
    """The command line as one value. Raises click.UsageError for combinations without a sense."""
    values = dict(flags)
    values["list"] = values.pop("list_")
    values["as_json"] = values.pop("output_format") == "json"
    chosen = [action for action in ACTIONS if values.pop(action)]
    if len(chosen) != 1:
        raise click.UsageError(
            "Command must include exactly one action: --list, --describe, --create or --delete"
        )
    action = chosen[0]
    if action in ("create", "delete") and values["topic"] is None:
        raise click.UsageError('Missing required argument "[topic]"')
    for name, actions in ONLY_WITH.items():
        if values[name] and action not in actions:
            flag = name.replace("_", "-")
            raise click.UsageError(f'Option "[{flag}]" can\'t be used with option "[{action}]"')
    if values["replica_assignment"]:
        for name in ("partitions", "replication_factor"):
            if values[name] is not None:
                flag = name.replace("_", "-")
                raise click.UsageError(
                    f'Option "[{flag}]" can\'t be used with option "[replica-assignment]"'
                )
    return Wish(action=action, **values)  # type: ignore[arg-type]  # click has checked the types


async def perform(admin: Admin, wish: Wish) -> None:
    """Do what is wished and print what Kafka prints. Raises PybrokerError."""
    if wish.action == "create":
        await create(admin, wish)
    elif wish.action == "list":
        await list_names(admin, wish)
    elif wish.action == "describe":
        await describe(admin, wish)
    else:
        await delete(admin, wish)


async def create(admin: Admin, wish: Wish) -> None:
    topic = new_topic(wish)
    if not wish.as_json and ("." in topic.name or "_" in topic.name):
        click.echo(COLLISION_WARNING)
    (result,) = await admin.create_topics([topic])
    if result.error is not None:
        if wish.if_not_exists and result.error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
            return
        raise result.error
    if wish.as_json:
        write_json({"created": topic.name, "topicId": encode_uuid(result.topic_id)})
    else:
        click.echo(f"Created topic {topic.name}.")


def new_topic(wish: Wish) -> NewTopic:
    """Raises Failure with Kafka's words where a value cannot be right."""
    assert wish.topic is not None
    if wish.partitions is not None and wish.partitions < 1:
        raise Failure("The partitions must be greater than 0")
    factor = wish.replication_factor
    if factor is not None and not 1 <= factor <= REPLICATION_FACTOR_MAX:
        raise Failure(
            f"The replication factor must be between 1 and {REPLICATION_FACTOR_MAX} inclusive"
        )
    return NewTopic(
        wish.topic,
        partitions=-1 if wish.partitions is None else wish.partitions,
        replication_factor=-1 if factor is None else factor,
        assignments=parse_assignment(wish.replica_assignment) if wish.replica_assignment else {},
        configs=parse_configs(wish.config),
    )


def parse_assignment(text: str) -> dict[int, list[int]]:
    """`1:2,2:1` -> {0: [1, 2], 1: [2, 1]}. Raises Failure."""
    found: dict[int, list[int]] = {}
    for partition, part in enumerate(text.split(",")):
        try:
            brokers = [int(word) for word in part.strip().split(":")]
        except ValueError:
            raise Failure(
                f"Invalid replica assignment: {part!r} is not broker:broker:..."
            ) from None
        twice = sorted({broker for broker in brokers if brokers.count(broker) > 1})
        if twice:
            raise Failure(
                "Partition replica lists may not contain duplicate entries: "
                + ", ".join(str(broker) for broker in twice)
            )
        if found and len(brokers) != len(found[0]):
            raise Failure(f"Partition {partition} has different replication factor: {brokers}")
        found[partition] = brokers
    return found


def parse_configs(words: Iterable[str]) -> dict[str, str | None]:
    """Raises Failure for a word that is not key=value."""
    configs: dict[str, str | None] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise Failure(
                "Invalid topic config: all configs to be added must be in the format"
                f' "key=val", not {word!r}'
            )
        configs[name.strip()] = value.strip()
    return configs


async def list_names(admin: Admin, wish: Wish) -> None:
    names = [topic.name for topic in await matching(admin, wish)]
    if wish.as_json:
        write_json(names)
    elif names:
        click.echo("\n".join(names))


async def delete(admin: Admin, wish: Wish) -> None:
    names = [topic.name for topic in await matching(admin, wish)]
    _check_found(names, wish)
    for result in await admin.delete_topics(names):
        result.check()
    if wish.as_json:
        write_json({"deleted": names})


async def describe(admin: Admin, wish: Wish) -> None:
    topics = await matching(admin, wish)
    _check_found([topic.name for topic in topics], wish)
    # where an old broker or a missing permission hides them, the partitions are still worth showing
    found = await admin.describe_configs([ConfigResource.topic(topic.name) for topic in topics])
    configs = {resource.name: list(answer.entries) for resource, answer in found.items()}
    if wish.as_json:
        write_json([topic_document(topic, configs.get(topic.name, []), wish) for topic in topics])
        return
    for topic in topics:
        if not wish.filtered:
            click.echo(topic_line(topic, configs.get(topic.name, [])))
        for partition in shown_partitions(topic, wish):
            click.echo(partition_line(partition))


async def matching(admin: Admin, wish: Wish) -> list[TopicInfo]:
    """The topics that --topic means, by name; all without it."""
    topics = [topic for topic in await admin.list_topics() if topic.error == ErrorCode.NONE]
    if wish.exclude_internal:
        topics = [topic for topic in topics if not topic.internal]
    if wish.topic is None:
        return topics
    pattern = name_pattern(wish.topic)
    return [topic for topic in topics if pattern.fullmatch(topic.name)]


def name_pattern(text: str) -> re.Pattern[str]:
    """What --topic means: a regular expression, in which a comma stands for "or". Raises
    Failure."""
    try:
        return re.compile(text.strip("\"'").replace(" ", "").replace(",", "|"))
    except re.error as error:
        raise Failure(f"{text} is an invalid regex: {error}") from None


def _check_found(names: list[str], wish: Wish) -> None:
    if not names and wish.topic is not None and not wish.if_exists:
        raise Failure(f"Topic '{wish.topic}' does not exist as expected")


# Output


def topic_line(topic: TopicInfo, configs: list[ConfigEntry]) -> str:
    fields = [f"Topic: {topic.name}"]
    if topic.topic_id != NO_TOPIC_ID:
        fields.append(f"TopicId: {encode_uuid(topic.topic_id)}")
    fields.append(f"PartitionCount: {len(topic.partitions)}")
    fields.append(f"ReplicationFactor: {_replication_factor(topic)}")
    fields.append(
        "Configs: " + ",".join(f"{row.name}={row.value}" for row in configs if not row.is_default)
    )
    return "\t".join(fields)


def partition_line(partition: PartitionInfo) -> str:
    leader = "none" if partition.leader == NO_LEADER else str(partition.leader)
    return "\t".join(
        [
            "",
            f"Topic: {partition.topic_partition.topic}",
            f"Partition: {partition.topic_partition.partition}",
            f"Leader: {leader}",
            f"Replicas: {_join(partition.replicas)}",
            f"Isr: {_join(partition.isr)}",
        ]
    )


def topic_document(topic: TopicInfo, configs: list[ConfigEntry], wish: Wish) -> dict[str, object]:
    return {
        "topic": topic.name,
        "topicId": encode_uuid(topic.topic_id),
        "internal": topic.internal,
        "replicationFactor": _replication_factor(topic),
        "configs": {row.name: row.value for row in configs if not row.is_default},
        "partitions": [
            {
                "partition": partition.topic_partition.partition,
                "leader": None if partition.leader == NO_LEADER else partition.leader,
                "leaderEpoch": partition.leader_epoch,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
            }
            for partition in shown_partitions(topic, wish)
        ],
    }


def shown_partitions(topic: TopicInfo, wish: Wish) -> list[PartitionInfo]:
    return [
        partition
        for _, partition in sorted(topic.partitions.items())
        if not wish.filtered
        or (wish.under_replicated_partitions and len(partition.isr) < len(partition.replicas))
        or (wish.unavailable_partitions and partition.leader == NO_LEADER)
    ]


def _replication_factor(topic: TopicInfo) -> int:
    return max((len(partition.replicas) for partition in topic.partitions.values()), default=0)


def _join(numbers: Iterable[int]) -> str:
    return ",".join(str(number) for number in numbers)
