"""A log with keyed records, tombstones, producers and transactions, and its cleaner, for tests."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from pybroker.compaction.choice import plan
from pybroker.compaction.cleaning import Result, clean
from pybroker.ports import Disk
from pybroker.records.batch import BatchHeader, iter_headers
from pybroker.records.builder import BatchBuilder
from pybroker.records.compression import Codec
from pybroker.records.record import Record, decode_records
from pybroker.storage.log_config import LogConfig
from unit_tests.storage.batches import FIRST_TIMESTAMP, marker
from unit_tests.storage.bench import EVERYTHING, Bench

HOUR_MS = 3_600_000
COMPACTED = LogConfig(
    cleanup_policy=("compact",),
    segment_bytes=600,
    index_interval_bytes=100,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=HOUR_MS,
)
MEMORY_BYTES = 1_000_000
Pair = tuple[bytes, bytes | None]


@dataclass
class Keyed:
    """A log, and all records that were ever appended to it. `history` has (offset, key, value,
    transaction or None). `outcomes` says of each ended transaction whether it was committed. `open`
    has the open transaction of each producer."""

    home: Path
    config: LogConfig = COMPACTED
    disk: Disk | None = None
    history: list[tuple[int, bytes, bytes | None, int | None]] = field(default_factory=list)
    outcomes: dict[int, bool] = field(default_factory=dict)
    open: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    cleaned_to: int | None = None

    def __post_init__(self) -> None:
        self.bench = Bench(self.home, self.config, self.disk)

    def put(
        self,
        *pairs: Pair,
        producer: int = -1,
        transactional: bool = False,
        codec: Codec = Codec.NONE,
    ) -> None:
        """Append a batch with these keys and values (None: a tombstone)."""
        builder = BatchBuilder(codec)
        for number, (key, value) in enumerate(pairs):
            timestamp = self.bench.now_ms + self.bench.log.log_end_offset + number
            builder.append(timestamp, key, value, [("h", b"1")] if number % 2 else ())
        if producer < 0:
            data = builder.build()
        else:
            sequence = self.sequences.get(producer, 0)
            self.sequences[producer] = sequence + len(pairs)
            data = builder.build(producer, 0, sequence, transactional)
        first = self.bench.put(bytearray(data)).first_offset
        transaction: int | None = None
        if transactional:
            transaction = self.open.setdefault(producer, len(self.history))
        rows = enumerate(pairs)
        self.history += [(first + n, key, value, transaction) for n, (key, value) in rows]

    def end(self, producer: int, *, commit: bool) -> None:
        """End the producer's open transaction."""
        self.bench.put(marker(producer, commit=commit))
        self.outcomes[self.open.pop(producer)] = commit

    @property
    def table(self) -> dict[bytes, bytes]:
        """The last value of each key up to the last stable offset, computed from `history`."""
        log = self.bench.log
        log.producers.decide(log.log_end_offset)
        unstable = log.producers.first_unstable
        table: dict[bytes, bytes] = {}
        for offset, key, value, number in self.history:
            if unstable is not None and offset >= unstable:
                break
            if number is None or self.outcomes[number]:
                _put(table, key, value)
        return table

    def clean(self, *, high_watermark: int | None = None, memory: int = MEMORY_BYTES) -> bool:
        """Flush the log and run one pass of the cleaner. Return whether there was a plan."""
        log = self.bench.log
        log.flush()
        mark = log.log_end_offset if high_watermark is None else high_watermark
        log.producers.decide(mark)
        chosen = plan(log, self.cleaned_to, mark, self.bench.now_ms)
        if chosen is None:
            return False
        (result,) = (
            each
            for each in clean(chosen, self.bench.disk, memory, self.bench.now_ms)
            if isinstance(each, Result)
        )
        self.cleaned_to = result.cleaned_to
        return True

    def clean_all(self, *, memory: int = MEMORY_BYTES) -> None:
        """Close the active segment, and clean until nothing is dirty."""
        self.bench.log.roll(self.bench.now_ms)
        while self.clean(memory=memory):
            continue

    def batches(self) -> list[tuple[BatchHeader, list[Record]]]:
        """Return all batches of the log, read as a consumer reads them."""
        found = []
        offset = self.bench.log.log_start_offset
        while data := self.bench.read(offset, 400):
            for position, header in iter_headers(data):
                assert header.last_offset >= offset, "the read returned a batch twice"
                batch = data[position : position + header.size]
                found.append((header, decode_records(batch, decompressed_bytes_max=EVERYTHING)))
                offset = header.next_offset
        return found

    def committed(self, start: int = 0) -> list[Record]:
        """Return the records from `start` on that a read_committed consumer returns, if all records
        are below the high watermark."""
        log = self.bench.log
        log.producers.decide(log.log_end_offset)
        aborted = {
            (each.producer_id, offset)
            for each in log.aborted_transactions(start, log.log_end_offset)
            for offset in range(each.first_offset, each.last_offset)
        }
        unstable = log.producers.first_unstable
        return [
            record
            for header, records in self.batches()
            for record in records
            if not header.is_control
            and (header.producer_id, header.base_offset) not in aborted
            and (unstable is None or record.offset < unstable)
            and record.offset >= start
        ]

    def replayed(self) -> dict[bytes, bytes]:
        """Return the last value of each key that a read_committed consumer reads."""
        table: dict[bytes, bytes] = {}
        for record in self.committed():
            assert record.key is not None
            _put(table, record.key, record.value)
        return table


def _put(table: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def fill(keyed: Keyed, rng: random.Random, steps: int) -> None:
    """Append random batches, and begin and end random transactions."""
    for _ in range(steps):
        pairs = [
            (b"k%d" % rng.randrange(8), None if rng.random() < 0.2 else rng.randbytes(6))
            for _ in range(rng.randint(1, 4))
        ]
        kind = rng.random()
        codec = rng.choice(list(Codec))
        if kind < 0.4:
            keyed.put(*pairs, codec=codec)
        elif kind < 0.55:
            keyed.put(*pairs, producer=10 + rng.randrange(2), codec=codec)
        elif kind < 0.85:
            keyed.put(*pairs, producer=rng.randrange(3), transactional=True, codec=codec)
        elif keyed.open:
            keyed.end(rng.choice(sorted(keyed.open)), commit=rng.random() < 0.5)
        keyed.bench.now_ms = max(keyed.bench.now_ms, FIRST_TIMESTAMP) + rng.choice([0, 1000])
