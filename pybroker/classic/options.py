"""The options of the classic consumer: those of Kafka 0.8's high-level consumer, by their names and
with their defaults. Nothing here opens anything."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pybroker.client.errors import ConfigError
from pybroker.config.declaration import (
    boolean,
    integer,
    nearest_name,
    options_of,
    parse_values,
    string,
)
from pybroker.config.properties import is_property

logger = logging.getLogger(__name__)

WITHOUT_EFFECT: Final = frozenset(
    {
        "num.consumer.fetchers",
        "offsets.channel.backoff.ms",
        "offsets.commit.max.retries",
        "refresh.leader.backoff.ms",
        "socket.receive.buffer.bytes",
        "zookeeper.sync.time.ms",
    }
)
"""Options of the classic consumer that do nothing here. A properties file may have them, and brings
a warning; as keyword arguments they are faults. Only as the default of rebalance.backoff.ms had
zookeeper.sync.time.ms a meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicOptions:
    """Options of ClassicConsumer."""

    # fmt: off
    zookeeper_connect: str = string(
        "zookeeper.connect", "127.0.0.1:2181",
        "host:port[,host:port...][/chroot] of the brokers' ZooKeeper")
    group_id: str = string("group.id", "", "the group whose members share the partitions")
    consumer_id: str = string(
        "consumer.id", "",
        "the part of the member's name after the group's; empty: a generated one")
    client_id: str = string(
        "client.id", "", "the name by which brokers log this client; empty: the group's")
    zookeeper_session_timeout_ms: int = integer(
        "zookeeper.session.timeout.ms", 6_000,
        "after this time without a sign of life a member's partitions go to other members",
        minimum=1)
    zookeeper_connection_timeout_ms: int | None = integer(
        "zookeeper.connection.timeout.ms", None,
        "how long the start waits for ZooKeeper; not set: the session timeout", minimum=1)
    rebalance_max_retries: int = integer(
        "rebalance.max.retries", 4,
        "a rebalance fails after this many times rebalance.backoff.ms", minimum=1)
    rebalance_backoff_ms: int = integer(
        "rebalance.backoff.ms", 2_000,
        "the pause before a failed rebalance is tried again, unless something changes earlier; also"
        " how long a rebalance waits for records that are being worked on", minimum=0)
    auto_commit_enable: bool = boolean(
        "auto.commit.enable", True, "whether offsets are committed by themselves")
    auto_commit_interval_ms: int = integer(
        "auto.commit.interval.ms", 60_000, "how often", minimum=1)
    auto_offset_reset: str = string(
        "auto.offset.reset", "largest", "where to start without a valid offset",
        choices=("smallest", "largest"))
    offsets_storage: str = string(
        "offsets.storage", "zookeeper",
        "whether offsets are kept in nodes or at the group's coordinator (``kafka``)",
        choices=("zookeeper", "kafka"))
    dual_commit_enabled: bool | None = boolean(
        "dual.commit.enabled", None,
        "whether offsets that the coordinator keeps are in nodes, too; not set: they are")
    offsets_channel_socket_timeout_ms: int = integer(
        "offsets.channel.socket.timeout.ms", 10_000,
        "the limit of a commit at the coordinator, with its retries", minimum=1)
    partition_assignment_strategy: str = string(
        "partition.assignment.strategy", "range",
        "how partitions are divided; the same in all members", choices=("range", "roundrobin"))
    exclude_internal_topics: bool = boolean(
        "exclude.internal.topics", True, "whether patterns leave out Kafka's own topics")
    queued_max_message_chunks: int = integer(
        "queued.max.message.chunks", 2,
        "how many portions of up to 500 records of a partition wait for their stream", minimum=1)
    consumer_timeout_ms: int = integer(
        "consumer.timeout.ms", -1,
        "iterating fails if no record comes for this time; -1: it waits for ever", minimum=-1)
    fetch_message_max_bytes: int = integer(
        "fetch.message.max.bytes", 1_048_576, "bytes of an answer for one partition", minimum=1)
    fetch_min_bytes: int = integer(
        "fetch.min.bytes", 1, "a broker waits until it has this many bytes", minimum=0)
    fetch_wait_max_ms: int = integer(
        "fetch.wait.max.ms", 100, "how long a broker waits at most", minimum=0)
    socket_timeout_ms: int = integer(
        "socket.timeout.ms", 30_000, "how long to wait for an answer of a broker", minimum=1)
    # fmt: on


def parse_classic_options(given: Mapping[str, object]) -> ClassicOptions:
    """From option names, with dots or underscores, and values as Python has them or as text. Raises
    ConfigError with every fault."""
    rows = options_of(ClassicOptions)
    texts: dict[str, str] = {}
    faults = []
    for name, value in given.items():
        dotted = name.replace("_", ".")
        if dotted in texts:
            faults.append(f"option {name} is given twice")
        elif dotted in rows:
            texts[dotted] = str(value).lower() if isinstance(value, bool) else str(value)
        elif dotted in WITHOUT_EFFECT and is_property(name, value):
            logger.warning("event=option-without-effect name=%s", name)
        elif dotted in WITHOUT_EFFECT:
            faults.append(f"option {name} has no effect; leave it out")
        else:
            near = nearest_name(dotted, rows)
            faults.append(f"unknown option {name}" + (f"; did you mean {near}?" if near else ""))
    values, wrong = parse_values(rows, texts)
    faults += wrong.values()
    if not texts.get("group.id"):
        faults.append("group.id is missing: name the group whose members share the partitions")
    if faults:
        raise ConfigError(faults)
    return ClassicOptions(**values)
