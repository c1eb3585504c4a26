"""The broker's options (`server.properties`) as one object, checked against each other, with the
values that depend on several options.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from pybroker.applog.log_levels import parse_level
from pybroker.config.broker_options import BrokerOptionTable
from pybroker.config.declaration import (
    Option,
    Value,
    first_ms,
    nearest_name,
    options_of,
    parse_values,
)
from pybroker.config.kafka_options import NOT_IMPLEMENTED, PLUGIN_PREFIXES, REFUSED
from pybroker.config.listeners import (
    Listener,
    ListenerPlan,
    advertised_warnings,
    plan_listeners,
)
from pybroker.errors import ConfigError

OWN_PREFIX: Final = "pybroker."
UNLIMITED: Final = -1

_HOUR_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000
_HTTP_ADDRESS: Final = re.compile(
    r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:/,\[\]]*):(?P<port>[0-9]{1,5})"
)
_LOGGER_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,199}")
_ZOOKEEPER_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/,\[\]]+)(:[0-9]{1,5})?")


@dataclass(frozen=True)
class BrokerConfig(BrokerOptionTable):
    """All options of one broker. `BrokerConfig()` has Kafka's defaults."""

    given: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Option name -> text, for the options that were set explicitly."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """Warnings for the operator, one sentence each: about options without effect, and about
    advertised addresses that clients cannot reach."""

    @classmethod
    def parse(cls, properties: Mapping[str, str]) -> BrokerConfig:
        """Return the configuration with the values in `properties` (option name -> text), and
        defaults for all other options. Raise a ConfigError that lists all faults, if there are
        any."""
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
        """Option name -> value, for every option in `broker_options.py`."""
        return {name: getattr(self, row.attribute) for name, row in BROKER_OPTIONS.items()}

    @cached_property
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
        """The advertised listeners. A host may be empty and a port may be 0, as configured."""
        return self.listener_plan.advertised

    @property
    def inter_broker_listener(self) -> str:
        """The name of the inter-broker listener."""
        return self.listener_plan.inter_broker

    @property
    def protected_listener(self) -> str | None:
        """The inter-broker listener, which accepts connections even if max.connections is reached;
        None if it is the only listener."""
        return None if len(self.bound_listeners) == 1 else self.inter_broker_listener

    @property
    def log_directories(self) -> tuple[str, ...]:
        """The log directories: log.dirs if it is set, else log.dir."""
        text = self.log_dir if self.log_dirs is None else self.log_dirs
        return tuple(item.strip() for item in text.split(",") if item.strip())

    @property
    def zookeeper_wait_ms(self) -> int:
        """How long (ms) the broker's start waits for an answer of ZooKeeper."""
        timeout_ms = self.zookeeper_connection_timeout_ms
        return self.zookeeper_session_timeout_ms if timeout_ms is None else timeout_ms

    @property
    def embedded_zookeeper_may_move(self) -> bool:
        """Whether the embedded ZooKeeper may use another port if its port is in use."""
        return "pybroker.embedded.zookeeper.port" not in self.given

    @property
    def retention_ms(self) -> int:
        """How long (ms) records are kept: log.retention.ms if it is set, else
        log.retention.minutes, else log.retention.hours. UNLIMITED means forever."""
        retention_ms = first_ms(
            (self.log_retention_ms, 1),
            (self.log_retention_minutes, _MINUTE_MS),
            (self.log_retention_hours, _HOUR_MS),
        )
        return UNLIMITED if retention_ms is None or retention_ms < 0 else retention_ms

    @property
    def roll_ms(self) -> int:
        """The age (ms) at which a segment is closed: log.roll.ms if it is set, else
        log.roll.hours."""
        roll_ms = self.log_roll_ms
        return self.log_roll_hours * _HOUR_MS if roll_ms is None else roll_ms

    @property
    def roll_jitter_ms(self) -> int:
        """The maximum of the random time (ms) that is subtracted from a segment's maximum age:
        log.roll.jitter.ms if it is set, else log.roll.jitter.hours."""
        jitter_ms = self.log_roll_jitter_ms
        return self.log_roll_jitter_hours * _HOUR_MS if jitter_ms is None else jitter_ms

    @property
    def flush_ms(self) -> int:
        """How long (ms) a record waits to be synced: log.flush.interval.ms if it is set, else
        log.flush.scheduler.interval.ms."""
        interval_ms = self.log_flush_interval_ms
        return self.log_flush_scheduler_interval_ms if interval_ms is None else interval_ms

    @cached_property
    def connections_per_ip_overrides(self) -> dict[str, int]:
        """IP address -> maximum number of connections, for addresses with a limit of their own."""
        return connection_overrides(self.max_connections_per_ip_overrides)

    @property
    def http_address(self) -> tuple[str, int] | None:
        """The host (empty: every interface) and port (0: any) of pybroker.http.listener, or None if
        the HTTP pages are disabled. Raise ValueError if the text is invalid."""
        text = self.pybroker_http_listener.strip()
        found = _HTTP_ADDRESS.fullmatch(text)
        if text and (found is None or int(found["port"]) > 65_535):
            raise ValueError("expected HOST:PORT, or no value to disable HTTP")
        return None if found is None else (found["host"].strip("[]"), int(found["port"]))

    @property
    def log_levels(self) -> dict[str, str]:
        """Logger -> level, from the option pybroker.log.levels. Raise ValueError if the option is
        invalid."""
        return _log_levels(self.pybroker_log_levels)


BROKER_OPTIONS: Final[Mapping[str, Option]] = options_of(BrokerConfig)
"""Option name -> declaration, for all options in `broker_options.py`."""


def small_cluster_properties(brokers: int) -> dict[str, str]:
    """Return the options (name -> text) for a broker without a configuration file. In a cluster of
    several brokers, the application's topics stay writable while one broker is down."""
    replicas = str(min(3, brokers))
    several = {"default.replication.factor": replicas}
    if brokers > 2:
        several["min.insync.replicas"] = "2"
    return {
        **(several if brokers > 1 else {}),
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": str(min(2, brokers)),
        "group.initial.rebalance.delay.ms": "0",
    }


def _judge_unknown(properties: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the names of the options that are ignored with a warning, and error messages. The
    errors are for names that are probably misspelt, for unknown names with the prefix `pybroker.`,
    and for refused options."""
    ignored, faults = [], []
    known = [*BROKER_OPTIONS, *NOT_IMPLEMENTED, *REFUSED]
    for name, text in properties.items():
        row = BROKER_OPTIONS.get(name)
        if name in REFUSED:
            applies, reason = REFUSED[name]
            if applies(text):
                faults.append(f"{name}={text}: {reason}")
            continue
        if row is not None:
            if not row.effective:
                ignored.append(name)
            continue
        meant = None
        if name not in NOT_IMPLEMENTED and not name.startswith(PLUGIN_PREFIXES):
            meant = nearest_name(name, known)
        if meant is not None:
            faults.append(f"{name}: no such option; did you mean {meant}?")
        elif name.startswith(OWN_PREFIX):
            faults.append(f"{name}: no such option of pybroker")
        else:
            ignored.append(name)
    return sorted(ignored), faults


def connection_overrides(text: str) -> dict[str, int]:
    """Return IP address -> maximum number of connections, from a value of
    max.connections.per.ip.overrides. Raise ValueError for an item that is not ADDRESS:COUNT."""
    overrides = {}
    for item in text.split(","):
        if not item.strip():
            continue
        host, _, count = item.strip().rpartition(":")
        if not host or not re.fullmatch("[0-9]{1,10}", count.strip()):
            raise ValueError(f"{item.strip()}: expected ADDRESS:COUNT")
        overrides[_address(host.strip().removeprefix("[").removesuffix("]"))] = int(count)
    return overrides


def _address(text: str) -> str:
    """Return an IP address in the form in which connections report the peer's address. Raise
    ValueError for a host name: host names are not resolved."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"{text} is not an IP address, and host names are not resolved") from None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _log_levels(text: str) -> dict[str, str]:
    """Return logger -> level from a text such as "asyncio=WARN,kazoo=INFO". Raise ValueError for an
    item that is not LOGGER=LEVEL."""
    levels = {}
    for item in filter(None, map(str.strip, text.split(","))):
        logger, sign, level = map(str.strip, item.partition("="))
        if not sign or not _LOGGER_NAME.fullmatch(logger):
            raise ValueError(f"{item}: expected LOGGER=LEVEL")
        parse_level(level)
        levels[logger] = level
    return levels


def _check_identity(config: BrokerConfig) -> Iterator[str]:
    highest = config.reserved_broker_max_id
    if config.broker_id_generation_enable and not -1 <= config.broker_id <= highest:
        yield (
            f"broker.id={config.broker_id}: expected -1 (ZooKeeper generates the id) or "
            f"an integer from 0 to reserved.broker.max.id={highest}"
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
        yield f"{' and '.join(sorted(both))}: expected only one of the two to be set"
    yield from config.listener_plan.faults


def _check_directories(config: BrokerConfig) -> Iterator[str]:
    directories = config.log_directories
    if not directories:
        yield "log.dirs: expected at least one directory"
    elif len(set(directories)) < len(directories):
        twice = sorted({each for each in directories if directories.count(each) > 1})
        yield f"log.dirs={config.log_dirs}: {', '.join(twice)} is named twice, expected once"


def _check_retention(config: BrokerConfig) -> Iterator[str]:
    if config.retention_ms == 0:
        names = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
        name = next(name for name in names if config.values[name] == 0)
        yield f"{name}=0: expected at least 1, or -1 to keep segments forever"


def _check_compaction(config: BrokerConfig) -> Iterator[str]:
    shortest = config.log_cleaner_min_compaction_lag_ms
    longest = config.log_cleaner_max_compaction_lag_ms
    if shortest > longest:
        yield (
            f"log.cleaner.min.compaction.lag.ms={shortest}: expected at most "
            f"log.cleaner.max.compaction.lag.ms={longest}"
        )


def _check_connections(config: BrokerConfig) -> Iterator[str]:
    text = config.max_connections_per_ip_overrides
    try:
        overrides = config.connections_per_ip_overrides
    except ValueError as error:
        yield f"max.connections.per.ip.overrides={text}: {error}"
        return
    if config.max_connections_per_ip == 0 and not overrides:
        cure = "add max.connections.per.ip.overrides"
        yield f"max.connections.per.ip=0: no client could connect; {cure}"


def _check_http(config: BrokerConfig) -> Iterator[str]:
    try:
        _ = config.http_address
    except ValueError as error:
        yield f"pybroker.http.listener={config.pybroker_http_listener}: {error}"


def _check_log_levels(config: BrokerConfig) -> Iterator[str]:
    try:
        _ = config.log_levels
    except ValueError as error:
        yield f"pybroker.log.levels={config.pybroker_log_levels}: {error}"


_CHECKS: Final[tuple[tuple[tuple[str, ...], Callable[[BrokerConfig], Iterator[str]]], ...]] = (
    (("broker.id", "broker.id.generation.enable", "reserved.broker.max.id"), _check_identity),
    (("zookeeper.connect",), _check_zookeeper),
    (("security.inter.broker.protocol",), _check_listeners),
    (("log.dirs", "log.dir"), _check_directories),
    (("log.retention.ms", "log.retention.minutes", "log.retention.hours"), _check_retention),
    (
        ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
        _check_compaction,
    ),
    (("max.connections.per.ip",), _check_connections),
    (("pybroker.http.listener",), _check_http),
    (("pybroker.log.levels",), _check_log_levels),
)
"""Checks of several options together: the names of the options that a check reads, and the check,
which yields a sentence for each fault."""
