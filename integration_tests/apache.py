"""Apache Kafka in ZooKeeper mode as the reference: one ZooKeeper and one broker on free loopback
ports.

Tests and benchmarks compare pybroker with Apache Kafka; no part of pybroker runs it. `ApacheKafka`
has the methods of the protocol `Broker` (`integration_tests.broker`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import kazoo.client  # type: ignore[import-untyped]

from integration_tests import maven
from integration_tests.process import ChildProcess, answers
from integration_tests.wire_client import Connection, metadata
from pybroker.coordinator.zookeeper.connect_string import parse_connect_string
from pybroker.coordinator.zookeeper.handshake import SessionKey, close_session
from pybroker.testing.sockets import free_ports
from unit_tests.patience import ATTEMPT_S, wait_until

QUIET: Final = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaServer=info",
    "-Dorg.slf4j.simpleLogger.showThreadName=false",
)


@contextlib.contextmanager
def session_at(connect: str) -> Iterator[kazoo.client.KazooClient]:
    """Return a client with a new session at the ZooKeeper at "host:port" or "host:port/chroot"."""
    client = kazoo.client.KazooClient(connect)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def end_session(connect: str, key: Mapping[str, Any]) -> int:
    """Expire the session of a broker at once, as ZooKeeper does after the session timeout. `key`
    is the content of the broker's session file. Return the session's id."""
    session = SessionKey(int(key["id"]), bytes.fromhex(key["password"]))
    hosts = parse_connect_string(connect).hosts

    def was_gone() -> bool:
        """Take the session over and close it. Return True if it had ended before. The broker may
        reconnect to the session first.
        """
        closing = close_session(hosts, session, timeout_s=ATTEMPT_S)
        # in a thread of its own: a tap is called where an event loop runs already
        with ThreadPoolExecutor(1) as thread:
            try:
                return not thread.submit(asyncio.run, closing).result()
            except OSError:
                return False

    wait_until(was_gone, what=f"session {session.id:#x} ends")
    return session.id


class ApacheZooKeeper:
    """A standalone ZooKeeper server from Kafka's own jars."""

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        self.folder = folder
        self.port = free_ports(1)[0] if port is None else port
        self._process: ChildProcess | None = None

    @property
    def connect(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server. Return when clients can connect."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "zoo.cfg"
        config.write_text(
            f"dataDir={self.folder}/data\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
            "tickTime=500\nminSessionTimeout=1000\nmaxSessionTimeout=60000\n"
            "maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n"
        )
        self._process = ChildProcess(
            [
                maven.java(),
                "-Xmx256m",
                "-XX:TieredStopAtLevel=1",
                *QUIET,
                "-cp",
                maven.class_path(),
                "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                str(config),
            ]
        )
        wait_until(lambda: answers(self.port), what=f"ZooKeeper on port {self.port}")

    def client(self) -> contextlib.AbstractContextManager[kazoo.client.KazooClient]:
        """Open a new session."""
        return session_at(self.connect)

    def close(self) -> None:
        """Stop the server. Idempotent."""
        if self._process is not None:
            self._process.close()


KAFKA_JAVA_OPTIONS: Final = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)
"""The JVM options of Kafka's own start script, for benchmarks."""


class ApacheKafka:
    """One Apache broker, with its own ZooKeeper unless `zookeeper` gives an address.

    `heap_mib` is the broker's -Xmx and -Xms. `overrides` are lines of server.properties.
    `java_options` are further words for Java.
    """

    def __init__(
        self,
        folder: Path,
        *,
        overrides: Mapping[str, str] | None = None,
        zookeeper: str | None = None,
        heap_mib: int = 1024,
        java_options: Sequence[str] = (),
    ) -> None:
        zookeeper_port, self.port = free_ports(2)
        self.data = folder / "data"
        self._folder = folder
        self._heap_mib = heap_mib
        self._java_options = java_options
        self._zookeeper = ApacheZooKeeper(folder / "zookeeper", port=zookeeper_port)
        self.zookeeper_connect = zookeeper or self._zookeeper.connect
        self._overrides = dict(overrides or {})
        self._process: ChildProcess | None = None
        self._zookeeper_started = zookeeper is not None
        self._earlier_output = ""

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def process(self) -> ChildProcess:
        assert self._process is not None
        return self._process

    @property
    def log_text(self) -> str:
        """Return the output of all runs of the broker."""
        return self._earlier_output + (self._process.output if self._process else "")

    def start(self) -> None:
        """Start the broker. Return when it serves."""
        if not self._zookeeper_started:
            self._zookeeper.start()
            self._zookeeper_started = True
        self.launch().wait_for_line(r"\[KafkaServer id=\d+\] started")
        wait_until(self._knows_itself, what="the broker has its own registration")

    def launch(self) -> ChildProcess:
        """Start the broker's process without waiting until it serves; ZooKeeper must run."""
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "server.properties"
        config.write_text("".join(f"{k}={v}\n" for k, v in self._properties().items()))
        heap = f"{self._heap_mib}m"
        self._process = ChildProcess(
            [
                maven.java(),
                f"-Xmx{heap}",
                f"-Xms{heap}",
                *self._java_options,
                *QUIET,
                "-cp",
                maven.class_path(),
                "kafka.Kafka",
                str(config),
            ]
        )
        return self._process

    def _knows_itself(self) -> bool:
        """Return whether the broker is in its own metadata. Apache logs that it has started a
        moment earlier.
        """
        with Connection(self.bootstrap) as connection:
            return self.port in (node.port for node in metadata(connection).brokers)

    def _properties(self) -> dict[str, str]:
        return {
            "broker.id": "0",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": str(self.data),
            "zookeeper.connect": self.zookeeper_connect,
            "zookeeper.session.timeout.ms": "20000",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.message.timestamp.before.max.ms": "9223372036854775807",
        } | self._overrides

    def stop(self) -> int:
        """Send SIGTERM. Return the exit code (Java ends with 143)."""
        self._earlier_output += self.process.output
        code = self.process.stop()
        self._process = None
        return code

    def kill9(self) -> None:
        """Send SIGKILL to the broker; its ZooKeeper keeps running. Return when the broker's session
        has expired, because the broker cannot start again before.
        """
        self._earlier_output += self.process.output
        self.process.kill9()
        self._process = None
        with session_at(self.zookeeper_connect) as client:
            wait_until(lambda: not client.exists("/brokers/ids/0"), what="the session is over")

    def close(self) -> None:
        """Kill the broker and its ZooKeeper. Idempotent."""
        if self._process is not None:
            self._process.close()
        self._zookeeper.close()
