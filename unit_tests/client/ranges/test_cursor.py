"""Tests of the position within a range, over logs of every shape, against a model of single
offsets."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

from hypothesis import assume, given
from hypothesis import strategies as st

from pybroker.client.ranges.cursor import RangeCursor
from pybroker.client.ranges.model import PartitionRange
from pybroker.records.batch import BatchHeader, read_header, stamp
from pybroker.records.builder import BatchBuilder
from pybroker.records.control import ControlType, EndTransaction, build_end_transaction
from pybroker.records.record import decode_records

PRODUCERS = (5, 6)


@dataclass
class Log:
    """Batches with gaps between them, and the records that a reader has to return."""

    batches: list[bytes] = field(default_factory=list)
    end: int = 0
    plain: set[int] = field(default_factory=set)
    committed: set[int] = field(default_factory=set)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """First offset, producer, and the offset of the marker."""
    open: dict[int, list[int]] = field(default_factory=dict)

    def hole(self, offsets: int) -> None:
        """Leave a gap, as compaction does."""
        self.end += offsets

    def _append(self, data: bytes, offsets: int) -> range:
        batch = bytearray(data)
        stamp(batch, 0, self.end, 0)
        self.batches.append(bytes(batch))
        self.end += offsets
        return range(self.end - offsets, self.end)

    def records(self, count: int, producer: int | None) -> None:
        builder = BatchBuilder()
        for _ in range(count):
            builder.append(0, b"k", b"v")
        if producer is None:
            data = builder.build()
        else:
            data = builder.build(producer, 0, 0, transactional=True)
        new = self._append(data, count)
        self.plain.update(new)
        if producer is None:
            self.committed.update(new)
        else:
            self.open.setdefault(producer, []).extend(new)

    def ends(self, producer: int, kind: ControlType) -> None:
        marker = build_end_transaction(
            EndTransaction(kind, 0), producer_id=producer, producer_epoch=0, timestamp_ms=0
        )
        (at,) = self._append(marker, 1)
        offsets = self.open.pop(producer, [])
        if kind is ControlType.COMMIT:
            self.committed.update(offsets)
        elif offsets:
            self.aborted.append((offsets[0], producer, at))

    def answer(self, position: int, batches_max: int) -> tuple[bytes, list[tuple[int, int]]]:
        """Return a leader's answer: whole batches, the last one cut off, and the aborted
        transactions in between."""
        rest = [batch for batch in self.batches if read_header(batch).next_offset > position]
        chosen = rest[:batches_max]
        tail = rest[batches_max][:70] if len(rest) > batches_max else b""
        aborted = [(first, producer) for first, producer, at in self.aborted if at >= position]
        return b"".join(chosen) + tail, aborted


steps = st.one_of(
    st.tuples(st.just("hole"), st.integers(1, 4)),
    st.tuples(st.just("records"), st.integers(1, 4), st.sampled_from((None, *PRODUCERS))),
    st.tuples(st.just("ends"), st.sampled_from(PRODUCERS), st.sampled_from(tuple(ControlType))),
)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    log = Log()
    for name, *words in draw(st.lists(steps, max_size=25)):
        getattr(log, str(name))(*words)
    for producer in PRODUCERS:
        log.ends(producer, draw(st.sampled_from(tuple(ControlType))))
    return log


def shown(header: BatchHeader, data: memoryview, wanted: PartitionRange) -> list[int]:
    assert header == read_header(data)
    return [
        record.offset
        for record in decode_records(data, decompressed_bytes_max=1 << 20)
        if wanted.start <= record.offset < wanted.end
    ]


@given(logs(), st.data(), st.booleans())
def test_a_range_shows_the_records_of_the_model(
    log: Log, data: st.DataObject, committed_only: bool
) -> None:
    start = data.draw(st.integers(0, log.end), "start")
    end = data.draw(st.integers(start, log.end), "end")
    wanted = PartitionRange("t", 0, start, end)
    cursor = RangeCursor(wanted, committed_only=committed_only)
    seen: list[int] = []
    while not cursor.done:
        before = cursor.position
        answer, aborted = log.answer(before, data.draw(st.sampled_from((1, 2, 3, 30)), "batches"))
        for header, batch in cursor.accept(answer, aborted, log.end):
            seen += shown(header, batch, wanted)
        assert cursor.damage is None
        assert before < cursor.position <= end
    expected = log.committed if committed_only else log.plain
    assert seen == sorted(offset for offset in expected if start <= offset < end)
    covered = {at for batch in log.batches for at in offsets_of(batch)}
    missing = {at for first, beyond in cursor.gaps for at in range(first, beyond)}
    assert missing == set(range(start, end)) - covered


def offsets_of(batch: bytes) -> range:
    header = read_header(batch)
    return range(header.base_offset, header.next_offset)


def test_an_answer_must_not_begin_before_the_end_of_the_last_batch() -> None:
    log = Log()
    log.records(5, None)
    cursor = RangeCursor(PartitionRange("t", 0, 0, 9), committed_only=False)
    assert len(cursor.accept(log.batches[0], [], 9)) == 1
    bent = bytearray(log.batches[0])
    stamp(bent, 0, 3, 0)
    assert cursor.accept(bytes(bent), [], 9) == []
    assert cursor.damage == "a batch begins at offset 3, but the previous batch ends with offset 4"
    assert cursor.position == 5
    cursor.skip_to(6)  # as retention lets one begin anywhere
    assert len(cursor.accept(bytes(bent), [], 9)) == 1


def test_an_answer_must_not_begin_with_a_batch_below_the_position() -> None:
    log = Log()
    log.records(5, None)
    cursor = RangeCursor(PartitionRange("t", 0, 5, 14), committed_only=False)
    assert cursor.accept(log.batches[0], [], 14) == []
    assert cursor.damage == (
        "a batch has the offsets 0 to 4, but the client asked for the offset 5 or later"
    )
    assert cursor.position == 5


@given(logs(), st.data())
def test_a_flipped_bit_is_detected_or_harmless(log: Log, data: st.DataObject) -> None:
    """Base offset and leader epoch lie outside the checksum. A wrong epoch does no harm; a wrong
    offset contradicts the neighbouring batches, unless there is a gap."""
    whole = b"".join(log.batches)
    position = data.draw(st.integers(0, len(whole) - 1), "position")
    has_holes = sum(read_header(batch).last_offset_delta + 1 for batch in log.batches) < log.end
    assume(not (has_holes and is_base_offset(log, position)))
    bent = bytearray(whole)
    bent[position] ^= 1 << data.draw(st.integers(0, 7), "bit")
    wanted = PartitionRange("t", 0, 0, log.end)
    cursor = RangeCursor(wanted, committed_only=False)
    seen: list[int] = []
    while not cursor.done and cursor.damage is None:
        for header, batch in cursor.accept(bytes(bent), [], log.end):
            seen += shown(header, batch, wanted)
    assert cursor.damage is not None or seen == sorted(log.plain)


def is_base_offset(log: Log, position: int) -> bool:
    places = accumulate((len(batch) for batch in log.batches), initial=0)
    return any(place <= position < place + 8 for place in places)
