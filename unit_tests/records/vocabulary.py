"""Shared functions of the records tests. They build batches with any content, valid or damaged."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest

from pybroker.errors import BrokerError, CorruptionError, ErrorCode
from pybroker.ports import Buffer
from pybroker.records import _pure_record_buffer, builder, control, record, validate
from pybroker.records.batch import HEADER, HEADER_SIZE, BatchHeader, read_header, seal
from pybroker.records.builder import BatchBuilder
from pybroker.records.compression import Codec
from pybroker.records.record import Headers, Record, decode_records

LIMIT = 8 * 1024 * 1024
NOW_MS = 1_700_000_000_000
IMPLEMENTATIONS = ("_pure", "_speedups")

Fields = tuple[int, bytes | None, bytes | None, Headers]
"""Timestamp, key, value and headers of a record to produce."""

TRICKY: tuple[Fields, ...] = (
    (NOW_MS, b"key", b"value", ()),
    (NOW_MS - 12345, None, b"earlier than the first", ()),
    (NOW_MS + 2**40, b"no value", None, ()),
    (NOW_MS, b"", b"", ()),
    (0, None, None, (("empty", b""), ("null", None), ("empty", b"again"))),
    (NOW_MS, b"\xff" * 64, b"x" * 300, (("naïve ключ 鍵 🔑", "ünïcode".encode()), ("", b"\0"))),
    (NOW_MS, b"k" * 8191, b"v" * 8192, tuple((f"h{n}", b"%d" % n) for n in range(130))),
)


def implementation(name: str) -> ModuleType:
    """Return the module `pybroker.records.<name>`. Skips the test if the module is not
    compiled."""
    try:
        return importlib.import_module(f"pybroker.records.{name}")
    except ImportError:
        return pytest.skip("needs the compiled module: python setup.py build_ext --inplace")


def buffers_of(loops: ModuleType) -> ModuleType:
    """Return the module with the `RecordBuffer` of the same implementation as `loops`."""
    return loops if hasattr(loops, "RecordBuffer") else _pure_record_buffer


def use(monkeypatch: pytest.MonkeyPatch, loops: ModuleType) -> None:
    """Replace the loops over records in the whole package with those of the module `loops`."""
    for module in (builder, control):
        monkeypatch.setattr(module, "RecordBuffer", buffers_of(loops).RecordBuffer)
    monkeypatch.setattr(record, "read_records", loops.read_records)
    monkeypatch.setattr(validate, "scan_records", loops.scan_records)


def batch_of(*fields: Fields, codec: Codec = Codec.NONE, **build: Any) -> bytearray:
    """Return a batch from `BatchBuilder`."""
    collected = BatchBuilder(codec)
    for timestamp, key, value, headers in fields:
        collected.append(timestamp, key, value, headers)
    return bytearray(collected.build(**build))


def around(payload: bytes, record_count: int = 1, **changes: int) -> bytearray:
    """Return a sealed batch with this payload and, unless `changes` say otherwise, a fitting
    header."""
    header = BatchHeader(
        0,
        49 + len(payload),
        -1,
        2,
        0,
        0,
        record_count - 1,
        NOW_MS,
        NOW_MS,
        -1,
        -1,
        -1,
        record_count,
    )._replace(**changes)
    data = bytearray(HEADER.pack(*header) + payload)
    seal(data, 0, len(data))
    return data


def changed(batch: Buffer, **changes: int) -> bytearray:
    """Return the batch with other values in its header and a new checksum."""
    data = bytearray(batch)
    data[:HEADER_SIZE] = HEADER.pack(*read_header(batch)._replace(**changes))
    seal(data, 0, len(data))
    return data


def decoded(batch: Buffer, limit: int = LIMIT) -> list[Record]:
    return decode_records(batch, decompressed_bytes_max=limit)


def fields_of(records: list[Record]) -> list[Fields]:
    return [(item.timestamp, item.key, item.value, item.headers) for item in records]


def varint(value: int) -> bytes:
    """Return a number of any size as a zig-zag varint."""
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    output = bytearray()
    while raw > 0x7F:
        output.append((raw & 0x7F) | 0x80)
        raw >>= 7
    output.append(raw)
    return bytes(output)


def record_bytes(*parts: bytes | int, length: int | None = None) -> bytes:
    """Return a record with attributes 0 and the given parts; numbers become varints. `length`
    replaces the correct record length."""
    body = b"\0" + b"".join(varint(part) if isinstance(part, int) else part for part in parts)
    return varint(len(body) if length is None else length) + body


def refusal(action: Any, *args: Any) -> tuple[ErrorCode | None, str]:
    """Return the code and the text of the error that the call must raise. The code is None for
    CorruptionError."""
    with pytest.raises((BrokerError, CorruptionError)) as caught:
        action(*args)
    return getattr(caught.value, "code", None), str(caught.value)
