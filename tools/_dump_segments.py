"""The lines of Kafka's DumpLogSegments for the batches and records of a segment."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import click

from pybroker.errors import BrokerError, CorruptionError
from pybroker.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    NO_SEQUENCE,
    SEQUENCE_MAX,
    BatchHeader,
    TimestampType,
    crc_matches,
    read_header,
)
from pybroker.records.compression import Codec
from pybroker.records.control import parse_control
from pybroker.records.record import Record, decode_records
from pybroker.tools._cli import Failure

_DIGITS_MAX: Final = 20
"""The number of digits of the base offset in a segment's file name."""

WHOLE: Final = 2**31 - 1
"""The default of --max-bytes: the whole file."""
DECOMPRESSED_BYTES_MAX: Final = 1024**3
_OVERHEAD_MIN: Final = 14
"""The minimum length of a message in Kafka's oldest format, in bytes."""
_MAGIC_END: Final = MAGIC_POSITION + 1
_SIZES: Final = struct.Struct(">qi")
_OLD_HEAD: Final = struct.Struct(">qiIbb")
_OLD_TIMESTAMP: Final = struct.Struct(">q")
_OLD_CHECKED_POSITION: Final = 16
_CONTROL_NAMES: Final = {
    2: "LEADER_CHANGE",
    3: "SNAPSHOT_HEADER",
    4: "SNAPSHOT_FOOTER",
    5: "KRAFT_VERSION",
    6: "KRAFT_VOTERS",
}

Decoder = Callable[[bytes], str]
RecordText = Callable[[Record], tuple[str | None, str | None]]
"""A function that returns the texts of a record's key and value. A text that is None is not
printed."""


class StoredBatch(NamedTuple):
    """The position, size, format and offset of a batch in its file."""

    position: int
    size: int
    magic: int
    offset: int
    """The batch's first field: its base offset, or its last offset in the formats 0 and 1."""


@dataclass(frozen=True, slots=True)
class LogView:
    """The choices for printing a log. `deep`: print each record, not only the batches. `contents`:
    print keys and values too. `skip_metadata`: print keys and values only."""

    deep: bool = False
    contents: bool = False
    skip_metadata: bool = False
    max_bytes: int = WHOLE
    text: RecordText = lambda record: (None, None)
    notices: tuple[str, ...] = ()
    """Lines to print before the content of each log."""


@dataclass(slots=True)
class Complaints:
    """The faults found in the files. Each field maps a file's absolute path to pairs:

    - `mismatches`, `not_found`: the offset in an index entry, and the offset in the log.
    - `time_mismatches`: the timestamp in an index entry, and the timestamp in the log.
    - `time_disorder`: the timestamps of an index entry and of the entry before.
    - `gaps`: the offsets of two successive records.
    """

    mismatches: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    time_mismatches: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    time_disorder: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    not_found: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    gaps: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """Yield the lines that kafka-dump-log prints for the faults, in its order: offset
        mismatches and gaps from the last to the first, all other faults from the first to the
        last."""
        for path, pairs in self.mismatches.items():
            yield f"Mismatches in :{path}"
            yield from (f"  Index offset: {a}, log offset: {b}" for a, b in reversed(pairs))
        for path, pairs in self.time_mismatches.items():
            yield f"Found timestamp mismatch in :{path}"
            yield from (f"  Index timestamp: {a}, log timestamp: {b}" for a, b in pairs)
        for path, pairs in self.time_disorder.items():
            yield f"Found out of order timestamp in :{path}"
            yield from (
                f"  Index timestamp: {a}, Previously indexed timestamp: {b}" for a, b in pairs
            )
        for pairs in self.not_found.values():
            yield "The following indexed offsets are not found in the log."
            yield from (f"Indexed offset: {a}, found log offset: {b}" for a, b in pairs)
        for path, pairs in self.gaps.items():
            yield f"Non-consecutive offsets in {path}"
            yield from (f"  {a} is followed by {b}" for a, b in reversed(pairs))


def absolute(path: Path) -> str:
    return str(path.absolute())


class LogFile:
    """Reads the batches of a segment's log file."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self._path = path
        self._stream = stream
        self.size = os.fstat(stream.fileno()).st_size

    def batches(self, position: int = 0, limit: int = WHOLE) -> Iterator[StoredBatch]:
        """Yield the complete batches in the `limit` bytes that begin at `position`. Raises Failure
        if the length field of a batch is too small."""
        end = min(self.size, position + limit)
        while position < end - _MAGIC_END:
            head = self.read(position, _MAGIC_END)
            if len(head) < _MAGIC_END:
                return
            offset, length = _SIZES.unpack_from(head)
            if length < _OVERHEAD_MIN:
                raise Failure(
                    f"Found record size {length} smaller than minimum record overhead"
                    f" ({_OVERHEAD_MIN}) in file {self._path}."
                )
            size = LOG_OVERHEAD + length
            if position > end - size:
                return
            yield StoredBatch(position, size, head[MAGIC_POSITION], offset)
            position += size

    def read(self, position: int, length: int) -> bytes:
        self._stream.seek(position)
        return self._stream.read(length)

    def header(self, batch: StoredBatch) -> BatchHeader:
        """Return the header of a batch of format 2. Raises Failure if the header is corrupt."""
        try:
            return read_header(self.read(batch.position, HEADER_SIZE))
        except CorruptionError as error:
            raise Failure(f"{self._path}: batch at position {batch.position}: {error}") from error

    def last_offset(self, batch: StoredBatch) -> int:
        return self.header(batch).last_offset if batch.magic >= MAGIC else batch.offset

    def records(self, batch: StoredBatch) -> list[Record]:
        """Return the records of a batch. Raises Failure if the batch cannot be decoded."""
        if batch.magic < MAGIC:
            raise Failure(
                f"{self._path}: the message at position {batch.position} has the format"
                f" {batch.magic}, which cannot be decoded; leave out --deep-iteration and"
                " --print-data-log"
            )
        try:
            data = self.read(batch.position, batch.size)
            return decode_records(data, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
        except (CorruptionError, BrokerError) as error:
            raise Failure(f"{self._path}: batch at position {batch.position}: {error}") from error


def base_offset(path: Path) -> int:
    """Return the base offset in a segment's file name. If the name has no offset and the file does
    not exist, raises OSError. If the name has no offset but the file exists, raises Failure."""
    name = path.name.split(".")[0]
    if not (name.isascii() and name.isdigit() and len(name) <= _DIGITS_MAX):
        path.stat()  # raises OSError: "no such file" explains more than the fault of the name
        raise Failure(f"{path}: the file name does not begin with an offset")
    return int(name)


def dump_log(path: Path, view: LogView, complaints: Complaints) -> None:
    """Print the batches of a segment, and with `view.deep` the records. Raises Failure, OSError."""
    for notice in view.notices:
        click.echo(notice)
    click.echo(f"Log starting offset: {base_offset(path)}")
    with path.open("rb") as stream:
        log = LogFile(path, stream)
        valid_bytes = 0
        last_offset = -1
        for batch in log.batches(0, view.max_bytes):
            click.echo(_batch_line(log, batch))
            if view.deep:
                last_offset = _dump_records(log, batch, view, last_offset, path, complaints)
            valid_bytes += batch.size
        trailing = log.size - valid_bytes
        if trailing > 0 and view.max_bytes == WHOLE:
            click.echo(f"Found {trailing} invalid bytes at the end of {path.name}")


def _batch_line(log: LogFile, batch: StoredBatch) -> str:
    if batch.magic < MAGIC:
        return _old_line(log, batch)
    header = log.header(batch)
    horizon = f"OptionalLong[{header.base_timestamp}]"
    words = {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.leader_epoch,
        "isTransactional": _word(header.is_transactional),
        "isControl": _word(header.is_control),
        "deleteHorizonMs": horizon if header.has_delete_horizon else "OptionalLong.empty",
        "position": batch.position,
        _time_name(header.timestamp_type): header.max_timestamp,
        "size": batch.size,
        "magic": batch.magic,
        "compresscodec": _codec_name(header.codec),
        "crc": header.crc,
        "isvalid": _word(crc_matches(log.read(batch.position, batch.size), 0, batch.size)),
    }
    return " ".join(f"{name}: {value}" for name, value in words.items())


def _old_line(log: LogFile, batch: StoredBatch) -> str:
    """Return the printed line of a message in format 0 or 1."""
    data = log.read(batch.position, batch.size)
    _, _, crc, magic, attributes = _OLD_HEAD.unpack_from(data)
    time_name, timestamp = "NoTimestampType", -1
    if magic > 0:
        time_name = _time_name(TimestampType((attributes >> 3) & 1))
        (timestamp,) = _OLD_TIMESTAMP.unpack_from(data, _OLD_HEAD.size)
    words = {
        "offset": batch.offset,
        "position": batch.position,
        time_name: timestamp,
        "size": batch.size,
        "magic": magic,
        "compresscodec": _codec_name(attributes & 7),
        "crc": crc,
        "isvalid": _word(crc == zlib.crc32(data[_OLD_CHECKED_POSITION:])),
    }
    return " ".join(f"{name}: {value}" for name, value in words.items())


def _dump_records(
    log: LogFile,
    batch: StoredBatch,
    view: LogView,
    last_offset: int,
    path: Path,
    complaints: Complaints,
) -> int:
    """Print the records of a batch, and return the offset of the last printed record."""
    records = log.records(batch)
    header = log.header(batch)
    for record in records:
        if last_offset not in (-1, record.offset - 1):
            complaints.gaps.setdefault(absolute(path), []).append((last_offset, record.offset))
        last_offset = record.offset
        click.echo(_record_line(header, record, view))
    return last_offset


def _record_line(header: BatchHeader, record: Record, view: LogView) -> str:
    prefix = "| "
    line = ""
    if not view.skip_metadata:
        keys = ",".join(name for name, _ in record.headers)
        line = (
            f"{prefix}offset: {record.offset} {_time_name(header.timestamp_type)}:"
            f" {record.timestamp} keySize: {_size(record.key)} valueSize: {_size(record.value)}"
            f" sequence: {_sequence(header, record)} headerKeys: [{keys}]"
        )
        prefix = " "
        if header.is_control:
            line += _control_words(record)
    if view.contents and not header.is_control:
        key, payload = view.text(record)
        if key is not None:
            line += f"{prefix}key: {key}"
        if payload is not None:
            line += f" payload: {payload}"
    return line


def _control_words(record: Record) -> str:
    try:
        marker = parse_control(record)
    except CorruptionError as error:
        raise Failure(str(error)) from error
    if marker is not None:
        return f" endTxnMarker: {marker.type.name} coordinatorEpoch: {marker.coordinator_epoch}"
    number = int.from_bytes((record.key or b"")[2:4], "big", signed=True)
    return f" controlType: {_CONTROL_NAMES.get(number, 'UNKNOWN')}({number})"


def _sequence(header: BatchHeader, record: Record) -> int:
    if header.base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return (header.base_sequence + record.offset - header.base_offset) & SEQUENCE_MAX


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _time_name(kind: TimestampType) -> str:
    return "LogAppendTime" if kind is TimestampType.LOG_APPEND_TIME else "CreateTime"


def _codec_name(number: int) -> str:
    try:
        return Codec(number).name.lower()
    except ValueError as error:
        raise Failure(f"Unknown compression type id: {number}") from error


def _word(value: bool) -> str:
    return "true" if value else "false"
