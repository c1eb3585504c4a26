"""Fuzz targets: functions that take any bytes, and raise an exception if the code breaks a rule:

- The codec returns a message that can be encoded again, or raises MalformedInput.
- The readers of records return records, or raise CorruptionError or BrokerError. The compiled
  readers, and the readers that return columns, give the same result as the pure Python readers.
- Decompressed data is not larger than its limit.
- The decoder of a coordinator's records returns a value that can be encoded again, or raises
  MalformedInput.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Final

from pybroker.coordinator.groups import records as group_records
from pybroker.errors import BrokerError, CorruptionError, MalformedInput
from pybroker.records import _pure
from pybroker.records._numpy_columns import ColumnStore
from pybroker.records.batch import TimestampType, crc_matches, iter_headers, read_header
from pybroker.records.builder import pack_batch
from pybroker.records.columns import ColumnBuilder, Store
from pybroker.records.compression import Codec, decompress
from pybroker.records.loops import read_records as fast_read_records
from pybroker.records.loops import scan_records as fast_scan_records
from pybroker.records.record import Record, decode_records, record_times
from pybroker.records.validate import BatchRules, validate_produced
from pybroker.wire.api import APIS
from pybroker.wire.codec import decode_request, encode_request
from pybroker.wire.headers import parse_request_header
from unit_tests.records.rows import Row, row_of, rows_of

DECOMPRESSED_BYTES_MAX: Final = 1 << 20
RULES: Final = (
    BatchRules(max_message_bytes=1 << 20, segment_bytes=1 << 30),
    BatchRules(
        max_message_bytes=1 << 10,
        segment_bytes=1 << 30,
        compacted=True,
        timestamp_before_max_ms=1_000_000,
        timestamp_after_max_ms=1_000,
    ),
)
NOW_MS: Final = 1_600_000_000_000
_KEYS: Final = {int(key): api for key, api in APIS.items()}


def requests(data: bytes) -> None:
    """Decode a request frame (without its size) as the broker does. Encoding and decoding the
    message again must give the same bytes."""
    with contextlib.suppress(MalformedInput):
        header, body_start = parse_request_header(memoryview(data))
        api = _KEYS.get(header.api_key)
        if api is None or not api.supports(header.version):
            return
        message = decode_request(api, header.version, memoryview(data)[body_start:])
        said = encode_request(api, header.version, message)
        again = decode_request(api, header.version, said)
        assert encode_request(api, header.version, again) == said, (api.key, header.version)


def batches(data: bytes) -> None:
    """Decode the record batches of a log, or of a producer's request."""
    with contextlib.suppress(CorruptionError):
        for position, header in iter_headers(data):
            batch = data[position : position + header.size]
            crc_matches(batch, 0, len(batch))
            with contextlib.suppress(BrokerError, CorruptionError):
                decode_records(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
            with contextlib.suppress(BrokerError, CorruptionError):
                for _ in record_times(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
                    pass
    for rules in RULES:
        with contextlib.suppress(BrokerError):
            validate_produced(data, rules, NOW_MS)


def records(data: bytes) -> None:
    """Decode the records inside a batch by both implementations. The first byte of `data` is the
    record count; the records follow."""
    if not data:
        return
    count, payload = data[0], data[1:]
    pure = _outcome(lambda: _read(_pure, payload, count))
    fast = _outcome(
        lambda: fast_read_records(
            payload, count, 0, max(count - 1, 0), 0, None, TimestampType.CREATE_TIME, Record
        )
    )
    assert pure == fast, f"pure {pure!r}, compiled {fast!r}"
    pure = _outcome(lambda: _pure.scan_records(payload, count))
    fast = _outcome(lambda: fast_scan_records(payload, count))
    assert pure == fast, f"pure {pure!r}, compiled {fast!r}"


def columns(data: bytes) -> None:
    """Decode the records inside a batch to columns, with NumPy and, if it is compiled, with the
    compiled module. The input is that of `records`."""
    if not data:
        return
    count, payload = data[0], data[1:]
    pure = _outcome(lambda: [row_of(record) for record in _read(_pure, payload, count)])
    vectors = ColumnStore(headers=True, keys=True, values=True)
    vectors.few_records = 0
    for store in (None, vectors):
        found = _outcome(functools.partial(_rows, store, payload, count))
        assert found == pure, f"{store or 'chosen'} {found!r}, pure {pure!r}"


def compressed(data: bytes) -> None:
    """Decompress `data`: the first byte is the codec, the compressed bytes follow."""
    if not data:
        return
    codec, payload = data[0] % (max(Codec) + 2), data[1:]
    with contextlib.suppress(BrokerError, CorruptionError):
        found = decompress(codec, payload, DECOMPRESSED_BYTES_MAX)
        assert len(found) <= DECOMPRESSED_BYTES_MAX


def group_keys(data: bytes) -> None:
    """Decode a record key of __consumer_offsets, and encode it again."""
    with contextlib.suppress(MalformedInput):
        match group_records.decode_key(data):
            case group_records.OffsetKey() as key:
                assert group_records.decode_key(group_records.encode_offset_key(key)) == key
            case group_records.GroupKey(group_id) as key:
                assert group_records.decode_key(group_records.encode_group_key(group_id)) == key


def group_values(data: bytes) -> None:
    """Decode a record value of __consumer_offsets as an offset and as a group, and encode it
    again."""
    with contextlib.suppress(MalformedInput):
        committed = group_records.decode_offset_value(data)
        said = group_records.encode_offset_value(committed)
        assert group_records.encode_offset_value(group_records.decode_offset_value(said)) == said
    with contextlib.suppress(MalformedInput):
        group = group_records.decode_group_value(data)
        assert group_records.decode_group_value(group_records.encode_group_value(group)) == group


def _read(loops: ModuleType, payload: bytes, count: int) -> list[Record]:
    found: list[Record] = loops.read_records(
        payload, count, 0, max(count - 1, 0), 0, None, TimestampType.CREATE_TIME, Record
    )
    return found


def _rows(store: Store | None, payload: bytes, count: int) -> list[Row]:
    """Return the rows that the column store returns. With None the builder chooses the store."""
    builder = ColumnBuilder(headers=True)
    if store is not None:
        builder._store = store
    batch = pack_batch(payload, count, attributes=0, base_timestamp=0, max_timestamp=0)
    header = read_header(batch)._replace(last_offset_delta=max(count - 1, 0))
    builder.add(batch, header, 0, count, decompressed_bytes_max=len(batch))
    return rows_of(builder.finish())


def _outcome(call: Callable[[], object]) -> object:
    """Return the result of the call, or the name of the error that invalid input may cause."""
    try:
        return call()
    except (BrokerError, CorruptionError) as error:
        return type(error).__name__


TARGETS: Final[Mapping[str, Callable[[bytes], None]]] = MappingProxyType(
    {
        "requests": requests,
        "batches": batches,
        "records": records,
        "columns": columns,
        "compressed": compressed,
        "group_keys": group_keys,
        "group_values": group_values,
    }
)
