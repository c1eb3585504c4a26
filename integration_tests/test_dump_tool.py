"""Tests that `pybroker dump-log` prints the same lines as Apache's DumpLogSegments for the same
files, written by our broker and by Apache's, undamaged and damaged.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from integration_tests import maven
from integration_tests.broker import Broker, pybroker_command
from integration_tests.conftest import BrokerMaker
from integration_tests.stored import partition_folder
from integration_tests.test_dump_log import CONFIGS, START, TOPIC, fill
from integration_tests.wire_client import Connection, batch_of, create_topic, wait_for_leader
from pybroker.records.control import ControlType, EndTransaction, build_end_transaction
from pybroker.storage.txn_index import ENTRY
from unit_tests.patience import PATIENCE_S

MODES: Final = (
    (),
    ("--deep-iteration",),
    ("--print-data-log",),
    ("--print-data-log", "--skip-record-metadata"),
    ("--verify-index-only",),
    ("--index-sanity-check",),
    ("--deep-iteration", "--max-bytes", "30000"),
)
SUFFIXES: Final = (".log", ".index", ".timeindex", ".snapshot", ".txnindex")


@pytest.fixture(autouse=True)
def needs_jars(jars: str) -> None:
    assert jars


def apaches(files: list[Path], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        *(maven.java(), "-Xmx256m", "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8"),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
        *("-cp", maven.class_path(), "kafka.tools.DumpLogSegments"),
        *("--files", ",".join(map(str, files)), *arguments),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def ours(files: list[Path], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = pybroker_command("dump-log", "--files", ",".join(map(str, files)), *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def assert_same(files: list[Path], *arguments: str) -> str:
    """Check that both outputs are equal, and return them."""
    theirs, mine = apaches(files, *arguments), ours(files, *arguments)
    assert mine.stdout.splitlines() == theirs.stdout.splitlines()
    assert mine.returncode == theirs.returncode, (mine.stderr, theirs.stderr)
    if theirs.returncode == 0:
        assert mine.stderr.splitlines() == theirs.stderr.splitlines()
    return theirs.stdout + theirs.stderr


def copied(folder: Path, to: Path) -> list[Path]:
    shutil.copytree(folder, to)
    return sorted(path for path in to.iterdir() if path.suffix in SUFFIXES)


def filled(broker: Broker) -> Path:
    broker.start()
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, TOPIC, configs=CONFIGS)
        wait_for_leader(connection, TOPIC)
        fill(connection, first_batch=0, count=250)
    return partition_folder(broker.data, TOPIC)


def test_every_mode_on_files_of_a_running_and_of_a_stopped_broker(
    new_broker: BrokerMaker, tmp_path: Path
) -> None:
    broker = new_broker()
    folder = filled(broker)
    running = copied(folder, tmp_path / "running")
    printed = assert_same(running, "--deep-iteration")
    assert printed.count("| offset: ") > 500
    broker.stop()
    stopped = copied(folder, tmp_path / "stopped")
    for mode in MODES:
        assert_same(stopped, *mode)


def damaged_tail(log: Path) -> None:
    with log.open("ab") as stream:
        stream.write(batch_of(b"torn")[:-3])


def flipped_bit(log: Path) -> None:
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)


def impossible_length(log: Path) -> None:
    data = bytearray(log.read_bytes())
    data += struct.pack(">qi", 99, 3) + bytes(30)
    log.write_bytes(data)


def cut_in_the_middle(log: Path) -> None:
    data = log.read_bytes()
    log.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    "damage", [damaged_tail, flipped_bit, impossible_length, cut_in_the_middle]
)
def test_a_damaged_log(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    log = tmp_path / f"{0:020}.log"
    log.write_bytes(b"".join(batch_of(b"v%d" % n, timestamps=[START + n]) for n in range(5)))
    damage(log)
    assert_same([log])
    assert_same([log], "--print-data-log")


def test_indexes_that_do_not_fit_markers_and_strange_files(tmp_path: Path) -> None:
    log = tmp_path / f"{0:020}.log"
    marker = build_end_transaction(
        EndTransaction(ControlType.ABORT, 3), producer_id=7, producer_epoch=1, timestamp_ms=START
    )
    batches = [batch_of(b"a", timestamps=[START]), batch_of(b"b", b"c", timestamps=[START, 5])]
    placed = bytearray()
    positions = []
    for offset, batch in ((0, batches[0]), (1, batches[1]), (9, marker)):
        positions.append(len(placed))
        placed += struct.pack(">q", offset) + bytes(batch)[8:]
    log.write_bytes(placed)
    index = tmp_path / f"{0:020}.index"
    index.write_bytes(struct.pack(">iiii", 0, positions[0], 5, positions[1]))
    times = tmp_path / f"{0:020}.timeindex"
    times.write_bytes(struct.pack(">qiqiqi", START + 5, 0, START, 2, START, 7))
    aborted = tmp_path / f"{0:020}.txnindex"
    aborted.write_bytes(ENTRY.pack(0, 7, 1, 9, 10))
    snapshot = tmp_path / f"{10:020}.snapshot"
    snapshot.write_bytes(struct.pack(">hIi", 1, 1, 0))
    other = tmp_path / "notes.txt"
    other.write_text("x")
    for mode in MODES[:5]:
        printed = assert_same([log, index, times, aborted, snapshot, other], *mode)
        assert "Mismatches in" in printed
    assert_same([log], "--value-decoder-class", "org.apache.kafka.tools.api.StringDecoder")
    assert_same([log], "--value-decoder-class", "kafka.serializer.StringDecoder")
    assert_same([tmp_path / f"{77:020}.log"])
