# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The loops over the records of a batch, compiled. `_pure.py` describes the format and the
functions.

Each read is first checked against the end of the record; the read of a record's length, against the
end of the data. Each size is checked against the remaining bytes before memory is allocated.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport (
    INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t,
)
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from types import GenericAlias

from pybroker.errors import CorruptionError
from pybroker.records.batch import read_header

IMPLEMENTATION = "extension"

cdef enum:
    RECORD_BYTES_MIN = 7
    HEADER_BYTES_MIN = 2

cdef object _new = tuple.__new__


cdef struct Reader:
    const uint8_t *at
    const uint8_t *end


cdef int _fail(str what) except -1:
    raise CorruptionError(what)


cdef enum Reading:
    READ = 0
    CUT_OFF
    TOO_LONG
    TOO_LARGE


cdef Reading _long_number(Reader *reader, int bits, int64_t *number) noexcept nogil:
    cdef uint64_t raw = 0
    cdef uint8_t byte
    cdef int shift = 0
    while True:
        if shift >= bits:
            return TOO_LONG
        if reader.at >= reader.end:
            return CUT_OFF
        byte = reader.at[0]
        reader.at += 1
        # The last byte may set only the remaining bits; a shift would drop higher bits.
        if shift + 7 > bits and (byte & 0x7F) >> (bits - shift):
            return TOO_LARGE
        raw |= (<uint64_t> (byte & 0x7F)) << shift
        if byte < 0x80:
            number[0] = <int64_t> (raw >> 1) ^ -(<int64_t> (raw & 1))
            return READ
        shift += 7


cdef inline Reading _number(Reader *reader, int bits, int64_t *number) noexcept nogil:
    """Read a zig-zag varint of at most `bits` bits into `number`, and return the outcome."""
    cdef uint8_t byte
    if reader.at < reader.end and reader.at[0] < 0x80:
        byte = reader.at[0]
        reader.at += 1
        number[0] = <int64_t> (byte >> 1) ^ -(<int64_t> (byte & 1))
        return READ
    return _long_number(reader, bits, number)


cdef int64_t _varint(Reader *reader, int bits) except? -2:
    """Return the next zig-zag varint of at most `bits` bits. Raises CorruptionError."""
    cdef int64_t number = 0
    cdef Reading outcome = _number(reader, bits, &number)
    if outcome == CUT_OFF:
        _fail("the data ends inside a field")
    if outcome == TOO_LONG:
        _fail(f"a varint is longer than {bits} bits")
    if outcome == TOO_LARGE:
        _fail(f"a varint is larger than {bits} bits")
    return number


cdef int _enter(Reader *outer, Reader *record) except -1:
    """Read the length and the attributes of a record from `outer`, and set `record` to the other
    fields of the record."""
    cdef int64_t length = _varint(outer, 32)
    if length < RECORD_BYTES_MIN - 1 or length > outer.end - outer.at:
        _fail(
            f"record length is {length}, expected {<int> RECORD_BYTES_MIN - 1} to"
            f" {outer.end - outer.at}, the bytes left in the batch"
        )
    record.at = outer.at + 1
    record.end = outer.at + length
    outer.at = record.end
    return 0


cdef inline int64_t _length(Reader *reader) except -2:
    """Return the length of a key, value or header (-1 for null). Raises CorruptionError for a
    length beyond the end of the record."""
    cdef int64_t length = _varint(reader, 32)
    if length < -1:
        _fail(f"length of a key, value or header is {length}, expected -1 (null) or more")
    if length > reader.end - reader.at:
        _fail(
            f"length of a key, value or header is {length}, but only {reader.end - reader.at} bytes"
            " are left in the record"
        )
    return length


cdef inline object _bytes_or_none(Reader *reader):
    cdef int64_t length = _length(reader)
    if length < 0:
        return None
    found = PyBytes_FromStringAndSize(<const char *> reader.at, length)
    reader.at += length
    return found


cdef int _check_header_count(Reader *reader, int64_t count) except -1:
    if count < 0 or count * HEADER_BYTES_MIN > reader.end - reader.at:
        _fail(
            f"header count is {count}, expected 0 to"
            f" {(reader.end - reader.at) // HEADER_BYTES_MIN} in the {reader.end - reader.at} bytes"
            " left in the record"
        )
    return 0


cdef tuple _headers(Reader *reader, int64_t count):
    cdef int64_t length
    cdef list headers = []
    _check_header_count(reader, count)
    for _ in range(count):
        length = _length(reader)
        if length < 0:
            _fail("a header name is null")
        name = PyUnicode_DecodeUTF8(<char *> reader.at, length, "replace")
        reader.at += length
        headers.append((name, _bytes_or_none(reader)))
    return tuple(headers)


cdef int _check_count(int64_t count, Py_ssize_t length) except -1:
    if count < 0 or count > length // RECORD_BYTES_MIN:
        _fail(
            f"record count is {count}, expected 0 to {length // RECORD_BYTES_MIN} in {length} bytes"
            " of records"
        )
    return 0


cdef object _read_record(
    Reader *reader, int64_t base_offset, int64_t *delta_before, int64_t last_offset_delta,
    int64_t base_timestamp, object append_time, object timestamp_type, object record_type,
):
    cdef int64_t delta = _varint(reader, 64)
    cdef int64_t offset_delta = _varint(reader, 32)
    cdef int64_t header_count
    cdef object timestamp = append_time
    if offset_delta <= delta_before[0] or offset_delta > last_offset_delta:
        _fail(
            f"offset delta is {offset_delta}, expected more than {delta_before[0]} and at most"
            f" {last_offset_delta}"
        )
    delta_before[0] = offset_delta
    if base_offset > INT64_MAX - offset_delta:
        _fail(f"offset {base_offset} + {offset_delta} exceeds 64 bits")
    if append_time is None:
        if (delta > 0 and base_timestamp > INT64_MAX - delta) or (
            delta < 0 and base_timestamp < INT64_MIN - delta
        ):
            _fail(f"timestamp {base_timestamp} + {delta} exceeds 64 bits")
        timestamp = base_timestamp + delta
    key = _bytes_or_none(reader)
    value = _bytes_or_none(reader)
    header_count = _varint(reader, 32)
    headers = _headers(reader, header_count) if header_count else ()
    if reader.at != reader.end:
        _fail(f"{reader.end - reader.at} bytes follow the last field of the record")
    return _new(
        record_type, (base_offset + offset_delta, timestamp, key, value, headers, timestamp_type)
    )


def read_records(
    bytes data not None,
    int64_t record_count,
    int64_t base_offset,
    int64_t last_offset_delta,
    int64_t base_timestamp,
    append_time,
    timestamp_type,
    record_type,
):
    cdef Reader outer
    cdef Reader record
    cdef int64_t delta_before = -1
    cdef list records = []
    _check_count(record_count, len(data))
    outer.at = <const uint8_t *> PyBytes_AS_STRING(data)
    outer.end = outer.at + len(data)
    try:
        for _ in range(record_count):
            _enter(&outer, &record)
            records.append(
                _read_record(
                    &record, base_offset, &delta_before, last_offset_delta, base_timestamp,
                    append_time, timestamp_type, record_type,
                )
            )
    except CorruptionError as error:
        raise CorruptionError(f"record {len(records)} of {record_count}: {error}") from error
    if outer.at != outer.end:
        _fail(f"{outer.end - outer.at} bytes follow the last record")
    return records


def scan_records(bytes data not None, int64_t record_count):
    cdef Reader outer
    cdef Reader record
    cdef int64_t index = 0, delta, keyless = -1, earliest = -1, lowest = 0, highest = 0
    _check_count(record_count, len(data))
    outer.at = <const uint8_t *> PyBytes_AS_STRING(data)
    outer.end = outer.at + len(data)
    try:
        while index < record_count:
            _enter(&outer, &record)
            delta = _varint(&record, 64)
            _varint(&record, 32)
            if _length(&record) < 0 and keyless < 0:
                keyless = index
            if earliest < 0 or delta < lowest:
                earliest = index
                lowest = delta
            if index == 0 or delta > highest:
                highest = delta
            index += 1
    except CorruptionError as error:
        raise CorruptionError(f"record {index} of {record_count}: {error}") from error
    if outer.at != outer.end:
        _fail(f"{outer.end - outer.at} bytes follow the last record")
    return keyless, earliest, lowest, highest


cdef inline int _varint_size(int64_t value) noexcept nogil:
    cdef uint64_t raw = (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)
    cdef int size = 1
    while raw > 0x7F:
        raw >>= 7
        size += 1
    return size


cdef inline uint8_t *_put_varint(uint8_t *at, int64_t value) noexcept nogil:
    cdef uint64_t raw = (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)
    while raw > 0x7F:
        at[0] = <uint8_t> (raw & 0x7F) | 0x80
        at += 1
        raw >>= 7
    at[0] = <uint8_t> raw
    return at + 1


cdef uint8_t *_put_bytes(uint8_t *at, bytes value) noexcept:
    cdef Py_ssize_t length
    if value is None:
        return _put_varint(at, -1)
    length = len(value)
    at = _put_varint(at, length)
    memcpy(at, PyBytes_AS_STRING(value), length)
    return at + length


cdef Py_ssize_t _field_size(bytes value) noexcept:
    return 1 if value is None else _varint_size(len(value)) + len(value)


include "_arrow_column.pxi"
include "_record_buffer.pxi"
include "_open_batches.pxi"
include "_columns.pxi"
include "_consumed.pxi"
include "_key_table.pxi"
