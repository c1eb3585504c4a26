"""The contestants of the race: brokers with one interface to start, stop, kill and query them. Each
contestant has its own folder, and its own chroot in one shared ZooKeeper. Other modules contain the
measures."""

from __future__ import annotations

import contextlib
import itertools
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from benchmarks.racing import processes
from benchmarks.requests import Target
from integration_tests.apache import KAFKA_JAVA_OPTIONS, ApacheKafka
from integration_tests.broker import PybrokerProcess
from integration_tests.process import ChildProcess, answers, free_port
from integration_tests.wire_client import Connection, ConnectionClosed
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from pybroker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from pybroker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from pybroker.wire.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from unit_tests.patience import wait_until

OURS: Final = "pybroker"
APACHE: Final = "Apache Kafka"
HEAP_MIB: Final = 1024
SERVER_PROPERTIES: Final = {"auto.create.topics.enable": "false"}
"""The options with which both brokers are started; all other options have their defaults."""

READY_SECONDS_MAX: Final = 300.0
REQUEST_SECONDS_MAX: Final = 180.0
_POLL_SECONDS: Final = 0.005
_METADATA_VERSION: Final = 4
_LATEST: Final = -1
_TOPIC_EXISTS: Final = 36
_NO_BROKERS_YET: Final = 38
"""The error INVALID_REPLICATION_FACTOR. A broker returns it until it has read its own registration
in ZooKeeper."""


class NotReady(RuntimeError):
    """Raised if a broker does not become ready within READY_SECONDS_MAX, or answers with an
    error."""


class Server(Protocol):
    """The process of a broker, with the methods that start and stop it."""

    port: int
    data: Path

    @property
    def process(self) -> ChildProcess: ...

    def launch(self) -> ChildProcess: ...

    def stop(self) -> int: ...

    def kill9(self) -> None: ...

    def close(self) -> None: ...


class CommandServer:
    """A further contestant: a program that serves Kafka's protocol on a port of 127.0.0.1.
    `command` starts it."""

    def __init__(self, command: str, folder: Path) -> None:
        self.port = free_port()
        self.data = folder
        self._command = command
        self._starts = itertools.count(1)
        self._process: ChildProcess | None = None

    @property
    def process(self) -> ChildProcess:
        assert self._process is not None
        return self._process

    def launch(self) -> ChildProcess:
        folder = self.data / str(next(self._starts))
        folder.mkdir(parents=True)
        words = [word.format(port=self.port, folder=folder) for word in shlex.split(self._command)]
        self._process = ChildProcess(words)
        wait_until(lambda: answers(self.port), what=f"{self._command} listens on its port")
        return self._process

    def stop(self) -> int:
        return self.process.stop()

    def kill9(self) -> None:
        self.process.kill9()

    def close(self) -> None:
        if self._process is not None:
            self._process.close()


class Contestant:
    """A broker in the race, with the operations that the measures need."""

    def __init__(self, name: str, server: Server) -> None:
        self.name = name
        self._server = server
        self._numbers = itertools.count(1)
        self._manages_topics = False

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._server.port}"

    @property
    def pid(self) -> int:
        return self._server.process.pid

    @property
    def data(self) -> Path:
        return self._server.data

    @property
    def output_at_end(self) -> str | None:
        """The last 2,000 characters of output of a broker whose process has ended unexpectedly;
        None while the process runs."""
        process = self._server.process
        return None if process.running else process.output[-2000:]

    @property
    def target(self) -> Target:
        """This broker as a target of `benchmarks/requests.py`."""
        return Meter(("127.0.0.1", self._server.port), self.pid)

    def launch(self) -> None:
        self._server.launch()

    def start(self) -> None:
        """Start the broker, and wait until it answers a request."""
        self.launch()
        self._manages_topics = wait_for(self._versions, self, "it answers ApiVersions")

    def _versions(self) -> bool | None:
        with self.connection() as connection:
            answer = connection.ask(0, ApiVersionsRequest(), ApiVersionsResponse)
        return any(item.api_key == ApiKey.CREATE_TOPICS for item in answer.api_keys)

    def stop(self) -> None:
        """Stop the broker by SIGTERM, and wait until its process has ended. This takes long if it
        has many partitions."""
        process = self._server.process
        process.signal(signal.SIGTERM)
        process.wait()
        self._server.stop()

    def kill(self) -> None:
        """Kill the broker by SIGKILL, and wait until it can be started again."""
        self._server.kill9()

    def close(self) -> None:
        self._server.close()

    def connection(self) -> Connection:
        connection = Connection(self.bootstrap, "race")
        connection.set_timeout(REQUEST_SECONDS_MAX)
        return connection

    def new_topic(self, partitions: int = 1) -> str:
        """Create a topic (if the broker has the CreateTopics API), and wait until each of its
        partitions has a leader. Return the topic's name."""
        name = f"race-{next(self._numbers)}"
        if self._manages_topics:
            self.create([name], partitions)
        self.wait_for_leaders([name], partitions)
        return name

    def create(self, names: Sequence[str], partitions: int) -> None:
        """Create topics. Do not wait for their leaders."""
        topics = [
            CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
            for name in names
        ]
        request = CreateTopicsRequest(topics=topics, timeout_ms=int(REQUEST_SECONDS_MAX * 1000))

        def created() -> bool | None:
            with self.connection() as connection:
                answer = connection.ask(4, request, CreateTopicsResponse)
            codes = {topic.error_code for topic in answer.topics} - {0, _TOPIC_EXISTS}
            if codes - {_NO_BROKERS_YET}:
                raise NotReady(
                    f"{self.name}: the broker answered CreateTopics with the error codes {codes}"
                )
            return None if codes else True

        wait_for(created, self, "it creates topics")

    def wait_for_leaders(self, names: Sequence[str], partitions: int) -> None:
        """Wait until a Metadata response contains a leader for every partition of these topics.
        Each topic has `partitions` partitions."""

        def led() -> bool | None:
            answer = self.metadata(names)
            found = [
                partition.leader_id
                for topic in answer.topics
                if not topic.error_code
                for partition in topic.partitions
            ]
            complete = len(found) >= partitions * len(names) and min(found) >= 0
            return True if complete else None

        wait_for(led, self, f"{len(names)} topics have leaders")

    def metadata(self, names: Sequence[str]) -> MetadataResponse:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=False,
        )
        with self.connection() as connection:
            return connection.ask(_METADATA_VERSION, request, MetadataResponse)

    def end_offset(self, topic: str) -> int:
        """Return the log end offset of the topic's partition 0."""
        wanted = ListOffsetsPartition(partition_index=0, timestamp=_LATEST)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])]
        )
        with self.connection() as connection:
            answer = connection.ask(1, request, ListOffsetsResponse)
        (found,) = answer.topics[0].partitions
        if found.error_code:
            raise NotReady(
                f"{self.name}: the broker answered ListOffsets with error code {found.error_code}"
            )
        return found.offset

    def start_afresh(self) -> None:
        """Give a broker that has no CreateTopics API empty logs: restart it on a new folder. A
        broker with this API gets new topics instead. The old files stay until the race ends: if
        they were deleted, the host of a virtual machine would take their memory back, and the
        broker would become slow when it used this memory again."""
        if not self._manages_topics:
            self.close()
            self.start()


class Meter(Target):
    """A target of the request benchmark whose CPU time is measured in nanoseconds."""

    def cpu_seconds(self) -> float:
        return processes.cpu_seconds(self.pid)


def wait_for(condition: Callable[[], bool | None], contestant: Contestant, what: str) -> bool:
    """Call `condition` until it returns a result that is not None, and return this result.
    Connection errors count as None. Each pause is four times as long as the attempt before it, so
    that the attempts cause little load. Raises NotReady after READY_SECONDS_MAX, or if the broker
    ends; the message says that `what` was awaited."""
    deadline = time.monotonic() + READY_SECONDS_MAX
    while (begun := time.monotonic()) < deadline:
        with contextlib.suppress(OSError, ConnectionClosed):
            found = condition()
            if found is not None:
                return found
        if contestant.output_at_end is not None:
            raise NotReady(f"{contestant.name} has ended:\n{contestant.output_at_end}")
        time.sleep(max(_POLL_SECONDS, 4 * (time.monotonic() - begun)))
    raise NotReady(f"{contestant.name}: waited {READY_SECONDS_MAX} s in vain until {what}")


@dataclass(frozen=True)
class ContestantFactory:
    """Creates the contestants of one race, each with its own folder and ZooKeeper chroot.
    `commands` starts the further contestants, by name."""

    folder: Path
    zookeeper: str
    commands: dict[str, str]
    numbers: Iterator[int]

    @property
    def names(self) -> list[str]:
        return [OURS, APACHE, *self.commands]

    def contestant(self, name: str) -> Contestant:
        """Return a new contestant of this name, with an empty folder. Its broker is not started
        yet."""
        number = next(self.numbers)
        folder = self.folder / str(number)
        zookeeper = f"{self.zookeeper}/race-{number}"
        return Contestant(name, self._server(name, folder, zookeeper))

    def _server(self, name: str, folder: Path, zookeeper: str) -> Server:
        if name == OURS:
            # The options are those that a user would set, except for a free port.
            overrides = {**SERVER_PROPERTIES, "pybroker.http.listener": "127.0.0.1:0"}
            return PybrokerProcess(folder, zookeeper=zookeeper, overrides=overrides)
        if name == APACHE:
            return ApacheKafka(
                folder,
                zookeeper=zookeeper,
                heap_mib=HEAP_MIB,
                overrides=SERVER_PROPERTIES,
                java_options=KAFKA_JAVA_OPTIONS,
            )
        return CommandServer(self.commands[name], folder)


def rotated(names: Sequence[str], round_number: int) -> list[str]:
    """Return the names in the order of a round: each contestant begins a round in turn."""
    shift = round_number % len(names)
    return [*names[shift:], *names[:shift]]
