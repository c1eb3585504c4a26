"""Tests of several log directories: the placement of partitions, moves of partitions in use, and
directories that are unusable, fail or are lost.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from integration_tests import maven
from integration_tests.broker import PybrokerProcess, pybroker_command
from integration_tests.stored import batches, partition_folder
from integration_tests.wire_client import (
    Connection,
    ConnectionClosed,
    batch_of,
    create_topic,
    fetch,
    fetch_one,
    fetch_request,
    log_end,
    metadata,
    new_producer,
    produce,
    wait_for_leader,
)
from pybroker.errors import ErrorCode
from pybroker.records.record import decode_records
from pybroker.wire.messages.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from unit_tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.ours
NAMES: Final = ("a", "b", "c")
RETRIABLE: Final = (
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
)


class Disks:
    """A broker with three log directories. The embedded ZooKeeper is in the first directory."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.broker = PybrokerProcess(
            home, overrides={"log.dirs": self.listed(*NAMES), "broker.id": "0"}
        )

    def listed(self, *names: str) -> str:
        return ",".join(self.path(name) for name in names)

    def path(self, name: str) -> str:
        return str(self.home / name)

    def connect(self) -> Connection:
        return Connection(self.broker.bootstrap)

    def home_of(self, topic: str, partition: int = 0) -> str:
        return partition_folder(self.home, topic, partition).parent.name

    def move(self, topic: str, to: str, partition: int = 0) -> int:
        """Request the move of a replica to a directory. Return the error code."""
        with self.connect() as connection:
            return move(connection, topic, self.path(to), partition)

    def wait_for_move(self, topic: str, to: str) -> None:
        wait_until(lambda: self.is_only_in(topic, to), what=f"{topic} is in {to}")

    def is_only_in(self, topic: str, name: str) -> bool:
        """Return whether the replica is only in that directory, without a copy in progress."""
        found = [path for path in self.home.glob(f"*/{topic}-0*") if "-delete" not in path.name]
        return [(path.parent.name, path.name) for path in found] == [(name, f"{topic}-0")]


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    disks = Disks(tmp_path / "disks")
    yield disks
    disks.broker.close()
    print(disks.broker.log_text)  # shown if a test fails


def move(connection: Connection, topic: str, path: str, partition: int = 0) -> int:
    request = AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDir(
                path=path, topics=[AlterReplicaLogDirTopic(name=topic, partitions=[partition])]
            )
        ]
    )
    answer = connection.ask(2, request, AlterReplicaLogDirsResponse)
    ((code,),) = [[item.error_code for item in row.partitions] for row in answer.results]
    return code


def describe(
    connection: Connection, topics: list[DescribableLogDirTopic] | None = None, version: int = 2
) -> dict[str, tuple[int, dict[str, DescribeLogDirsPartition]]]:
    """Return directory name -> (error code, partitions in the directory)."""
    request = DescribeLogDirsRequest(topics=topics)
    answer = connection.ask(version, request, DescribeLogDirsResponse)
    return {
        Path(row.log_dir).name: (
            row.error_code,
            {
                f"{topic.name}-{item.partition_index}": item
                for topic in row.topics
                for item in topic.partitions
            },
        )
        for row in answer.results
    }


def values(connection: Connection, topic: str) -> list[bytes]:
    """Return the values of all records of the partition, in order."""
    found: list[bytes] = []
    end = log_end(connection, topic)
    while len(found) < end:
        data = fetch_one(connection, topic, offset=len(found)).records or b""
        assert data, f"nothing to read at {len(found)} of {end}"
        position = 0
        while position < len(data):
            for record in decode_records(data[position:], decompressed_bytes_max=2**24):
                if record.offset == len(found):
                    found.append(record.value or b"")
            position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    return found


class Writer(threading.Thread):
    """An idempotent producer that sends one batch after the other and retries unacknowledged
    batches, whatever happens to the broker.
    """

    def __init__(self, disks: Disks, topic: str) -> None:
        super().__init__(daemon=True)
        self._disks = disks
        self._topic = topic
        self._ending = threading.Event()
        self.sent: list[bytes] = []
        self.failure: BaseException | None = None
        with disks.connect() as connection:
            self._identity = new_producer(connection)

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                self._send(len(self.sent))
        except BaseException as error:
            self.failure = error
            raise

    def _send(self, number: int) -> None:
        count = 3
        words = [b"%d " % (number + index) * 300 for index in range(count)]
        batch = batch_of(*words, producer=self._identity, sequence=number)
        while not self._ending.is_set():
            try:
                with self._disks.connect() as connection:
                    while True:
                        answer = produce(connection, self._topic, bytes(batch))
                        if answer.error_code == ErrorCode.NONE:
                            assert answer.base_offset == number
                            self.sent += words
                            return
                        assert answer.error_code in RETRIABLE, answer
                        if self._ending.wait(0.05):
                            return
            except (OSError, ConnectionClosed):
                self._ending.wait(0.05)

    def wait_for(self, more: int) -> None:
        """Wait until the producer has sent `more` further records."""
        goal = len(self.sent) + more
        wait_until(
            lambda: len(self.sent) >= goal or self.failure is not None, what=f"{goal} records"
        )
        assert self.failure is None

    def end(self) -> list[bytes]:
        self._ending.set()
        self.join(PATIENCE_S)
        assert self.failure is None
        return self.sent


# placing and moving


def test_partitions_are_spread_over_directories_and_described(disks: Disks) -> None:
    disks.broker.start()
    with disks.connect() as connection:
        create_topic(connection, "spread", partitions=6)
        produce(connection, "spread", batch_of(b"x" * 1000))
        rows = describe(connection)
        assert {name: (code, len(found)) for name, (code, found) in rows.items()} == dict.fromkeys(
            NAMES, (0, 2)
        )
        sizes = {
            key: item.partition_size for _, found in rows.values() for key, item in found.items()
        }
        size = (partition_folder(disks.home, "spread") / f"{0:020}.log").stat().st_size
        assert sizes == {"spread-0": size, **{f"spread-{n}": 0 for n in range(1, 6)}}
        only = [
            DescribableLogDirTopic(topic="spread", partitions=[0, 99]),
            DescribableLogDirTopic(topic="unknown", partitions=[0]),
        ]
        told = describe(connection, only)
        assert sorted(key for _, found in told.values() for key in found) == ["spread-0"]
        assert describe(connection, [], 0) == {name: (0, {}) for name in NAMES}
        assert move(connection, "spread", "/nowhere") == ErrorCode.LOG_DIR_NOT_FOUND
        assert move(connection, "later", disks.path("c")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        create_topic(connection, "later")
    assert disks.home_of("later") == "c"


def test_a_replica_moves_under_writes(disks: Disks) -> None:
    disks.broker.start()
    with disks.connect() as connection:
        create_topic(connection, "moved", configs={"segment.bytes": "300000"})
    writer = Writer(disks, "moved")
    writer.start()
    for to in ("b", "c", "a", "b"):
        writer.wait_for(more=300)
        assert disks.move("moved", to) == ErrorCode.NONE
        disks.wait_for_move("moved", to)
    writer.wait_for(more=30)
    sent = writer.end()
    with disks.connect() as connection:
        assert values(connection, "moved") == sent
        ((_, item),) = [(n, f["moved-0"]) for n, (_, f) in describe(connection).items() if f]
        assert (item.offset_lag, item.is_future_key) == (0, False)
    assert disks.broker.stop() == 0
    assert sum(batch.record_count for batch in batches(disks.home, "moved")) == len(sent)
    disks.broker.start()
    with disks.connect() as connection:
        wait_for_leader(connection, "moved")
        assert values(connection, "moved") == sent


@pytest.mark.parametrize("moment", ["begun", "copying", "named", "done"])
def test_kill_9_during_a_move_loses_nothing(disks: Disks, moment: str) -> None:
    disks.broker.start()
    with disks.connect() as connection:
        create_topic(connection, "killed", configs={"segment.bytes": "300000"})
    writer = Writer(disks, "killed")
    writer.start()
    writer.wait_for(more=600)
    origin = disks.home_of("killed")
    target = next(name for name in ("b", "c") if name != origin)

    def reached() -> bool:
        found = (disks.home / target).glob("killed-0*")
        copies = [path for path in found if not path.name.endswith("-delete")]
        files = [name for copy in copies for _, _, names in os.walk(copy) for name in names]
        return {
            "begun": bool(copies),
            "copying": any(name.endswith(".log") for name in files),
            "named": (disks.home / target / "killed-0").is_dir(),
            "done": "move done" in disks.broker.log_text,
        }[moment]

    for _ in range(1 if moment == "begun" else 2):
        assert disks.move("killed", target) == ErrorCode.NONE
        wait_until(reached, what=moment)
        disks.broker.kill9()
        disks.broker.start()
        writer.wait_for(more=60)
        disks.wait_for_move("killed", target)
        origin, target = target, origin
    sent = writer.end()
    with disks.connect() as connection:
        assert values(connection, "killed")[: len(sent)] == sent


def test_a_move_ends_with_its_topic(disks: Disks) -> None:
    disks.broker.start()
    with disks.connect() as connection:
        create_topic(connection, "short", configs={"file.delete.delay.ms": "0"})
        for _ in range(20):
            produce(connection, "short", batch_of(b"x" * 500_000))
        assert move(connection, "short", disks.path("b")) == ErrorCode.NONE
    tool("topics", "--bootstrap-server", disks.broker.bootstrap, "--delete", "--topic", "short")
    wait_until(
        lambda: not list(disks.home.glob("*/short-0*")), what="no directory of the topic exists"
    )


# directories that cannot be used


def test_a_directory_that_cannot_be_used_at_the_start_is_offline(disks: Disks) -> None:
    disks.broker.start()
    with disks.connect() as connection:
        create_topic(connection, "t", partitions=3)
        for partition in range(3):
            produce(connection, "t", batch_of(b"x"), partition=partition)
    gone = next(number for number in range(3) if disks.home_of("t", number) == "c")
    disks.broker.stop()
    (disks.home / "c").rename(disks.home / "kept")
    (disks.home / "c").write_text("no directory")
    disks.broker.start()
    assert disks.broker.log_text.count("log directory offline path=") == 1
    with disks.connect() as connection:
        assert describe(connection)["c"] == (ErrorCode.KAFKA_STORAGE_ERROR, {})
        answers = [
            produce(connection, "t", batch_of(b"y"), partition=partition).error_code
            for partition in range(3)
        ]
        assert answers[gone] == ErrorCode.KAFKA_STORAGE_ERROR
        assert sorted(answers) == [0, 0, ErrorCode.KAFKA_STORAGE_ERROR]
        create_topic(connection, "new", partitions=2)
    disks.broker.stop()
    (disks.home / "c").unlink()
    (disks.home / "kept").rename(disks.home / "c")
    disks.broker.start()
    with disks.connect() as connection:
        wait_until(
            lambda: produce(connection, "t", batch_of(b"z"), partition=gone).error_code == 0,
            what="the partition is back",
        )
        assert log_end_of(connection, "t", gone) == 2


def test_a_lost_directory_blocks_its_partitions_until_the_loss_is_accepted(disks: Disks) -> None:
    disks.broker.start()
    with disks.connect() as connection:
        create_topic(connection, "t", partitions=3)
        for partition in range(3):
            produce(connection, "t", batch_of(b"x"), partition=partition)
    gone = next(number for number in range(3) if disks.home_of("t", number) == "c")
    disks.broker.stop()
    shutil.rmtree(disks.home / "c")
    for used in (("a", "b"), NAMES, NAMES):
        disks.broker.overrides["log.dirs"] = disks.listed(*used)
        disks.broker.start()
        with disks.connect() as connection:
            has_no_leader = f"it has no leader with {used}"
            wait_until(lambda: leader_of(connection, "t", gone) == -1, what=has_no_leader)
            answer = produce(connection, "t", batch_of(b"y"), partition=gone)
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert not list(disks.home.glob(f"*/t-{gone}"))
        disks.broker.stop()
    assert "mount the disk" in disks.broker.log_text
    (disks.home / "a" / "pybroker.accept-loss").write_text(f"{disks.path('c')}\n")
    disks.broker.start()
    with disks.connect() as connection:
        wait_until(
            lambda: produce(connection, "t", batch_of(b"y"), partition=gone).error_code == 0,
            what="the partition begins anew",
        )
        assert log_end_of(connection, "t", gone) == 1
    assert not (disks.home / "a" / "pybroker.accept-loss").exists()


def log_end_of(connection: Connection, topic: str, partition: int) -> int:
    return fetch(connection, fetch_request(topic, {partition: 0}))[partition].high_watermark


def leader_of(connection: Connection, topic: str, partition: int) -> int:
    (found,) = metadata(connection, topic).topics
    (leader,) = [p.leader_id for p in found.partitions if p.partition_index == partition]
    return leader


def test_a_failed_directory_affects_its_own_partitions_only(disks: Disks) -> None:
    """The directory is replaced by a file while the broker runs, so that no file can be created in
    it.
    """
    disks.broker.start()
    with disks.connect() as connection:
        create_topic(connection, "t", partitions=3, configs={"segment.bytes": "1000"})
        for partition in range(3):
            produce(connection, "t", batch_of(b"x"), partition=partition)
        broken = next(number for number in range(3) if disks.home_of("t", number) == "c")
        (disks.home / "c").rename(disks.home / "kept")
        (disks.home / "c").write_text("no directory")
        wait_until(
            lambda: leader_of(connection, "t", broken) == -1, what="the partition has no leader"
        )
        assert describe(connection)["c"] == (ErrorCode.KAFKA_STORAGE_ERROR, {})
        for partition in range(3):
            answer = produce(connection, "t", batch_of(b"y" * 900), partition=partition)
            expected = ErrorCode.KAFKA_STORAGE_ERROR if partition == broken else ErrorCode.NONE
            assert answer.error_code == expected
    disks.broker.stop()
    (disks.home / "c").unlink()
    (disks.home / "kept").rename(disks.home / "c")
    disks.broker.start()
    with disks.connect() as connection:
        wait_until(
            lambda: leader_of(connection, "t", broken) == 0, what="the partition has a leader again"
        )
        assert log_end_of(connection, "t", broken) == 1


# tools


def tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        pybroker_command(name, *arguments),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def apache_tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        *(maven.java(), "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"),
        *("-cp", maven.class_path(), "org.apache.kafka.tools.LogDirsCommand", *arguments),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def as_compared(printed: str) -> list[object]:
    """Return the printed lines with a sorted JSON document, because Apache prints it in the order
    of a hash table.
    """
    lines: list[object] = []
    for line in printed.splitlines():
        if line.startswith("{"):
            document = json.loads(line)
            for broker in document["brokers"]:
                broker["logDirs"].sort(key=lambda row: row["logDir"])
                for row in broker["logDirs"]:
                    row["partitions"].sort(key=lambda item: item["partition"])
            lines.append(document)
        else:
            lines.append(line)
    return lines


def test_log_dirs_prints_what_apaches_tool_prints(disks: Disks, jars: str) -> None:
    assert jars
    disks.broker.start()
    with disks.connect() as connection:
        create_topic(connection, "t", partitions=3)
        create_topic(connection, "other")
        produce(connection, "t", batch_of(b"x"))
    server = ("--bootstrap-server", disks.broker.bootstrap)
    for arguments in (
        (*server, "--describe"),
        (*server, "--describe", "--topic-list", "t,unknown"),
        (*server, "--describe", "--broker-list", "0,7"),
        (*server, "--describe", "--broker-list", "0", "--topic-list", "other"),
        ("--describe",),
        server,
    ):
        theirs, ours = apache_tool(*arguments), tool("log-dirs", *arguments)
        assert ours.returncode == theirs.returncode, arguments
        assert as_compared(ours.stdout) == as_compared(theirs.stdout), arguments
        if theirs.returncode:
            assert ours.stderr.splitlines()[0] == theirs.stderr.splitlines()[0]
