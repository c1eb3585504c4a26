"""The broker processes of a test's cluster, and their options."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pybroker.config.broker_config import small_cluster_properties
from pybroker.host.child_process import ended, pybroker_command, pybroker_environment, tied_to_us
from pybroker.testing.place import Place

CLIENTS: Final = "CLIENTS"
BROKERS: Final = "BROKERS"
"""The names of the listeners of a broker whose links can be cut. `CLIENTS` is for the tests'
clients, `BROKERS` for the other brokers."""
OWN_OPTIONS: Final = frozenset(
    {"broker.id", "listeners", "advertised.listeners", "log.dir", "log.dirs", "zookeeper.connect"}
)
"""The options that the cluster sets itself."""
_LAST_LINES: Final = 30


class ClusterError(Exception):
    """A condition of the cluster did not hold in time, or the cluster cannot carry out the call.
    The message shows the last log lines of the affected brokers."""


def default_config(brokers: int) -> dict[str, str]:
    """Return the default broker options for tests: brokers detect faults in seconds, internal
    topics are small, the HTTP port is off."""
    return {
        **small_cluster_properties(brokers),
        "pybroker.http.listener": "",
        "zookeeper.session.timeout.ms": "3000",
        "zookeeper.connection.timeout.ms": "30000",
        "replica.lag.time.max.ms": "5000",
        "controlled.shutdown.retry.backoff.ms": "200",
        "offsets.topic.num.partitions": "5",
        "transaction.state.log.num.partitions": "5",
    }


def option_text(value: object) -> str:
    """Return an option's value as it appears in server.properties."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass
class BrokerProcess:
    """One broker of the cluster: its data directory, ports, options and current process."""

    id: int
    data: Path
    log_file: Path
    place: Place
    ports: Mapping[str, int]
    """The port of each listener, by its name. The listener for clients is PLAINTEXT or CLIENTS."""
    advertised: Mapping[str, int]
    """Listener -> advertised port."""
    properties: dict[str, str] = field(default_factory=dict)
    child: subprocess.Popen[bytes] | None = None
    is_paused: bool = False

    @property
    def is_running(self) -> bool:
        return self.child is not None and self.child.poll() is None

    @property
    def client_port(self) -> int:
        """Return the port on which the broker listens for clients."""
        return next(iter(self.ports.values()))

    @property
    def bootstrap(self) -> str:
        return f"{self.place.host}:{next(iter(self.advertised.values()))}"

    def listener_properties(self) -> dict[str, str]:
        """Return the broker's listener options, such as listeners and advertised.listeners."""
        host = self.place.host
        found = {
            "listeners": _listeners(host, self.ports),
            "advertised.listeners": _listeners(host, self.advertised),
        }
        if BROKERS in self.ports:
            found["listener.security.protocol.map"] = f"{CLIENTS}:PLAINTEXT,{BROKERS}:PLAINTEXT"
            found["inter.broker.listener.name"] = BROKERS
        return found

    def launch(self, zookeeper: str, environment: Mapping[str, str]) -> None:
        """Start the broker's process, without waiting until the broker serves. `zookeeper` is the
        value of zookeeper.connect; `environment` adds environment variables. Raises ClusterError if
        the process runs already."""
        if self.is_running:
            raise ClusterError(f"broker {self.id} runs already: stop or kill it first")
        options = {
            "zookeeper.connect": zookeeper,  # `properties` may name other members of the ensemble
            **self.properties,
            **self.listener_properties(),
            "broker.id": str(self.id),
            "log.dirs": str(self.data),
        }
        words = [f"{name}={value}" for name, value in options.items()]
        command = pybroker_command("start")
        for word in words:
            command += ["--override", word]
        with self.log_file.open("ab") as log:
            self.child = subprocess.Popen(
                tied_to_us(_placed(self.place, command)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**pybroker_environment(), **environment},
                start_new_session=True,
            )
        self.is_paused = False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the broker's process. Raises ClusterError if the process does not
        run."""
        if self.child is None or self.child.poll() is not None:
            raise ClusterError(
                f"broker {self.id} does not run: start it first\n{self.last_lines()}"
            )
        self.child.send_signal(number)

    async def wait(self, seconds: float) -> int:
        """Wait until the broker's process has ended, and return its exit code. Raises ClusterError
        after `seconds`."""
        assert self.child is not None
        try:
            async with asyncio.timeout(seconds):
                return await ended(self.child)
        except TimeoutError:
            raise ClusterError(
                f"broker {self.id} has not ended within {seconds:g} s\n{self.last_lines()}"
            ) from None

    def log_text(self) -> str:
        """Return the output of all processes that have run as this broker."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def last_lines(self) -> str:
        """Return the last lines of the broker's output."""
        lines = self.log_text().splitlines()[-_LAST_LINES:]
        return "\n".join([f"--- broker {self.id}, the last lines of {self.log_file}", *lines])


def _listeners(host: str, ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{host}:{port}" for name, port in ports.items())


def _placed(place: Place, command: Sequence[str]) -> list[str]:
    if not place.prefix:
        return list(command)
    program, *rest = place.prefix
    found = shutil.which(program)
    if found is None:
        raise ClusterError(
            f"the broker cannot start: {program}, the first word of Place.prefix, is not in PATH"
        )
    return [found, *rest, *command]
