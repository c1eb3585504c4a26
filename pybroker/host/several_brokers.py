"""The options of each broker of `pybroker start --brokers N`: its own id, ports and directories,
and one common ZooKeeper. The rack is the host's name unless broker.rack is set.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pybroker.config.broker_config import BrokerConfig
from pybroker.config.listeners import Listener
from pybroker.errors import ConfigError, StartupError
from pybroker.server.listener import Bind, bind

ZOOKEEPER_DIRECTORY: Final = "zookeeper"
_META: Final = "meta.properties"
_HTTP: Final = "pybroker.http.listener"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """One of the brokers: its index, from 0, and the options that only this broker has."""

    index: int
    properties: Mapping[str, str]
    """Option name -> text, for the options that differ from the common ones. zookeeper.connect is
    not among them: the supervisor adds the address of an embedded ZooKeeper later."""


def plan_brokers(base: Mapping[str, str], brokers: int, host: str) -> list[BrokerPlan]:
    """Return the plans of `brokers` brokers (at least 2) from `base`, the common options. `host` is
    this machine's name. Raise ConfigError with all faults."""
    config = BrokerConfig.parse(base)
    plans = [BrokerPlan(index, _own_options(config, index, host)) for index in range(brokers)]
    faults: dict[str, None] = {}
    owners: dict[int, int] = {}
    for plan in plans:
        try:
            own = BrokerConfig.parse({**base, **plan.properties})
        except ConfigError as error:
            faults |= dict.fromkeys(f"broker {plan.index}: {fault}" for fault in error.faults)
            continue
        for port in _ports(own):
            if owners.setdefault(port, plan.index) != plan.index:
                faults[
                    f"port {port} would be used by brokers {owners[port]} and {plan.index}; "
                    f"choose ports that are at least {brokers} apart"
                ] = None
    if faults:
        raise ConfigError(list(faults))
    return plans


def without_taken_http(config: BrokerConfig, plan: BrokerPlan) -> BrokerPlan:
    """Return the plan. If pybroker.http.listener is not set and the default port cannot be bound,
    the HTTP pages are disabled in the returned plan."""
    listener = plan.properties.get(_HTTP)
    if listener is None or _HTTP in config.given:
        return plan
    host, _, port = listener.rpartition(":")
    try:
        socket.create_server((host, int(port))).close()
    except OSError as error:
        log.warning(
            "http pages disabled, their port cannot be used broker=%d %s=%s reason=%s",
            plan.index,
            _HTTP,
            listener,
            error.strerror,
        )
        return replace(plan, properties={**plan.properties, _HTTP: ""})
    return plan


def check_directories(config: BrokerConfig, brokers: int) -> None:
    """Raise StartupError if the log directories have the data of several brokers and `brokers` is
    1, or the data of a single broker and `brokers` is larger."""
    for directory in map(Path, config.log_directories):
        first = _directory_of(directory, 0)
        if brokers == 1 and (first / _META).exists():
            raise StartupError(
                f"{directory} contains the data of several brokers ({first} and others); start"
                " them with --brokers, or give another directory with --data"
            )
        if brokers > 1 and (directory / _META).exists():
            raise StartupError(
                f"{directory} contains the data of a single broker; start that broker without"
                " --brokers, or give another directory with --data"
            )


def check_ports(config: BrokerConfig, brokers: int) -> None:
    """Raise StartupError if another process uses a port of one of the brokers."""
    with ExitStack() as stack:
        for index in range(brokers):
            for listener in config.bound_listeners:
                own = _moved(listener, index)
                try:
                    stack.enter_context(bind(Bind(own.name, own.host, own.port)))
                except StartupError as error:
                    raise StartupError(f"broker {index}: {error}") from error


def check_zookeeper(config: BrokerConfig, brokers: int) -> None:
    """Raise StartupError if a broker's directory has data, but the directory of the embedded
    ZooKeeper is missing. The start would otherwise create a new ZooKeeper, without the cluster's
    topics."""
    directory = zookeeper_directory(config)
    if config.zookeeper_connect is not None or directory.exists():
        return
    for index in range(brokers):
        own = _directory_of(directory.parent, index)
        if (own / _META).exists():
            raise StartupError(
                f"{own} contains the data of a cluster, but the directory of the cluster's"
                f" ZooKeeper, {directory}, is missing; restore that directory, or give the"
                " address of the cluster's ZooKeeper with --zookeeper"
            )


def idle_directories(config: BrokerConfig, brokers: int) -> list[Path]:
    """Return the directories that have the data of a broker that is not started. The started
    brokers have the indexes 0 to `brokers` - 1."""
    parents = [Path(directory) for directory in config.log_directories]
    return sorted(
        path.parent
        for parent in parents
        for path in parent.glob(f"broker-*/{_META}")
        if path.parent.name.removeprefix("broker-").isdigit()
        and int(path.parent.name.removeprefix("broker-")) >= brokers
    )


def zookeeper_directory(config: BrokerConfig) -> Path:
    """Return the directory of the embedded ZooKeeper that the brokers share."""
    return Path(config.log_directories[0]).absolute() / ZOOKEEPER_DIRECTORY


def _own_options(config: BrokerConfig, index: int, host: str) -> dict[str, str]:
    shifted = ",".join(str(_moved(listener, index)) for listener in config.bound_listeners)
    advertised = ",".join(str(_moved(listener, index)) for listener in config.advertised)
    own = {
        "listeners": shifted,
        "advertised.listeners": advertised,
        "log.dirs": ",".join(str(_directory_of(Path(d), index)) for d in config.log_directories),
    }
    if config.broker_id != -1:
        own["broker.id"] = str(config.broker_id + index)
    elif config.zookeeper_connect is None:
        own["broker.id"] = str(index)
    if config.broker_rack is None:
        own["broker.rack"] = host
    if config.pybroker_log_dir:
        own["pybroker.log.dir"] = str(Path(config.pybroker_log_dir) / f"broker-{index}")
    http = config.http_address
    if index and http is not None and http[1]:
        http_host = f"[{http[0]}]" if ":" in http[0] else http[0]
        own[_HTTP] = f"{http_host}:{http[1] + index}"
    return own


def _moved(listener: Listener, index: int) -> Listener:
    """Return `listener` with the port of the broker `index`: the configured port plus the index. A
    configured port of 0 (any free port) stays 0."""
    return replace(listener, port=listener.port + index if listener.port else 0)


def _directory_of(parent: Path, index: int) -> Path:
    return parent.absolute() / f"broker-{index}"


def _ports(config: BrokerConfig) -> list[int]:
    http = config.http_address
    ports = [listener.port for listener in config.bound_listeners]
    return [port for port in (*ports, http[1] if http else 0) if port]
