"""kcat, the Java client and kafkajs as separate programs, with the interface of
`integration_tests.samples`.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from integration_tests import maven, npm
from integration_tests.process import ChildProcess
from integration_tests.samples import (
    PLAIN_SAMPLES,
    SAMPLES,
    WITHOUT_NULL_HEADERS,
    Read,
    Sample,
)
from unit_tests.patience import PATIENCE_S, wait_until

_HERE = Path(__file__).parent
_KEY_END = "\x1f"
_RECORD_END = "\x1e\n"


class KcatUnavailable(Exception):
    """The error for a machine without kcat. The message is the reason for the skipped test."""


def kcat() -> str:
    """Return the path of the `kcat` program.

    Raises KcatUnavailable if there is no `kcat`.
    """
    found = shutil.which("kcat")
    if found is None:
        raise KcatUnavailable("no kcat on PATH (install kcat)")
    return found


class Kcat:
    """The client kcat of Debian. It cannot set timestamps, and sets the same headers for all
    records of a call.
    """

    name = "kcat"
    samples = PLAIN_SAMPLES

    def __init__(self, bootstrap: str) -> None:
        self._program = kcat()
        self._bootstrap = bootstrap

    def _run(self, arguments: Sequence[str], text: bytes = b"") -> bytes:
        patience = ["-m", f"{PATIENCE_S:.0f}"]  # its time limit for metadata requests is 5 s
        command = [self._program, "-b", self._bootstrap, *patience, *arguments]
        done = subprocess.run(
            command, input=text, capture_output=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr.decode(errors='replace')}"
        return done.stdout

    def create_topic(self, topic: str) -> None:
        """Create a topic by a metadata request, because kcat has no command for it."""
        words = ["-L", "-J", "-X", "allow.auto.create.topics=true", "-t", topic]

        def is_there() -> bool:
            (found,) = json.loads(self._run(words))["topics"]
            return "error" not in found and bool(found["partitions"])

        wait_until(is_there, what=f"kcat gets {topic} created")

    def produce(
        self, topic: str, samples: Sequence[Sample], *, codec: str, idempotent: bool
    ) -> None:
        for headers, run in _runs_of_equal_headers(samples):
            options = [
                *("-P", "-t", topic, "-p", "0", "-z", codec, "-Z"),
                *("-K", _KEY_END, "-D", _RECORD_END),
                *("-X", f"enable.idempotence={str(idempotent).lower()}", "-X", "acks=all"),
                *("-X", "linger.ms=100"),
            ]
            for name, value in headers:
                assert value is not None, "kcat writes no null header"
                options += ["-H", f"{name}={value.decode()}"]
            lines = [
                (s.key or b"") + _KEY_END.encode() + (s.value or b"") + _RECORD_END.encode()
                for s in run
            ]
            self._run(options, b"".join(lines))

    def read(self, topic: str, offset: int = 0) -> list[Read]:
        """Read records. Headers are as kcat prints them: null values as the text NULL, empty values
        as nothing.
        """
        return self._read(topic, str(offset))

    def _read(self, topic: str, offset: str) -> list[Read]:
        printed = self._run(
            [
                *("-C", "-q", "-e", "-t", topic, "-p", "0", "-o", offset),
                *("-f", f"%o %T %K %S %k%s%h{_RECORD_END}"),
            ]
        )
        return _parse_kcat(printed)

    def offset_for_time(self, topic: str, timestamp: int) -> int:
        printed = self._run(["-Q", "-t", f"{topic}:0:{timestamp}"]).decode()
        return int(printed.rsplit("offset", 1)[1])


def _runs_of_equal_headers(
    samples: Sequence[Sample],
) -> list[tuple[tuple[tuple[str, bytes | None], ...], list[Sample]]]:
    runs: list[tuple[tuple[tuple[str, bytes | None], ...], list[Sample]]] = []
    for sample in samples:
        if not runs or runs[-1][0] != sample.headers:
            runs.append((sample.headers, []))
        runs[-1][1].append(sample)
    return runs


def _parse_kcat(printed: bytes) -> list[Read]:
    """Parse the output of `Kcat.read`: numbers, then key and value by length."""
    records = []
    end = _RECORD_END.encode()
    while printed:
        offset, timestamp, key_length, value_length, rest = printed.split(b" ", 4)
        key, rest = _cut(rest, int(key_length))
        value, rest = _cut(rest, int(value_length))
        text, _, printed = rest.partition(end)
        pairs = [pair.partition(b"=") for pair in text.split(b",")] if text else []
        headers = tuple((name.decode(), value) for name, _, value in pairs)
        records.append(Read(int(offset), key, value, headers, int(timestamp)))
    return records


def _cut(text: bytes, length: int) -> tuple[bytes | None, bytes]:
    if length < 0:  # kcat then prints the word NULL
        return None, text.removeprefix(b"NULL")
    return text[:length], text[length:]


class _JsonClient:
    """A program that reads one JSON command per line and answers "RESULT {json}"."""

    samples = SAMPLES

    def __init__(self, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
        self._process = ChildProcess(command, environment=environment, interactive=True)

    def _ask(self, do: str, topic: str, **arguments: object) -> dict[str, Any]:
        command = json.dumps({"do": do, "topic": topic, **arguments})
        line = self._process.ask(command, "^RESULT ")
        result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
        assert "error" not in result, f"{do} {topic}: {result['error']}\n{self._process.output}"
        return result

    def create_topic(self, topic: str) -> None:
        self._ask("create", topic, partitions=1)

    def produce(
        self, topic: str, samples: Sequence[Sample], *, codec: str, idempotent: bool
    ) -> None:
        records = [
            {
                "key": _text(s.key),
                "value": _text(s.value),
                "headers": [[name, _text(value)] for name, value in s.headers],
                "timestamp": s.timestamp,
            }
            for s in samples
        ]
        self._ask("produce", topic, codec=codec, idempotent=idempotent, records=records)

    def close(self) -> None:
        self._process.close()


class JavaClient(_JsonClient):
    """The Java client kafka-clients, the reference."""

    name = "java"

    def __init__(self, bootstrap: str) -> None:
        if shutil.which("javac") is None:
            raise maven.MavenUnavailable("no Java compiler (install openjdk-17-jdk-headless)")
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        source = str(_HERE / "java" / "Client.java")
        super().__init__(
            [maven.java(), "-Xmx256m", quiet, "-cp", maven.class_path(), source, bootstrap]
        )

    def read(self, topic: str, offset: int = 0) -> list[Read]:
        return [
            Read(
                record["offset"],
                _from_text(record["key"]),
                _from_text(record["value"]),
                tuple((name, _from_text(value)) for name, value in record["headers"]),
                record["timestamp"],
            )
            for record in self._ask("read", topic, offset=offset)["records"]
        ]

    def read_all(self, topic: str, partitions: int, count: int) -> list[tuple[int, int, bytes]]:
        """Return (partition, offset, value) of `count` records of all partitions, in the order of
        arrival.
        """
        records = self._ask("read_all", topic, partitions=partitions, count=count)["records"]
        return [
            (partition, offset, base64.b64decode(value)) for partition, offset, value in records
        ]

    def offset_for_time(self, topic: str, timestamp: int) -> int:
        return int(self._ask("offset_for_time", topic, timestamp=timestamp)["offset"])


class KafkaJs(_JsonClient):
    """The client kafkajs, which only produces here. It supports lz4 and zstd only by native
    modules, and cannot write a null header.
    """

    name = "kafkajs"
    samples = WITHOUT_NULL_HEADERS

    def __init__(self, bootstrap: str) -> None:
        packages = npm.node_modules(npm.KAFKAJS)
        environment = {
            **os.environ,
            "NODE_PATH": str(packages),
            "KAFKAJS_NO_PARTITIONER_WARNING": "1",
        }
        script = str(_HERE / "node" / "client.js")
        super().__init__([npm.node(), script, bootstrap], environment)


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _from_text(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
