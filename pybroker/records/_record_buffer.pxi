# The encoded records of a batch under construction, compiled. `_pure_record_buffer.py` describes
# the classes and functions.


cdef bytes _octets(object value, str what):
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"the {what} of a record must be bytes, not {type(value).__name__}")


cdef bytes _header_name(object name):
    if not isinstance(name, str):
        raise TypeError(f"a header name must be str, not {type(name).__name__}")
    return (<str> name).encode()


cdef inline Py_ssize_t _size_of(Field field) noexcept:
    return 1 if field.length < 0 else _varint_size(field.length) + field.length


cdef inline uint8_t *_put_field(uint8_t *at, Field field) noexcept:
    at = _put_varint(at, field.length)
    if field.length <= 0:
        return at
    memcpy(at, field.at, field.length)
    return at + field.length


cdef class RecordBuffer:
    cdef bytearray _data
    cdef readonly int64_t count
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly bint full

    def __init__(self):
        self._data = bytearray()
        self.count = 0
        self.base_timestamp = -1
        self.max_timestamp = -1
        self.full = False

    @property
    def size(self):
        return len(self._data)

    def append(self, int64_t timestamp, key, value, headers, Py_ssize_t limit):
        return self._add(timestamp, key, value, headers, limit)

    cdef int64_t _add(
        self, int64_t timestamp, key, value, headers, Py_ssize_t limit
    ) except -2:
        cdef bytes flat_key = _octets(key, "key")
        cdef bytes flat_value = _octets(value, "value")
        cdef bytes name_bytes
        cdef list pairs = None
        cdef Py_ssize_t header_bytes = 1
        if headers is not _no_headers:
            pairs = []
            for name, content in headers:
                name_bytes = _header_name(name)
                content = _octets(content, f"header {name}")
                pairs.append((name_bytes, content))
                header_bytes += _field_size(name_bytes) + _field_size(content)
            header_bytes += _varint_size(len(pairs)) - 1
        return self._append(
            timestamp, _field_of(flat_key), _field_of(flat_value), pairs, header_bytes, limit
        )

    cdef int64_t _append(
        self, int64_t timestamp, Field key, Field value, list pairs, Py_ssize_t header_bytes,
        Py_ssize_t limit,
    ) except -2:
        cdef int64_t base = timestamp if self.count == 0 else self.base_timestamp
        cdef Py_ssize_t before = len(self._data)
        cdef Py_ssize_t size, taken
        cdef uint8_t *at
        if timestamp < -1:
            raise ValueError(f"timestamp is {timestamp}, expected -1 or ms since 1970")
        if base < 0 and timestamp > INT64_MAX + base:
            raise ValueError(
                f"timestamp is {timestamp}, expected at most {INT64_MAX + base}: a record's"
                f" timestamp may exceed that of the batch's first record, {base},"
                " by 2^63 - 1 ms at most"
            )
        size = 1 + _varint_size(timestamp - base) + _varint_size(self.count)
        size += _size_of(key) + _size_of(value) + header_bytes
        if size > INT32_MAX:
            raise ValueError(f"a record of {size} bytes does not fit into a batch")
        taken = _varint_size(size) + size
        if self.count and before + taken > limit:
            return -1
        PyByteArray_Resize(self._data, before + taken)
        at = <uint8_t *> PyByteArray_AS_STRING(self._data) + before
        at = _put_varint(at, size)
        at[0] = 0
        at = _put_varint(at + 1, timestamp - base)
        at = _put_varint(at, self.count)
        at = _put_field(at, key)
        at = _put_field(at, value)
        if pairs is None:
            at[0] = 0
        else:
            at = _put_varint(at, len(pairs))
            for name, content in pairs:
                at = _put_bytes(at, name)
                at = _put_bytes(at, content)
        self.base_timestamp = base
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.count += 1
        self.full = before + 2 * taken > limit
        return self.count - 1

    def encoded(self):
        return self._data

    def release(self):
        self._data = bytearray()


cdef object _no_headers = ()


cdef uint32_t _murmur2(const uint8_t *data, Py_ssize_t length) noexcept nogil:
    cdef uint32_t multiplier = 0x5BD1E995
    cdef uint32_t state = <uint32_t> 0x9747B28C ^ <uint32_t> length
    cdef uint32_t word
    while length >= 4:
        word = data[0] | data[1] << 8 | data[2] << 16 | <uint32_t> data[3] << 24
        word *= multiplier
        word ^= word >> 24
        word *= multiplier
        state = (state * multiplier) ^ word
        data += 4
        length -= 4
    if length == 3:
        state ^= <uint32_t> data[2] << 16
    if length >= 2:
        state ^= <uint32_t> data[1] << 8
    if length >= 1:
        state = (state ^ data[0]) * multiplier
    state = (state ^ state >> 13) * multiplier
    return state ^ state >> 15


def murmur2(bytes data not None):
    return _murmur2(<const uint8_t *> PyBytes_AS_STRING(data), len(data))


cdef inline int64_t _partition_of(Field key, int64_t count) except -1:
    if count <= 0:
        raise ZeroDivisionError(f"{count} partitions, expected at least 1")
    return (_murmur2(key.at, key.length) & 0x7FFFFFFF) % count


def partition_of_key(bytes key not None, int64_t partition_count):
    return _partition_of(_field_of(key), partition_count)


cdef enum:
    OVERHEAD_MAX = 36


cdef inline Py_ssize_t _weight(Field field) noexcept:
    return 0 if field.length < 0 else field.length


cdef int _flatten(object column, str what) except -1:
    """Replace the items of a list with bytes."""
    cdef Py_ssize_t index
    cdef list items
    _check_column(column)
    if type(column) is not list:
        return 0
    items = column
    for index in range(len(items)):
        item = items[index]
        if item is not None and type(item) is not bytes:
            items[index] = _octets(item, f"{what} {index}")
    return 0


def record_bytes(values not None, keys):
    cdef Py_ssize_t total = 0, largest = 0, size, index
    cdef Field field
    if keys is not None and len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys for {len(values)} values, expected a key for each")
    _flatten(values, "value")
    if keys is not None:
        _flatten(keys, "key")
    for index in range(len(values)):
        _field_at(values, index, &field)
        size = _weight(field)
        if keys is not None:
            _field_at(keys, index, &field)
            size += _weight(field)
        total += size
        if size > largest:
            largest = size
    return total, largest


def append_records(
    list buffers not None, values not None, keys, list chosen, int64_t timestamp,
    Py_ssize_t start, Py_ssize_t without_key, Py_ssize_t limit, Py_ssize_t room,
    list places not None,
):
    cdef Py_ssize_t index = start, at = without_key, before, used = 0
    cdef Py_ssize_t count = len(values)
    cdef RecordBuffer buffer
    cdef Field key, value
    _check_column(values)
    if keys is not None:
        _check_column(keys)
        if len(keys) != count:
            raise ValueError(f"{len(keys)} keys for {count} values, expected a key for each")
    key.length = -1
    while index < count:
        _field_at(values, index, &value)
        if keys is not None:
            _field_at(keys, index, &key)
        if chosen is not None and chosen[index] is not None:
            at = chosen[index]
            if not 0 <= at < len(buffers):
                raise IndexError(f"partition {at} was chosen, expected 0 to {len(buffers) - 1}")
        elif key.length < 0:
            at = without_key
        else:
            at = _partition_of(key, len(buffers))
        buffer = buffers[at]
        if buffer is None or used + OVERHEAD_MAX + _weight(key) + _weight(value) > room:
            break
        before = len(buffer._data)
        if buffer._append(timestamp, key, value, None, 1, limit) < 0:
            break
        used += len(buffer._data) - before
        places.append(at)
        index += 1
    return index, at, used
