# Part of `_speedups.pyx`: the records that a consumer returns; `_pure_consumed.py` does the same.
#
# A record refers to the encoded records around it until its key, value or headers are looked at.
# All fields are checked before a record exists, so that looking at them cannot fail.

RECORDS_PER_TURN = 40_000

cdef enum:
    SLICE_BYTES = 65536


@cython.final
cdef class _Origin:
    """What all records of a batch have in common."""

    cdef str topic
    cdef int32_t partition, leader_epoch
    cdef object timestamp_type


cdef struct Fields:
    int64_t offset, timestamp, key_length, value_length, header_count
    const uint8_t *key
    const uint8_t *value
    const uint8_t *headers


@cython.freelist(4096)
@cython.no_gc
cdef class ConsumerRecord:
    """A consumed record. `timestamp` is in ms since 1970. `leader_epoch` is the epoch of the leader
    that appended the record, -1 if unknown.

    The first access to key, value or headers copies all three out of the fetched records. Before
    that, the record keeps up to 64 KiB of the fetched records in memory, or more if it is larger.
    """

    __match_args__ = (
        "topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers",
        "leader_epoch",
    )

    __class_getitem__ = classmethod(GenericAlias)

    cdef _Origin _origin
    cdef bytes _source
    """The encoded records around this one, None if the fields are copied already."""
    cdef object _key, _value, _headers
    """The fields, once they are copied. `_headers` is encoded while `_header_count` is not 0."""
    cdef int64_t _offset, _timestamp
    cdef int32_t _key_at, _key_length, _value_at, _value_length, _headers_at, _headers_length
    cdef int32_t _header_count

    def __init__(
        self, str topic not None, int32_t partition, int64_t offset, int64_t timestamp,
        timestamp_type, key, value, headers, int32_t leader_epoch,
    ):
        cdef _Origin origin = _Origin.__new__(_Origin)
        origin.topic = topic
        origin.partition = partition
        origin.leader_epoch = leader_epoch
        origin.timestamp_type = timestamp_type
        self._origin = origin
        self._source = None
        self._offset = offset
        self._timestamp = timestamp
        self._key = key
        self._value = value
        self._headers = headers
        self._header_count = 0

    @property
    def topic(self):
        return self._origin.topic

    @property
    def partition(self):
        return self._origin.partition

    @property
    def offset(self):
        return self._offset

    @property
    def timestamp(self):
        return self._timestamp

    @property
    def timestamp_type(self):
        return self._origin.timestamp_type

    @property
    def key(self):
        if self._source is not None:
            self._copy()
        return self._key

    @property
    def value(self):
        if self._source is not None:
            self._copy()
        return self._value

    @property
    def headers(self):
        cdef Reader reader
        if self._source is not None:
            self._copy()
        if self._header_count:
            reader.at = <const uint8_t *> PyBytes_AS_STRING(self._headers)
            reader.end = reader.at + len(<bytes> self._headers)
            self._headers = _headers(&reader, self._header_count)
            self._header_count = 0
        return self._headers

    @property
    def leader_epoch(self):
        return self._origin.leader_epoch

    cdef int _copy(self) except -1:
        """Copy the fields, and release the records around this one."""
        cdef const char *start = PyBytes_AS_STRING(self._source)
        if self._key_length >= 0:
            self._key = PyBytes_FromStringAndSize(start + self._key_at, self._key_length)
        if self._value_length >= 0:
            self._value = PyBytes_FromStringAndSize(start + self._value_at, self._value_length)
        if self._header_count:
            self._headers = PyBytes_FromStringAndSize(
                start + self._headers_at, self._headers_length
            )
        else:
            self._headers = ()
        self._source = None
        return 0

    cdef tuple _fields(self):
        return (
            self.topic, self.partition, self.offset, self.timestamp, self.timestamp_type, self.key,
            self.value, self.headers, self.leader_epoch,
        )

    def __eq__(self, other):
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self._fields() == (<ConsumerRecord> other)._fields()

    def __hash__(self):
        return hash(self._fields())

    def __repr__(self):
        cdef list pairs = [
            f"{name}={found!r}" for name, found in zip(self.__match_args__, self._fields())
        ]
        return f"{self.__class__.__qualname__}({', '.join(pairs)})"


cdef int _read_fields(
    Reader *record, int64_t base_offset, int64_t *delta_before, int64_t last_delta,
    int64_t base_timestamp, bint has_append_time, int64_t append_time, Fields *fields,
) except -1:
    """Read and check all fields of a record."""
    cdef int64_t delta = _varint(record, 64)
    cdef int64_t offset_delta = _varint(record, 32)
    if offset_delta <= delta_before[0] or offset_delta > last_delta:
        _fail(
            f"offset delta is {offset_delta}, expected more than {delta_before[0]} and at most"
            f" {last_delta}"
        )
    delta_before[0] = offset_delta
    if base_offset > INT64_MAX - offset_delta:
        _fail(f"offset {base_offset} + {offset_delta} exceeds 64 bits")
    fields.offset = base_offset + offset_delta
    if has_append_time:
        fields.timestamp = append_time
    else:
        if (delta > 0 and base_timestamp > INT64_MAX - delta) or (
            delta < 0 and base_timestamp < INT64_MIN - delta
        ):
            _fail(f"timestamp {base_timestamp} + {delta} exceeds 64 bits")
        fields.timestamp = base_timestamp + delta
    fields.key_length = _length(record)
    fields.key = record.at
    record.at += max(fields.key_length, 0)
    fields.value_length = _length(record)
    fields.value = record.at
    record.at += max(fields.value_length, 0)
    fields.header_count = _varint(record, 32)
    fields.headers = record.at
    if fields.header_count:
        _skip_headers(record, fields.header_count)
    if record.at != record.end:
        _fail(f"{record.end - record.at} bytes follow the last field of the record")
    return 0


cdef int _skip_headers(Reader *reader, int64_t count) except -1:
    cdef int64_t length
    _check_header_count(reader, count)
    for _ in range(count):
        length = _length(reader)
        if length < 0:
            _fail("a header name is null")
        reader.at += length
        length = _length(reader)
        reader.at += max(length, 0)
    return 0


cdef class BatchReader:
    cdef Py_buffer _view
    cdef bint _has_view
    cdef object _payload
    cdef _Origin _origin
    cdef Reader _rest, _unchecked
    cdef int64_t _count, _read_count, _checked_count, _base_offset, _last_delta, _first_offset
    cdef int64_t _delta_before, _checked_delta, _base_timestamp, _append_time
    cdef bint _has_append_time, _done

    def __cinit__(
        self, str topic not None, int32_t partition, int32_t leader_epoch, payload,
        int64_t record_count, int64_t base_offset, int64_t last_offset_delta,
        int64_t base_timestamp, append_time, timestamp_type, int64_t first_offset,
    ):
        PyObject_GetBuffer(payload, &self._view, PyBUF_SIMPLE)
        self._has_view = True
        _check_count(record_count, self._view.len)
        self._payload = payload
        self._origin = _Origin.__new__(_Origin)
        self._origin.topic = topic
        self._origin.partition = partition
        self._origin.leader_epoch = leader_epoch
        self._origin.timestamp_type = timestamp_type
        self._rest.at = <const uint8_t *> self._view.buf
        self._rest.end = self._rest.at + self._view.len
        self._unchecked = self._rest
        self._count = record_count
        self._base_offset = base_offset
        self._last_delta = last_offset_delta
        self._first_offset = first_offset
        self._delta_before = self._checked_delta = -1
        self._base_timestamp = base_timestamp
        self._has_append_time = append_time is not None
        self._append_time = append_time if self._has_append_time else 0

    def __dealloc__(self):
        if self._has_view:
            PyBuffer_Release(&self._view)

    @property
    def done(self):
        return self._done

    def check(self, int64_t bytes_max):
        cdef Reader record
        cdef Fields fields
        cdef const uint8_t *start = self._unchecked.at
        try:
            while self._checked_count < self._count and self._unchecked.at - start < bytes_max:
                _enter(&self._unchecked, &record)
                self._read_one(&record, &self._checked_delta, &fields)
                self._checked_count += 1
        except CorruptionError as error:
            raise self._damage(self._checked_count, error) from error
        if self._checked_count < self._count:
            return False
        self._check_end(&self._unchecked)
        return True

    def read(self):
        cdef Reader ahead = self._rest
        cdef Reader record
        cdef Py_ssize_t taken
        cdef bytes source
        cdef list records = []
        cdef int64_t count
        try:
            count = self._slice(&ahead)
            taken = ahead.at - self._rest.at
            if taken == self._view.len and type(self._payload) is bytes:
                source = <bytes> self._payload
            else:
                source = PyBytes_FromStringAndSize(<const char *> self._rest.at, taken)
            record.at = <const uint8_t *> PyBytes_AS_STRING(source)
            record.end = record.at + taken
            self._decode(source, count, &record, records)
        except CorruptionError as error:
            raise self._damage(self._read_count, error) from error
        self._rest = ahead
        if self._read_count == self._count:
            self._check_end(&self._rest)
            self._done = True
        return records

    cdef int64_t _slice(self, Reader *ahead) except -1:
        """Move `ahead` to the end of the next slice of whole records. Return their number."""
        cdef Reader record, before
        cdef const uint8_t *start = ahead.at
        cdef int64_t count = 0, left = self._count - self._read_count
        while count < left:
            before = ahead[0]
            try:
                _enter(ahead, &record)
            except CorruptionError:
                self._read_count += count  # for the message
                raise
            if count and ahead.at - start > SLICE_BYTES:
                ahead[0] = before
                return count
            count += 1
        return count

    cdef int _decode(self, bytes source, int64_t count, Reader *outer, list records) except -1:
        cdef Reader record
        cdef Fields fields
        cdef ConsumerRecord made
        cdef _Origin origin = self._origin
        cdef const uint8_t *start = outer.at
        for _ in range(count):
            _enter(outer, &record)
            self._read_one(&record, &self._delta_before, &fields)
            self._read_count += 1
            if fields.offset < self._first_offset:
                continue
            made = ConsumerRecord.__new__(ConsumerRecord)
            made._origin = origin
            made._source = source
            made._offset = fields.offset
            made._timestamp = fields.timestamp
            made._key_at = <int32_t> (fields.key - start)
            made._key_length = <int32_t> fields.key_length
            made._value_at = <int32_t> (fields.value - start)
            made._value_length = <int32_t> fields.value_length
            made._headers_at = <int32_t> (fields.headers - start)
            made._headers_length = <int32_t> (record.end - fields.headers)
            made._header_count = <int32_t> fields.header_count
            records.append(made)
        return 0

    cdef inline int _read_one(self, Reader *record, int64_t *before, Fields *fields) except -1:
        return _read_fields(
            record, self._base_offset, before, self._last_delta, self._base_timestamp,
            self._has_append_time, self._append_time, fields,
        )

    cdef int _check_end(self, Reader *reader) except -1:
        if reader.at != reader.end:
            _fail(f"{reader.end - reader.at} bytes follow the last record")
        return 0

    cdef object _damage(self, int64_t index, object error):
        return CorruptionError(f"record {index} of {self._count}: {error}")


def record_slice(data not None, Py_ssize_t position, int64_t count, Py_ssize_t bytes_max):
    cdef Py_buffer view
    cdef Reader outer, record
    cdef const uint8_t *start
    cdef int64_t found = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        start = <const uint8_t *> view.buf + position
        outer.at = start
        outer.end = <const uint8_t *> view.buf + view.len
        while found < count and outer.at - start < bytes_max:
            _enter(&outer, &record)
            found += 1
        return position + (outer.at - start), found
    finally:
        PyBuffer_Release(&view)


cdef enum:
    BATCH_BYTES_MIN = 61
    BATCH_LENGTH_START = 12


cdef inline uint32_t _uint32(const uint8_t *at) noexcept nogil:
    return (
        <uint32_t> at[0] << 24 | <uint32_t> at[1] << 16 | <uint32_t> at[2] << 8 | <uint32_t> at[3]
    )


def outline_batches(data not None, int64_t first_offset):
    cdef Py_buffer view
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef int64_t length, base_offset, next_offset, last = -1
    cdef int32_t epoch, epoch_before = 0
    cdef list epochs = []
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t *> view.buf
        end = at + view.len
        while end - at >= BATCH_BYTES_MIN:
            length = <int32_t> _uint32(at + 8)
            if at[16] != 2 or length < BATCH_BYTES_MIN - BATCH_LENGTH_START:
                read_header(data, at - <const uint8_t *> view.buf)  # this raises the error
            if length + BATCH_LENGTH_START > end - at:
                break
            base_offset = <int64_t> (<uint64_t> _uint32(at) << 32 | _uint32(at + 4))
            next_offset = base_offset + <int32_t> _uint32(at + 23) + 1
            if next_offset > first_offset:
                epoch = <int32_t> _uint32(at + 12)
                if not epochs or epoch != epoch_before:
                    epochs.append((epoch, base_offset))
                    epoch_before = epoch
                last = next_offset
            at += length + BATCH_LENGTH_START
    finally:
        PyBuffer_Release(&view)
    return last, epochs
