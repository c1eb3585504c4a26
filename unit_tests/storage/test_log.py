"""Tests of appending to a log and of reading it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.errors import BrokerError, ErrorCode
from pybroker.records.batch import crc_matches, read_header, stamp
from pybroker.records.compression import Codec
from pybroker.storage.log_config import LogConfig
from pybroker.storage.segment import Segment
from unit_tests.storage.batches import FIRST_TIMESTAMP, batch
from unit_tests.storage.bench import EVERYTHING, Bench, refused
from unit_tests.storage.faulty_disk import FaultyDisk

ONE = len(batch())
SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200, file_delete_delay_ms=60_000)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def segmented(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path, SMALL)
    bench.append(*[1] * 40)
    assert bench.log.segment_count > 3
    return bench


def test_records_get_the_next_offsets_and_keep_their_bytes(bench: Bench) -> None:
    sent = batch(3, codec=Codec.LZ4)
    expected = bytearray(sent)
    bench.append(5)
    result = bench.put(sent, epoch=7)
    assert (result.first_offset, result.last_offset) == (5, 7)
    stamp(expected, 0, 5, 7)
    assert bench.read(5) == bytes(expected)


def test_every_offset_leads_to_its_batch(segmented: Bench) -> None:
    for offset in range(40):
        data = segmented.read(offset, 1)
        assert data is not None
        assert read_header(data).base_offset == offset


def test_a_read_inside_a_batch_begins_with_that_batch(bench: Bench) -> None:
    bench.append(5, 5, 5)
    data = bench.read(7, 1)
    assert data is not None
    assert read_header(data).base_offset == 5


@pytest.mark.parametrize(
    ("max_bytes", "at_least_one", "expected"),
    [
        (0, False, 0),
        (ONE - 1, False, 0),
        (ONE - 1, True, 1),
        (ONE, False, 1),
        (2 * ONE - 1, True, 1),
        (3 * ONE + 5, False, 3),
        (EVERYTHING, False, 10),
    ],
)
def test_a_read_gives_whole_batches_up_to_its_limit(
    bench: Bench, max_bytes: int, at_least_one: bool, expected: int
) -> None:
    bench.append(*[1] * 10)
    data = bench.read(0, max_bytes, at_least_one=at_least_one)
    assert data is not None
    assert len(data) == expected * ONE


@pytest.mark.parametrize(("upper", "expected"), [(0, 0), (1, 0), (3, 3), (4, 3), (6, 6), (9, 6)])
def test_no_batch_reaches_beyond_the_upper_offset(bench: Bench, upper: int, expected: int) -> None:
    bench.append(3, 3, 4)
    data = bench.read(0, upper=upper)
    assert data is not None
    end = 0 if not data else expected
    assert end == expected
    position = 0
    while position < len(data):
        found = read_header(data, position)
        assert found.next_offset <= upper
        position += found.size


def test_a_read_at_the_log_end_is_empty_and_beyond_it_fails(bench: Bench) -> None:
    bench.append(3)
    assert bench.read(3) == b""
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        bench.read(4)


def test_a_read_below_the_log_start_fails(bench: Bench) -> None:
    bench.append(3, 3)
    bench.log.advance_log_start(3)
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        bench.read(2)
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        bench.log.advance_log_start(7)
    assert bench.offsets() == [3, 4, 5]


def test_a_cached_read_that_would_wait_returns_none(tmp_path: Path) -> None:
    disk = FaultyDisk()
    bench = Bench(tmp_path, disk=disk)
    bench.append(3)
    assert bench.read(0, cached_only=True)
    disk.faults.cached = False
    assert bench.read(0, cached_only=True) is None
    assert bench.read(0)


def test_a_batch_larger_than_a_segment_gets_its_own(bench: Bench) -> None:
    bench.log.set_config(SMALL)
    bench.append(1)
    bench.append(1, value=b"x" * 5000)
    bench.append(1)
    assert bench.log.segment_count == 3
    assert bench.offsets() == [0, 1, 2]


def test_segments_end_by_size(segmented: Bench) -> None:
    sizes = [path.stat().st_size for path in sorted(segmented.path.glob("*.log"))]
    assert all(SMALL.segment_bytes - ONE < size <= SMALL.segment_bytes for size in sizes[:-1])
    assert segmented.offsets() == list(range(40))


@pytest.mark.parametrize(("age_ms", "segments"), [(1000, 1), (1001, 2)])
def test_segments_end_by_the_age_of_their_first_batch(
    bench: Bench, age_ms: int, segments: int
) -> None:
    bench.log.set_config(LogConfig(segment_ms=1000))
    bench.put(batch(timestamp=FIRST_TIMESTAMP))
    bench.put(batch(timestamp=FIRST_TIMESTAMP + age_ms))
    assert bench.log.segment_count == segments


def test_segments_without_timestamps_end_by_the_clock(bench: Bench) -> None:
    bench.log.set_config(LogConfig(segment_ms=1000))
    bench.put(batch(timestamp=-1, step_ms=0))
    bench.now_ms += 1001
    bench.put(batch(timestamp=-1, step_ms=0))
    assert bench.log.segment_count == 2


def test_jitter_ends_segments_earlier(bench: Bench) -> None:
    bench.log.set_config(LogConfig(segment_ms=1000, segment_jitter_ms=1000))
    bench.put(batch(timestamp=FIRST_TIMESTAMP))
    bench.put(batch(timestamp=FIRST_TIMESTAMP + 999))
    assert bench.log.segment_count == 2


def test_jitter_beyond_the_age_of_segments_counts_as_that_age(bench: Bench) -> None:
    bench.log.set_config(LogConfig(segment_ms=10**12, segment_jitter_ms=2**63 - 1))
    for later_ms in range(20):
        bench.put(batch(timestamp=FIRST_TIMESTAMP + later_ms))
    assert bench.log.segment_count == 1


def test_segments_end_when_an_index_is_full(bench: Bench) -> None:
    bench.log.set_config(LogConfig(index_interval_bytes=0, segment_index_bytes=36))
    bench.append(*[1] * 12)
    assert bench.log.segment_count > 2
    bench.close()
    assert all(path.stat().st_size <= 36 for path in bench.path.glob("*.timeindex"))


def test_log_append_time_is_the_brokers(bench: Bench) -> None:
    bench.log.set_config(LogConfig(message_timestamp_type="LogAppendTime"))
    bench.now_ms = 1_800_000_000_000
    result = bench.put(batch(3))
    data = bench.read(0)
    assert data is not None
    assert result.log_append_time_ms == bench.now_ms
    assert crc_matches(data, 0, len(data))
    assert {record.timestamp for record in bench.records()} == {bench.now_ms}


def test_a_replica_stores_the_same_bytes(tmp_path: Path) -> None:
    leader, follower = Bench(tmp_path / "leader", SMALL), Bench(tmp_path / "follower", SMALL)
    leader.append(*[1] * 10, epoch=2)
    leader.append(*[1] * 30, epoch=3)
    while data := leader.read(follower.log.log_end_offset, 450):
        follower.log.append_replicated(data + data[:40], now_ms=0)
    for bench in (leader, follower):
        bench.close()
    names = [path.name for path in sorted(leader.path.iterdir())]
    assert names == [path.name for path in sorted(follower.path.iterdir())]
    for name in names:
        if not name.endswith("snapshot"):
            assert (leader.path / name).read_bytes() == (follower.path / name).read_bytes(), name


def test_a_replica_can_append_two_epochs_one_by_one_after_a_full_disk(
    tmp_path: Path,
) -> None:
    """The start of the second epoch was recorded beyond the log end, so batches of the first epoch
    were refused."""
    disk = FaultyDisk()
    leader, follower = Bench(tmp_path / "leader"), Bench(tmp_path / "follower", disk=disk)
    leader.append(1, epoch=1)
    leader.append(1, epoch=2)
    disk.faults.room_bytes = 10
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        follower.log.append_replicated(leader.read(0) or b"", now_ms=0)
    disk.faults.room_bytes = None
    follower.log.append_replicated((leader.read(0) or b"")[:ONE], now_ms=0)
    follower.log.append_replicated(leader.read(1) or b"", now_ms=0)
    assert follower.read(0) == leader.read(0)
    assert follower.log.epoch_end_offset(1) == leader.log.epoch_end_offset(1) == (1, 1)


def test_a_replica_refuses_batches_that_do_not_follow(tmp_path: Path) -> None:
    leader, follower = Bench(tmp_path / "leader"), Bench(tmp_path / "follower")
    leader.append(1, 1)
    data = leader.read(0)
    assert data is not None
    follower.log.append_replicated(data, now_ms=0)
    with refused(ErrorCode.CORRUPT_MESSAGE):
        follower.log.append_replicated(data, now_ms=0)
    leader.append(1)
    broken = bytearray(leader.read(2) or b"")
    broken[-1] ^= 1
    with refused(ErrorCode.CORRUPT_MESSAGE):
        follower.log.append_replicated(broken, now_ms=0)
    later = Bench(tmp_path / "later")
    later.append(1, 1, epoch=5)
    later.append(1, epoch=2)
    with refused(ErrorCode.CORRUPT_MESSAGE):
        follower.log.append_replicated(later.read(2) or b"", now_ms=0, epoch_max=1)
    assert follower.offsets() == [0, 1]


def test_a_replica_refuses_batches_with_falling_epochs(tmp_path: Path) -> None:
    one, other, follower = (Bench(tmp_path / name) for name in ("one", "other", "follower"))
    one.append(1, epoch=5)
    other.append(1, 1, epoch=4)
    follower.log.append_replicated(one.read(0) or b"", now_ms=0)
    with refused(ErrorCode.CORRUPT_MESSAGE):
        follower.log.append_replicated(other.read(1) or b"", now_ms=0)
    assert follower.offsets() == [0]


def test_a_truncation_removes_an_epoch_without_records(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.append(1, 1, epoch=1)
    bench.log.begin_epoch(3, 2)
    assert bench.log.latest_epoch == 3
    bench.log.truncate_to(2)
    assert bench.log.latest_epoch == 1
    assert bench.offsets() == [0, 1]


# timestamps


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_offsets_by_timestamp(tmp_path: Path, codec: Codec) -> None:
    bench = Bench(tmp_path, SMALL)
    for number in range(20):
        bench.put(
            batch(5, timestamp=FIRST_TIMESTAMP + number * 50, step_ms=10, codec=codec), epoch=3
        )
    for _ in range(2):
        for offset in range(100):
            found = bench.log.offset_for_timestamp(FIRST_TIMESTAMP + offset * 10 - 4, 100)
            assert found == (offset, FIRST_TIMESTAMP + offset * 10, 3)
        bench.reopen()


def test_no_offset_for_a_timestamp_beyond_the_last(bench: Bench) -> None:
    bench.append(3)
    assert bench.log.offset_for_timestamp(FIRST_TIMESTAMP + 3, 3) is None
    assert bench.log.offset_for_timestamp(FIRST_TIMESTAMP + 2, 2) is None
    assert bench.log.offset_for_timestamp(0, 3) == (0, FIRST_TIMESTAMP, 0)


def test_timestamps_out_of_order(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SMALL)
    times = [50, 10, 90, 20, 90, 95, 5, *[1] * 30]
    for time in times:
        bench.put(batch(timestamp=FIRST_TIMESTAMP + time))
    for wanted in range(96):
        expected = next(n for n, time in enumerate(times) if time >= wanted)
        found = bench.log.offset_for_timestamp(FIRST_TIMESTAMP + wanted, EVERYTHING)
        assert found is not None
        assert found[0] == expected


def test_the_first_record_with_the_largest_timestamp(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SMALL)
    for time in [50, 10, 95, 20, 95, 5, *[1] * 30]:
        bench.put(batch(timestamp=FIRST_TIMESTAMP + time))
    assert bench.log.offset_of_max_timestamp(EVERYTHING) == (2, FIRST_TIMESTAMP + 95, 0)
    assert bench.log.offset_of_max_timestamp(2) == (0, FIRST_TIMESTAMP + 50, 0)
    bench.log.advance_log_start(5)
    assert bench.log.offset_of_max_timestamp(EVERYTHING) == (5, FIRST_TIMESTAMP + 5, 0)
    assert Bench(tmp_path / "empty").log.offset_of_max_timestamp(EVERYTHING) is None


# truncating


@pytest.mark.parametrize("end", [0, 1, 7, 8, 20, 39, 40, 50])
def test_truncation(segmented: Bench, end: int) -> None:
    segmented.log.truncate_to(end)
    assert segmented.offsets() == list(range(min(end, 40)))
    segmented.append(1)
    segmented.crash()
    assert segmented.offsets() == list(range(min(end, 40) + 1))


def test_truncation_calls_the_owner_before_and_after_the_removal(segmented: Bench) -> None:
    segmented.log.flush()
    segmented.log.truncate_to(5)
    assert segmented.lowered == [5, 5]
    assert segmented.log.recovery_point == 5


def test_truncation_removes_whole_batches(bench: Bench) -> None:
    bench.append(3, 3)
    bench.log.truncate_to(4)
    assert bench.log.log_end_offset == 3


def test_truncation_clears_the_position_hints(bench: Bench) -> None:
    bench.append(*[1] * 10)
    for offset in range(10):
        bench.read(offset, 1)
    bench.log.truncate_to(2)
    bench.append(*[2] * 4, value=b"longer than before")
    for offset in range(2, 10):
        data = bench.read(offset, 1)
        assert data is not None
        found = read_header(data)
        assert found.base_offset <= offset <= found.last_offset


def test_truncation_updates_the_largest_timestamp(tmp_path: Path) -> None:
    bench = Bench(tmp_path, LogConfig(index_interval_bytes=0))
    bench.append(*[1] * 10)
    bench.log.truncate_to(4)
    assert bench.log.offset_of_max_timestamp(EVERYTHING) == (3, FIRST_TIMESTAMP + 3, 0)
    bench.put(batch(timestamp=FIRST_TIMESTAMP + 5))
    bench.put(batch(timestamp=FIRST_TIMESTAMP + 7))
    assert bench.log.offset_for_timestamp(FIRST_TIMESTAMP + 6, 99) == (5, FIRST_TIMESTAMP + 7, 0)


def test_truncation_removes_epochs_and_producers(bench: Bench) -> None:
    bench.put(batch(producer=9, sequence=0), epoch=1)
    bench.put(batch(producer=9, sequence=1), epoch=2)
    bench.log.truncate_to(1)
    assert bench.log.latest_epoch == 1
    assert bench.put(batch(producer=9, sequence=1), epoch=3).first_offset == 1


def test_truncate_fully_and_start_at_another_offset(segmented: Bench) -> None:
    segmented.log.truncate_fully_and_start_at(1000)
    assert (segmented.log.log_start_offset, segmented.log.log_end_offset) == (1000, 1000)
    segmented.append(2)
    segmented.reopen()
    assert segmented.offsets() == [1000, 1001]


# retention


@pytest.mark.parametrize(
    ("config", "high_watermark", "left"),
    [
        ({"retention_ms": 10}, 40, 0),
        ({"retention_ms": 10}, 9, 31),
        ({"retention_ms": -1}, 40, 40),
        ({"retention_ms": -1, "retention_bytes": 20 * ONE}, 40, 24),
        ({"retention_ms": -1, "retention_bytes": 0}, 40, 0),
        ({"retention_ms": 10, "cleanup_policy": ("compact",)}, 40, 40),
        ({"retention_ms": 10, "cleanup_policy": ("compact", "delete")}, 40, 0),
    ],
)
def test_retention(
    tmp_path: Path, config: dict[str, object], high_watermark: int, left: int
) -> None:
    settings = {"segment_bytes": 8 * ONE, **config}
    bench = Bench(tmp_path, LogConfig(**settings))  # type: ignore[arg-type]
    bench.append(*[1] * 40)
    bench.log.delete_expired(FIRST_TIMESTAMP + 1_000_000, high_watermark)
    expected = -(-left // 8) * 8
    assert len(bench.offsets()) == expected
    assert bench.log.log_start_offset == 40 - expected
    bench.reopen()
    assert len(bench.offsets()) == expected
    assert bench.log.log_end_offset == 40


def test_a_compacted_topic_loses_only_records_deleted_by_request(segmented: Bench) -> None:
    segmented.log.set_config(LogConfig(cleanup_policy=("compact",), retention_ms=1))
    segmented.log.advance_log_start(20)
    assert segmented.log.delete_expired(FIRST_TIMESTAMP * 2, 40) > 0
    assert segmented.offsets() == list(range(20, 40))
    assert segmented.log.log_start_offset == 20


def test_deleted_files_are_removed_after_their_delay(segmented: Bench) -> None:
    now = FIRST_TIMESTAMP + 10 * 24 * 3600 * 1000
    segmented.log.delete_expired(now, 40)
    assert list(segmented.path.glob("*.deleted"))
    segmented.log.remove_doomed(now + 59_999)
    assert list(segmented.path.glob("*.deleted"))
    segmented.log.remove_doomed(now + 60_000)
    assert not list(segmented.path.glob("*.deleted"))


def test_a_read_of_at_most_0_bytes_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    bench.append(1)
    monkeypatch.setattr(Segment, "read", None)
    assert bench.read(0, 0, at_least_one=False) == b""
    with pytest.raises(BrokerError):
        bench.read(2, 0, at_least_one=False)
