"""`pybroker configs`: Kafka's kafka-configs."""

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
_WORDS: Final = "the command line"


class ConfigsTool(Tool):
    """Keeps the words of the command line, because Kafka's error message repeats them."""

    def parse_args(self, context: click.Context, words: list[str]) -> list[str]:
        context.meta[_WORDS] = " ".join(words)
        return super().parse_args(context, words)


def _note_names(context: click.Context, _: click.Parameter, value: Any) -> Any:
    """Record entity names. click calls this callback for --entity-name and --entity-default in the
    order of the command line."""
    found = [""] * value if isinstance(value, int) else list(value)
    context.meta.setdefault(_NAMES, []).extend(found)
    return value


@click.command("configs", cls=ConfigsTool)
@click.option(
    "--bootstrap-server",
    metavar="HOST:PORT[,HOST:PORT]",
    help="The brokers to start from.",
)
@click.option(
    "--zookeeper",
    metavar="HOST:PORT[,HOST:PORT]/CHROOT",
    help="Instead: change the nodes in ZooKeeper. Only for topics and for brokers that do not run.",
)
@click.option("--describe", is_flag=True, help="Print options.")
@click.option("--alter", is_flag=True, help="Change options.")
@click.option(
    "--all",
    is_flag=True,
    help="Print all options with their defaults, not only set options.",
)
@click.option(
    "--entity-type",
    multiple=True,
    metavar="TYPE",
    help="The type of entity: topics, brokers, broker-loggers, users, clients or ips.",
)
@click.option(
    "--entity-name", multiple=True, callback=_note_names, help="The entity's name. Default: all."
)
@click.option(
    "--entity-default",
    count=True,
    callback=_note_names,
    help="The default entity: its options apply to all entities without their own.",
)
@click.option("--topic", metavar="NAME", help="Short for --entity-type topics --entity-name NAME.")
@click.option("--broker", metavar="ID", help="The same for brokers.")
@click.option("--broker-defaults", is_flag=True, help="All brokers.")
@click.option("--broker-logger", metavar="ID", help="The levels of a broker's loggers.")
@click.option("--user", metavar="NAME", help="The quotas and credentials of a user.")
@click.option("--user-defaults", is_flag=True, help="All users.")
@click.option("--client", metavar="ID", help="The quotas of a client id.")
@click.option("--client-defaults", is_flag=True, help="All client ids.")
@click.option("--ip", metavar="ADDRESS", help="The connection quota of an address.")
@click.option("--ip-defaults", is_flag=True, help="All addresses.")
@click.option(
    "--add-config",
    metavar="K1=V1,K2=[V1,V2]",
    help="Options to set; square brackets keep a value with commas together.",
)
@click.option("--add-config-file", metavar="FILE", help="Options to set, from a properties file.")
@click.option(
    "--delete-config", multiple=True, metavar="K1,K2", help="Options to set back to their defaults."
)
@click.option("--force", is_flag=True, hidden=True)
@config_file_option("--command-config", "--admin.config")
@format_option()
@click.pass_context
def command(context: click.Context, /, **flags: Any) -> None:
    """Print and change the options of topics and brokers while they run.

    \b
    Examples:
      pybroker configs --bootstrap-server 127.0.0.1:9092 --alter --topic orders
                       --add-config retention.ms=60000,cleanup.policy=[compact,delete]
      pybroker configs --bootstrap-server 127.0.0.1:9092 --describe --broker 0 --all

    Users, clients and addresses need quotas or credentials, which the brokers do not have yet.
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
    """Return the kind of resource. Raises Failure for a type that the brokers do not support."""
    if args.type not in KINDS:
        what = "metrics of clients" if args.type == "client-metrics" else "quotas"
        raise Failure(f"--entity-type {args.type}: the brokers do not support {what} yet")
    return KINDS[args.type]


async def check_broker(admin: Admin, resource: ConfigResource) -> None:
    """Check that the broker is running, since only the broker itself knows its options. Raises
    Failure if it is not, ClientError."""
    if resource.kind is ResourceKind.TOPIC or not resource.name:
        return
    known = [node.id for node in (await admin.describe_cluster()).nodes]
    if int(resource.name) not in known:
        raise Failure(
            f"broker {resource.name} is not running; running: {', '.join(map(str, known))}"
        )


def headline(args: Args, name: str) -> str:
    if not name:
        return f"Default configs for {args.type} in the cluster are:"
    which = "All" if args.everything else "Dynamic"
    return f"{which} configs for {args.type[:-1]} {name} are:"


async def read(admin: Admin, resource: ConfigResource, *, everything: bool) -> list[ConfigEntry]:
    """Return the options sorted by name: all, or only those set for this resource. Raises
    ClientError."""
    found = await admin.describe_configs([resource], synonyms=True)
    entries = found[resource].check().entries
    wanted = None if everything else dynamic_source(resource)
    return sorted(
        (entry for entry in entries if wanted is None or entry.source is wanted),
        key=lambda entry: entry.name,
    )


def dynamic_source(resource: ConfigResource) -> ConfigSource | None:
    """Return the config source of options set for this resource itself. None for loggers, all of
    which are shown."""
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
