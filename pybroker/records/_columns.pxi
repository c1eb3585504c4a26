# Part of `_speedups.pyx`: records as columns in Arrow's layout; `_numpy_columns.py` does the same.
#
# Memory for the largest possible content of a batch is allocated before the batch is decoded, so
# that decoding needs neither Python objects nor the GIL. The entries of a damaged batch are removed.

cdef int64_t MS_MAX = INT64_MAX // 1000


cdef struct Column:
    # The state of a binary column while entries are added.
    int32_t *offsets
    uint8_t *data
    uint8_t *valid
    int32_t entries
    int32_t filled
    int32_t nulls


cdef inline void _put(Column *column, const uint8_t *at, int64_t length) noexcept nogil:
    """Add the entry of `length` bytes at `at`; a negative length adds a null."""
    cdef int32_t byte = column.entries >> 3
    cdef int bit = column.entries & 7
    # The higher bits belong to removed entries or were never written.
    cdef uint8_t below = column.valid[byte] & <uint8_t> ((1 << bit) - 1)
    if length < 0:
        column.valid[byte] = below
        column.nulls += 1
    else:
        column.valid[byte] = below | <uint8_t> (1 << bit)
        memcpy(column.data + column.filled, at, length)
        column.filled += <int32_t> length
    column.entries += 1
    column.offsets[column.entries] = column.filled


cdef int _grow(bytearray storage, Py_ssize_t size) except -1:
    if len(storage) < size:
        PyByteArray_Resize(storage, max(size, 2 * len(storage)))
    return 0


cdef class _Binary:
    """The memory of a binary column, and the column's state before the last batch."""

    cdef bytearray offsets, data, valid
    cdef Column column, before

    def __cinit__(self):
        self.begin()

    cdef int begin(self) except -1:
        self.offsets = bytearray(sizeof(int32_t))
        self.data = bytearray()
        self.valid = bytearray()
        self.column.entries = self.column.filled = self.column.nulls = 0
        return 0

    cdef Column *room(self, Py_ssize_t entries, Py_ssize_t size) except NULL:
        """Return the column with memory for `entries` more entries and `size` more bytes."""
        self.before = self.column
        entries += self.column.entries
        _grow(self.offsets, (entries + 1) * <Py_ssize_t> sizeof(int32_t))
        _grow(self.valid, entries // 8 + 1)
        _grow(self.data, self.column.filled + size)
        self.column.offsets = <int32_t *> PyByteArray_AS_STRING(self.offsets)
        self.column.valid = <uint8_t *> PyByteArray_AS_STRING(self.valid)
        self.column.data = <uint8_t *> PyByteArray_AS_STRING(self.data)
        return &self.column

    cdef int mend(self) except -1:
        """Replace invalid UTF-8 in the header names of the last batch, as `read_records` does."""
        cdef int32_t entry
        cdef uint8_t high = 0
        cdef bytes name
        for position in range(self.before.filled, self.column.filled):
            high |= self.column.data[position]
        if high < 0x80:
            return 0
        names = [
            PyUnicode_DecodeUTF8(
                <char *> self.column.data + self.column.offsets[entry],
                self.column.offsets[entry + 1] - self.column.offsets[entry],
                "replace",
            ).encode()
            for entry in range(self.before.entries, self.column.entries)
        ]
        self.column = self.before
        self.room(len(names), sum(map(len, names)))
        for name in names:
            _put(&self.column, <const uint8_t *> PyBytes_AS_STRING(name), len(name))
        return 0

    cdef tuple finish(self):
        found = (self.offsets, self.data, self.valid if self.column.nulls else None,
                 self.column.nulls)
        PyByteArray_Resize(self.offsets, (self.column.entries + 1) * sizeof(int32_t))
        PyByteArray_Resize(self.data, self.column.filled)
        PyByteArray_Resize(self.valid, (self.column.entries + 7) // 8)
        self.begin()
        return found


cdef struct Sink:
    # The columns that receive the records of a batch, and the fields of the batch header. A column
    # that is not wanted is NULL.
    Column *keys
    Column *values
    Column *names
    Column *header_values
    int64_t *offsets
    int64_t *timestamps
    int32_t *types
    int32_t *lists
    int64_t rows
    int64_t base_offset
    int64_t delta_before
    int64_t last_delta
    int64_t first_delta
    int64_t end_delta
    int64_t base_timestamp
    int64_t append_time
    bint has_append_time
    int32_t timestamp_type


cdef inline bint _field_into(Reader *reader, Column *column) noexcept nogil:
    """Read bytes or null, and add them to the column unless it is NULL. Return False if the field
    is damaged."""
    cdef int64_t length = 0
    if _number(reader, 32, &length) != READ or length < -1 or length > reader.end - reader.at:
        return False
    if column != NULL:
        _put(column, reader.at, length)
    if length > 0:
        reader.at += length
    return True


cdef bint _headers_into(
    Reader *reader, int64_t count, Column *names, Column *values
) noexcept nogil:
    if count < 0 or count * HEADER_BYTES_MIN > reader.end - reader.at:
        return False
    while count:
        # An odd first byte means a negative length, and a header name may not be null.
        if reader.at >= reader.end or reader.at[0] & 1:
            return False
        if not _field_into(reader, names) or not _field_into(reader, values):
            return False
        count -= 1
    return True


cdef bint _record_into(Reader *reader, Sink *sink) noexcept nogil:
    """Read one record into the columns. Return False if the record is damaged."""
    cdef int64_t delta = 0, offset_delta = 0, header_count = 0
    cdef int64_t timestamp = sink.append_time
    cdef bint kept
    if _number(reader, 64, &delta) != READ or _number(reader, 32, &offset_delta) != READ:
        return False
    if offset_delta <= sink.delta_before or offset_delta > sink.last_delta:
        return False
    if sink.base_offset > INT64_MAX - offset_delta:
        return False
    sink.delta_before = offset_delta
    if not sink.has_append_time:
        if (delta > 0 and sink.base_timestamp > INT64_MAX - delta) or (
            delta < 0 and sink.base_timestamp < INT64_MIN - delta
        ):
            return False
        timestamp = sink.base_timestamp + delta
    kept = sink.first_delta <= offset_delta < sink.end_delta
    if not _field_into(reader, sink.keys if kept else NULL):
        return False
    if not _field_into(reader, sink.values if kept else NULL):
        return False
    if _number(reader, 32, &header_count) != READ:
        return False
    if header_count and not _headers_into(
        reader,
        header_count,
        sink.names if kept else NULL,
        sink.header_values if kept else NULL,
    ):
        return False
    if reader.at != reader.end:
        return False
    if kept:
        sink.offsets[sink.rows] = sink.base_offset + offset_delta
        sink.timestamps[sink.rows] = 1000 * min(max(timestamp, -MS_MAX), MS_MAX)
        sink.types[sink.rows] = sink.timestamp_type
        sink.rows += 1
        if sink.lists != NULL:
            sink.lists[sink.rows] = sink.names.entries
    return True


cdef bint _records_into(Reader *outer, int64_t count, Sink *sink) noexcept nogil:
    """Read `count` records into the columns. Return False unless the bytes are exactly `count`
    whole records."""
    cdef Reader record
    cdef int64_t length = 0
    while count:
        if _number(outer, 32, &length) != READ:
            return False
        if length < RECORD_BYTES_MIN - 1 or length > outer.end - outer.at:
            return False
        record.at = outer.at + 1
        record.end = outer.at + length
        outer.at = record.end
        if not _record_into(&record, sink):
            return False
        count -= 1
    return outer.at == outer.end


cdef class ColumnStore:
    """See `columns.Store`."""

    cdef readonly Py_ssize_t rows
    cdef bytearray _offsets, _timestamps, _types, _lists
    cdef _Binary _keys, _values, _names, _header_values

    def __init__(self, *, bint headers, bint keys, bint values):
        self._keys = _Binary() if keys else None
        self._values = _Binary() if values else None
        self._names = _Binary() if headers else None
        self._header_values = _Binary() if headers else None
        self._begin()

    cdef int _begin(self) except -1:
        self.rows = 0
        self._offsets = bytearray()
        self._timestamps = bytearray()
        self._types = bytearray()
        self._lists = bytearray(sizeof(int32_t))
        return 0

    cdef tuple _columns(self):
        return (self._keys, self._values, self._names, self._header_values)

    @property
    def size(self):
        cdef _Binary column
        cdef Py_ssize_t size = 0
        for column in self._columns():
            if column is not None:
                size += column.column.filled
        return size

    @property
    def weight(self):
        cdef _Binary column
        cdef Py_ssize_t weight = self.rows
        for column in self._columns():
            if column is not None:
                weight += column.column.entries + <Py_ssize_t> column.column.filled
        return weight

    def add(
        self,
        const uint8_t[::1] payload not None,
        int64_t record_count,
        int64_t base_offset,
        int64_t last_offset_delta,
        int64_t base_timestamp,
        append_time,
        int32_t timestamp_type,
        int64_t first_delta,
        int64_t end_delta,
    ):
        cdef Sink sink
        cdef Reader outer
        cdef _Binary column
        cdef bint is_whole
        cdef Py_ssize_t size = payload.shape[0], rows = self.rows
        _check_count(record_count, size)
        sink.base_offset = base_offset
        sink.delta_before = -1
        sink.last_delta = last_offset_delta
        sink.first_delta = first_delta
        sink.end_delta = end_delta
        sink.base_timestamp = base_timestamp
        sink.has_append_time = append_time is not None
        sink.append_time = append_time if sink.has_append_time else 0
        sink.timestamp_type = timestamp_type
        self._make_room(&sink, record_count, size)
        outer.at = &payload[0]
        outer.end = outer.at + size
        try:
            with nogil:
                is_whole = _records_into(&outer, record_count, &sink)
            if not is_whole:
                # Decode the batch again, as Python objects, to raise the error of the damage.
                read_records(bytes(payload), record_count, base_offset, last_offset_delta,
                             base_timestamp, append_time, None, tuple)
                _fail("the records are damaged, but only the decoder of columns detects the damage")
            if self._names is not None:
                self._names.mend()
        except BaseException:
            for column in self._columns():
                if column is not None:
                    column.column = column.before
            raise
        self.rows = sink.rows
        return self.rows - rows

    cdef int _make_room(self, Sink *sink, Py_ssize_t records, Py_ssize_t size) except -1:
        cdef Py_ssize_t rows = self.rows + records
        cdef Py_ssize_t headers = size // HEADER_BYTES_MIN
        _grow(self._offsets, rows * <Py_ssize_t> sizeof(int64_t))
        _grow(self._timestamps, rows * <Py_ssize_t> sizeof(int64_t))
        _grow(self._types, rows * <Py_ssize_t> sizeof(int32_t))
        sink.rows = self.rows
        sink.offsets = <int64_t *> PyByteArray_AS_STRING(self._offsets)
        sink.timestamps = <int64_t *> PyByteArray_AS_STRING(self._timestamps)
        sink.types = <int32_t *> PyByteArray_AS_STRING(self._types)
        sink.keys = sink.values = sink.names = sink.header_values = NULL
        sink.lists = NULL
        if self._keys is not None:
            sink.keys = self._keys.room(records, size)
        if self._values is not None:
            sink.values = self._values.room(records, size)
        if self._names is not None:
            _grow(self._lists, (rows + 1) * <Py_ssize_t> sizeof(int32_t))
            sink.lists = <int32_t *> PyByteArray_AS_STRING(self._lists)
            sink.names = self._names.room(headers, size)
            sink.header_values = self._header_values.room(headers, size)
        return 0

    def finish(self):
        found = (
            self.rows,
            self._offsets,
            self._timestamps,
            self._types,
            None if self._keys is None else self._keys.finish(),
            None if self._values is None else self._values.finish(),
            None if self._names is None else self._finish_headers(),
        )
        PyByteArray_Resize(self._offsets, self.rows * sizeof(int64_t))
        PyByteArray_Resize(self._timestamps, self.rows * sizeof(int64_t))
        PyByteArray_Resize(self._types, self.rows * sizeof(int32_t))
        self._begin()
        return found

    cdef tuple _finish_headers(self):
        """Return the columns of the headers. A record without headers has null instead of a list."""
        cdef bytearray valid = bytearray((self.rows + 7) // 8)
        cdef uint8_t *bits = <uint8_t *> PyByteArray_AS_STRING(valid)
        cdef int32_t *lists = <int32_t *> PyByteArray_AS_STRING(self._lists)
        cdef Py_ssize_t row, nulls = 0
        for row in range(self.rows):
            if lists[row + 1] > lists[row]:
                bits[row >> 3] |= <uint8_t> (1 << (row & 7))
            else:
                nulls += 1
        PyByteArray_Resize(self._lists, (self.rows + 1) * sizeof(int32_t))
        return (
            self._lists, valid if nulls else None, nulls,
            self._names.finish(), self._header_values.finish(),
        )
