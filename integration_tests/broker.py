"""A pybroker process for tests, with its own data directory and port, started as users start it.

Tests use the protocol `Broker`. `PybrokerProcess` is our broker; `ApacheKafka` (in
`integration_tests.apache`) is the reference with the same methods.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import psutil

from integration_tests.process import ChildProcess, free_port, processes_using

STARTED: Final = r"\[KafkaServer id=\d+\] started"


class Broker(Protocol):
    """The interface of one broker with its ZooKeeper, on its own ports."""

    port: int
    data: Path

    @property
    def bootstrap(self) -> str: ...

    @property
    def process(self) -> ChildProcess:
        """Return the running broker process."""

    @property
    def log_text(self) -> str:
        """Return the output of all runs of the broker."""

    def start(self) -> None:
        """Start the broker. Return when it serves."""

    def stop(self) -> int:
        """Send SIGTERM. Return the exit code."""

    def kill9(self) -> None: ...

    def close(self) -> None:
        """Kill the broker and its ZooKeeper. Idempotent."""


def pybroker_command(*arguments: str) -> list[str]:
    """Return the command line by which tests call the program."""
    return [sys.executable, "-m", "pybroker", *arguments]


class PybrokerProcess:
    """A process of `pybroker start` on `data`, with the embedded ZooKeeper unless `zookeeper` gives
    an address.

    `overrides` are server properties; `arguments` are further words of the command line.
    """

    def __init__(
        self,
        data: Path,
        *,
        overrides: Mapping[str, str] | None = None,
        zookeeper: str | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.data = data
        self.port = free_port()
        self.overrides = dict(overrides or {})
        self._zookeeper = zookeeper
        self._arguments = arguments
        self._environment = environment
        self._process: ChildProcess | None = None
        self._earlier_output = ""

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def process(self) -> ChildProcess:
        assert self._process is not None, "the broker does not run"
        return self._process

    @property
    def log_text(self) -> str:
        return self._earlier_output + (self._process.output if self._process else "")

    def launch(self) -> ChildProcess:
        """Start the process without waiting until it serves."""
        command = pybroker_command(
            "start", "--data", str(self.data), "--port", str(self.port), *self._arguments
        )
        if self._zookeeper is not None:
            command += ["--zookeeper", self._zookeeper]
        # Brokers of concurrent tests must not collide on the default ports.
        overrides = {
            "pybroker.http.listener": "",
            "pybroker.embedded.zookeeper.port": "0",
            **self.overrides,
        }
        for name, value in overrides.items():
            command += ["--override", f"{name}={value}"]
        self._process = ChildProcess(
            command, environment={**os.environ, **(self._environment or {})}
        )
        return self._process

    def start(self) -> None:
        self.launch().wait_for_line(STARTED)

    def stop(self) -> int:
        code = self.process.stop()
        self._forget()
        return code

    def kill9(self) -> None:
        self.process.kill9()
        self._forget()

    def _forget(self) -> None:
        self._earlier_output += self.process.output + "\n"
        self._process = None

    def zookeepers(self) -> list[psutil.Process]:
        """Return the ZooKeeper processes that run on this broker's data directory."""
        return processes_using(self.data, "java")

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._forget()
        for orphan in processes_using(self.data):
            with contextlib.suppress(psutil.NoSuchProcess):  # ZooKeeper ends with its broker
                orphan.kill()
