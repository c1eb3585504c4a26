"""Kafka's own command line tools of the ZooKeeper era, with a new JVM per call (under a second).

Most of these tools connect to ZooKeeper only, so they show whether our nodes have the expected
form. The classes are those that `kafka-topics.sh` and similar scripts run. They run on current Java
only if ZooKeeper is given by an IP address: their clients fail with host names since Java 14.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from integration_tests import maven
from integration_tests.apache_tools import Ran
from integration_tests.process import ChildProcess
from unit_tests.patience import PATIENCE_S

CLASSES: Final[Mapping[str, str]] = {
    "topics": "kafka.admin.TopicCommand",
    "console-consumer": "kafka.tools.ConsoleConsumer",
    "consumer-groups": "kafka.admin.ConsumerGroupCommand",
    "consumer-offset-checker": "kafka.tools.ConsumerOffsetChecker",
    "preferred-replica-election": "kafka.admin.PreferredReplicaLeaderElectionCommand",
}
_OF_LOGGERS: Final = re.compile(r"SLF4J: |log4j:WARN ")


class OldTools:
    """The tools of one release on one cluster. Raises MavenUnavailable."""

    def __init__(self, version: str, zookeeper: str) -> None:
        self.version = version
        self._zookeeper = zookeeper
        self._java = [
            *(maven.java(), "-Xmx256m", "-XX:TieredStopAtLevel=1"),
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
            *("-cp", maven.class_path(maven.OLD_KAFKA[version])),
        ]

    def __call__(self, tool: str, *words: str) -> Ran:
        """Run a tool, with --zookeeper in front of the arguments unless they name a server."""
        command = self._command(tool, words)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        complaint = [line for line in done.stderr.splitlines() if not _OF_LOGGERS.match(line)]
        arguments = command[command.index(CLASSES[tool]) + 1 :]
        return Ran((tool, *arguments), done.returncode, done.stdout, "\n".join(complaint))

    def start(self, tool: str, *words: str) -> ChildProcess:
        """Start a tool that keeps running, which the caller closes."""
        return ChildProcess(self._command(tool, words))

    def _command(self, tool: str, words: Sequence[str]) -> list[str]:
        named = any(word in ("--zookeeper", "--bootstrap-server") for word in words)
        server = [] if named else ["--zookeeper", self._zookeeper]
        return [*self._java, CLASSES[tool], *server, *words]
