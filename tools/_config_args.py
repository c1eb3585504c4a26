"""The command line of `configs`: the entities, and the options to set or delete. Checks and
messages are those of Kafka's ConfigCommand."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from pybroker.config.properties import read_properties
from pybroker.tools._cli import Failure

TOPICS: Final = "topics"
BROKERS: Final = "brokers"
LOGGERS: Final = "broker-loggers"
USERS: Final = "users"
CLIENTS: Final = "clients"
IPS: Final = "ips"
CLIENT_METRICS: Final = "client-metrics"

BY_BROKER: Final = (TOPICS, CLIENTS, USERS, BROKERS, IPS, LOGGERS, CLIENT_METRICS)
BY_ZOOKEEPER: Final = (USERS, BROKERS, TOPICS)

SHORT_FORMS: Final[Mapping[str, str]] = {
    "topic": TOPICS,
    "client": CLIENTS,
    "user": USERS,
    "broker": BROKERS,
    "broker_logger": LOGGERS,
    "ip": IPS,
}
"""Short option -> entity type: `--topic T` means `--entity-type topics --entity-name T`."""

SHORT_DEFAULTS: Final[Mapping[str, str]] = {
    "client_defaults": CLIENTS,
    "user_defaults": USERS,
    "broker_defaults": BROKERS,
    "ip_defaults": IPS,
}
"""Short option -> entity type: `--broker-defaults` means `--entity-type brokers --entity-default`.
"""

_OUTSIDE_BRACKETS: Final = r"(?=[^\]]*(?:\[|$))"
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]*")
_FORMAT_VERSION: Final = "message.format.version"


@dataclass(frozen=True, slots=True)
class Args:
    """The parsed command line of `configs`. `names[i]` is the name of an entity of type `types[i]`;
    "" is the default entity. A type without a name means all of its entities."""

    alter: bool
    types: tuple[str, ...]
    names: tuple[str, ...]
    add: Mapping[str, str]
    delete: tuple[str, ...]
    everything: bool
    as_json: bool

    @property
    def type(self) -> str:
        return self.types[0]

    @property
    def name(self) -> str | None:
        return self.names[0] if self.names else None


def parse_args(flags: Mapping[str, Any], names_in_order: Sequence[str]) -> Args:
    """Return the parsed flags. `names_in_order` are the values of --entity-name in the order of the
    command line, with "" for --entity-default. Raises click.UsageError, Failure, ConfigError."""
    if flags["alter"] == flags["describe"]:
        raise click.UsageError("Command must include exactly one action: --describe, --alter")
    if flags["describe"]:
        for option in ("add_config", "delete_config"):
            if flags[option]:
                flag = option.replace("_", "-")
                raise click.UsageError(f'Option "[describe]" can\'t be used with option "[{flag}]"')
    types = [*flags["entity_type"], *_given(SHORT_FORMS, flags), *_given(SHORT_DEFAULTS, flags)]
    names = [*names_in_order, *(flags[flag] for flag in SHORT_FORMS if flags[flag] is not None)]
    names += [""] * len(_given(SHORT_DEFAULTS, flags))
    _check_types(flags, types)
    mixed = [*_given(SHORT_FORMS, flags), *_given(SHORT_DEFAULTS, flags)]
    if (flags["entity_type"] or names_in_order) and mixed:
        raise Failure(
            "--entity-{type,name,default} should not be used in conjunction with specific entity"
            " flags"
        )
    _check_connection(flags)
    _check_names(flags, types, names)
    if flags["alter"]:
        _check_changes(flags, types, names)
    return Args(
        alter=flags["alter"],
        types=tuple(types),
        names=tuple(names),
        add=_added(flags) if flags["alter"] else {},
        delete=_deleted(flags["delete_config"]),
        everything=flags["all"],
        as_json=flags["output_format"] == "json",
    )


def _given(table: Mapping[str, str], flags: Mapping[str, Any]) -> list[str]:
    """Return the entity types whose short options (such as --topic) are on the command line."""
    return [kind for flag, kind in table.items() if flags[flag] not in (None, False)]


def _check_types(flags: Mapping[str, Any], types: Sequence[str]) -> None:
    if twice := [kind for number, kind in enumerate(types) if kind in types[:number]]:
        raise Failure(f"Duplicate entity type(s) specified: {','.join(twice)}")
    allowed: tuple[str, ...] = BY_BROKER
    how = "--bootstrap-server or --bootstrap-controller"
    if flags["bootstrap_server"] is None:
        allowed, how = BY_ZOOKEEPER, "--zookeeper"
    for kind in types:
        if kind not in allowed:
            raise Failure(
                f"Invalid entity type {kind}, the entity type must be one of"
                f" {', '.join(allowed)} with a {how} argument"
            )
    if not types:
        raise Failure("At least one entity type must be specified")
    if len(types) > 1 and set(types) != {USERS, CLIENTS}:
        raise Failure("Only 'users' and 'clients' entity types may be specified together")


def _check_connection(flags: Mapping[str, Any]) -> None:
    server, zookeeper = flags["bootstrap_server"], flags["zookeeper"]
    if server is None and zookeeper is None:
        raise Failure(
            "One of the required --bootstrap-server or --zookeeper arguments must be specified"
        )
    if server is not None and zookeeper is not None:
        raise Failure("Only one of --bootstrap-server and --zookeeper can be specified")
    if zookeeper is not None and flags["all"]:
        raise Failure("--bootstrap-server must be specified for --all")


def _check_names(flags: Mapping[str, Any], types: Sequence[str], names: Sequence[str]) -> None:
    kind = types[0]
    for name in filter(None, names):
        if kind in (BROKERS, LOGGERS) and not re.fullmatch(r"[+-]?[0-9]+", name):
            raise Failure(
                f"The entity name for {kind} must be a valid integer broker id, but it is: {name}"
            )
        if kind == IPS and not _is_address(name):
            raise Failure(
                f"The entity name for {kind} must be a valid IP or resolvable host, but it is:"
                f" {name}"
            )
    if flags["describe"] and LOGGERS in types and not any(names):
        raise Failure(f"an entity name must be specified with --describe of {','.join(types)}")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", name) is not None
    return True


def _check_changes(flags: Mapping[str, Any], types: Sequence[str], names: Sequence[str]) -> None:
    if {USERS, CLIENTS, BROKERS, IPS} & set(types):
        if not names:
            raise Failure(
                "an entity-name or default entity must be specified with --alter of users, clients,"
                " brokers or ips"
            )
    elif not any(names):
        raise Failure(f"an entity name must be specified with --alter of {','.join(types)}")
    if flags["add_config"] is not None and flags["add_config_file"] is not None:
        raise Failure("Only one of --add-config or --add-config-file must be specified")
    if not (flags["add_config"] or flags["add_config_file"] or flags["delete_config"]):
        raise Failure(
            "At least one of --add-config, --add-config-file, or --delete-config must be specified"
            " with --alter"
        )
    if len(types) != len(names):
        raise Failure("An entity name must be specified for every entity type")


def _added(flags: Mapping[str, Any]) -> dict[str, str]:
    added = {}
    if flags["add_config_file"] is not None:
        added = dict(read_properties(flags["add_config_file"]))
    if flags["add_config"] is not None:
        added = parse_pairs(flags["add_config"])
    if _FORMAT_VERSION in added:
        click.echo(
            f"WARNING: The configuration {_FORMAT_VERSION}={added[_FORMAT_VERSION]} is specified."
            " This configuration will be ignored if the version is newer than the"
            " inter.broker.protocol.version specified in the broker or if the"
            " inter.broker.protocol.version is 3.0 or newer. This configuration is deprecated and"
            " it will be removed in Apache Kafka 4.0."
        )
    for name in added:
        if not _NAME.fullmatch(name):
            raise Failure(f"Invalid character found for config key: {name}")
    return added


def parse_pairs(text: str) -> dict[str, str]:
    """Return the options in a text such as `k1=v1,k2=[v1,v2],k3=`. The square brackets are removed
    from the values. Raises Failure."""
    pairs = [
        re.split(rf"\s*=\s*{_OUTSIDE_BRACKETS}", word)
        for word in re.split(f",{_OUTSIDE_BRACKETS}", text)
    ]
    if not all(len(pair) == 2 for pair in pairs):
        raise Failure(
            "requirement failed: Invalid entity config: all configs to be added must be in the"
            ' format "key=val".'
        )
    return {name.strip(): re.sub(r"[\[\]]", "", value).strip() for name, value in pairs}


def _deleted(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.strip() for word in words for name in word.split(","))
