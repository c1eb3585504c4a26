"""Java's AdminClient as a separate program, with the interface of `admin_clients`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from integration_tests import maven
from integration_tests.admin_clients import Configs, Refused
from integration_tests.process import ChildProcess


class JavaAdmin:
    """AdminClient of kafka-clients, the reference, in a separate process."""

    name = "java"

    def __init__(self, bootstrap: str) -> None:
        if shutil.which("javac") is None:
            raise maven.MavenUnavailable("no Java compiler (install openjdk-17-jdk-headless)")
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        source = str(Path(__file__).parent / "java" / "AdminCalls.java")
        self._process = ChildProcess(
            [maven.java(), "-Xmx256m", quiet, "-cp", maven.class_path(), source, bootstrap],
            interactive=True,
        )

    def ask(self, do: str, **arguments: object) -> Any:
        """Return the whole result of one command."""
        command = json.dumps({"do": do, **arguments})
        line = self._process.ask(command, "^RESULT ")
        result = json.loads(line.removeprefix("RESULT "))
        assert "error" not in result, f"{do} {arguments}: {result['error']}"
        if "code" in result:
            raise Refused(result["code"], result["message"])
        return result

    def create(self, topic: str, partitions: int, configs: Configs) -> None:
        self.ask("create", topic=topic, partitions=partitions, configs=dict(configs))

    def delete(self, topic: str) -> None:
        self.ask("delete", topic=topic)

    def topics(self) -> set[str]:
        return set(self.ask("topics").get("found", ()))

    def partitions(self, topic: str) -> int:
        return int(self.ask("partitions", topic=topic)["found"])

    def grow(self, topic: str, count: int) -> None:
        self.ask("grow", topic=topic, count=count)

    def configs(self, topic: str) -> dict[str, str | None]:
        found = self.ask("configs", topic=topic)["found"]
        return {name: row["value"] for name, row in found.items()}

    def broker_configs(self, broker: int) -> dict[str, str | None]:
        found = self.ask("configs", broker=broker)["found"]
        return {name: row["value"] for name, row in found.items()}

    def change(self, topic: str, configs: Configs) -> None:
        self.ask("change", topic=topic, configs=dict(configs))

    def replace(self, topic: str, configs: Configs) -> None:
        self.ask("replace", topic=topic, configs=dict(configs))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        request = {"topic": topic, "partition": partition, "before": before}
        return int(self.ask("delete_records", **request)["found"])

    def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        earliest, latest = self.ask("offsets", topic=topic, partition=partition)["found"]
        return earliest, latest

    def cluster(self) -> tuple[str | None, set[int]]:
        found = self.ask("cluster")
        return found["id"], set(found["found"])

    def directories(self, broker: int) -> list[str]:
        return list(self.ask("directories", broker=broker)["found"])

    def log_dirs(self, broker: int, topic: str) -> dict[int, str]:
        found = self.ask("log_dirs", broker=broker, topic=topic)["found"]
        return {int(partition): path for partition, path in found.items()}

    def move(self, topic: str, partition: int, broker: int, path: str) -> None:
        self.ask("move", topic=topic, partition=partition, broker=broker, path=path)

    def producers(self, topic: str, partition: int) -> list[tuple[int, int]]:
        rows = self.ask("producers", topic=topic, partition=partition)["found"]
        return [(epoch, sequence) for epoch, sequence in rows]

    def close(self) -> None:
        self._process.close()
