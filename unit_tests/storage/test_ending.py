"""Tests of the closing of all logs when a broker stops: which files are synced, how often, and
in which order."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from pybroker.model import TopicPartition
from pybroker.storage.ending import SHARES_MAX
from pybroker.storage.filename import CLEAN_MARK, SegmentFile, segment_file
from pybroker.storage.manager import LogManager
from unit_tests.storage.faulty_disk import FaultyDisk
from unit_tests.storage.test_manager import SMALL, TOPIC_ID, A, Host, existing, fill, make

ORDERS = TopicPartition("orders", 0)
SYNCS_PER_LOG = 3
"""The number of syncs of a log: its records, its time index, and its directory. The offset index is
empty."""


class WatchedDisk(FaultyDisk):
    """A disk that records synced directories and replaced files, in order. Synced files are in
    `faults.syncs`."""

    def __init__(self) -> None:
        super().__init__()
        self.synced_at_mark = -1

    def sync_dir(self, path: str) -> None:
        self.faults.syncs.append(path)
        super().sync_dir(path)

    def replace(self, path: str, data: bytes) -> None:
        if path.endswith(f"/{CLEAN_MARK}"):
            self.synced_at_mark = len(self.faults.syncs)
        super().replace(path, data)


def with_logs(host: Host, count: int) -> tuple[LogManager, WatchedDisk]:
    disk = host.disk = WatchedDisk()
    manager = host.start()
    for number in range(count):
        make(manager, TopicPartition("orders", number))
    return manager, disk


def end(manager: LogManager) -> None:
    """Close all logs as a stopping broker does."""
    shares = manager.ending.shares()
    with ThreadPoolExecutor(len(shares)) as threads:
        assert list(threads.map(manager.ending.end, shares)) == [None] * len(shares)
    manager.shutdown({})


@pytest.mark.parametrize("count", [5, 50])
def test_each_file_is_synced_once_before_the_clean_mark(host: Host, count: int) -> None:
    manager, disk = with_logs(host, count)
    syncs = disk.faults.syncs
    syncs.clear()
    shares = manager.ending.shares()
    assert len(shares) == SHARES_MAX
    assert sum(map(len, shares)) == count
    assert syncs == [str(host.data)], "the names of all logs, at once"
    for share in shares:
        manager.ending.end(share)
    assert Counter(syncs).most_common(1)[0][1] == 1
    assert len(syncs) == 1 + SYNCS_PER_LOG * count
    manager.shutdown({})
    assert disk.synced_at_mark == len(syncs), "no log syncs by itself after the clean mark"
    assert (host.data / CLEAN_MARK).exists()


def test_logs_closed_in_threads_are_unchanged_after_a_restart(host: Host) -> None:
    manager, _ = with_logs(host, 20)
    fill(existing(manager), 2)
    end(manager)
    again = host.start()
    assert existing(again).log_end_offset == 5
    assert not again.suspects
    syncs_before = len(host.disk.faults.syncs) if isinstance(host.disk, WatchedDisk) else 0
    end(again)
    assert isinstance(host.disk, WatchedDisk)
    assert len(host.disk.faults.syncs) == syncs_before, "nothing has changed"


def test_a_file_without_changes_since_a_clean_stop_is_not_synced(host: Host) -> None:
    manager, disk = with_logs(host, 0)
    make(manager, ORDERS, 1)
    end(manager)
    again = host.start()
    fill(existing(again, ORDERS))
    disk.faults.syncs.clear()
    for share in again.ending.shares():
        again.ending.end(share)
    synced = [Path(path).name for path in disk.faults.syncs]
    assert synced == [segment_file(0, SegmentFile.LOG)]


def test_indexes_that_a_killed_broker_has_written_are_synced(host: Host) -> None:
    """The kernel has the indexes in memory, and their content on the disk is unknown."""
    manager, disk = with_logs(host, 0)
    log = manager.create(ORDERS, replace(SMALL, index_interval_bytes=0), TOPIC_ID)
    fill(log, 3)
    log.segments.active.seal()
    manager.unlock()
    again = host.start()
    disk.faults.syncs.clear()
    for share in again.ending.shares():
        again.ending.end(share)
    synced = {Path(path).suffix for path in disk.faults.syncs}
    assert {".log", ".index", ".timeindex"} <= synced


def test_a_log_that_is_in_no_share_is_closed_too(host: Host) -> None:
    manager, _ = with_logs(host, 3)
    for share in manager.ending.shares():
        manager.ending.end(share)
    late = make(manager, TopicPartition("late", 0))
    manager.shutdown({})
    assert late.recovery_point == late.log_end_offset == 3
    assert (host.data / CLEAN_MARK).exists()


def test_an_empty_log_has_index_files_when_it_ends(host: Host) -> None:
    manager, _ = with_logs(host, 0)
    directory = Path(make(manager, A, 0).directory)
    manager.shutdown({})
    names = {path.suffix for path in directory.iterdir()}
    assert {".log", ".index", ".timeindex"} <= names


@pytest.mark.parametrize("before", [True, False])
def test_a_sync_that_fails_in_a_share_leaves_no_clean_mark(host: Host, before: bool) -> None:
    manager, disk = with_logs(host, 8)
    disk.faults.sync_fails = before
    shares = manager.ending.shares()
    disk.faults.sync_fails = True
    for share in shares:
        manager.ending.end(share)
    disk.faults.sync_fails = False
    manager.shutdown({})
    assert host.failed == [str(host.data)]
    assert not (host.data / CLEAN_MARK).exists()
