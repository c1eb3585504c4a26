"""The command `pybroker configs`, equivalent to Kafka's kafka-configs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import click

from pybroker.client.admin.admin import Admin
from pybroker.client.admin.configs import (
    ConfigChange,
    ConfigEntry,
    ConfigOperation,
    ConfigResource,
    ConfigSource,
    ResourceKind,
)
from pybroker.client.errors import ClientError
from pybroker.tools import _without_effect
from pybroker.tools._cli import (
    Failure,
    Tool,
    client_options,
    config_file_option,
    format_option,
    run_async,
    sentence_of,
    write_json,
)
from pybroker.tools._config_args import BROKERS, LOGGERS, TOPICS, Args, parse_args
from pybroker.tools._config_zookeeper import change_in_zookeeper

KINDS: Final = {
    TOPICS: ResourceKind.TOPIC,
    BROKERS: ResourceKind.BROKER,
    LOGGERS: ResourceKind.BROKER_LOGGER,
}
_NAMES: Final = "entity names in the order of the command line"
"""The key of the entity names in `context.meta`."""
_WORDS: Final = "the command line"
"""The key of all words of the command line in `context.meta`."""


class ConfigsTool(Tool):
    """The click command of `configs`. It keeps the words of the command line, because Kafka's error
    message contains them."""

    def parse_args(self, context: click.Context, words: list[str]) -> list[str]:
        context.meta[_WORDS] = " ".join(words)
        return super().parse_args(context, words)


def _note_names(context: click.Context, _: click.Parameter, value: Any) -> Any:
    """Record the values of --entity-name and --entity-default in the order of the command line."""
    found = [""] * value if isinstance(value, int) else list(value)
    context.meta.setdefault(_NAMES, []).extend(found)
    return value


@click.command("configs", cls=ConfigsTool)
@click.option(
    "--bootstrap-server",
    metavar="HOST:PORT[,HOST:PORT]",
    help="Brokers to contact first; they return the addresses of all brokers.",
)
@click.option(
    "--zookeeper",
    metavar="HOST:PORT[,HOST:PORT]/CHROOT",
    help="Read and change the options in ZooKeeper, without --bootstrap-server. Only for"
    " topics, and for brokers that are stopped.",
)
@click.option("--describe", is_flag=True, help="Print the options of the entities.")
@click.option(
    "--alter",
    is_flag=True,
    help="Set or delete options of one entity; needs --add-config, --add-config-file or"
    " --delete-config.",
)
@click.option(
    "--all",
    is_flag=True,
    help="With --describe: also print the options that have their default value.",
)
@click.option(
    "--entity-type",
    multiple=True,
    metavar="TYPE",
    help="The type of the entity: topics, brokers, broker-loggers, users, clients or ips.",
)
@click.option(
    "--entity-name",
    multiple=True,
    callback=_note_names,
    help="The entity: a topic's name or a broker's id."
    " Default with --describe: all entities of the type.",
)
@click.option(
    "--entity-default",
    count=True,
    callback=_note_names,
    help="The default entity of the type, in place of a name. Its options apply to each"
    " entity that does not set them itself.",
)
@click.option("--topic", metavar="NAME", help="Short for --entity-type topics --entity-name NAME.")
@click.option("--broker", metavar="ID", help="Short for --entity-type brokers --entity-name ID.")
@click.option(
    "--broker-defaults", is_flag=True, help="Short for --entity-type brokers --entity-default."
)
@click.option(
    "--broker-logger",
    metavar="ID",
    help="Short for --entity-type broker-loggers --entity-name ID: the log levels of a broker.",
)
@click.option(
    "--user",
    metavar="NAME",
    help="Short for --entity-type users --entity-name NAME. Not supported by the brokers yet.",
)
@click.option(
    "--user-defaults",
    is_flag=True,
    help="Short for --entity-type users --entity-default. Not supported yet.",
)
@click.option(
    "--client",
    metavar="ID",
    help="Short for --entity-type clients --entity-name ID. Not supported by the brokers yet.",
)
@click.option(
    "--client-defaults",
    is_flag=True,
    help="Short for --entity-type clients --entity-default. Not supported yet.",
)
@click.option(
    "--ip",
    metavar="ADDRESS",
    help="Short for --entity-type ips --entity-name ADDRESS. Not supported by the brokers yet.",
)
@click.option(
    "--ip-defaults",
    is_flag=True,
    help="Short for --entity-type ips --entity-default. Not supported yet.",
)
@click.option(
    "--add-config",
    metavar="K1=V1,K2=[V1,V2]",
    help="With --alter: options to set. A value that contains commas is written in square"
    " brackets.",
)
@click.option(
    "--add-config-file",
    metavar="FILE",
    help="With --alter: a properties file with the options to set.",
)
@click.option(
    "--delete-config",
    multiple=True,
    metavar="K1,K2",
    help="With --alter: options to delete, so that their defaults apply again.",
)
@click.option("--force", is_flag=True, hidden=True)
@config_file_option("--command-config", "--admin.config")
@format_option()
@click.pass_context
def command(context: click.Context, /, **flags: Any) -> None:
    """Print and change the dynamic options of topics and brokers.

    \b
    Examples:
      pybroker configs --bootstrap-server 127.0.0.1:9092 --alter --topic orders
                       --add-config retention.ms=60000,cleanup.policy=[compact,delete]
      pybroker configs --bootstrap-server 127.0.0.1:9092 --describe --broker 0 --all

    The brokers do not support quotas and credentials (the entity types users, clients and ips) yet.
    """
    args = parse_args(flags, context.meta.get(_NAMES, []))
    if flags["zookeeper"] is not None:
        run_async(change_in_zookeeper(flags["zookeeper"], args))
        return
    options = client_options(flags["bootstrap_server"], flags["config_file"])

    async def work() -> None:
        async with Admin(**options) as admin:
            await (alter if args.alter else describe)(admin, args)

    try:
        run_async(work())
    except ClientError as error:
        raise Failure(
            f"Error while executing config command with args '{context.meta[_WORDS]}':"
            f" {sentence_of(error)}"
        ) from error


async def alter(admin: Admin, args: Args) -> None:
    """Set and delete options of one entity. Raises Failure, ClientError."""
    name = args.name or ""
    resource = ConfigResource(kind_of(args), name)
    await check_broker(admin, resource)
    entries = await read(admin, resource, everything=False)
    known = {entry.name for entry in entries}
    if args.type == LOGGERS:
        if invalid := [key for key in [*args.delete, *args.add] if key not in known]:
            raise Failure(f"Invalid broker logger(s): {','.join(invalid)}")
    elif invalid := [key for key in args.delete if key not in known]:
        raise Failure(f"Invalid config(s): {','.join(invalid)}")
    changes = [ConfigChange(key, value) for key, value in args.add.items()]
    changes += [ConfigChange(key, "", ConfigOperation.DELETE) for key in args.delete]
    for result in (await admin.alter_configs({resource: changes})).values():
        result.check()
    if args.type == TOPICS:
        _without_effect.warn(name, args.add)
    if args.as_json:
        write_json({"altered": args.type, "name": name})
    elif name:
        click.echo(f"Completed updating config for {args.type[:-1]} {name}.")
    else:
        click.echo(f"Completed updating default config for {args.type} in the cluster.")


async def describe(admin: Admin, args: Args) -> None:
    """Print the options of the entities. Raises Failure, ClientError."""
    kind = kind_of(args)
    if args.name is not None:
        names = [args.name]
    elif kind is ResourceKind.TOPIC:
        names = [topic.name for topic in await admin.list_topics()]
    else:
        names = [str(node.id) for node in (await admin.describe_cluster()).nodes] + [""]
    for name in names:
        if not args.as_json:
            click.echo(headline(args, name))
        await check_broker(admin, ConfigResource(kind, name))
        entries = await read(admin, ConfigResource(kind, name), everything=args.everything)
        if args.as_json:
            configs = [as_json(entry) for entry in entries]
            write_json({"type": args.type, "name": name, "configs": configs})
            continue
        for entry in entries:
            click.echo(as_text(entry))


def kind_of(args: Args) -> ResourceKind:
    """Return the config resource type of the entities. Raises Failure if the brokers do not support
    the type."""
    if args.type not in KINDS:
        what = "client metrics subscriptions" if args.type == "client-metrics" else "quotas"
        raise Failure(f"--entity-type {args.type}: the brokers do not support {what} yet")
    return KINDS[args.type]


async def check_broker(admin: Admin, resource: ConfigResource) -> None:
    """Raise Failure if the resource is a broker that does not run: only the broker itself can
    return its options. Raises ClientError."""
    if resource.kind is ResourceKind.TOPIC or not resource.name:
        return
    known = [node.id for node in (await admin.describe_cluster()).nodes]
    if int(resource.name) not in known:
        raise Failure(
            f"broker {resource.name} is not running; the running brokers are"
            f" {', '.join(map(str, known))}"
        )


def headline(args: Args, name: str) -> str:
    if not name:
        return f"Default configs for {args.type} in the cluster are:"
    which = "All" if args.everything else "Dynamic"
    return f"{which} configs for {args.type[:-1]} {name} are:"


async def read(admin: Admin, resource: ConfigResource, *, everything: bool) -> list[ConfigEntry]:
    """Return the options of the resource, sorted by name. With `everything`, return all options,
    otherwise only those that are set for the resource itself. Raises ClientError."""
    found = await admin.describe_configs([resource], synonyms=True)
    entries = found[resource].check().entries
    wanted = None if everything else dynamic_source(resource)
    return sorted(
        (entry for entry in entries if wanted is None or entry.source is wanted),
        key=lambda entry: entry.name,
    )


def dynamic_source(resource: ConfigResource) -> ConfigSource | None:
    """Return the config source of options that are set for this resource itself. Return None for a
    broker logger."""
    if resource.kind is ResourceKind.TOPIC:
        return ConfigSource.DYNAMIC_TOPIC_CONFIG
    if resource.kind is ResourceKind.BROKER:
        if resource.name:
            return ConfigSource.DYNAMIC_BROKER_CONFIG
        return ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return None


def as_text(entry: ConfigEntry) -> str:
    synonyms = ", ".join(
        f"{synonym.source.name}:{synonym.name}={_or_null(synonym.value)}"
        for synonym in entry.synonyms
    )
    sensitive = "true" if entry.sensitive else "false"
    return f"  {entry.name}={_or_null(entry.value)} sensitive={sensitive} synonyms={{{synonyms}}}"


def as_json(entry: ConfigEntry) -> dict[str, object]:
    synonyms: Iterable[dict[str, object]] = (
        {"source": synonym.source.name, "name": synonym.name, "value": synonym.value}
        for synonym in entry.synonyms
    )
    return {
        "name": entry.name,
        "value": entry.value,
        "source": entry.source.name,
        "sensitive": entry.sensitive,
        "synonyms": list(synonyms),
    }


def _or_null(value: str | None) -> str:
    return "null" if value is None else value
