"""The command `pybroker topics`, equivalent to Kafka's kafka-topics, with the messages of Kafka
3.9."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import click

from pybroker.client.admin.admin import Admin
from pybroker.client.admin.configs import ConfigResource
from pybroker.client.admin.topics import NewPartitions, NewTopic
from pybroker.client.metadata import TopicInfo
from pybroker.errors import ErrorCode
from pybroker.model import NO_TOPIC_ID, decode_uuid, encode_uuid
from pybroker.tools import _without_effect
from pybroker.tools._cli import (
    Failure,
    Tool,
    client_options,
    config_file_option,
    format_option,
    run_async,
    write_json,
)
from pybroker.tools._topic_lines import Described, Reports, document, lines

ACTIONS = ("create", "list", "alter", "describe", "delete")
COLLISION_WARNING = (
    "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_')"
    " could collide. To avoid issues it is best to use either, but not both."
)
OTHER_TOOL = (
    " (the kafka-configs CLI supports altering topic configs with a --bootstrap-server option)"
)
ID_WINS = (
    "Only topic id will be used when both --topic and --topic-id are specified and topicId is not"
    " Uuid.ZERO_UUID"
)
REPLICATION_FACTOR_MAX = 32_767
PARTITION_REPORTS = (
    "under_replicated_partitions",
    "under_min_isr_partitions",
    "at_min_isr_partitions",
    "unavailable_partitions",
)
ONLY_WITH: Mapping[str, tuple[str, ...]] = {
    "config": ("create", "alter"),
    "partitions": ("create", "alter"),
    "replication_factor": ("create",),
    "replica_assignment": ("create", "alter"),
    **dict.fromkeys(PARTITION_REPORTS, ("describe",)),
    "topics_with_overrides": ("describe",),
    "if_exists": ("alter", "describe", "delete"),
    "if_not_exists": ("create",),
    "exclude_internal": ("list", "describe"),
}
"""Flag -> the actions that accept the flag."""


@dataclass(frozen=True, slots=True)
class Args:
    """The parsed command line."""

    action: str
    topic: str | None
    topic_id: str | None
    partitions: int | None
    replication_factor: int | None
    replica_assignment: str | None
    config: tuple[str, ...]
    if_exists: bool
    if_not_exists: bool
    exclude_internal: bool
    reports: Reports
    as_json: bool


@click.command(
    "topics", cls=Tool, error_prefix="Error while executing topic command : ", no_args_is_help=False
)
@click.option(
    "--bootstrap-server",
    metavar="HOST:PORT[,HOST:PORT]",
    help="Brokers to contact first; they return the addresses of all brokers.",
)
@click.option("--create", is_flag=True, help="Create the topic given with --topic.")
@click.option(
    "--list",
    "list_",
    is_flag=True,
    help="Print the names of all topics, or of the topics that --topic matches.",
)
@click.option(
    "--alter",
    is_flag=True,
    help="Add partitions to the topics that --topic matches, up to --partitions.",
)
@click.option("--describe", is_flag=True, help="Print partitions, leaders and replicas of topics.")
@click.option("--delete", is_flag=True, help="Delete the topics that --topic matches.")
@click.option(
    "--topic",
    help="The topic's name; except with --create, a regular expression. Required by"
    " --create, --alter and --delete. Default with --list and --describe: all topics.",
)
@click.option(
    "--topic-id", help="With --describe: describe the topic with this id. It wins over --topic."
)
@click.option(
    "--partitions",
    type=int,
    help="With --create and --alter: the number of partitions. Default with --create:"
    " num.partitions of the brokers. Adding partitions changes the"
    " partition of existing keys.",
)
@click.option(
    "--replication-factor",
    type=int,
    help="With --create: the number of replicas of each"
    " partition. Default: default.replication.factor of"
    " the brokers.",
)
@click.option(
    "--replica-assignment",
    metavar="0:1,1:2,...",
    help="The broker ids of each partition's replicas, the preferred leader first. With"
    " --alter, list the existing partitions too; their replicas do not change.",
)
@click.option(
    "--config",
    multiple=True,
    metavar="NAME=VALUE",
    help="With --create: an option of the topic. May be repeated. For existing topics, use"
    " pybroker configs.",
)
@click.option("--delete-config", multiple=True, hidden=True)
@click.option("--if-exists", is_flag=True, help="Exit with code 0 if the topic does not exist.")
@click.option(
    "--if-not-exists",
    is_flag=True,
    help="With --create: exit with code 0 if the topic already exists.",
)
@click.option(
    "--exclude-internal", is_flag=True, help="Leave out internal topics such as __consumer_offsets."
)
@click.option(
    "--under-replicated-partitions",
    is_flag=True,
    help="With --describe: print only partitions that have replicas outside the ISR.",
)
@click.option(
    "--unavailable-partitions",
    is_flag=True,
    help="With --describe: print only partitions that have no live leader.",
)
@click.option(
    "--under-min-isr-partitions",
    is_flag=True,
    help="With --describe: print only partitions with fewer in-sync replicas than"
    " min.insync.replicas.",
)
@click.option(
    "--at-min-isr-partitions",
    is_flag=True,
    help="With --describe: print only partitions with exactly min.insync.replicas in-sync"
    " replicas.",
)
@click.option(
    "--topics-with-overrides",
    is_flag=True,
    help="With --describe: print only topics that have their own options, without their"
    " partitions.",
)
@click.option("--partition-size-limit-per-response", type=int, hidden=True)
@config_file_option("--command-config", "--admin.config")
@format_option()
def command(bootstrap_server: str | None, config_file: str | None, **flags: object) -> None:
    """Create, list, alter, describe and delete topics."""
    args = parse_args({**flags, "bootstrap_server": bootstrap_server})
    options = client_options(bootstrap_server or "", config_file)

    async def work() -> None:
        async with Admin(**options) as admin:
            await perform(admin, args)

    run_async(work())


# The command line


def parse_args(flags: Mapping[str, object]) -> Args:
    """Return the parsed command line. Raises click.UsageError for contradicting flags."""
    values = dict(flags)
    values["list"] = values.pop("list_")
    values["as_json"] = values.pop("output_format") == "json"
    values.pop("partition_size_limit_per_response")
    chosen = [action for action in ACTIONS if values.pop(action)]
    if len(chosen) != 1:
        raise click.UsageError(
            "Command must include exactly one action: --list, --describe, --create, --alter or"
            " --delete"
        )
    action = chosen[0]
    if values.pop("bootstrap_server") is None:
        raise click.UsageError("--bootstrap-server must be specified")
    _check_required(action, values)
    _check_invalid(action, values)
    reports = Reports(
        under_replicated=bool(values.pop("under_replicated_partitions")),
        unavailable=bool(values.pop("unavailable_partitions")),
        under_min_isr=bool(values.pop("under_min_isr_partitions")),
        at_min_isr=bool(values.pop("at_min_isr_partitions")),
        overrides=bool(values.pop("topics_with_overrides")),
    )
    values.pop("delete_config")
    return Args(action=action, reports=reports, **values)  # type: ignore[arg-type]  # click's types


def _check_required(action: str, values: Mapping[str, object]) -> None:
    named = values["topic"] is not None
    if action == "describe" and values["if_exists"]:
        if not named and values["topic_id"] is None:
            raise click.UsageError("--topic or --topic-id is required to describe a topic")
        if named and values["topic_id"] is not None and not values["as_json"]:
            click.echo(ID_WINS)
    if action in ("create", "alter", "delete") and not named:
        raise click.UsageError('Missing required argument "[topic]"')
    if action == "alter":
        if values["config"]:
            raise click.UsageError(
                'Option combination "[bootstrap-server],[config]" can\'t be used with option'
                f' "[alter]"{OTHER_TOOL}'
            )
        if values["partitions"] is None:
            raise click.UsageError('Missing required argument "[partitions]"')


def _check_invalid(action: str, values: Mapping[str, object]) -> None:
    if values["delete_config"]:
        raise _conflict("delete_config", "bootstrap_server")
    for name, actions in ONLY_WITH.items():
        if _is_given(values[name]) and action not in actions:
            raise _conflict(name, action)
    if action == "create" and values["replica_assignment"] is not None:
        for name in ("partitions", "replication_factor"):
            if values[name] is not None:
                raise _conflict("replica_assignment", name)
    for name in PARTITION_REPORTS:
        if values[name] and values["topics_with_overrides"]:
            raise _conflict(name, "topics_with_overrides")


def _is_given(value: object) -> bool:
    return value is not None and value is not False and value != ()


def _conflict(first: str, second: str) -> click.UsageError:
    names = (first.replace("_", "-"), second.replace("_", "-"))
    return click.UsageError('Option "[{}]" can\'t be used with option "[{}]"'.format(*names))


# The actions


async def perform(admin: Admin, args: Args) -> None:
    """Perform the action and print Kafka's output. Raises PybrokerError."""
    actions = {
        "create": create,
        "list": list_names,
        "alter": alter,
        "describe": describe,
        "delete": delete,
    }
    await actions[args.action](admin, args)


async def create(admin: Admin, args: Args) -> None:
    topic = new_topic(args)
    if not args.as_json and ("." in topic.name or "_" in topic.name):
        click.echo(COLLISION_WARNING)
    (result,) = await admin.create_topics([topic])
    if result.error is not None:
        if args.if_not_exists and result.error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
            return
        raise result.error
    _without_effect.warn(topic.name, parse_configs(args.config))
    if args.as_json:
        write_json({"created": topic.name, "topicId": encode_uuid(result.topic_id)})
    else:
        click.echo(f"Created topic {topic.name}.")


def new_topic(args: Args) -> NewTopic:
    """Return the request for a new topic. Raises Failure, with Kafka's message, for an invalid
    value."""
    assert args.topic is not None
    if args.partitions is not None and args.partitions < 1:
        raise Failure("The partitions must be greater than 0")
    factor = args.replication_factor
    if factor is not None and not 1 <= factor <= REPLICATION_FACTOR_MAX:
        raise Failure(
            f"The replication factor must be between 1 and {REPLICATION_FACTOR_MAX} inclusive"
        )
    return NewTopic(
        args.topic,
        partitions=-1 if args.partitions is None else args.partitions,
        replication_factor=-1 if factor is None else factor,
        assignments=parse_assignment(args.replica_assignment) if args.replica_assignment else {},
        configs=parse_configs(args.config),
    )


def parse_assignment(text: str) -> dict[int, list[int]]:
    """Return the broker ids of each partition: {0: [1, 2], 1: [2, 1]} for `1:2,2:1`. Raises
    Failure."""
    found: dict[int, list[int]] = {}
    for partition, part in enumerate(text.split(",")):
        try:
            brokers = [int(word) for word in part.strip().split(":")]
        except ValueError:
            raise Failure(
                f"Invalid replica assignment: {part!r}, expected broker ids"
                " in the form broker:broker:..."
            ) from None
        twice = sorted({broker for broker in brokers if brokers.count(broker) > 1})
        if twice:
            raise Failure(
                "Partition replica lists may not contain duplicate entries: "
                + ",".join(str(broker) for broker in twice)
            )
        if found and len(brokers) != len(found[0]):
            raise Failure(f"Partition {partition} has different replication factor: {brokers}")
        found[partition] = brokers
    return found


def parse_configs(words: Iterable[str]) -> dict[str, str]:
    """Return the options in NAME=VALUE arguments. Raises Failure for a malformed argument."""
    configs: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise Failure(
                "Invalid topic config: all configs to be added must be in the format"
                f' "key=val". This is not: {word}'
            )
        configs[name.strip()] = value.strip()
    return configs


async def list_names(admin: Admin, args: Args) -> None:
    names = [topic.name for topic in await matching(admin, args)]
    if args.as_json:
        write_json(names)
    else:
        click.echo("\n".join(names))


async def alter(admin: Admin, args: Args) -> None:
    assert args.partitions is not None
    assignment = parse_assignment(args.replica_assignment) if args.replica_assignment else None
    topics = await matching(admin, args)
    names = [topic.name for topic in topics]
    _check_found(names, args)
    if not topics:
        return
    grown = [
        NewPartitions(
            topic.name,
            args.partitions,
            None if assignment is None else list(assignment.values())[len(topic.partitions) :],
        )
        for topic in topics
    ]
    for result in await admin.create_partitions(grown):
        result.check()
    if args.as_json:
        write_json({"altered": names, "partitions": args.partitions})


async def delete(admin: Admin, args: Args) -> None:
    names = [topic.name for topic in await matching(admin, args)]
    _check_found(names, args)
    for result in await admin.delete_topics(names):
        result.check()
    if args.as_json:
        write_json({"deleted": names})


async def describe(admin: Admin, args: Args) -> None:
    topic_id = parse_topic_id(args.topic_id)
    if topic_id != NO_TOPIC_ID:
        topics = [topic for topic in await existing(admin) if topic.topic_id == topic_id]
        if not topics and not args.if_exists:
            raise Failure(f"TopicId '{args.topic_id}' does not exist as expected")
    else:
        topics = await matching(admin, args)
        _check_found([topic.name for topic in topics], args)
    if not topics:
        if args.as_json:
            write_json([])
        return
    # If the broker returns no options (an old broker, a missing permission), print the partitions.
    configs = await admin.describe_configs([ConfigResource.topic(topic.name) for topic in topics])
    live = {node.id for node in (await admin.describe_cluster()).nodes}
    found = [
        Described(topic, configs[ConfigResource.topic(topic.name)].entries, live)
        for topic in topics
    ]
    if args.as_json:
        write_json([document(each, args.reports) for each in found if each.is_shown(args.reports)])
        return
    for each in found:
        for line in lines(each, args.reports):
            click.echo(line)


async def existing(admin: Admin) -> list[TopicInfo]:
    return [topic for topic in await admin.list_topics() if topic.error == ErrorCode.NONE]


async def matching(admin: Admin, args: Args) -> list[TopicInfo]:
    """Return the topics whose names match --topic. Without --topic, return all topics."""
    topics = await existing(admin)
    if args.exclude_internal:
        topics = [topic for topic in topics if not topic.internal]
    if args.topic is None:
        return topics
    pattern = name_pattern(args.topic)
    return [topic for topic in topics if pattern.fullmatch(topic.name)]


def name_pattern(text: str) -> re.Pattern[str]:
    """Return the regular expression of --topic, in which a comma means "or". Raises Failure."""
    plain = text.strip().replace(" ", "").replace(",", "|").strip("\"'")
    try:
        return re.compile(plain)
    except re.error:
        raise Failure(f"{plain} is an invalid regex.") from None


def parse_topic_id(text: str | None) -> uuid.UUID:
    """Return the topic id, or the zero id for None. Raises Failure."""
    if text is None:
        return NO_TOPIC_ID
    try:
        return decode_uuid(text)
    except ValueError as error:
        raise Failure(str(error)) from None


def _check_found(names: list[str], args: Args) -> None:
    if not names and args.topic is not None and not args.if_exists:
        raise Failure(f"Topic '{args.topic}' does not exist as expected")
