"""Tests of snapshots as values and as documents."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any, cast

import pytest

from pybroker.client.range_reader import PartitionRange
from pybroker.client.ranges.model import DIGEST_END, Counted
from pybroker.spark.snapshot_model import Change, PartitionCut, Snapshot, SnapshotError, TopicCut

ID = "00000000-0000-0000-0000-00000000000a"


def snapshot(**changes: object) -> Snapshot:
    cuts = {0: PartitionCut(100, 250, 50, 7), 1: PartitionCut(0, 0)}
    values: dict[str, object] = {
        "id": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "cluster_id": "c",
        "created_at_ms": 1_780_000_000_000,
        "isolation": "read_committed",
        "topics": {"orders": TopicCut(ID, cuts), "users": TopicCut("", {0: PartitionCut(0, 5)})},
        "bootstrap": "broker:9092",
    }
    return Snapshot(**{**values, **changes})  # type: ignore[arg-type]


def test_a_document_gives_the_same_snapshot_again(tmp_path: Path) -> None:
    snap = snapshot(parent="01BX5ZZKBKACTAV9WEVGEMMVRZ")
    assert Snapshot.from_json(snap.to_json()) == snap
    path = tmp_path / "snap.json"
    snap.save(path)
    snap.save(str(path))
    assert Snapshot.load(path) == snap
    assert [item.name for item in tmp_path.iterdir()] == ["snap.json"]


def test_ranges_and_counts_of_a_snapshot() -> None:
    snap = snapshot()
    assert snap.ranges() == [
        PartitionRange("orders", 0, 100, 250, ID, 7, 50),
        PartitionRange("orders", 1, 0, 0, ID, -1, -1),
        PartitionRange("users", 0, 0, 5, "", -1, -1),
    ]
    assert snap.counts() == {"orders": 150, "users": 5}


def counted() -> Snapshot:
    rows = (Counted(100, 180, 75, 6117254), Counted(180, 250, 70, 8192903))
    cuts = {0: PartitionCut(100, 250, 50, 7, rows), 1: PartitionCut(0, 0)}
    topics = {"orders": TopicCut(ID, cuts), "users": TopicCut("", {0: PartitionCut(0, 5)})}
    return snapshot(topics=topics)


def test_counts_are_part_of_the_document() -> None:
    """A document with counts has a higher version: a program that does not compare counts refuses
    it."""
    snap = counted()
    document = json.loads(snap.to_json())
    assert (document["version"], snapshot().version) == (2, 1)
    row = document["topics"]["orders"]["partitions"]["0"]
    assert row["counts"] == [[180, 75, 6117254], [250, 70, 8192903]]
    assert Snapshot.from_json(snap.to_json()) == snap
    assert [item.counts for item in snap.ranges()] == [
        snap.topics["orders"].partitions[0].counts,
        (),
        (),
    ]
    assert snap.records() == {"orders": 145, "users": None}
    assert snap.counts() == {"orders": 150, "users": 5}
    text = snap.to_json().replace('"version":2', '"version":1')
    with pytest.raises(SnapshotError, match="unknown key counts in orders-0"):
        Snapshot.from_json(text)
    assert pickle.loads(pickle.dumps(snap)) == snap


@pytest.mark.parametrize(
    ("counts", "fault"),
    [
        (5, "counts of orders-0 has 5, expected [offset, records, digest]: an offset above 100"),
        (None, "counts of orders-0 has missing, expected"),
        ([[180, 75]], "has [180, 75], expected"),
        ([[180, 75, 1, 1]], "has [180, 75, 1, 1], expected"),
        ([[180, 75, True]], "has [180, 75, true], expected"),
        ([[180, "75", 1]], 'has [180, "75", 1], expected'),
        ([[180, 75.0, 1]], "has [180, 75.0, 1], expected"),
        ([[100, 0, 0]], "has [100, 0, 0], expected [offset, records, digest]: an offset above 100"),
        (
            [[180, 1, 1], [180, 0, 0]],
            "has [180, 0, 0], expected [offset, records, digest]: an offset above 180",
        ),
        ([[251, 75, 1]], "has [251, 75, 1], expected"),
        ([[180, 81, 1]], "has [180, 81, 1], expected"),
        ([[180, -1, 1]], "has [180, -1, 1], expected"),
        ([[180, 75, DIGEST_END]], "expected [offset, records, digest]: an offset above 100"),
        ([[180, 75, -1]], "expected [offset, records, digest]: an offset above 100"),
        ([[180, 75, 1]], "counts of orders-0 ends at 180, expected 250"),
    ],
)
def test_impossible_counts_are_refused(counts: object, fault: str) -> None:
    document = json.loads(counted().to_json())
    document["topics"]["orders"]["partitions"]["0"]["counts"] = counts
    with pytest.raises(SnapshotError) as caught:
        Snapshot.from_json(json.dumps(document))
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_version_is_refused() -> None:
    text = snapshot().to_json().replace('"version":1', '"version":3')
    with pytest.raises(SnapshotError, match="version 3, but this program supports only 1 and 2"):
        Snapshot.from_json(text)


def changed_document(*path: str, value: object = None) -> str:
    """Return the document with another value at a path, or without the value."""
    document = json.loads(snapshot().to_json())
    row = document
    for name in path[:-1]:
        row = row[name]
    if value is None:
        del row[path[-1]]
    else:
        row[path[-1]] = value
    return json.dumps(document)


CUT = ("topics", "orders", "partitions", "0")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", "is not a JSON object"),
        ("{}", "has version None, but this program supports only 1"),
        (changed_document("version", value=True), "has version True"),
        (changed_document("id"), "id of the snapshot is missing, expected text"),
        (changed_document("clusterId", value=5), "clusterId of the snapshot is 5"),
        (
            changed_document("createdAtMs", value="now"),
            'createdAtMs of the snapshot is "now", expected',
        ),
        (
            changed_document("isolation", value="x"),
            "isolation is 'x', expected read_uncommitted or",
        ),
        (
            changed_document("topics", value={}),
            "topics of the snapshot is {}, expected an object with keys",
        ),
        (changed_document("topics", "a/b", value={}), "characters other than"),
        (
            changed_document("topics", "orders", value=[]),
            "orders of topics is [], expected an object",
        ),
        (
            changed_document("topics", "orders", "topicId", value="x"),
            "topicId of topic orders is 'x'",
        ),
        (
            changed_document("topics", "orders", "partitions"),
            "partitions of topic orders is missing",
        ),
        (
            changed_document(*CUT[:3], "01", value={}),
            "partition '01' of topic orders is not a number",
        ),
        (changed_document(*CUT[:3], "9" * 10, value={}), "is not a number"),
        (changed_document(*CUT, "start"), "start of orders-0 is missing"),
        (
            changed_document(*CUT, "end", value=-1),
            "end of orders-0 is -1, expected a whole number from 0",
        ),
        (changed_document(*CUT, "end", value=2**63), "end of orders-0"),
        (changed_document(*CUT, "start", value=251), "orders-0 starts at 251, after its end 250"),
        (changed_document(*CUT, "leaderEpoch", value=2**31), "leaderEpoch of orders-0"),
        (changed_document("speed", value=1), "unknown key speed in the snapshot"),
        (
            changed_document("topics", "orders", "topic_id", value=""),
            "unknown key topic_id in topic orders",
        ),
        (changed_document(*CUT, "leader_epoch", value=1), "unknown key leader_epoch in orders-0"),
        (changed_document("parent", value=[]), "parent of the snapshot is [], expected text"),
        ('{"version": 1, "version": 1}', "an object contains the key 'version' more than once"),
    ],
)
def test_a_faulty_document_is_refused_with_its_fault(text: str, fault: str) -> None:
    with pytest.raises(SnapshotError) as caught:
        Snapshot.from_json(text)
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_fault_is_named() -> None:
    text = changed_document(*CUT, "start", value="x").replace(
        '"isolation": "read_committed"', '"isolation": 3'
    )
    with pytest.raises(SnapshotError) as caught:
        Snapshot.from_json(text)
    assert "isolation" in str(caught.value)
    assert "start of orders-0" in str(caught.value)


def test_optional_fields_may_be_missing() -> None:
    document = json.loads(snapshot().to_json())
    for name in ("clusterId", "bootstrap", "parent"):
        del document[name]
    for name in ("logStart", "leaderEpoch"):
        del document["topics"]["orders"]["partitions"]["0"][name]
    found = Snapshot.from_json(json.dumps(document))
    assert (found.cluster_id, found.bootstrap, found.parent) == ("", "", None)
    assert found.topics["orders"].partitions[0] == PartitionCut(100, 250, -1, -1)


def test_file_without_a_snapshot_is_refused_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "snap.json"
    with pytest.raises(SnapshotError, match=r"snap.json cannot be read: No such file"):
        Snapshot.load(path)
    path.write_bytes(b"\xff")
    with pytest.raises(SnapshotError, match=r"snap.json is not a snapshot: it is not UTF-8"):
        Snapshot.load(path)
    path.write_text("{}")
    with pytest.raises(SnapshotError, match=r"snap.json: the snapshot has version None"):
        Snapshot.load(path)
    with pytest.raises(SnapshotError, match="cannot be written to"):
        snapshot().save(tmp_path / "nosuch" / "snap.json")


def test_a_snapshot_that_cannot_be_written_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "snap.json"
    snapshot().save(path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SnapshotError, match="No space left on device"):
        snapshot(id="other").save(path)
    assert Snapshot.load(path) == snapshot()
    assert [item.name for item in tmp_path.iterdir()] == ["snap.json"]


def test_snapshot_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(snapshot())) == snapshot()


def cut(topic_id: str = ID, **ends: int) -> Snapshot:
    cuts = {int(name.strip("p")): PartitionCut(0, end) for name, end in ends.items()}
    return snapshot(topics={"orders": TopicCut(topic_id, cuts)})


def test_a_comparison_gives_the_change_of_each_partition() -> None:
    changes = cut(p0=5, p1=3, p2=7, p4=2).diff(cut(p0=5, p1=9, p2=4, p3=6))
    assert [(item.topic_partition.partition, item.change, item.offsets) for item in changes] == [
        (0, Change.SAME, 0),
        (1, Change.SHRUNK, -6),
        (2, Change.GROWN, 3),
        (3, Change.REMOVED, -6),
        (4, Change.NEW, 2),
    ]
    (change,) = cut(ID, p0=5).diff(cut("00000000-0000-0000-0000-00000000000b", p0=3))
    assert (change.change, change.offsets) == (Change.RECREATED, 5)
    assert change.before == PartitionCut(0, 3)
    (change,) = cut(ID, p0=5).diff(cut("", p0=3))
    assert change.change is Change.GROWN


class Reader:
    """A fake of Spark's reader that records its options."""

    def __init__(self) -> None:
        self.options: dict[str, str] = {}

    @property
    def read(self) -> Reader:
        return self

    def format(self, name: str) -> Reader:
        assert name == "pybroker"
        return self

    def option(self, name: str, value: str) -> Reader:
        self.options[name] = value
        return self

    def load(self) -> dict[str, str]:
        return self.options


def test_read_passes_the_document_to_the_data_source() -> None:
    snap = snapshot()
    spark: Any = Reader()
    found: Any = snap.read(spark)
    assert found == {
        "snapshot": snap.to_json(),
        "kafka.bootstrap.servers": "broker:9092",
        "mode": "append",
        "maxBytesPerPartition": "128m",
    }
    found = snap.read(cast("Any", Reader()), columns="key,offset")
    assert found["columns"] == "key,offset"
    spark = Reader()
    found = snap.read(
        spark,
        "latest",
        include_headers=True,
        columns=["key", "headers"],
        min_partitions=4,
        bootstrap="other:1",
        conf={"failOnDataLoss": "false"},
    )
    del found["snapshot"]
    assert found == {
        "kafka.bootstrap.servers": "other:1",
        "mode": "latest",
        "columns": "key,headers",
        "includeHeaders": "true",
        "minPartitions": "4",
        "failOnDataLoss": "false",
    }
