"""Tests of the recovery of a log that was not closed cleanly, with one fault in each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.storage.log_config import LogConfig
from pybroker.testing.simulation.disk import SimDisk
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.environment import Environment
from unit_tests.storage.batches import FIRST_TIMESTAMP, batch, marker, stamped
from unit_tests.storage.bench import Bench, on_simulated_disk, storage_error

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def segmented(tmp_path: Path) -> Bench:
    """Return a log of 30 records in several segments."""
    bench = Bench(tmp_path, SMALL)
    bench.append(*[1] * 30)
    assert bench.log.segment_count > 2
    return bench


def test_a_kill_loses_no_record(bench: Bench) -> None:
    bench.append(3, 2, 5)
    bench.crash()
    assert bench.offsets() == list(range(10))
    assert bench.cut_bytes == 0
    assert bench.recovered


@pytest.mark.parametrize("off", [1, 30, 61, 70])
def test_a_torn_tail_is_cut_off_and_saved(bench: Bench, off: int) -> None:
    bench.append(1, 1, 4)
    torn = len(batch(4)) - off
    bench.tear(off)
    bench.crash()
    assert bench.offsets() == [0, 1]
    assert bench.cut_bytes == torn
    assert len(bench.kept_aside()) == 1
    assert (bench.path / bench.kept_aside()[0]).stat().st_size == torn


def test_appends_continue_after_a_torn_tail_was_cut(bench: Bench) -> None:
    bench.append(1, 1)
    bench.tear(5)
    bench.crash()
    bench.append(3)
    bench.reopen()
    assert bench.offsets() == [0, 1, 2, 3]


def test_two_torn_tails_at_the_same_position_are_both_saved(bench: Bench) -> None:
    bench.append(1, 1)
    for _ in range(2):
        bench.tear(5)
        bench.crash()
        bench.append(1)
    assert len(bench.kept_aside()) == 2


def test_a_zeroed_tail_is_cut_without_a_copy(bench: Bench) -> None:
    bench.append(1, 1)
    bench.add_tail(bytes(5000))
    bench.crash()
    assert bench.offsets() == [0, 1]
    assert bench.kept_aside() == []
    assert bench.segment().stat().st_size == 2 * len(batch())


def test_garbage_at_the_log_end_is_cut_off(bench: Bench) -> None:
    bench.append(1, 1)
    bench.add_tail(b"\x02" * 777)
    bench.crash()
    assert bench.offsets() == [0, 1]
    assert bench.cut_bytes == 777


def test_a_flipped_bit_in_the_last_batch_is_a_torn_tail(bench: Bench) -> None:
    bench.append(1, 1, 1)
    bench.flip_bit(2)
    bench.crash()
    assert bench.offsets() == [0, 1]


@pytest.mark.parametrize("at", [5, 6, 16, 20, 25, 70])
def test_a_flipped_bit_before_a_valid_batch_is_damage(bench: Bench, at: int) -> None:
    bench.append(1, 1, 1, 1)
    bench.flip_bit(1, at)
    before = bench.segment().read_bytes()
    bench.crash()
    assert bench.log.damage is not None
    assert bench.log.damage.offset == 1
    assert bench.offsets_before_the_damage() == [0]
    assert bench.segment().read_bytes() == before


def test_a_damaged_length_hides_no_valid_batch(bench: Bench) -> None:
    bench.append(1, 1, 1)
    bench.flip_bit(1, at=8)
    bench.crash()
    assert bench.log.damage is not None


def test_reads_stop_at_a_corrupt_range(bench: Bench) -> None:
    bench.append(1, 1, 1)
    bench.flip_bit(1)
    bench.crash()
    with storage_error():
        bench.read(1)
    with storage_error():
        bench.read(2)
    with storage_error():
        bench.append(1)


def test_damage_in_an_earlier_segment_leaves_later_segments_unchanged(segmented: Bench) -> None:
    segmented.flip_bit(1)
    files = {path: path.read_bytes() for path in segmented.path.glob("*.log")}
    segmented.crash()
    assert segmented.offsets_before_the_damage() == [0]
    assert {path: path.read_bytes() for path in segmented.path.glob("*.log")} == files


def test_discarding_all_records_repairs_a_damaged_log(segmented: Bench) -> None:
    segmented.flip_bit(1)
    segmented.crash()
    segmented.log.truncate_fully_and_start_at(7)
    segmented.append(2)
    segmented.reopen()
    assert segmented.offsets() == [7, 8]
    assert len(segmented.kept_aside()) > 2


def test_an_invalid_batch_below_the_recovery_point_is_damage(bench: Bench) -> None:
    bench.append(1, 1, 1)
    bench.tear(5)
    before = bench.segment().read_bytes()
    bench.crash(recovery_point=3)
    assert bench.log.damage is not None
    assert bench.log.damage.offset == 2
    assert bench.segment().read_bytes() == before


def test_a_log_end_below_the_floor_offset_is_damage_within_one_boot(bench: Bench) -> None:
    bench.append(1, 1, 1)
    bench.tear(5)
    bench.crash(recovery_point=0, floor=3)
    assert bench.log.damage is not None


def test_a_log_that_ends_below_its_recovery_point_is_damaged(bench: Bench) -> None:
    bench.append(1, 1, 1)
    bench.tear(len(batch()))
    bench.crash(recovery_point=3)
    assert bench.log.damage is not None
    assert bench.offsets_before_the_damage() == [0, 1]


def test_recovery_checks_only_from_the_recovery_point_on(segmented: Bench) -> None:
    segmented.flip_bit(1)
    segmented.crash(recovery_point=20)
    assert segmented.log.damage is None
    assert segmented.log.log_end_offset == 30


def test_the_recovery_point_may_be_any_offset(segmented: Bench) -> None:
    for recovery_point in range(31):
        segmented.crash(recovery_point=recovery_point)
        assert segmented.log.damage is None
        assert segmented.offsets() == list(range(30))
        assert segmented.log.recovery_point == recovery_point


def test_a_torn_tail_before_segments_of_garbage_is_cut(segmented: Bench) -> None:
    last = segmented.segment()
    segmented.flip_bit(29)
    last.write_bytes(b"\xff" * 500)
    segmented.tear(3, number=-2)
    segmented.crash()
    assert segmented.log.damage is None
    assert segmented.offsets() == list(range(segmented.log.log_end_offset))
    assert len(segmented.kept_aside()) == 2


def test_falling_offsets_are_damage_or_a_torn_tail(bench: Bench) -> None:
    bench.append(2, 2)
    bench.add_tail(stamped(batch(1), 1))
    bench.crash()
    assert bench.offsets() == [0, 1, 2, 3]
    assert bench.cut_bytes == len(batch(1))


def test_all_batches_are_checked_without_a_recovery_point(segmented: Bench) -> None:
    segmented.flip_bit(1)
    segmented.crash(recovery_point=None)
    assert segmented.log.damage is not None


def test_no_batch_is_checked_after_a_clean_stop(segmented: Bench) -> None:
    segmented.close()
    segmented.flip_bit(1)
    segmented.open(clean=True, recovery_point=30)
    assert not segmented.recovered
    assert segmented.log.log_end_offset == 30


def test_a_clean_mark_does_not_hide_a_damaged_log_end(bench: Bench) -> None:
    bench.append(1, 1)
    bench.close()
    bench.add_tail(b"x" * 80)
    bench.open(clean=True, recovery_point=2)
    assert bench.recovered
    assert bench.offsets() == [0, 1]


@pytest.mark.parametrize("kind", ["index", "timeindex"])
@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("deed", ["lose", "garble", "zero"])
def test_a_damaged_index_is_rebuilt(
    segmented: Bench, kind: str, number: int, clean: bool, deed: str
) -> None:
    segmented.close()
    if deed == "zero":
        segmented.zero(kind, 240, number)
    else:
        getattr(segmented, deed)(kind, number)
    segmented.open(clean=clean, recovery_point=30)
    assert segmented.offsets() == list(range(30))
    for offset in range(30):
        data = segmented.read(offset)
        assert data is not None
        assert int.from_bytes(data[:8], "big") == offset


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_no_bit_of_an_index_gives_a_wrong_answer(segmented: Bench, kind: str) -> None:
    """Every offset and every timestamp is found, whichever bit of the first segment's index
    flips."""
    times = [segmented.log.offset_for_timestamp(1000 + n, 30) for n in range(0, 31, 3)]
    path = min(segmented.path.glob(f"*.{kind}"))
    segmented.close()
    whole = path.read_bytes()
    assert whole
    for place in range(len(whole)):
        for bit in (0, 3, 7):
            data = bytearray(whole)
            data[place] ^= 1 << bit
            path.write_bytes(data)
            segmented.open(clean=True, recovery_point=30)
            assert segmented.offsets() == list(range(30))
            for offset in range(30):
                read = segmented.read(offset)
                assert read is not None
                assert int.from_bytes(read[:8], "big") == offset
            for n, expected in zip(range(0, 31, 3), times, strict=True):
                assert segmented.log.offset_for_timestamp(1000 + n, 30) == expected
            segmented.close()


def test_rebuilt_indexes_equal_the_original_ones(segmented: Bench) -> None:
    segmented.close()
    kinds = ("index", "timeindex")
    before = {
        path: path.read_bytes() for kind in kinds for path in segmented.path.glob(f"*.{kind}")
    }
    for path in before:
        path.unlink()
    segmented.open(recovery_point=0)
    segmented.close()
    assert {path: path.read_bytes() for path in before} == before


def test_lost_leader_epochs_are_taken_from_the_batches(bench: Bench) -> None:
    bench.append(2, epoch=1)
    bench.append(2, epoch=4)
    bench.close()
    (bench.path / "leader-epoch-checkpoint").unlink()
    bench.open(clean=True, recovery_point=4)
    assert bench.log.epoch_end_offset(1) == (1, 2)
    bench.append(1, epoch=4)
    assert (bench.path / "leader-epoch-checkpoint").read_text() == "0\n2\n1 0\n4 2\n"


def test_garbled_leader_epochs_are_taken_from_the_batches(bench: Bench) -> None:
    bench.append(2, epoch=1)
    bench.close()
    (bench.path / "leader-epoch-checkpoint").write_bytes(b"0\n7\n1 0\n")
    bench.open(clean=True, recovery_point=2)
    assert bench.log.latest_epoch == 1


def test_garbled_leader_epochs_of_an_empty_log_are_removed(bench: Bench) -> None:
    """A follower that receives no records would not rewrite the file."""
    bench.log.begin_epoch(3, 0)
    bench.log.persist_epochs()
    bench.close()
    (bench.path / "leader-epoch-checkpoint").write_bytes(b"0\n1\np 0\n")
    bench.open(clean=True, recovery_point=0)
    assert not (bench.path / "leader-epoch-checkpoint").exists()


def test_epochs_beyond_the_log_end_are_removed(bench: Bench) -> None:
    bench.append(1, 1, epoch=1)
    bench.log.begin_epoch(9, 2)
    bench.close()
    bench.tear(1)
    bench.crash()
    assert bench.log.latest_epoch == 1


def test_temporary_files_are_removed_and_unknown_files_are_kept(bench: Bench) -> None:
    bench.append(1)
    for name in ("00000000000000000000.log.deleted", "00000000000000000009.index", "notes.txt"):
        (bench.path / name).write_bytes(b"")
    bench.reopen()
    names = {path.name for path in bench.path.iterdir()}
    assert "notes.txt" in names
    assert not names & {"00000000000000000000.log.deleted", "00000000000000000009.index"}


def test_epochs_below_a_log_start_that_was_not_checkpointed_are_restored(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for epoch in (1, 2, 3):
        bench.append(1, 1, epoch=epoch)
    bench.log.advance_log_start(5)
    bench.log.persist_epochs()
    assert bench.log.epoch_end_offset(1) == (1, 5)
    bench.open(log_start=1)
    assert [bench.log.epoch_end_offset(epoch) for epoch in (1, 2, 3)] == [(1, 2), (2, 4), (3, 6)]
    assert bench.log.epoch_of(1) == 1


def test_epochs_beyond_the_log_end_do_not_return_with_new_records(bench: Bench) -> None:
    """A leader lost its last records in a power loss, and has since copied older epochs from
    another leader."""
    bench.append(2, epoch=1)
    bench.log.flush()
    bench.log.begin_epoch(4, 4)
    bench.log.persist_epochs()
    bench.crash()
    data = stamped(batch(4), 2, 1)
    bench.log.append_replicated(data, now_ms=0)
    bench.crash()
    assert bench.log.latest_epoch == 1
    assert bench.log.epoch_end_offset(4) == (-1, -1)
    assert bench.log.epoch_end_offset(1) == (1, 6)


def test_a_directory_without_segments_is_an_empty_log(bench: Bench) -> None:
    """The broker was killed after it created the directory, and before it created the first
    file."""
    bench.lose("log")
    bench.crash(recovery_point=None)
    assert bench.log.log_end_offset == 0
    bench.append(2)
    assert bench.offsets() == [0, 1]


def test_a_gap_between_two_segments_is_damage(segmented: Bench) -> None:
    """After a power loss the next segment is on the disk, but the end of this segment is not."""
    first, last = segmented.segment(0), segmented.segment(-1)
    end = segmented.log.log_end_offset
    lost = len(batch(1))
    first.write_bytes(first.read_bytes()[:-lost])
    segmented.crash()
    assert segmented.log.damage is not None
    assert segmented.log.log_end_offset == int(segmented.segment(1).stem) - 1
    assert last.exists()
    assert segmented.log.log_end_offset < end


def test_an_empty_segment_after_a_lost_tail_is_no_damage(bench: Bench) -> None:
    bench.append(1, 1, 1)
    bench.log.roll()
    bench.tear(len(batch(1)), number=0)
    bench.crash()
    assert bench.log.damage is None
    assert bench.offsets() == [0, 1]
    bench.append(1)
    assert bench.offsets() == [0, 1, 2]


def test_checkpoints_are_lowered_to_the_start_of_the_truncated_batch(bench: Bench) -> None:
    """With a higher checkpoint, a broker that is killed during the truncation finds a log that is
    too short, which counts as damage."""
    bench.append(3, 4)
    bench.log.truncate_to(5)
    assert bench.lowered == [3, 3]


def test_records_below_the_recovery_point_are_found_by_timestamp(bench: Bench) -> None:
    """Records without an index entry are found, too."""
    bench.append(*[1] * 5)
    bench.log.flush()
    bench.crash(recovery_point=5)
    assert bench.log.offset_for_timestamp(FIRST_TIMESTAMP + 3, 5) == (3, FIRST_TIMESTAMP + 3, 0)


def test_records_after_the_last_index_entry_are_found_by_timestamp(tmp_path: Path) -> None:
    bench = Bench(tmp_path, LogConfig(index_interval_bytes=0))
    bench.append(*[1] * 5)
    bench.reopen()
    bench.append(1, 1, 1)
    bench.log.flush()
    bench.crash(recovery_point=8, same_boot=True)
    assert bench.log.offset_for_timestamp(FIRST_TIMESTAMP + 7, 8) == (7, FIRST_TIMESTAMP + 7, 0)


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_an_index_that_contains_zeros_is_rebuilt_after_a_power_loss(
    tmp_path: Path, kind: str
) -> None:
    """The index of the active segment is not synced with its records."""
    bench = Bench(tmp_path, LogConfig(index_interval_bytes=0))
    bench.append(*[1] * 20)
    bench.reopen()
    whole = bench.segment(kind=kind).read_bytes()
    zeros_at = len(whole) // 4
    zeroed = whole[:zeros_at] + bytes(2 * zeros_at) + whole[3 * zeros_at :]
    bench.segment(kind=kind).write_bytes(zeroed)
    bench.crash(recovery_point=20)
    for offset in range(20):
        wanted = (offset, FIRST_TIMESTAMP + offset, 0)
        assert bench.log.offset_for_timestamp(FIRST_TIMESTAMP + offset, 20) == wanted
    bench.log.close()
    assert zeroed not in bench.segment(kind=kind).read_bytes()


def simulated_bench(seed: int, config: LogConfig) -> tuple[SimDisk, Bench]:
    simulated = SimDisk(Environment(str(seed)), "m")
    disk = DiskView(simulated)
    disk.make_dirs("/data")
    disk.sync_dir("/")
    return simulated, Bench(Path("/data"), config, disk)


def test_indexes_of_a_log_that_was_closed_are_as_durable_as_its_records() -> None:
    for seed in range(40):
        simulated, bench = simulated_bench(seed, LogConfig(index_interval_bytes=0))
        bench.append(*[1] * 200)
        bench.close()
        simulated.lose_power()
        bench.disk = DiskView(simulated)
        bench.open(clean=True, recovery_point=200)
        for offset in (100, 130, 199):
            wanted = (offset, FIRST_TIMESTAMP + offset, 0)
            assert bench.log.offset_for_timestamp(FIRST_TIMESTAMP + offset, 200) == wanted


def test_aborted_transactions_are_as_durable_as_the_records() -> None:
    """Below the recovery point no markers are read: without the index, read_committed consumers
    would see aborted records."""
    for seed in range(20):
        simulated, bench = simulated_bench(seed, LogConfig())
        bench.put(batch(producer=7, sequence=0, transactional=True))
        bench.put(marker(7, commit=False))
        bench.append(1)
        bench.log.roll()
        bench.log.flush()
        simulated.lose_power()
        bench.disk = DiskView(simulated)
        bench.crash(recovery_point=3)
        assert len(bench.log.aborted_transactions(0, 3)) == 1


def test_a_power_loss_while_retention_removes_segments_leaves_no_gap() -> None:
    """Retention had renamed the oldest segments. A power loss may undo any of the renames."""
    kept = set()
    for seed in range(60):
        disk, bench = on_simulated_disk(SMALL, seed)
        bench.log.advance_log_start(50)
        assert bench.log.delete_expired(bench.now_ms, 60) > 2
        if seed % 3 == 0:
            bench.log.remove_doomed(bench.now_ms + 10**9)
        disk.lose_power()
        bench.disk = DiskView(disk)
        bench.open(recovery_point=0, log_start=0)
        assert (bench.log.damage, bench.offsets()[-1]) == (None, 59)
        kept.add(bench.log.segments.first.base_offset)
    assert len(kept) > 3
