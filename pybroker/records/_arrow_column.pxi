# Part of `_speedups.pyx`: the rows of a binary column in Arrow's layout, compiled.
# `_pure_arrow_column.py` describes the class.


cdef struct Field:
    # The bytes of a key or a value. The length of null is -1.
    const uint8_t *at
    Py_ssize_t length


cdef inline Field _field_of(bytes value) noexcept:
    cdef Field field
    field.at = NULL
    field.length = -1
    if value is not None:
        field.at = <const uint8_t *> PyBytes_AS_STRING(value)
        field.length = len(value)
    return field


@cython.final
@cython.no_gc
cdef class ArrowColumn:
    cdef Py_buffer _offsets, _data, _validity
    cdef Py_ssize_t _rows, _first
    cdef int _offset_bytes

    def __cinit__(
        self, Py_ssize_t rows, offsets, data, validity, Py_ssize_t first, int offset_bytes
    ):
        if rows < 0 or first < 0 or offset_bytes not in (4, 8):
            raise ValueError(
                f"the column has rows={rows}, first={first} and offset_bytes={offset_bytes},"
                " expected rows and first to be 0 or more, and offset_bytes to be 4 or 8"
            )
        self._rows = rows
        self._first = first
        self._offset_bytes = offset_bytes
        if rows == 0:
            return
        PyObject_GetBuffer(offsets, &self._offsets, PyBUF_SIMPLE)
        if self._offsets.len // offset_bytes - 1 - first < rows:
            raise ValueError(
                f"the column has {self._offsets.len} bytes of offsets, too few for {rows} rows"
                f" from row {first} on"
            )
        if data is not None:
            PyObject_GetBuffer(data, &self._data, PyBUF_SIMPLE)
        if validity is not None:
            PyObject_GetBuffer(validity, &self._validity, PyBUF_SIMPLE)
            if self._validity.len * 8 - first < rows:
                raise ValueError(
                    f"the column has {self._validity.len} bytes of validity bits, too few for"
                    f" {rows} rows from row {first} on"
                )

    def __dealloc__(self):
        PyBuffer_Release(&self._offsets)
        PyBuffer_Release(&self._data)
        PyBuffer_Release(&self._validity)

    def __len__(self):
        return self._rows

    def __getitem__(self, Py_ssize_t index):
        cdef Field field
        if not 0 <= index < self._rows:
            raise IndexError(f"there is no row {index}: the column has {self._rows} rows")
        self._row(index, &field)
        if field.length < 0:
            return None
        return PyBytes_FromStringAndSize(<const char *> field.at, field.length)

    def __iter__(self):
        return iter([self[index] for index in range(self._rows)])

    cdef int _row(self, Py_ssize_t index, Field *field) except -1:
        cdef int64_t start, end
        cdef int32_t narrow[2]
        cdef int64_t wide[2]
        cdef Py_ssize_t at = self._first + index
        field.at = NULL
        field.length = -1
        if self._validity.buf != NULL and not (
            (<const uint8_t *> self._validity.buf)[at >> 3] >> (at & 7) & 1
        ):
            return 0
        if self._offset_bytes == 4:
            memcpy(narrow, <const char *> self._offsets.buf + 4 * at, 8)
            start, end = narrow[0], narrow[1]
        else:
            memcpy(wide, <const char *> self._offsets.buf + 8 * at, 16)
            start, end = wide[0], wide[1]
        if not 0 <= start <= end <= self._data.len:
            raise ValueError(
                f"row {index} of the column has the offsets {start} and {end}, expected"
                f" ascending offsets from 0 to {self._data.len}"
            )
        field.at = <const uint8_t *> self._data.buf + start
        field.length = end - start
        return 0


cdef int _check_column(object column) except -1:
    if type(column) is not list and type(column) is not ArrowColumn:
        raise TypeError(f"the column is a {type(column).__name__}, expected list or ArrowColumn")
    return 0


cdef inline int _field_at(object column, Py_ssize_t index, Field *field) except -1:
    """Set `field` to the bytes of a row of a list or an ArrowColumn."""
    if type(column) is list:
        field[0] = _field_of((<list> column)[index])
        return 0
    return (<ArrowColumn> column)._row(index, field)
