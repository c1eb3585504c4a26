"""Write the sample files of `config/` from the tables of options, so that they name every option
once, with its sentence and its default. `make docs` runs this module; a test compares the files.

This module decides which options a sample sets and in which section an option stands. The meaning
of an option is in its table only.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from pybroker.client.options import ClientOptions, ConsumerOptions, ProducerOptions
from pybroker.config.broker_config import BROKER_OPTIONS
from pybroker.config.declaration import Option
from pybroker.config.kafka_options import REFUSED
from pybroker.config.topic_config import TOPIC_OPTIONS

FOLDER: Final = Path(__file__).parent.parent / "config"
WIDTH: Final = 100


class Section(NamedTuple):
    """A part of server.properties: the options whose names match the section's pattern and no
    pattern of an earlier section."""

    title: str
    pattern: str


SECTIONS: Final = (
    Section("Server basics", r"broker\.|reserved\.broker\."),
    Section(
        "Listeners and sockets",
        r"(advertised\.)?listener|inter\.broker\.listener|security\.inter|early\.start|socket\."
        r"|max\.connection|connections\.|num\.(network|io)\.threads|background\.threads|queued\."
        r"|request\.|fetch\.|max\.(incremental|request)",
    ),
    Section(
        "Security",
        r"sasl\.|ssl\.|security\.|password\.encoder|authorizer|principal|super\.users|allow\."
        r"|connection\.failed|delegation\.",
    ),
    Section("ZooKeeper", r"zookeeper\.|pybroker\.(embedded\.)?zookeeper\."),
    Section(
        "The data, and defaults of new topics",
        r"log\.dirs?$|log\.dir\.|num\.(partitions|recovery)|default\.replication|auto\.create"
        r"|delete\.topic|message\.max|compression\.|min\.insync|unclean\.|create\.topic|alter\.config",
    ),
    Section("Internal topics", r"offsets?\.|transaction|producer\.id"),
    Section("Flushing to disk", r"log\.flush\.|pybroker\.idle\.flush"),
    Section("Segments, retention and compaction", r"log\."),
    Section("Group coordinator", r"group\."),
    Section(
        "Replication and control",
        r".*replica|.*leader\.|control|inter\.broker\.protocol|.*purgatory",
    ),
    Section("Quotas and metrics", r"quota|client\.quota|metric|kafka\.metrics"),
    Section("Options that only pybroker has", r"pybroker\."),
    Section("Everything else", r""),
)
"""The sections in the order of the file, which is similar to that of Kafka's own."""

SET: Final[Mapping[str, str]] = {
    "broker.id": "0",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "log.dirs": "/tmp/kafka-logs",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.hours": "168",
    "log.retention.check.interval.ms": "300000",
    "zookeeper.connection.timeout.ms": "18000",
    "group.initial.rebalance.delay.ms": "0",
}
"""The options that the sample sets, as Kafka's own does. Options without effect are shown, but not
set."""

EXAMPLES: Final[Mapping[str, str]] = {
    "advertised.listeners": "PLAINTEXT://broker.example.org:9092",
    "broker.rack": "rack-1",
    "inter.broker.listener.name": "PLAINTEXT",
    "zookeeper.connect": "127.0.0.1:2181",
    "log.flush.interval.messages": "1",
}
"""Values that are shown, commented out, in place of a default that is missing or not helpful."""

NOTES: Final[Mapping[str, str]] = {
    "broker.id": "Every broker of a cluster needs a different id.",
    "listeners": "This sample listens on the loopback only; Kafka's default is every interface.",
    "log.dirs": "Choose another place for real data: the next boot may empty /tmp.",
    "offsets.topic.replication.factor": "A single broker needs 1 here.",
    "transaction.state.log.replication.factor": "A single broker needs 1 here.",
    "transaction.state.log.min.isr": "A single broker needs 1 here.",
}

SERVER_HEADER: Final = """\
# A broker of pybroker. Start it with: pybroker start config/server.properties
#
# This file lists every option once, with its meaning and its default. A commented line shows the
# default, or an example. The names are Kafka's. "Topics" names the topic option whose default the
# broker's option sets; set it for one topic by: pybroker topics --create --config NAME=VALUE.
#
# Made by `make docs` from the tables of options; a test keeps it equal to them.
"""

TOPICS_ONLY: Final = """\
# Further options of topics, without an option of the broker for their default:
"""

CLIENT_HEADER: Final = """\
# Options of a {kind}, for Python programs and for
# pybroker {tool} {flag} FILE.
#
# This file lists every option once, with its meaning and its default. A commented line shows the
# default. The options of the first part apply to every client, so tools accept them with
# --command-config FILE. The brokers on a tool's command line override bootstrap.servers.
#
# Made by `make docs` from pybroker/client/options.py; a test keeps it equal to that.
"""


def render_all() -> dict[str, str]:
    """File name -> content."""
    return {
        "server.properties": render_server(),
        "producer.properties": _render_client(
            ProducerOptions, "producer", "console-producer", "--producer.config"
        ),
        "consumer.properties": _render_client(
            ConsumerOptions, "consumer", "console-consumer", "--consumer.config"
        ),
    }


def write_all() -> None:
    for name, content in render_all().items():
        (FOLDER / name).write_text(content)


def render_server() -> str:
    parts = [SERVER_HEADER]
    for title, rows in sections():
        parts.append(f"# ---- {title} ----\n")
        parts += [_server_entry(row) for row in rows]
    own = [row for row in TOPIC_OPTIONS.values() if not row.inherits]
    parts.append(TOPICS_ONLY + "".join(_comment(f"{row.name}: {row.meaning}") for row in own))
    return "\n".join(parts)


def sections() -> list[tuple[str, list[Option]]]:
    """Title -> rows in the order of the table, without empty sections."""
    found: dict[str, list[Option]] = {section.title: [] for section in SECTIONS}
    for row in BROKER_OPTIONS.values():
        title = next(each.title for each in SECTIONS if re.match(each.pattern, row.name))
        found[title].append(row)
    return [(title, rows) for title, rows in found.items() if rows]


def _server_entry(row: Option) -> str:
    default = row.format(row.default)
    facts = [row.meaning, "No default." if default is None else f"Default {default or 'empty'}."]
    followers = [each.name for each in TOPIC_OPTIONS.values() if row.name in each.inherits]
    if followers:
        facts.append(f"Topics: {', '.join(followers)}.")
    if row.name in NOTES:
        facts.append(NOTES[row.name])
    if not row.effective and row.name not in REFUSED:
        facts.append("Known, but without effect in this broker.")
    if row.name in SET and row.effective:
        setting = f"{row.name}={SET[row.name]}"
    else:
        setting = f"#{row.name}={EXAMPLES.get(row.name, default or '')}"
    return f"{_comment(' '.join(facts))}{setting}\n"


def _comment(text: str) -> str:
    lines = textwrap.wrap(text, WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    return "".join(f"# {line}\n" for line in lines)


def _render_client(kind: type[ClientOptions], word: str, tool: str, flag: str) -> str:
    shared = {row.name for row in dataclasses.fields(ClientOptions)}
    rows = dataclasses.fields(kind)
    parts = [CLIENT_HEADER.format(kind=word, tool=tool, flag=flag), "# ---- Every client ----\n"]
    parts += [_client_entry(row) for row in rows if row.name in shared]
    parts.append(f"# ---- The {word} ----\n")
    parts += [_client_entry(row) for row in rows if row.name not in shared]
    return "\n".join(parts)


def _client_entry(row: dataclasses.Field[Any]) -> str:
    meaning = row.metadata["meaning"]
    default = client_text(row.name, row.default)
    name = row.name.replace("_", ".")
    mark = "" if row.name == "bootstrap_servers" else "#"
    sentence = meaning[0].upper() + meaning[1:]
    said = f"Default {default}." if default else "Without a default."
    return f"{_comment(f'{sentence}. {said}')}{mark}{name}={default}\n"


def client_text(name: str, value: object) -> str:
    """A value of a client's option as properties files write it."""
    if name == "acks":
        return "all" if value == -1 else str(value)
    if name == "security_protocol":
        return str(value).upper()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(part if isinstance(part, str) else f"{part[0]}:{part[1]}" for part in value)
    return "" if value is None else str(value)
