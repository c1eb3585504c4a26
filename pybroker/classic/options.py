"""The options of `ClassicConsumer`: those of Kafka 0.8's high-level consumer, with the same names
and defaults.
"""

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

log = logging.getLogger(__name__)

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
"""Kafka's options that have no effect on this consumer. In a properties file they cause a warning;
as keyword arguments they are errors. Even in Kafka, zookeeper.sync.time.ms only sets the default of
rebalance.backoff.ms."""


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
        "the last part of the member's name, after the group's name. If this option is "
        "empty, the consumer generates that part")
    client_id: str = string(
        "client.id", "", "the client id that brokers log. If it is empty, the group id is used")
    zookeeper_session_timeout_ms: int = integer(
        "zookeeper.session.timeout.ms", 6_000,
        "the timeout of the ZooKeeper session. After this time the partitions of a dead member "
        "are assigned to other members",
        minimum=1)
    zookeeper_connection_timeout_ms: int | None = integer(
        "zookeeper.connection.timeout.ms", None,
        "how long the start waits for ZooKeeper. If this option is not set, the session timeout "
        "is used", minimum=1)
    rebalance_max_retries: int = integer(
        "rebalance.max.retries", 4,
        "the time limit of a rebalance is this number multiplied by rebalance.backoff.ms",
        minimum=1)
    rebalance_backoff_ms: int = integer(
        "rebalance.backoff.ms", 2_000,
        "the longest pause between two attempts of a rebalance. A change of a node of the"
        " group ends this pause. A rebalance also waits until the application has"
        " processed the records that streams have returned, but at most this time",
        minimum=0)
    auto_commit_enable: bool = boolean(
        "auto.commit.enable", True, "whether offsets are committed automatically")
    auto_commit_interval_ms: int = integer(
        "auto.commit.interval.ms", 60_000, "the interval of automatic commits", minimum=1)
    auto_offset_reset: str = string(
        "auto.offset.reset", "largest", "where to start without a valid committed offset",
        choices=("smallest", "largest"))
    offsets_storage: str = string(
        "offsets.storage", "zookeeper",
        "whether offsets are stored in ZooKeeper or at the group's coordinator (``kafka``)",
        choices=("zookeeper", "kafka"))
    dual_commit_enabled: bool | None = boolean(
        "dual.commit.enabled", None,
        "with offsets.storage=kafka, whether offsets are also stored in ZooKeeper. If this "
        "option is not set, offsets are also stored in ZooKeeper")
    offsets_channel_socket_timeout_ms: int = integer(
        "offsets.channel.socket.timeout.ms", 10_000,
        "the time limit of a commit at the coordinator, including its retries", minimum=1)
    partition_assignment_strategy: str = string(
        "partition.assignment.strategy", "range",
        "the assignment strategy; all members need the same", choices=("range", "roundrobin"))
    exclude_internal_topics: bool = boolean(
        "exclude.internal.topics", True, "whether patterns exclude Kafka's internal topics")
    queued_max_message_chunks: int = integer(
        "queued.max.message.chunks", 2,
        "a stream queues at most this number of chunks of each partition. A chunk has at most "
        "500 records", minimum=1)
    consumer_timeout_ms: int = integer(
        "consumer.timeout.ms", -1,
        "reading the next record fails after this time without a record. With -1 it "
        "never fails", minimum=-1)
    fetch_message_max_bytes: int = integer(
        "fetch.message.max.bytes", 1_048_576,
        "the most bytes of one partition in a fetch response", minimum=1)
    fetch_min_bytes: int = integer(
        "fetch.min.bytes", 1, "a broker waits until this number of bytes is available", minimum=0)
    fetch_wait_max_ms: int = integer(
        "fetch.wait.max.ms", 100, "how long a broker waits for fetch.min.bytes", minimum=0)
    socket_timeout_ms: int = integer(
        "socket.timeout.ms", 30_000, "how long to wait for a broker's response", minimum=1)
    # fmt: on


def parse_classic_options(given: Mapping[str, object]) -> ClassicOptions:
    """Return the options. `given` maps names, with dots or underscores, to Python values or texts.
    Raises ConfigError, which lists every invalid option."""
    rows = options_of(ClassicOptions)
    texts: dict[str, str] = {}
    faults = []
    for name, value in given.items():
        dotted = name.replace("_", ".")
        if dotted in texts:
            faults.append(f"option {name} is set twice, with dots and with underscores")
        elif dotted in rows:
            texts[dotted] = str(value).lower() if isinstance(value, bool) else str(value)
        elif dotted in WITHOUT_EFFECT and is_property(name, value):
            log.warning("option without effect name=%s", name)
        elif dotted in WITHOUT_EFFECT:
            faults.append(f"option {name} has no effect on this consumer; remove it")
        else:
            near = nearest_name(dotted, rows)
            faults.append(f"unknown option {name}" + (f"; did you mean {near}?" if near else ""))
    values, wrong = parse_values(rows, texts)
    faults += wrong.values()
    if not texts.get("group.id"):
        faults.append("group.id is missing: set it to the group whose members share the partitions")
    if faults:
        raise ConfigError(faults)
    return ClassicOptions(**values)
