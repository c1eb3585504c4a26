"""Tests of `snapshot`: it takes, shows and compares snapshots; wrong usage gives one line."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pybroker.__main__ import main
from pybroker.client.ranges.model import Counted
from pybroker.spark import snapshot as snapshots
from pybroker.spark.readability import Readability
from pybroker.spark.snapshot import PartitionCut, Snapshot, TopicCut
from pybroker.tools._cli import Failure
from pybroker.tools.snapshot import CountingLine, parse_until

OLD = Snapshot(
    id="01OLD",
    cluster_id="c",
    created_at_ms=1_780_000_000_123,
    isolation="read_committed",
    topics={"orders": TopicCut("", {0: PartitionCut(0, 10, 0, 7), 1: PartitionCut(5, 5, 2, 7)})},
    bootstrap="broker:9092",
)
NEW = Snapshot(
    id="01NEW",
    cluster_id="c",
    created_at_ms=1_780_000_001_000,
    isolation="read_committed",
    topics={"orders": TopicCut("", {0: PartitionCut(10, 12, 0, 7), 2: PartitionCut(0, 3, 0, 7)})},
    parent="01OLD",
)

SOON = {"leaderless.timeout.ms": "3000"}
"""What the tool tells the client of partitions without a leader."""


def shell(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str], str]:
    code = main(["snapshot", *words])
    found = capsys.readouterr()
    return code, found.out.splitlines(), found.err


def saved(path: Path, found: Snapshot) -> str:
    found.save(path / f"{found.id}.json")
    return str(path / f"{found.id}.json")


def test_show_prints_the_records_that_were_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cuts = {0: PartitionCut(0, 10, 0, 7, (Counted(0, 10, 8, 5),)), 1: PartitionCut(5, 5, 2, 7)}
    topics = {"orders": TopicCut("", cuts), "users": TopicCut("", {0: PartitionCut(0, 3)})}
    _, lines, _ = shell(capsys, "show", saved(tmp_path, replace(OLD, topics=topics)))
    assert [line.split("Offsets: ")[1] for line in lines[1:]] == [
        "10\tRecords: 8",
        "10\tRecords: 8\tLogStart: 0\tLeaderEpoch: 7",
        "0\tRecords: 0\tLogStart: 2\tLeaderEpoch: 7",
        "3",
        "3\tLogStart: -1\tLeaderEpoch: -1",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_counting_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pybroker.tools.snapshot.LINE_S", 0.0)
    for out in (Terminal(), io.StringIO()):
        with CountingLine(out) as progress:
            progress(1_000, 4_000)
            progress(4_000, 4_000)
        first = "counting records: 1,000 of 4,000 offsets (25%)"
        second = "counting records: 4,000 of 4,000 offsets (100%)"
        gone = " " * len(second)
        expected = f"\r{first}\r\r{second}\r\r{gone}\r" if out.isatty() else ""
        assert out.getvalue() == expected


def test_show_prints_partitions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, OLD)
    assert shell(capsys, "show", path) == (
        0,
        [
            "Snapshot: 01OLD\tTaken: 2026-05-28T20:26:40.123+00:00\tCluster: c"
            "\tIsolation: read_committed\tParent: -",
            "Topic: orders\tTopicId: -\tPartitions: 2\tOffsets: 10",
            "\tPartition: 0\tStart: 0\tEnd: 10\tOffsets: 10\tLogStart: 0\tLeaderEpoch: 7",
            "\tPartition: 1\tStart: 5\tEnd: 5\tOffsets: 0\tLogStart: 2\tLeaderEpoch: 7",
        ],
        "",
    )
    _, (line,), _ = shell(capsys, "show", path, "--format", "json")
    assert Snapshot.from_json(line) == OLD


@pytest.mark.parametrize(("problems", "code"), [((), 0), (("t-0@5: gone",), 1)])
def test_show_asks_the_cluster(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    problems: tuple[str, ...],
    code: int,
) -> None:
    asked: list[dict[str, Any]] = []

    def answer(self: Snapshot, **given: Any) -> Readability:
        asked.append(given)
        return Readability(problems, ("t is compacted",))

    monkeypatch.setattr(Snapshot, "is_readable", answer)
    words = ["show", saved(tmp_path, OLD), "--check", "--bootstrap-server", "h:1"]
    found, lines, _ = shell(capsys, *words)
    assert found == code
    assert asked == [{"bootstrap": "h:1", "conf": SOON, "recount": False}]
    assert lines[4:] == [
        "Readable: " + ("no" if problems else "yes"),
        *(f"Problem: {text}" for text in problems),
        "Warning: t is compacted",
    ]
    found, (line,), _ = shell(capsys, *words, "--format", "json", "--recount")
    assert asked[1]["recount"]
    document = json.loads(line)
    assert found == code
    assert (document["readable"], document["problems"]) == (not problems, list(problems))


def test_diff_prints_the_change_of_each_partition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [saved(tmp_path, OLD), saved(tmp_path, NEW)]
    assert shell(capsys, "diff", *paths) == (
        0,
        [
            "Partition: orders-0\tChange: grown\tOffsets: +2\tEnd: 10 -> 12",
            "Partition: orders-1\tChange: removed\tOffsets: +0\tEnd: 5 -> -",
            "Partition: orders-2\tChange: new\tOffsets: +3\tEnd: - -> 3",
        ],
        "",
    )
    _, (line,), _ = shell(capsys, "diff", *paths, "--format", "json")
    assert json.loads(line)[2] == {
        "topic": "orders",
        "partition": 2,
        "change": "new",
        "offsets": 3,
        "endBefore": None,
        "endAfter": 3,
    }


def test_take_prints_the_document_or_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def take(bootstrap: str, topics: Any, **given: Any) -> Snapshot:
        assert callable(given.pop("progress"))
        asked.append((bootstrap, list(topics), given))
        return NEW

    monkeypatch.setattr(snapshots, "take", take)
    words = ["take", "--bootstrap-server", "h:1", "--topic", "a", "--topic", "b"]
    code, (line,), _ = shell(capsys, *words)
    assert code == 0
    assert Snapshot.from_json(line) == NEW
    path = tmp_path / "out.json"
    config = tmp_path / "client.properties"
    config.write_text("client.id=me\n")
    more = ["--since", "x.json", "--until", "5", "--isolation-level", "read_uncommitted"]
    more += ["--count", "always"]
    code, lines, _ = shell(
        capsys, *words, *more, "--output", str(path), "--command-config", str(config)
    )
    assert (code, lines[0].split("\t")[0]) == (0, "Snapshot: 01NEW")
    assert Snapshot.load(path) == NEW
    nothing = {"since": None, "until": "latest", "isolation": None, "conf": SOON}
    nothing["count"] = "compacted"
    given = {"since": "x.json", "until": 5, "isolation": "read_uncommitted", "count": "always"}
    assert asked == [
        ("h:1", ["a", "b"], nothing),
        ("h:1", ["a", "b"], {**given, "conf": {**SOON, "client.id": "me"}}),
    ]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["take"], 'Missing required argument "[bootstrap-server]"'),
        (
            ["take", "--bootstrap-server", "127.0.0.1:1"],
            "the list of topics is empty: give at least one",
        ),
        (["show", "nosuch.json"], "the snapshot nosuch.json cannot be read: No such file"),
        (["show", "nosuch.json", "--bootstrap-server", "h:1"], "need --check"),
        (["show", "nosuch.json", "--recount"], "need --check"),
        (["diff", "a.json"], 'Missing required argument "[new]"'),
        (["nosuch"], "No such command 'nosuch'."),
    ],
)
def test_wrong_usage_is_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], error: str
) -> None:
    code, lines, found = shell(capsys, *words)
    assert (code, lines) == (1, [])
    assert error in found.splitlines()[0]


def test_until_accepts_latest_a_time_or_offsets() -> None:
    assert parse_until("latest") == "latest"
    assert parse_until("1780000000000") == 1_780_000_000_000
    assert parse_until('{"orders": {"0": 250, "1": 300}}') == {"orders": {0: 250, 1: 300}}
    for text in ('{"orders": 5}', '{"orders": {"x": 5}}', '{"orders": {"0": "5"}}', "{"):
        with pytest.raises(Failure, match="--until is"):
            parse_until(text)
