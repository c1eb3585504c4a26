"""Workers of Kafka Connect in distributed mode with exactly-once sources, as processes of tests."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

from integration_tests import maven
from integration_tests.process import ChildProcess, free_port, wait_until
from unit_tests.patience import PATIENCE_S

TOPICS: Final = {
    "config.storage.topic": "connect-configs",
    "offset.storage.topic": "connect-offsets",
    "status.storage.topic": "connect-status",
}
"""The internal topics, by the option that names them."""
_CONFIG: Final = {
    "group.id": "connect",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "config.storage.replication.factor": 3,
    "offset.storage.replication.factor": 3,
    "offset.storage.partitions": 3,
    "status.storage.replication.factor": 3,
    "status.storage.partitions": 2,
    "exactly.once.source.support": "enabled",
    "offset.flush.interval.ms": 500,
    "scheduled.rebalance.max.delay.ms": 1000,
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 1000,
    "producer.transaction.timeout.ms": 20000,
}


class Worker:
    """One worker, a Java process with a REST interface."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.name = f"127.0.0.1:{free_port()}"
        host, port = self.name.split(":")
        config = {
            "bootstrap.servers": bootstrap,
            "listeners": f"http://{self.name}",
            "rest.advertised.host.name": host,
            "rest.advertised.port": port,
            **_CONFIG,
            **TOPICS,
        }
        path = folder / "worker.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
        self.process = ChildProcess(
            [
                maven.java(),
                "-Xmx256m",
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                *("-cp", maven.class_path(maven.CONNECT)),
                *("org.apache.kafka.connect.cli.ConnectDistributed", str(path)),
            ]
        )

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return the answer of the REST interface, or None if it does not serve this now."""
        request = urllib.request.Request(
            f"http://{self.name}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return json.load(answer)
        except (OSError, urllib.error.URLError):
            # The worker is starting, or a rebalance is under way (409).
            assert self.process.running, self.process.output
            return None

    def wait_until_serving(self) -> None:
        wait_until(
            lambda: self.ask("GET", "/connectors") is not None, what=f"worker {self.name} serves"
        )

    def create(self, connector: str, config: dict[str, str]) -> None:
        """Create a connector and wait until its only task runs."""
        wait_until(
            lambda: self.ask("PUT", f"/connectors/{connector}/config", config) is not None,
            what=f"connector {connector} is created",
        )
        wait_until(lambda: self.worker_of(connector), what=f"the task of {connector} runs")

    def worker_of(self, connector: str) -> str | None:
        """Return the name of the worker that runs the connector's only task, None without one."""
        status = self.ask("GET", f"/connectors/{connector}/status")
        if status is None:
            return None
        running = [task["worker_id"] for task in status["tasks"] if task["state"] == "RUNNING"]
        return running[0] if running else None
