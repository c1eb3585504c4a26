"""`pybroker start`: runs a broker until SIGTERM or Ctrl-C."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from pybroker.config.broker_config import BrokerConfig, small_cluster_properties
from pybroker.config.properties import parse_overrides, read_properties
from pybroker.errors import ConfigError, StartupError
from pybroker.host.run import run_broker
from pybroker.host.several_brokers import check_directories, plan_brokers
from pybroker.host.supervisor import run_brokers

DEFAULT_DATA = "pybroker-data"
BROKERS_MAX: Final = 64
"""The largest number of brokers that one command starts."""


def broker_properties(
    config_path: str | None,
    *,
    data: str | None,
    port: int | None,
    zookeeper: str | None,
    log_dir: str | None = None,
    log_config: str | None = None,
    overrides: tuple[str, ...],
    brokers: int = 1,
) -> dict[str, str]:
    """Return the broker options. Precedence: `overrides`, the other flags, the file. Without a
    file, the options are those of a small cluster. Raises ConfigError for a malformed file or
    override."""
    if config_path is None:
        properties = small_cluster_properties(brokers)
        properties["listeners"] = "PLAINTEXT://127.0.0.1:9092"
        properties["log.dirs"] = str(Path(DEFAULT_DATA).absolute())
    else:
        properties = read_properties(config_path)
    if data is not None:
        properties.pop("log.dir", None)
        properties["log.dirs"] = str(Path(data).absolute())
    if port is not None:
        properties["listeners"] = f"PLAINTEXT://127.0.0.1:{port}"
        properties.pop("advertised.listeners", None)
    if zookeeper is not None:
        properties["zookeeper.connect"] = zookeeper
    if log_dir is not None:
        properties["pybroker.log.dir"] = str(Path(log_dir).absolute())
    if log_config is not None:
        properties["pybroker.log.config"] = str(Path(log_config).absolute())
    properties.update(parse_overrides(overrides))
    return properties


def _words_of_each(config: str | None, properties: Mapping[str, str]) -> list[str]:
    """Return the arguments of every broker process: the properties file, and an override for each
    option that differs from the file."""
    in_file = {} if config is None else read_properties(config)
    words = [] if config is None else [config]
    for name, value in properties.items():
        if in_file.get(name) != value:
            words += ["--override", f"{name}={value}"]
    return words


@click.command("start")
@click.argument("config", required=False, metavar="[CONFIG]")
@click.option(
    "--data",
    metavar="DIR",
    help=f"The data directory (log.dirs). Default: ./{DEFAULT_DATA}, or log.dirs in CONFIG.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Listen on 127.0.0.1:PORT. Default: 9092, or listeners in CONFIG.",
)
@click.option(
    "--brokers",
    type=click.IntRange(1, BROKERS_MAX),
    default=1,
    metavar="N",
    help="Run N brokers on PORT and the ports that follow, each with its own directory in"
    " DIR. Default: 1.",
)
@click.option(
    "--zookeeper",
    metavar="HOST:PORT/CHROOT",
    help="The ZooKeeper servers to connect to. Default: zookeeper.connect in CONFIG,"
    " otherwise an embedded ZooKeeper server with its data in DIR.",
)
@click.option(
    "--log-dir",
    metavar="DIR",
    help="The directory for server.log, controller.log and state-change.log"
    " (pybroker.log.dir). Default: write no log files.",
)
@click.option(
    "--log-config",
    metavar="FILE",
    help="A logging configuration in the format of config/logging.ini (pybroker.log.config).",
)
@click.option(
    "--override",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set one option, which wins over CONFIG and over all flags. May be repeated.",
)
def command(
    config: str | None,
    data: str | None,
    port: int | None,
    brokers: int,
    zookeeper: str | None,
    log_dir: str | None,
    log_config: str | None,
    overrides: tuple[str, ...],
) -> None:
    """Run a broker, or several, until SIGTERM or Ctrl-C.

    CONFIG is a server.properties file with Kafka's options. Without it, the broker listens on
    127.0.0.1:9092 and runs an embedded ZooKeeper.

    With --brokers N, each broker has a process of its own. SIGTERM to a broker's process (not to
    this command) restarts only this broker: the broker hands over its leadership, stops, and starts
    again with the current content of CONFIG. For a rolling restart, send SIGTERM to one broker
    after the other. The line "launched broker=I pid=PID" names each process.
    """
    try:
        properties = broker_properties(
            config,
            data=data,
            port=port,
            zookeeper=zookeeper,
            log_dir=log_dir,
            log_config=log_config,
            overrides=overrides,
            brokers=brokers,
        )
        parsed = BrokerConfig.parse(properties)
        if brokers == 1:
            check_directories(parsed, 1)
            run_broker(parsed)
        else:
            plans = plan_brokers(properties, brokers, socket.gethostname())
            run_brokers(parsed, plans, _words_of_each(config, properties))
    except ConfigError as error:
        for fault in error.faults:
            click.echo(f"pybroker start: {fault}", err=True)
        sys.exit(1)
    except StartupError as error:
        click.echo(f"pybroker start: {error}", err=True)
        sys.exit(1)
