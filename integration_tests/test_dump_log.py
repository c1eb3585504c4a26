"""Tests that Apache's own dump tool reads our segments, indexes and snapshots without an error."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from integration_tests import maven
from integration_tests.broker import Broker
from integration_tests.conftest import BrokerMaker
from integration_tests.stored import batches, partition_folder
from integration_tests.wire_client import (
    Connection,
    batch_of,
    create_topic,
    new_producer,
    produce,
    wait_for_leader,
)
from pybroker.records.compression import Codec
from unit_tests.patience import PATIENCE_S

COMPLAINTS: Final = re.compile(
    r"mismatch|out of order|not sane|invalid bytes|isvalid: false|exception|non-consecutive"
    r"|not found in the log|corrupt|error|not multiple",
    re.IGNORECASE,
)
TOPIC: Final = "dumped"
CONFIGS: Final = {
    "segment.bytes": "65536",
    "index.interval.bytes": "200",
    "segment.index.bytes": "4096",
    "retention.ms": "-1",  # the time stamps lie in the past
}
START: Final = 1_700_000_000_000


@pytest.fixture(autouse=True)
def needs_jars(jars: str) -> None:
    assert jars


def fill(connection: Connection, *, first_batch: int, count: int) -> None:
    """Write batches in all codecs and several sizes, by an idempotent producer and by others."""
    producer = new_producer(connection)
    sequence = 0
    for number in range(first_batch, first_batch + count):
        codec = list(Codec)[number % len(Codec)]
        values = [b"value %d " % number * (1 + number % 40)] * (1 + number % 7)
        timestamps = [START + 1000 * number + index for index in range(len(values))]
        identity = producer if number % 2 else (-1, -1)
        batch = batch_of(
            *values,
            timestamps=timestamps,
            codec=codec,
            producer=identity,
            sequence=sequence if number % 2 else -1,
        )
        if number % 2:
            sequence += len(values)
        assert produce(connection, TOPIC, batch).error_code == 0


def dump(folder: Path, *arguments: str, suffixes: tuple[str, ...]) -> str:
    """Return the tool's output for a copy of the partition's files."""
    copy = folder.parent / f"{folder.name}.copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    try:
        return dump_files(sorted(p for p in copy.iterdir() if p.suffix in suffixes), *arguments)
    finally:
        shutil.rmtree(copy)


def dump_files(files: list[Path], *arguments: str) -> str:
    assert files
    command = [
        *(maven.java(), "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
        *("-cp", maven.class_path(), "kafka.tools.DumpLogSegments"),
        *("--files", ",".join(str(file) for file in files), *arguments),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def complaints(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if COMPLAINTS.search(line)]


def assert_apache_likes(broker: Broker) -> None:
    """Check all files of the partition by Apache's tool, in all modes that search for errors."""
    folder = partition_folder(broker.data, TOPIC)
    kinds = Counter(path.suffix for path in folder.iterdir())
    assert kinds[".log"] >= 3
    assert kinds[".index"] == kinds[".timeindex"] == kinds[".log"]
    assert kinds[".snapshot"] >= 1
    everything = dump(
        folder, "--deep-iteration", suffixes=(".log", ".index", ".timeindex", ".snapshot")
    )
    assert not complaints(everything)
    stored = list(batches(broker.data, TOPIC))
    assert everything.count("baseOffset: ") == len(stored)
    assert everything.count("| offset: ") == sum(batch.record_count for batch in stored)
    assert re.search(r"offset: \d+ position: \d+", everything), "the offset index has entries"
    assert re.search(r"timestamp: \d+ offset: \d+", everything), "the time index has entries"
    assert re.search(r"producerId: \d+ producerEpoch: 0", everything), "a snapshot has a producer"
    indexes = (".index", ".timeindex")
    sane = dump(folder, "--index-sanity-check", suffixes=indexes)
    assert not complaints(sane)
    assert sane.count("passed sanity check") == kinds[".index"] + kinds[".timeindex"]
    assert not complaints(dump(folder, "--verify-index-only", suffixes=(".log", *indexes)))


def test_apache_reads_our_files_after_a_stop(new_broker: BrokerMaker) -> None:
    broker = new_broker()
    broker.start()
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, TOPIC, configs=CONFIGS)
        fill(connection, first_batch=0, count=700)
    broker.stop()
    assert_apache_likes(broker)


def test_apache_reads_our_files_after_kill_9_and_recovery(new_broker: BrokerMaker) -> None:
    broker = new_broker()
    broker.start()
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, TOPIC, configs=CONFIGS)
        fill(connection, first_batch=0, count=700)
    for round_number in (1, 2):
        broker.kill9()
        broker.start()
        with Connection(broker.bootstrap) as connection:
            wait_for_leader(connection, TOPIC)
            fill(connection, first_batch=700 * round_number, count=100)
    broker.stop()
    assert_apache_likes(broker)


def test_a_torn_tail_is_truncated_at_the_next_start(new_broker: BrokerMaker) -> None:
    broker = new_broker()
    broker.start()
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, TOPIC, configs=CONFIGS)
        fill(connection, first_batch=0, count=700)
    broker.kill9()
    stored = list(batches(broker.data, TOPIC))
    newest = sorted(partition_folder(broker.data, TOPIC).glob("*.log"))[-1]
    with newest.open("ab") as file:
        file.write(batch_of(b"torn")[:-5])
    broker.start()
    with Connection(broker.bootstrap) as connection:
        wait_for_leader(connection, TOPIC)
        fill(connection, first_batch=700, count=20)
    broker.stop()
    assert list(batches(broker.data, TOPIC))[: len(stored)] == stored
    assert_apache_likes(broker)


def test_the_dump_tool_finds_damage(tmp_path: Path) -> None:
    batch = bytearray(batch_of(b"x", timestamps=[START]))
    log = tmp_path / "00000000000000000000.log"
    log.write_bytes(bytes(batch) + bytes(batch_of(b"y"))[:-3])
    index = tmp_path / "00000000000000000000.index"
    index.write_bytes(struct.pack(">ii", 5, 0))
    (torn, wrong) = complaints(dump_files([log, index]))
    assert "invalid bytes" in torn and "Mismatches" in wrong
