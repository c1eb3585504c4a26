"""The broker's options (`server.properties`), one row each, with Kafka 3.9's ZooKeeper-mode names
and defaults.

Only options whose behaviour exists have a row; the others are named in `kafka_options.py`. The
attribute of an option is its name with underscores; what several options decide together is a
property below the table. Nothing here reads a file or knows who uses the values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pybroker.config import (
    Option,
    UpdateMode,
    Value,
    boolean,
    first_ms,
    integer,
    listing,
    long,
    nearest_name,
    options_of,
    parse_values,
    short,
    string,
)
from pybroker.errors import ConfigError
from pybroker.kafka_options import NOT_IMPLEMENTED, PLUGIN_PREFIXES, REFUSED
from pybroker.listeners import (
    PROTOCOLS,
    Listener,
    ListenerPlan,
    advertised_warnings,
    plan_listeners,
)

OWN_PREFIX: Final = "pybroker."
INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1
CLEANUP_POLICIES: Final = ("compact", "delete")
COMPRESSION_TYPES: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")
UNLIMITED: Final = -1

_HOUR_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000
_CLUSTER: Final = UpdateMode.CLUSTER_WIDE
_BROKER: Final = UpdateMode.PER_BROKER
_PROTOCOL_MAP: Final = ",".join(f"{protocol}:{protocol}" for protocol in PROTOCOLS)
_ZOOKEEPER_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/,\[\]]+)(:[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """All options of one broker. `BrokerConfig()` is Kafka's defaults."""

    # fmt: off
    broker_id: int = integer("broker.id", -1, "The number of this broker in the cluster; -1 lets ZooKeeper hand one out.")
    broker_id_generation_enable: bool = boolean("broker.id.generation.enable", True, "Whether a broker without an id gets a generated one.")
    reserved_broker_max_id: int = integer("reserved.broker.max.id", 1000, "The highest id that may be chosen by hand; generated ids begin above it.", minimum=0)
    broker_rack: str | None = string("broker.rack", None, "Where the broker stands; replicas are spread over racks.")
    listeners: str = string("listeners", "PLAINTEXT://:9092", "The addresses to listen on, NAME://HOST:PORT, separated by commas; no host means all interfaces.", update=_BROKER)
    advertised_listeners: str | None = string("advertised.listeners", None, "The addresses that clients are told, if they differ from listeners.", update=_BROKER)
    listener_security_protocol_map: str = string("listener.security.protocol.map", _PROTOCOL_MAP, "The protocol that each listener name stands for, NAME:PROTOCOL, separated by commas.", update=_BROKER)
    inter_broker_listener_name: str | None = string("inter.broker.listener.name", None, "The listener that brokers use among themselves; without it, the one named like security.inter.broker.protocol.")
    security_inter_broker_protocol: str = string("security.inter.broker.protocol", "PLAINTEXT", "The protocol between brokers, if no listener name is given for that.", choices=PROTOCOLS)

    zookeeper_connect: str | None = string("zookeeper.connect", None, "The ensemble, HOST:PORT,HOST:PORT/chroot; without it the start runs its own embedded ZooKeeper.")
    zookeeper_session_timeout_ms: int = integer("zookeeper.session.timeout.ms", 18_000, "How long ZooKeeper waits without a sign of life before it counts the broker as dead.", minimum=1)
    zookeeper_connection_timeout_ms: int | None = integer("zookeeper.connection.timeout.ms", None, "How long the start waits for ZooKeeper; without it, the session timeout.", minimum=1)

    log_dir: str = string("log.dir", "/tmp/kafka-logs", "The directory of the data, if log.dirs is not given.")
    log_dirs: str | None = string("log.dirs", None, "The directories of the data, separated by commas.")
    num_partitions: int = integer("num.partitions", 1, "The partitions of a topic whose creator does not say.", minimum=1)
    default_replication_factor: int = integer("default.replication.factor", 1, "The replicas of a topic whose creator does not say.", minimum=1, maximum=32_767)
    auto_create_topics_enable: bool = boolean("auto.create.topics.enable", True, "Whether a client that asks for a missing topic creates it.")
    delete_topic_enable: bool = boolean("delete.topic.enable", True, "Whether topics may be deleted.")
    min_insync_replicas: int = integer("min.insync.replicas", 1, "With acks=all, how many replicas must be in sync for a write to be taken.", minimum=1, update=_CLUSTER)
    unclean_leader_election_enable: bool = boolean("unclean.leader.election.enable", False, "Whether a replica that is behind may lead when no other is left, at the price of lost records.", update=_CLUSTER)
    message_max_bytes: int = integer("message.max.bytes", 1_048_588, "The largest record batch that is taken, as it arrives (compressed).", minimum=0, update=_CLUSTER)
    compression_type: str = string("compression.type", "producer", "The codec in which batches are stored; producer keeps what came.", choices=COMPRESSION_TYPES, update=_CLUSTER)

    log_segment_bytes: int = integer("log.segment.bytes", 1 << 30, "The size at which a new segment file is begun.", minimum=14, update=_CLUSTER)
    log_roll_ms: int | None = long("log.roll.ms", None, "The age at which a new segment is begun; stronger than log.roll.hours.", minimum=1, update=_CLUSTER)
    log_roll_hours: int = integer("log.roll.hours", 168, "The age at which a new segment is begun.", minimum=1)
    log_roll_jitter_ms: int | None = long("log.roll.jitter.ms", None, "The largest random amount by which segments roll early; stronger than log.roll.jitter.hours.", minimum=0, update=_CLUSTER)
    log_roll_jitter_hours: int = integer("log.roll.jitter.hours", 0, "The largest random amount by which segments roll early.", minimum=0)
    log_retention_ms: int | None = long("log.retention.ms", None, "The age at which a segment is deleted, -1 for never; stronger than log.retention.minutes.", update=_CLUSTER)
    log_retention_minutes: int | None = integer("log.retention.minutes", None, "The age at which a segment is deleted; stronger than log.retention.hours.")
    log_retention_hours: int = integer("log.retention.hours", 168, "The age at which a segment is deleted, -1 for never.")
    log_retention_bytes: int = long("log.retention.bytes", -1, "The size of a partition above which its oldest segments are deleted, -1 for any.", update=_CLUSTER)
    log_retention_check_interval_ms: int = long("log.retention.check.interval.ms", 300_000, "How often segments are checked against retention.", minimum=1)
    log_cleanup_policy: tuple[str, ...] = listing("log.cleanup.policy", ("delete",), "What happens to old records: delete by age and size, compact by key, or both.", choices=CLEANUP_POLICIES, update=_CLUSTER)
    log_index_size_max_bytes: int = integer("log.index.size.max.bytes", 10_485_760, "The largest size of an offset or time index.", minimum=4, update=_CLUSTER)
    log_index_interval_bytes: int = integer("log.index.interval.bytes", 4096, "How many bytes of the log lie between two entries of an index.", minimum=0, update=_CLUSTER)
    log_flush_interval_messages: int = long("log.flush.interval.messages", LONG_MAX, "After how many records a partition is synced to disk; 1 syncs before each acknowledgement.", minimum=1, update=_CLUSTER)
    log_flush_interval_ms: int | None = long("log.flush.interval.ms", None, "The longest time that a record waits to be synced; without it, log.flush.scheduler.interval.ms.", update=_CLUSTER)
    log_flush_scheduler_interval_ms: int = long("log.flush.scheduler.interval.ms", LONG_MAX, "How often partitions are checked for a sync that is due.")
    log_segment_delete_delay_ms: int = long("log.segment.delete.delay.ms", 60_000, "How long a deleted segment's files stay on disk under another name.", minimum=0, update=_CLUSTER)
    log_message_timestamp_type: str = string("log.message.timestamp.type", "CreateTime", "Whether records keep the producer's time or get the time of their arrival.", choices=TIMESTAMP_TYPES, update=_CLUSTER)
    log_message_timestamp_difference_max_ms: int = long("log.message.timestamp.difference.max.ms", LONG_MAX, "The older form of log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms.", minimum=0, update=_CLUSTER)
    log_message_timestamp_before_max_ms: int = long("log.message.timestamp.before.max.ms", LONG_MAX, "How far in the past a record's time may lie.", minimum=0, update=_CLUSTER)
    log_message_timestamp_after_max_ms: int = long("log.message.timestamp.after.max.ms", LONG_MAX, "How far in the future a record's time may lie.", minimum=0, update=_CLUSTER)

    socket_request_max_bytes: int = integer("socket.request.max.bytes", 104_857_600, "The largest request; a larger one closes the connection.", minimum=1)
    socket_send_buffer_bytes: int = integer("socket.send.buffer.bytes", 102_400, "SO_SNDBUF of connections, -1 for the system's.")
    socket_receive_buffer_bytes: int = integer("socket.receive.buffer.bytes", 102_400, "SO_RCVBUF of connections, -1 for the system's.")
    socket_listen_backlog_size: int = integer("socket.listen.backlog.size", 50, "How many connections may wait to be accepted.", minimum=1)
    max_connections: int = integer("max.connections", INT_MAX, "The most connections of the broker.", minimum=0, update=_CLUSTER)
    max_connections_per_ip: int = integer("max.connections.per.ip", INT_MAX, "The most connections from one address.", minimum=0, update=_CLUSTER)
    max_connections_per_ip_overrides: str = string("max.connections.per.ip.overrides", "", "Other limits for single addresses, HOST:COUNT, separated by commas.", update=_CLUSTER)
    connections_max_idle_ms: int = long("connections.max.idle.ms", 600_000, "A connection without a request for so long is closed.")
    fetch_max_bytes: int = integer("fetch.max.bytes", 57_671_680, "The most bytes of an answer to one Fetch.", minimum=1024)

    replica_high_watermark_checkpoint_interval_ms: int = long("replica.high.watermark.checkpoint.interval.ms", 5_000, "How often the high watermarks are written down.", minimum=1)
    producer_id_expiration_ms: int = integer("producer.id.expiration.ms", 86_400_000, "How long a silent idempotent producer is remembered.", minimum=1, update=_CLUSTER)
    group_initial_rebalance_delay_ms: int = integer("group.initial.rebalance.delay.ms", 3_000, "How long the first join of an empty group waits for more members.", minimum=0)
    offsets_topic_num_partitions: int = integer("offsets.topic.num.partitions", 50, "The partitions of the topic of consumer groups; never to be changed later.", minimum=1)
    offsets_topic_replication_factor: int = short("offsets.topic.replication.factor", 3, "The replicas of the topic of consumer groups.", minimum=1)
    offsets_topic_segment_bytes: int = integer("offsets.topic.segment.bytes", 104_857_600, "The segment size of the topic of consumer groups.", minimum=14)
    transaction_state_log_num_partitions: int = integer("transaction.state.log.num.partitions", 50, "The partitions of the topic of transactions; never to be changed later.", minimum=1)
    transaction_state_log_replication_factor: int = short("transaction.state.log.replication.factor", 3, "The replicas of the topic of transactions.", minimum=1)
    transaction_state_log_min_isr: int = integer("transaction.state.log.min.isr", 2, "min.insync.replicas of the topic of transactions.", minimum=1)
    transaction_state_log_segment_bytes: int = integer("transaction.state.log.segment.bytes", 104_857_600, "The segment size of the topic of transactions.", minimum=14)
    background_threads: int = integer("background.threads", 10, "The threads for work that blocks, such as syncing and deleting files.", minimum=1, update=_CLUSTER)

    pybroker_idle_flush_interval_ms: int = long("pybroker.idle.flush.interval.ms", 30_000, "How soon closed segments and idle partitions are synced in the background.", minimum=100)
    pybroker_embedded_zookeeper_port: int = integer("pybroker.embedded.zookeeper.port", 0, "The port of the embedded ZooKeeper on 127.0.0.1; 0 takes any free one, which the start prints.", minimum=0, maximum=65_535)
    # fmt: on

    given: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The options that were set explicitly, as text."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """Sentences for the operator: options that have no effect, addresses that look wrong."""

    @classmethod
    def parse(cls, properties: Mapping[str, str]) -> BrokerConfig:
        """The configuration that `properties` (option name -> text) describes. Raises ConfigError
        with every fault at once."""
        values, faults = parse_values(BROKER_OPTIONS, properties)
        given = {name: text for name, text in properties.items() if name in BROKER_OPTIONS}
        ignored, refusals = _judge_unknown(properties)
        config = cls(**values, given=given)
        checked = [
            fault
            for names, check in _CHECKS
            if faults.keys().isdisjoint(names)
            for fault in check(config)
        ]
        if faults or refusals or checked:
            raise ConfigError([*faults.values(), *refusals, *checked])
        warnings = list(advertised_warnings(config.bound_listeners, config.advertised))
        if ignored:
            warnings.append(f"options without effect in this broker: {', '.join(ignored)}")
        return replace(config, warnings=tuple(warnings))

    @property
    def values(self) -> dict[str, Value]:
        """Option name -> value, for every row."""
        return {name: getattr(self, row.attribute) for name, row in BROKER_OPTIONS.items()}

    @property
    def listener_plan(self) -> ListenerPlan:
        return plan_listeners(
            listeners=self.listeners,
            advertised_listeners=self.advertised_listeners,
            protocol_map=self.listener_security_protocol_map,
            inter_broker_name=self.inter_broker_listener_name,
            inter_broker_protocol=self.security_inter_broker_protocol,
        )

    @property
    def bound_listeners(self) -> tuple[Listener, ...]:
        return self.listener_plan.bound

    @property
    def advertised(self) -> tuple[Listener, ...]:
        """What clients are told; see `listeners.endpoints` for empty hosts and port 0."""
        return self.listener_plan.advertised

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener between brokers."""
        return self.listener_plan.inter_broker

    @property
    def log_directories(self) -> tuple[str, ...]:
        """log.dirs, else log.dir."""
        text = self.log_dir if self.log_dirs is None else self.log_dirs
        return tuple(item.strip() for item in text.split(",") if item.strip())

    @property
    def zookeeper_wait_ms(self) -> int:
        """How long the start waits for ZooKeeper."""
        timeout_ms = self.zookeeper_connection_timeout_ms
        return self.zookeeper_session_timeout_ms if timeout_ms is None else timeout_ms

    @property
    def retention_ms(self) -> int:
        """log.retention.ms, else minutes, else hours; UNLIMITED for never."""
        retention_ms = first_ms(
            (self.log_retention_ms, 1),
            (self.log_retention_minutes, _MINUTE_MS),
            (self.log_retention_hours, _HOUR_MS),
        )
        return UNLIMITED if retention_ms is None or retention_ms < 0 else retention_ms

    @property
    def roll_ms(self) -> int:
        """log.roll.ms, else hours."""
        roll_ms = self.log_roll_ms
        return self.log_roll_hours * _HOUR_MS if roll_ms is None else roll_ms

    @property
    def roll_jitter_ms(self) -> int:
        """log.roll.jitter.ms, else hours."""
        jitter_ms = self.log_roll_jitter_ms
        return self.log_roll_jitter_hours * _HOUR_MS if jitter_ms is None else jitter_ms

    @property
    def flush_ms(self) -> int:
        """log.flush.interval.ms, else the scheduler's interval."""
        interval_ms = self.log_flush_interval_ms
        return self.log_flush_scheduler_interval_ms if interval_ms is None else interval_ms

    @property
    def connections_per_ip_overrides(self) -> dict[str, int]:
        """Host -> limit."""
        return _connection_overrides(self.max_connections_per_ip_overrides)


BROKER_OPTIONS: Final[Mapping[str, Option]] = options_of(BrokerConfig)
"""Option name -> row."""


def small_cluster_properties(brokers: int) -> dict[str, str]:
    """What a start without a configuration file sets: Kafka's defaults ask for three brokers and
    for patience, a developer's machine has neither."""
    replicas = str(min(3, brokers))
    return {
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": str(min(2, brokers)),
        "group.initial.rebalance.delay.ms": "0",
    }


def _judge_unknown(properties: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The names that have no effect, and the faults of names and values that must not be
    ignored."""
    ignored, faults = [], []
    known = [*BROKER_OPTIONS, *NOT_IMPLEMENTED, *REFUSED]
    for name, text in properties.items():
        if name in BROKER_OPTIONS:
            continue
        if name in REFUSED:
            applies, reason = REFUSED[name]
            if applies(text):
                faults.append(f"{name}={text}: {reason}")
            continue
        meant = None
        if name not in NOT_IMPLEMENTED and not name.startswith(PLUGIN_PREFIXES):
            meant = nearest_name(name, known)
        if meant is not None:
            faults.append(f"{name}: no such option; did you mean {meant}?")
        elif name.startswith(OWN_PREFIX):
            faults.append(f"{name}: no such option")
        else:
            ignored.append(name)
    return sorted(ignored), faults


def _connection_overrides(text: str) -> dict[str, int]:
    """Raises ValueError for an item that is not HOST:COUNT."""
    overrides = {}
    for item in text.split(","):
        if not item.strip():
            continue
        host, _, count = item.strip().rpartition(":")
        if not host or not re.fullmatch("[0-9]{1,10}", count.strip()):
            raise ValueError(item)
        overrides[host.strip()] = int(count)
    return overrides


def _check_identity(config: BrokerConfig) -> Iterator[str]:
    highest = config.reserved_broker_max_id
    if config.broker_id_generation_enable and not -1 <= config.broker_id <= highest:
        yield (
            f"broker.id={config.broker_id}: expected -1 (generated) or an integer up to "
            f"reserved.broker.max.id={highest}"
        )
    elif not config.broker_id_generation_enable and config.broker_id < 0:
        yield (
            f"broker.id={config.broker_id}: expected an integer from 0 up, because "
            "broker.id.generation.enable=false"
        )


def _check_zookeeper(config: BrokerConfig) -> Iterator[str]:
    text = config.zookeeper_connect
    if text is None:
        return
    hosts, slash, chroot = text.partition("/")
    valid_hosts = all(_ZOOKEEPER_HOST.fullmatch(host.strip()) for host in hosts.split(","))
    if not valid_hosts or (slash and any(not part for part in chroot.split("/"))):
        yield f"zookeeper.connect={text}: expected HOST:PORT,HOST:PORT/chroot"


def _check_listeners(config: BrokerConfig) -> Iterator[str]:
    both = {"inter.broker.listener.name", "security.inter.broker.protocol"}
    if both <= config.given.keys():
        yield f"{' and '.join(sorted(both))}: only one of the two may be set"
    yield from config.listener_plan.faults


def _check_directories(config: BrokerConfig) -> Iterator[str]:
    if not config.log_directories:
        yield "log.dirs: expected at least one directory"
    elif len(set(config.log_directories)) < len(config.log_directories):
        yield f"log.dirs={config.log_dirs}: a directory is named twice"


def _check_retention(config: BrokerConfig) -> Iterator[str]:
    if config.retention_ms == 0:
        names = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
        name = next(name for name in names if config.values[name] == 0)
        yield f"{name}=0: expected a time of at least 1, or -1 for ever"


def _check_connections(config: BrokerConfig) -> Iterator[str]:
    text = config.max_connections_per_ip_overrides
    try:
        overrides = config.connections_per_ip_overrides
    except ValueError:
        yield f"max.connections.per.ip.overrides={text}: expected HOST:COUNT,HOST:COUNT"
        return
    if config.max_connections_per_ip == 0 and not overrides:
        yield "max.connections.per.ip=0: nobody could connect; add max.connections.per.ip.overrides"


_CHECKS: Final[tuple[tuple[tuple[str, ...], Callable[[BrokerConfig], Iterator[str]]], ...]] = (
    (("broker.id", "broker.id.generation.enable", "reserved.broker.max.id"), _check_identity),
    (("zookeeper.connect",), _check_zookeeper),
    (("security.inter.broker.protocol",), _check_listeners),
    (("log.dirs", "log.dir"), _check_directories),
    (("log.retention.ms", "log.retention.minutes", "log.retention.hours"), _check_retention),
    (("max.connections.per.ip",), _check_connections),
)
"""What several options have to fulfil together: the options that are read, and the check."""
