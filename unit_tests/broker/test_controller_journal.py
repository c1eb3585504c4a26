"""Tests of the controller's journal on disk: its size is limited, each line can be read, and no
decision waits for the disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from pybroker.broker import controller_journal
from pybroker.broker.controller_journal import FILE_NAME, ControllerJournal, Entry
from pybroker.storage.files import SystemDisk
from pybroker.testing.simulation.disk import SimDisk
from pybroker.testing.simulation.disk_faults import ProcessKilled
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.environment import Environment

T = TypeVar("T")


class Threads:
    """A Blocking port that uses a thread."""

    async def run(self, function: Callable[..., T], *args: object) -> T:
        return await asyncio.to_thread(function, *args)


class Immediate:
    """A Blocking port that works at once."""

    async def run(self, function: Callable[..., T], *args: object) -> T:
        return function(*args)


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[ControllerJournal]:
    made = ControllerJournal(str(tmp_path), SystemDisk(), Threads())
    made.start()
    yield made
    await made.stop()


def entry(number: int, partition: str = "orders-0") -> Entry:
    return {"what": "state", "partition": partition, "number": number}


async def test_entries_are_read_oldest_first(journal: ControllerJournal) -> None:
    for number in range(5):
        journal.note(entry(number))
    assert await journal.read(None, 3) == [entry(2), entry(3), entry(4)]
    await journal.stop()
    assert await journal.read(None, 100) == [entry(number) for number in range(5)]


async def test_entries_of_one_partition_are_read(journal: ControllerJournal) -> None:
    journal.note(entry(1))
    journal.note(entry(2, "orders-1"))
    journal.note({"what": "deletion", "topic": "orders-1"})
    journal.note(entry(3, "orders-10"))
    assert await journal.read("orders-1", 100) == [entry(2, "orders-1")]


async def test_entries_survive_a_restart_and_a_torn_line(tmp_path: Path) -> None:
    first = ControllerJournal(str(tmp_path), SystemDisk(), Threads())
    first.start()
    first.note(entry(1))
    await first.stop()
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(b'{"what":"sta')
    second = ControllerJournal(str(tmp_path), SystemDisk(), Threads())
    assert await second.read(None, 100) == [entry(1)]
    second.note(entry(2))
    await second._flush()
    assert await second.read(None, 100) == [entry(1), entry(2)]


async def test_a_kill_at_any_operation_loses_only_the_entry_in_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The operations include the rotation. A kill may also cut off a line."""
    monkeypatch.setattr(controller_journal, "FILE_BYTES_MAX", 300)
    was_killed, point = True, 0
    while was_killed:
        disk = SimDisk(Environment("1"), "m")
        DiskView(disk).make_dirs("/data")
        disk.kill_at(point, disk.process_ended, after_bytes=7)
        journal = ControllerJournal("/data", DiskView(disk), Immediate())
        written = 0
        was_killed = False
        try:
            for number in range(12):
                journal.note(entry(number))
                await journal._flush()
                written = number + 1
        except ProcessKilled:
            was_killed = True
        assert was_killed or written == 12
        disk.process_ended()
        again = ControllerJournal("/data", DiskView(disk), Immediate())
        again.note(entry(written))
        await again._flush()
        shown = [found["number"] for found in await again.read(None, 100)]
        assert len(shown) > min(4, written)
        assert shown == list(range(written + 1))[-len(shown) :]
        point += 1
    assert point > 12


async def test_the_journal_files_are_limited_in_size(
    journal: ControllerJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_journal, "FILE_BYTES_MAX", 1_000)
    for number in range(200):
        journal.note(entry(number))
        await journal.read(None, 1)
        await journal._flush()
    assert all(path.stat().st_size <= 1_000 for path in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 2
    shown = await journal.read(None, 1_000)
    assert 15 < len(shown) < 50
    assert shown[-1] == entry(199)


async def test_a_failing_disk_loses_only_the_oldest_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(controller_journal, "WAITING_MAX", 10)
    journal = ControllerJournal(str(tmp_path / "gone"), SystemDisk(), Threads())
    for number in range(30):
        journal.note(entry(number))
        await journal._flush()
    assert [line for line in caplog.messages if "journal not written" in line] == caplog.messages
    assert len(caplog.messages) == 1
    assert await journal.read(None, 100) == [entry(number) for number in range(20, 30)]
    (tmp_path / "gone").mkdir()
    await journal._flush()
    again = ControllerJournal(str(tmp_path / "gone"), SystemDisk(), Threads())
    assert await again.read(None, 100) == [entry(number) for number in range(20, 30)]
