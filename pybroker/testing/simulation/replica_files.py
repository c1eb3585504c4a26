"""The content of a partition's files on a simulated broker, to compare the replicas at the end of a
run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

from pybroker.model import TopicPartition
from pybroker.ports import Disk
from pybroker.records.batch import BatchHeader, crc_matches, iter_headers
from pybroker.records.control import ControlType, parse_control
from pybroker.records.record import decode_records
from pybroker.storage.producer_state import ProducerEntry
from pybroker.testing.history.keyed import KeyedRead, KeyedRecord
from pybroker.testing.history.model import Batch, FinalRead, Record, ReplicaFiles

_DIGEST_CHARACTERS: Final = 12
_BATCH_BYTES_MAX: Final = 1 << 24
_EPOCHS: Final = "leader-epoch-checkpoint"
_LOG: Final = ".log"


class DamagedFile(AssertionError):
    """A file of a broker is damaged, although no fault of the run damages files."""


def replica_files(
    disk: Disk,
    log_dir: str,
    broker: int,
    partition: TopicPartition,
    high_watermark: int,
    *,
    start: int = 0,
    producers: Iterable[ProducerEntry] | None = None,
) -> ReplicaFiles:
    """Return the content of a replica's files. `start` is the log start offset. `producers` is the
    producer state in memory, None if the broker does not run. Batches in the producer state that
    end below `start` are left out. Raises DamagedFile."""
    batches = tuple(
        Batch(
            header.base_offset,
            header.last_offset,
            header.leader_epoch,
            hashlib.sha256(data).hexdigest()[:_DIGEST_CHARACTERS],
            f"{header.producer_id}/{header.producer_epoch}" if header.has_producer else "",
        )
        for header, data in _batches(disk, log_dir, partition)
    )
    entries = None if producers is None else sorted(producers, key=lambda each: each.producer_id)
    return ReplicaFiles(
        partition=partition,
        broker=broker,
        start=max(start, _first(disk, log_dir, partition)),
        high_watermark=high_watermark,
        batches=batches,
        epochs=_epochs(disk, f"{log_dir}/{partition}/{_EPOCHS}"),
        producers=None
        if entries is None
        else tuple(told for entry in entries if (told := _producer_text(entry, start))),
    )


def final_read(
    disk: Disk, log_dir: str, broker: int, partition: TopicPartition, end: int, *, start: int = 0
) -> FinalRead:
    """Return the records at the offsets from `start` up to, not including, `end` in the replica's
    files. Transaction markers are left out. Raises DamagedFile."""
    begin = max(start, _first(disk, log_dir, partition))
    records = tuple(
        Record(
            record.offset,
            bytes(record.value or b"").decode(errors="replace"),
            header.leader_epoch,
        )
        for header, data in _batches(disk, log_dir, partition)
        if not header.is_control
        for record in decode_records(data, decompressed_bytes_max=_BATCH_BYTES_MAX)
        if begin <= record.offset < end
    )
    return FinalRead(partition, f"files of broker {broker}", begin, records)


def keyed_read(
    disk: Disk,
    log_dir: str,
    broker: int,
    partition: TopicPartition,
    end: int,
    *,
    start: int,
    at: int,
) -> KeyedRead:
    """Return all committed records from `start` up to, not including, `end` in the files of a
    compacted partition. `at` is the present time in ns. Raises DamagedFile."""
    found: list[KeyedRecord] = []
    of_transactions: dict[int, list[KeyedRecord]] = {}
    for header, data in _batches(disk, log_dir, partition):
        records = decode_records(data, decompressed_bytes_max=_BATCH_BYTES_MAX)
        if header.is_control:
            for marker in filter(None, map(parse_control, records)):
                pending = of_transactions.pop(header.producer_id, [])
                found += pending if marker.type is ControlType.COMMIT else []
            continue
        target = found
        if header.is_transactional:
            target = of_transactions.setdefault(header.producer_id, [])
        target += (
            KeyedRecord(
                each.offset,
                bytes(each.key or b"").decode(errors="replace"),
                None if each.value is None else bytes(each.value).decode(errors="replace"),
            )
            for each in records
            if start <= each.offset < end
        )
    found.sort(key=lambda each: each.offset)
    source = f"files of broker {broker}"
    return KeyedRead(partition, source, at, at, start, end, tuple(found), True, broker)


def _segments(disk: Disk, folder: str) -> list[str]:
    return [name for name in disk.list_dir(folder) if name.endswith(_LOG)]


def _first(disk: Disk, log_dir: str, partition: TopicPartition) -> int:
    names = _segments(disk, f"{log_dir}/{partition}")
    return int(names[0].removesuffix(_LOG)) if names else 0


def _batches(
    disk: Disk, log_dir: str, partition: TopicPartition
) -> Iterator[tuple[BatchHeader, memoryview]]:
    folder = f"{log_dir}/{partition}"
    for name in _segments(disk, folder):
        path = f"{folder}/{name}"
        data = memoryview(disk.read(path))
        end = 0
        for position, header in iter_headers(data):
            end = position + header.size
            if not crc_matches(data, position, header.size):
                raise DamagedFile(f"{path}: the batch at position {position} has a wrong checksum")
            yield header, data[position:end]
        if end != len(data):
            rest = len(data) - end
            raise DamagedFile(f"{path}: the {rest} bytes after position {end} are not a batch")


def _epochs(disk: Disk, path: str) -> tuple[tuple[int, int], ...]:
    if not disk.exists(path):
        return ()
    try:
        rows = [line.split() for line in disk.read(path).decode().splitlines()[2:]]
        return tuple((int(epoch), int(offset)) for epoch, offset in rows)
    except ValueError as error:
        raise DamagedFile(
            f"{path}: expected a leader epoch and an offset in each line: {error}"
        ) from error


def _producer_text(entry: ProducerEntry, start: int) -> str:
    """Return a producer's state as text; "" if all its batches are below the offset `start`."""
    batches = [
        (batch.last_sequence, batch.last_offset)
        for batch in entry.batches
        if batch.last_offset >= start
    ]
    return f"producer {entry.producer_id} epoch {entry.epoch}: {batches}" if batches else ""
