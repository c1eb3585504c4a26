"""Tests of `configs`: the command line and the printed lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from pybroker.client.admin.admin import Admin
from pybroker.client.admin.configs import (
    ConfigChange,
    ConfigDescription,
    ConfigEntry,
    ConfigResource,
    ConfigResult,
    ConfigSource,
    ConfigSynonym,
    ResourceKind,
)
from pybroker.config.without_effect import sentence
from pybroker.tools import _cli
from pybroker.tools._cli import Failure
from pybroker.tools._config_args import Args, parse_args, parse_pairs
from pybroker.tools.configs import alter, as_json, as_text, command, dynamic_source, headline

SERVER = ["--bootstrap-server", "127.0.0.1:1"]


def parse(*words: str, server: list[str] | None = None) -> Args:
    """Return a command line as the command itself parses it."""
    context = command.make_context("configs", [*(SERVER if server is None else server), *words])
    meta: dict[str, list[str]] = context.meta
    names = next((value for key, value in meta.items() if "entity names" in key), [])
    return parse_args(context.params, names)


@pytest.mark.parametrize(
    ("words", "types", "names"),
    [
        (["--topic", "t"], ["topics"], ["t"]),
        (["--entity-type", "topics"], ["topics"], []),
        (["--broker-defaults"], ["brokers"], [""]),
        (["--entity-type", "brokers", "--entity-default"], ["brokers"], [""]),
        (["--user", "u", "--client", "c"], ["clients", "users"], ["c", "u"]),
        (
            ["--entity-type", "users", "--entity-default", "--entity-type", "clients",
             "--entity-name", "c"],
            ["users", "clients"],
            ["", "c"],
        ),
        (
            ["--entity-type", "users", "--entity-name", "u", "--entity-type", "clients",
             "--entity-default"],
            ["users", "clients"],
            ["u", ""],
        ),
    ],
)  # fmt: skip
def test_flags_name_the_entities(words: list[str], types: list[str], names: list[str]) -> None:
    args = parse("--describe", *words)
    assert (list(args.types), list(args.names)) == (types, names)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "exactly one action"),
        (["--describe", "--alter"], "exactly one action"),
        (["--describe", "--topic", "t", "--delete-config", "a"], "can't be used with option"),
        (["--describe"], "At least one entity type must be specified"),
        (["--describe", "--topic", "t", "--ip", "1.2.3.4"], "may be specified together"),
        (["--describe", "--broker", "one"], "but it is: one"),
        (["--describe", "--ip", "not an address"], "valid IP or resolvable host"),
        (["--describe", "--entity-type", "broker-loggers"], "must be specified with --describe"),
        (["--describe", "--entity-type", "x"], "Invalid entity type x"),
        (["--describe", "--entity-type", "brokers", "--client", "c"], "specified together"),
        (
            ["--describe", "--entity-type", "users", "--client", "c"],
            "should not be used in conjunction with specific entity flags",
        ),
        (["--alter", "--topic", "t"], "At least one of --add-config"),
        (["--alter", "--entity-type", "brokers", "--add-config", "a=b"], "default entity"),
        (["--alter", "--entity-type", "topics", "--add-config", "a=b"], "entity name must be"),
        (["--alter", "--topic", "t", "--add-config", "a"], "key=val"),
        (["--alter", "--topic", "t", "--add-config", "a b=c"], "config key: a b"),
        (
            ["--alter", "--topic", "t", "--add-config", "a=b", "--add-config-file", "f"],
            "Only one of --add-config or --add-config-file",
        ),
        (
            ["--alter", "--entity-type", "users", "--entity-type", "clients", "--entity-name", "u",
             "--add-config", "a=b"],
            "must be specified for every entity type",
        ),
    ],
)  # fmt: skip
def test_contradictory_flags_are_refused(words: list[str], complaint: str) -> None:
    with pytest.raises((click.UsageError, Failure)) as caught:
        parse(*words)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("server", "words", "complaint"),
    [
        ([], ["--broker", "1"], "One of the required --bootstrap-server or --zookeeper"),
        ([*SERVER, "--zookeeper", "z"], ["--broker", "1"], "Only one of --bootstrap-server"),
        (["--zookeeper", "z"], ["--broker", "1", "--all"], "must be specified for --all"),
        (["--zookeeper", "z"], ["--ip", "1.2.3.4"], "must be one of users, brokers, topics"),
    ],
)
def test_exactly_one_server_flag_is_required(
    server: list[str], words: list[str], complaint: str
) -> None:
    with pytest.raises(Failure, match=complaint):
        parse("--describe", *words, server=server)


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=1", {"a": "1"}),
        ("a=1,b=[x,y],c=", {"a": "1", "b": "x,y", "c": ""}),
        ("a = 1 , b=[k=v,l=w]", {"a": "1", "b": "k=v,l=w"}),
    ],
)
def test_options_to_set(text: str, pairs: dict[str, str]) -> None:
    assert parse_pairs(text) == pairs


def test_options_from_a_file_and_options_to_delete(tmp_path: Path) -> None:
    file = tmp_path / "added"
    file.write_text("retention.ms=5\n# a comment\ncleanup.policy=compact,delete\n")
    args = parse("--alter", "--topic", "t", "--add-config-file", str(file),
                 "--delete-config", "a, b", "--delete-config", "c")  # fmt: skip
    assert args.add == {"retention.ms": "5", "cleanup.policy": "compact,delete"}
    assert args.delete == ("a", "b", "c")


def test_a_format_version_gives_kafkas_warning(capsys: pytest.CaptureFixture[str]) -> None:
    parse("--alter", "--topic", "t", "--add-config", "message.format.version=3.0")
    assert capsys.readouterr().out.startswith(
        "WARNING: The configuration message.format.version=3.0 is specified. This configuration"
    )


ENTRY = ConfigEntry(
    "retention.ms",
    "5",
    ConfigSource.DYNAMIC_TOPIC_CONFIG,
    synonyms=(
        ConfigSynonym("retention.ms", "5", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ConfigSynonym("log.retention.ms", None, ConfigSource.DEFAULT_CONFIG),
    ),
)


def test_lines() -> None:
    assert as_text(ENTRY) == (
        "  retention.ms=5 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5,"
        " DEFAULT_CONFIG:log.retention.ms=null}"
    )
    secret = ConfigEntry("password", None, sensitive=True)
    assert as_text(secret) == "  password=null sensitive=true synonyms={}"
    document: Any = as_json(ENTRY)
    assert document["source"] == "DYNAMIC_TOPIC_CONFIG"
    assert document["synonyms"][1]["value"] is None
    assert headline(parse("--describe", "--topic", "t"), "t") == "Dynamic configs for topic t are:"
    everything = parse("--describe", "--broker", "1", "--all")
    assert headline(everything, "1") == "All configs for broker 1 are:"
    defaults = parse("--describe", "--broker-defaults")
    assert headline(defaults, "") == "Default configs for brokers in the cluster are:"


@pytest.mark.parametrize(
    ("resource", "source"),
    [
        (ConfigResource.topic("t"), ConfigSource.DYNAMIC_TOPIC_CONFIG),
        (ConfigResource.broker(1), ConfigSource.DYNAMIC_BROKER_CONFIG),
        (ConfigResource(ResourceKind.BROKER, ""), ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (ConfigResource.loggers(1), None),
    ],
)
def test_describe_shows_only_options_set_for_the_resource(
    resource: ConfigResource, source: ConfigSource | None
) -> None:
    assert dynamic_source(resource) is source


def test_error_line_repeats_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.timeout.ms=0\n")
    words = [*SERVER, "--describe", "--topic", "t", "--command-config", str(file)]
    assert _cli.run(command, words, "configs") == 1
    assert (
        f"Error while executing config command with args '{' '.join(words)}': no broker could be"
        " reached (127.0.0.1:1: connection refused"
    ) in capsys.readouterr().err


class Stored(Admin):
    """An admin client that accepts every change and records it."""

    def __init__(self) -> None:
        self.changes: dict[ConfigResource, list[ConfigChange]] = {}

    async def describe_configs(
        self, resources: Iterable[ConfigResource], **_: Any
    ) -> dict[ConfigResource, ConfigDescription]:
        return {item: ConfigDescription(item, ()) for item in resources}

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Iterable[ConfigChange]], **_: Any
    ) -> dict[ConfigResource, ConfigResult]:
        self.changes = {item: list(rows) for item, rows in changes.items()}
        return {item: ConfigResult(item) for item in changes}


async def test_an_option_without_effect_is_set_with_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    admin = Stored()
    added = "retention.ms=5,leader.replication.throttled.replicas=*"
    await alter(admin, parse("--alter", "--topic", "t", "--add-config", added))
    printed = capsys.readouterr()
    assert printed.out == "Completed updating config for topic t.\n"
    told = sentence("t", "leader.replication.throttled.replicas")
    assert printed.err == f"WARN {told}\n"
    assert [change.name for change in admin.changes[ConfigResource.topic("t")]] == [
        "retention.ms",
        "leader.replication.throttled.replicas",
    ]
