"""The command `pybroker zookeeper-server-start`, equivalent to Kafka's zookeeper-server-start. It
starts a ZooKeeper server from the same jar files as the embedded ZooKeeper of `pybroker start`."""

from __future__ import annotations

import os
import shlex
import tempfile
from pathlib import Path
from typing import Final

import click

from pybroker.errors import StartupError
from pybroker.host.java import server_command
from pybroker.tools._cli import Failure, Tool

_LOGGING: Final = """\
status=error
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=[%d] %p %m (%c{1})%n%ex
rootLogger.level=info
rootLogger.appenderRef.console.ref=console
"""


@click.command("zookeeper-server-start", cls=Tool)
@click.argument("config", metavar="CONFIG", type=click.Path())
def command(config: str) -> None:
    """Run a ZooKeeper server with the properties in CONFIG until SIGTERM.

    The server comes from PySpark's jar files. The environment variable KAFKA_HEAP_OPTS may contain
    options for its JVM.
    """
    if not Path(config).is_file():
        raise Failure(f"{config} is not a file; give the path of a zookeeper.properties file")
    descriptor, logging = tempfile.mkstemp(prefix="zookeeper-", suffix=".log4j2.properties")
    os.write(descriptor, _LOGGING.encode())
    os.close(descriptor)
    flags = shlex.split(os.environ.get("KAFKA_HEAP_OPTS", ""))
    try:
        words = server_command(Path(config), Path(logging), flags)
    except StartupError as error:
        Path(logging).unlink()
        raise Failure(str(error)) from error
    os.execv(words[0], words)
