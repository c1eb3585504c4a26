"""Snapshots as values and as documents: what is kept, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.client.range_reader import PartitionRange
from pybroker.spark.snapshot_model import PartitionCut, Snapshot, SnapshotError, TopicCut

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


def test_ranges_and_counts_tell_what_is_to_be_read() -> None:
    snap = snapshot()
    assert snap.ranges() == [
        PartitionRange("orders", 0, 100, 250, ID, 7, 50),
        PartitionRange("orders", 1, 0, 0, ID, -1, -1),
        PartitionRange("users", 0, 0, 5, "", -1, -1),
    ]
    assert snap.counts() == {"orders": 150, "users": 5}


def test_an_unknown_version_is_refused() -> None:
    text = snapshot().to_json().replace('"version":1', '"version":2')
    with pytest.raises(SnapshotError, match="version 2, this program knows 1"):
        Snapshot.from_json(text)
