"""The entry point of the container image: runs a given command, or a broker whose options come from
environment variables."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

import click

from pybroker.client.connection import Connection
from pybroker.client.errors import ClientError
from pybroker.config.broker_config import BrokerConfig
from pybroker.config.listeners import Listener
from pybroker.config.properties import read_properties
from pybroker.errors import ConfigError, StartupError
from pybroker.host.java import JARS_VARIABLE
from pybroker.host.run import run_broker
from pybroker.tool_list import TOOLS, tool_name
from pybroker.tools._cli import Failure
from pybroker.tools.container_environment import Settings, read_settings, with_host
from pybroker.tools.container_topics import create_when_started

MOUNTED_FOLDER: Final = "/mnt/shared/config"
"""A folder that the user may mount, with server.properties and logging.ini."""
HEALTH_SECONDS_MAX: Final = 5.0
EXIT_NOT_FOUND: Final = 127

_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_WITHOUT_PREFIX: Final = ("zookeeper-",)
_OTHER_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "start": ("kafka-server-start",),
    "container": (),
}
"""Tool -> its command names in Kafka, for a tool whose name in Kafka is not `kafka-TOOL`."""
_STOP: Final = "kafka-server-stop"
_LOG_CONFIG: Final = "pybroker.log.config"
_SIGNALS: Final = {signal.SIGTERM, signal.SIGINT}


@click.command("container", context_settings={"allow_interspersed_args": False})
@click.option(
    "--health",
    is_flag=True,
    help="Check whether this container's broker answers a"
    " request, then exit; the exit code is 1 if not.",
)
@click.option("--stop", is_flag=True, help="Send SIGTERM to this container's broker, then exit.")
@click.option(
    "--commands",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a script with Kafka's name for each tool into DIR, then exit.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND...]")
def command(health: bool, stop: bool, commands: Path | None, words: tuple[str, ...]) -> None:
    """Run a broker whose options come from the variables KAFKA_*, or run COMMAND.

    COMMAND is any program or a tool of pybroker. NAME=VALUE words are further variables for the
    broker.
    """
    if commands is not None:
        write_commands(commands)
    elif stop:
        _stop()
    elif health:
        check_health(dict(os.environ))
    elif words and not all(_ASSIGNMENT.fullmatch(word) for word in words):
        _execute(words)
    else:
        given = dict(word.split("=", 1) for word in words)
        _run({**os.environ, **given})


def _run(environment: Mapping[str, str]) -> None:
    settings = _settings(environment)
    config = _config(settings)
    if config.zookeeper_connect is None and _lacks_zookeeper(environment):
        raise Failure(
            "pybroker: KAFKA_ZOOKEEPER_CONNECT is missing: set it to HOST:PORT,"
            " because this image has no embedded ZooKeeper"
        )
    create_when_started(settings.topics, own_listener(config))
    try:
        run_broker(replace(config, warnings=(*settings.notices, *config.warnings)))
    except StartupError as error:
        raise Failure(f"pybroker: {error}") from error


def _settings(environment: Mapping[str, str]) -> Settings:
    mounted, logging = (Path(MOUNTED_FOLDER, name) for name in ("server.properties", "logging.ini"))
    file = read_properties(str(mounted)) if mounted.exists() else None
    settings = read_settings(environment, file, lambda path: Path(path).read_text())
    if logging.exists():
        return replace(settings, properties={_LOG_CONFIG: str(logging), **settings.properties})
    return settings


def _config(settings: Settings) -> BrokerConfig:
    """Return the broker's parsed options. Raises ConfigError with one line for each fault. The line
    names the environment variable that set the faulty option."""
    faults = list(settings.faults)
    config = None
    try:
        config = BrokerConfig.parse(settings.properties)
    except ConfigError as error:
        faults += [settings.name_source(fault) for fault in error.faults]
    if faults or config is None:
        raise ConfigError([f"pybroker: {fault}" for fault in faults])
    return config


def _lacks_zookeeper(environment: Mapping[str, str]) -> bool:
    jars = environment.get(JARS_VARIABLE)
    return jars is not None and not any(Path(jars).glob("*.jar"))


def _execute(words: Sequence[str]) -> NoReturn:
    """Replace this process with the program that the first word names, or else with the pybroker
    tool of this name. Exit with code 127 if neither can be run."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    program = list(words)
    if shutil.which(words[0]) is None and tool_name(words[0]) in TOOLS:
        program = [sys.executable, "-m", "pybroker", *words]
    try:
        os.execvp(program[0], program)
    except OSError as error:
        click.echo(f"pybroker: the command {words[0]} cannot be run: {error.strerror}", err=True)
        sys.exit(EXIT_NOT_FOUND)


# Health


def check_health(environment: Mapping[str, str]) -> None:
    """Raise Failure unless the configured broker answers a request. The check ignores
    advertised.listeners, because this process possibly has another value of this option than the
    broker."""
    settings = _settings(environment)
    properties = dict(settings.properties)
    properties["advertised.listeners"] = with_host(properties["listeners"], "localhost")
    listener = own_listener(_config(replace(settings, properties=properties, faults=())))
    try:
        asyncio.run(_ask(listener))
    except ClientError as error:
        raise Failure(f"unhealthy: {error}") from error


async def _ask(listener: Listener) -> None:
    connection = await Connection.open(
        listener.host, listener.port, client_id="health", timeout_s=HEALTH_SECONDS_MAX
    )
    await connection.close()


def own_listener(config: BrokerConfig) -> Listener:
    """Return the address of the broker's inter-broker listener. If the listener is bound to all
    interfaces, return its address on the loopback interface."""
    name = config.inter_broker_listener
    found = next(each for each in config.bound_listeners if each.name == name)
    if found.is_wildcard:
        return replace(found, host="::1" if ":" in found.host else "127.0.0.1")
    return found


# Stop


def _stop() -> None:
    found = list(_broker_processes())
    if not found:
        raise Failure("No kafka server to stop")
    for process_id in found:
        os.kill(process_id, signal.SIGTERM)


def _broker_processes() -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            arguments = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if is_broker(arguments):
            yield int(folder.name)


def is_broker(arguments: Sequence[str]) -> bool:
    """Return whether the arguments of a process are those of a broker."""
    for position, word in enumerate(arguments[:-1]):
        if Path(word).name == "pybroker":
            tool, rest = arguments[position + 1], arguments[position + 2 :]
            alone = not any(rest) or bool(_ASSIGNMENT.fullmatch(rest[0]))
            return tool_name(tool) == "start" or (tool == "container" and alone)
    return False


# Commands with Kafka's names


def command_names(tool: str) -> tuple[str, ...]:
    """Return Kafka's command names for a tool, with and without `.sh`."""
    plain = tool.startswith(_WITHOUT_PREFIX)
    names = _OTHER_NAMES.get(tool, (tool if plain else f"kafka-{tool}",))
    return tuple(f"{name}{suffix}" for name in names for suffix in ("", ".sh"))


def write_commands(folder: Path) -> None:
    """Write a script for each of Kafka's command names, such as `kafka-topics.sh`. The script runs
    pybroker's tool for this command."""
    folder.mkdir(parents=True, exist_ok=True)
    program = f'exec "{Path(sys.executable).parent / "pybroker"}"'
    scripts = {name: f'{program} {tool} "$@"' for tool in TOOLS for name in command_names(tool)}
    scripts |= {f"{_STOP}{suffix}": f"{program} container --stop" for suffix in ("", ".sh")}
    for name, line in scripts.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
