"""Tests of snapshots and exact ranges on real brokers: records expire, topics are recreated,
truncated or damaged, and brokers pause between the snapshot and the read.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration_tests.broker import Broker
from integration_tests.faults import flips
from integration_tests.ranges import (
    delete_records,
    delete_topic,
    fill,
    make_topic,
    numbers,
    read,
)
from pybroker.client import EARLIEST, Admin, TopicPartition, range_reader
from pybroker.client.range_reader import (
    PartitionRange,
    Patience,
    RangeFailed,
    RangeFault,
)
from pybroker.records.batch import BatchHeader
from pybroker.spark import snapshot
from pybroker.spark.snapshot import Change, Snapshot, SnapshotError
from pybroker.spark.splits import Limits, pieces_blocking
from pybroker.testing import Cluster
from unit_tests.patience import PATIENCE_S, wait_until

SMALL = {"max.partition.fetch.bytes": "1000"}
"""A fetch size in bytes so small that a range takes many answers."""
BROKER_OVERRIDES = {"log.retention.check.interval.ms": "200", "log.segment.delete.delay.ms": "0"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, config={"pybroker.log.scrub.interval.ms": 1000}) as started:
        yield started


def cut(bootstrap: str, topic: str) -> tuple[Snapshot, PartitionRange]:
    """Return a snapshot of a topic with one partition, and its range."""
    taken = snapshot.take(bootstrap, topics=[topic])
    (item,) = taken.ranges()
    return taken, item


def log_start(bootstrap: str, topic: str) -> int:
    async def ask() -> int:
        async with Admin(bootstrap) as admin:
            key = TopicPartition(topic, 0)
            return (await admin.list_offsets({key: EARLIEST}))[key].offset

    return asyncio.run(ask())


def failed(bootstrap: str, item: PartitionRange) -> RangeFailed:
    with pytest.raises(RangeFailed) as caught:
        read(bootstrap, item)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_snapshot_is_read_again_and_again_while_the_topic_grows(
    broker: Broker, topic: str
) -> None:
    make_topic(broker.bootstrap, topic)
    fill(broker.bootstrap, topic, 0, 1_000)
    taken, item = cut(broker.bootstrap, topic)
    assert read(broker.bootstrap, item) == numbers(0, 1_000)
    fill(broker.bootstrap, topic, 1_000, 500)
    assert read(broker.bootstrap, item) == numbers(0, 1_000)
    assert taken.is_readable()
    later = snapshot.take(broker.bootstrap, since=taken)
    (rest,) = later.ranges()
    assert read(broker.bootstrap, rest) == numbers(1_000, 1_500)
    (change,) = later.diff(taken)
    assert (change.change, change.offsets) == (Change.GROWN, 500)


def test_pieces_of_a_range_begin_at_batches(broker: Broker, topic: str) -> None:
    make_topic(broker.bootstrap, topic)
    fill(broker.bootstrap, topic, 0, 3_000)
    _, item = cut(broker.bootstrap, topic)
    starts: list[int] = []
    read(broker.bootstrap, item, each=lambda header: starts.append(header.base_offset))
    options = {"bootstrap.servers": broker.bootstrap}
    for limits in (Limits(max_offsets=100), Limits(min_pieces=7), Limits(max_bytes=10_000)):
        pieces = pieces_blocking(options, [item], limits)
        assert len(pieces) >= 5
        assert {piece.start for piece in pieces} <= set(starts)
        found = [row for piece in pieces for row in read(broker.bootstrap, piece)]
        assert found == numbers(0, 3_000)


def test_retention_between_snapshot_and_read_is_reported(broker: Broker, topic: str) -> None:
    configs = {"segment.bytes": "4096", "retention.bytes": "8192"}
    make_topic(broker.bootstrap, topic, configs=configs)
    fill(broker.bootstrap, topic, 0, 100)
    taken, item = cut(broker.bootstrap, topic)
    fill(broker.bootstrap, topic, 100, 1_000)
    wait_until(
        lambda: log_start(broker.bootstrap, topic) >= 100, what="retention deletes all old records"
    )
    found = failed(broker.bootstrap, item)
    assert (found.reason, found.offset) == (RangeFault.AGED_OUT, 0)
    before = log_start(broker.bootstrap, topic)
    (problem,) = taken.is_readable().problems
    told = re.match(rf"{re.escape(topic)}-0@0: the partition now begins at offset (\d+)", problem)
    assert told is not None, problem
    assert before <= int(told[1]) <= log_start(broker.bootstrap, topic), (
        "the log start offset may increase meanwhile"
    )
    lost: list[tuple[int, int]] = []
    kept = read(broker.bootstrap, item, fail_on_data_loss=False, lost=lost)
    assert (kept, lost) == ([], [(0, 100)])


def test_deleted_records_are_reported_and_never_returned(broker: Broker, topic: str) -> None:
    make_topic(broker.bootstrap, topic)
    fill(broker.bootstrap, topic, 0, 100, batch_size=100_000)
    _, item = cut(broker.bootstrap, topic)
    delete_records(broker.bootstrap, topic, 37)
    assert failed(broker.bootstrap, item).reason is RangeFault.AGED_OUT
    lost: list[tuple[int, int]] = []
    kept = read(broker.bootstrap, item, fail_on_data_loss=False, lost=lost)
    assert (kept, lost) == (numbers(37, 100), [(0, 37)])


def test_a_recreated_topic_is_a_different_topic(broker: Broker, topic: str) -> None:
    make_topic(broker.bootstrap, topic, partitions=2)
    fill(broker.bootstrap, topic, 0, 50)
    taken = snapshot.take(broker.bootstrap, topics=[topic])
    (item, _) = taken.ranges()
    delete_topic(broker.bootstrap, topic)
    found = failed(broker.bootstrap, item)
    assert (found.reason, found.offset) == (RangeFault.GONE, 0)
    assert all("the partition does not exist" in text for text in taken.is_readable().problems)
    make_topic(broker.bootstrap, topic)
    fill(broker.bootstrap, topic, 0, 50)
    assert failed(broker.bootstrap, item).reason is RangeFault.RECREATED
    lost: list[tuple[int, int]] = []
    assert read(broker.bootstrap, item, fail_on_data_loss=False, lost=lost) == []
    assert lost == [(0, 50)]
    with pytest.raises(SnapshotError, match="deleted and recreated"):
        snapshot.take(broker.bootstrap, since=taken)


@pytest.mark.ours
def test_a_read_waits_for_a_restarted_broker(cluster: Cluster, topic: str) -> None:
    make_topic(cluster.bootstrap, topic)
    fill(cluster.bootstrap, topic, 0, 2_000)
    _, item = cut(cluster.bootstrap, topic)
    leader = cluster.leader(topic, 0)

    def kill(header: BatchHeader) -> None:
        if header.base_offset == 0:
            cluster.kill(leader)
            cluster.restart(leader)

    found = read(cluster.bootstrap, item, each=kill, patience=Patience(), options=SMALL)
    assert found == numbers(0, 2_000)


@pytest.mark.ours
def test_a_read_from_a_paused_broker_fails_in_time(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No prefetch: otherwise all records might arrive before the broker is paused.
    monkeypatch.setattr(range_reader, "BUFFER_BYTES_MAX", 1)
    make_topic(cluster.bootstrap, topic)
    fill(cluster.bootstrap, topic, 0, 2_000)
    _, item = cut(cluster.bootstrap, topic)
    leader = cluster.leader(topic, 0)

    def pause(header: BatchHeader) -> None:
        if header.base_offset == 0:
            cluster.pause(leader)

    try:
        with pytest.raises(RangeFailed) as caught:
            read(
                cluster.bootstrap,
                item,
                each=pause,
                patience=Patience(stalled_s=4.0),
                options=SMALL,
            )
    finally:
        cluster.resume(leader)
        cluster.wait_until_ready()  # its session may have ended
    assert caught.value.reason is RangeFault.STALLED
    assert 0 < caught.value.offset < 2_000


@pytest.mark.ours
def test_a_read_continues_at_the_next_leader_after_a_kill(cluster: Cluster, topic: str) -> None:
    make_topic(cluster.bootstrap, topic, replicas=2)
    fill(cluster.bootstrap, topic, 0, 3_000)
    _, item = cut(cluster.bootstrap, topic)
    leader = cluster.leader(topic, 0)

    def kill(header: BatchHeader) -> None:
        if header.base_offset == 0:
            cluster.kill(leader)

    try:
        found = read(cluster.bootstrap, item, each=kill, patience=Patience(), options=SMALL)
    finally:
        cluster.restart(leader)
    assert found == numbers(0, 3_000)


@pytest.mark.ours
def test_truncation_by_an_unclean_election_is_reported(cluster: Cluster, topic: str) -> None:
    """The truncation is reported even if the log has grown past the snapshot's end again, with
    other records.
    """
    configs = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    make_topic(cluster.bootstrap, topic, replicas=2, configs=configs)
    fill(cluster.bootstrap, topic, 0, 300)
    early, early_item = cut(cluster.bootstrap, topic)
    leader = cluster.leader(topic, 0)
    (other,) = {*cluster.ids} - {leader}
    cluster.kill(other)
    try:
        fill(cluster.bootstrap, topic, 300, 200)
        taken, item = cut(cluster.bootstrap, topic)
        cluster.kill(leader)
        cluster.restart(other)
        assert cluster.leader(topic, 0, other_than=leader) == other
        fill(cluster.bootstrap, topic, 1_000, 400)
    finally:
        cluster.restart(leader)
    found = failed(cluster.bootstrap, item)
    assert (found.reason, found.offset) == (RangeFault.TRUNCATED, 300)
    assert not taken.is_readable()
    with pytest.raises(SnapshotError, match=f"{topic}-0@300: leader epoch"):
        snapshot.take(cluster.bootstrap, since=taken)
    lost: list[tuple[int, int]] = []
    kept = read(cluster.bootstrap, item, fail_on_data_loss=False, lost=lost)
    assert (kept, lost) == (numbers(0, 300), [(300, 500)])
    assert early.is_readable()
    assert read(cluster.bootstrap, early_item) == numbers(0, 300)


@pytest.mark.ours
def test_a_batch_damaged_at_the_leader_is_read_from_another_replica(
    cluster: Cluster, topic: str
) -> None:
    make_topic(cluster.bootstrap, topic, replicas=2)
    fill(cluster.bootstrap, topic, 0, 500)
    cluster.wait_until_in_sync(topic)
    _, item = cut(cluster.bootstrap, topic)
    folder = cluster.log_dir(cluster.leader(topic, 0)) / f"{topic}-0"
    flips.flip_in_batch(flips.segments(folder)[0], flips.in_body, 4)
    assert read(cluster.bootstrap, item, patience=Patience()) == numbers(0, 500)
    cluster.wait_until_in_sync(topic)


@pytest.mark.ours
def test_a_batch_damaged_in_the_only_replica_is_reported(cluster: Cluster, topic: str) -> None:
    make_topic(cluster.bootstrap, topic)
    fill(cluster.bootstrap, topic, 0, 500)
    _, item = cut(cluster.bootstrap, topic)
    (segment,) = flips.segments(cluster.log_dir(cluster.leader(topic, 0)) / f"{topic}-0")
    position, header = flips.batches(segment)[4]
    flips.flip(segment, position + 70)
    found = failed(cluster.bootstrap, item)
    assert (found.reason, found.offset) == (RangeFault.CORRUPT, header.base_offset)
    before = PartitionRange(topic, 0, 0, header.base_offset)
    assert read(cluster.bootstrap, before) == numbers(0, header.base_offset)


def test_the_tool_takes_shows_and_compares_snapshots(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    def tool(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pybroker", "snapshot", *words]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    make_topic(broker.bootstrap, topic, configs={"cleanup.policy": "compact,delete"})
    fill(broker.bootstrap, topic, 0, 10)
    where = ("--bootstrap-server", broker.bootstrap)
    assert tool("take", *where, "--topic", topic, "--output", "a.json").returncode == 0
    fill(broker.bootstrap, topic, 10, 5)
    assert tool("take", *where, "--since", "a.json", "--output", "b.json").returncode == 0
    assert tool("diff", "a.json", "b.json").stdout == (
        f"Partition: {topic}-0\tChange: grown\tOffsets: +5\tEnd: 10 -> 15\n"
    )
    shown = tool("show", "b.json", "--check")
    assert shown.returncode == 0
    *_, counted, readable, warning = shown.stdout.splitlines()
    assert "\tOffsets: 5\tRecords: 5\t" in counted
    assert readable == "Readable: yes"
    assert warning.startswith(f"Warning: {topic} is compacted: ")
    delete_records(broker.bootstrap, topic, 12)
    shown = tool("show", "b.json", "--check", "--format", "json")
    assert (shown.returncode, json.loads(shown.stdout)["readable"]) == (1, False)
    wrong = tool("take", *where, "--topic", "nosuch")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("there is no topic nosuch at ")
    assert wrong.stderr.count("\n") == 1
