"""Tests of a kill and of a power loss at every disk operation of a pass of the log cleaner, and
of a full disk."""

from __future__ import annotations

import contextlib
import itertools
import random
from pathlib import Path
from typing import Final

import pytest

from pybroker.errors import DiskFull, StorageError
from pybroker.testing.simulation.disk import SimDisk
from pybroker.testing.simulation.disk_faults import ProcessKilled
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.environment import Environment
from unit_tests.compaction.keyed import COMPACTED, Keyed, fill

SEEDS: Final = (2, 4)


def prepared(seed: int) -> tuple[SimDisk, Keyed]:
    """Return a durable log with random records, of which some were cleaned before."""
    disk = SimDisk(Environment(str(seed)), "m")
    keyed = Keyed(Path("/logs"), COMPACTED, DiskView(disk))
    for folder in ("/", "/logs"):
        keyed.bench.disk.sync_dir(folder)
    rng = random.Random(seed)
    fill(keyed, rng, 20)
    keyed.clean_all()
    fill(keyed, rng, 10)
    keyed.bench.log.roll(0)
    keyed.bench.log.flush()
    return disk, keyed


def opened_again(disk: SimDisk, keyed: Keyed, *, power: bool) -> None:
    """Let the broker start again after the process has ended, with or without a power loss."""
    end = keyed.bench.log.log_end_offset
    if power:
        disk.lose_power()
    else:
        disk.process_ended()
    keyed.bench.disk = DiskView(disk)
    keyed.bench.open(recovery_point=end, same_boot=not power, lost_power=power)
    assert keyed.bench.log.damage is None
    assert keyed.bench.log.log_end_offset == end


@pytest.mark.parametrize("seed", SEEDS)
def test_pass_has_every_kind_of_disk_operation(seed: int) -> None:
    """It makes, syncs and renames each kind of file, and removes segments that others took in."""
    disk, keyed = prepared(seed)
    found: set[tuple[str, str]] = set()

    def note(operation: str, path: str) -> bool:
        found.add((operation, "".join(Path(path).suffixes)))
        return False

    disk.kill_at(note, disk.process_ended)
    keyed.clean()
    for kind in (".log", ".index", ".timeindex", ".txnindex"):
        made = [(each, kind + ".cleaned") for each in ("create", "append", "sync")]
        renamed = [("rename", kind), ("rename", kind + ".swap"), ("delete", kind)]
        assert found >= {*made, *renamed}
    assert found >= {("truncate", ".log.cleaned"), ("sync directory", "")}


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power-loss"])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_interruption_changes_the_table(seed: int, power: bool) -> None:
    """The same pass is interrupted at each of its disk operations in turn. After the restart the
    next pass completes the work."""
    for step in itertools.count():
        disk, keyed = prepared(seed)
        expected = keyed.table
        disk.kill_at(step, disk.process_ended)
        completed = False
        with contextlib.suppress(ProcessKilled):
            keyed.clean()
            completed = True
        opened_again(disk, keyed, power=power)
        assert keyed.replayed() == expected, step
        keyed.clean_all()
        assert keyed.replayed() == expected, step
        names = [Path(path).name for path, _ in disk.files()]
        assert not [name for name in names if name.endswith((".cleaned", ".swap"))], step
        if completed:
            break
    assert step > 20


@pytest.mark.parametrize("operation", ["append", "open", "rename", "sync", "sync_dir", "unlink"])
def test_failed_operation_ends_the_pass_and_loses_nothing(operation: str) -> None:
    """The first one, two or three operations of this kind fail. If the pass has fewer of them, it
    succeeds."""
    disk, keyed = prepared(2)
    expected = keyed.table
    for times in (1, 2, 3):
        disk.fail(operation, "", times=times)
        with contextlib.suppress(StorageError):
            keyed.clean()
        disk.mend()
        assert keyed.replayed() == expected
    opened_again(disk, keyed, power=False)
    assert keyed.replayed() == expected


def test_full_disk_ends_the_pass() -> None:
    disk, keyed = prepared(4)
    expected = keyed.table
    disk.capacity = disk.used_bytes + 10
    with pytest.raises(DiskFull):
        keyed.clean()
    assert keyed.replayed() == expected
    names = [Path(path).name for path, _ in disk.files()]
    assert not [name for name in names if name.endswith(".cleaned")]
    disk.mend()
    keyed.clean_all()
    assert keyed.replayed() == expected
