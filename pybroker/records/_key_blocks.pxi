# Part of `_key_table.pxi`: the loops of the log cleaner over the batches of a block of a log. A call
# handles about a megabyte without the GIL, so the event loop does not wait for the cleaner's thread
# at each batch. The loops handle the most frequent batches: not compressed, without a transaction.
# They stop before any other batch, also before a damaged one, and `compaction/` handles that batch.

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    /* CRC-32C with a table: one byte at a time, for processors without the instruction. */
    static uint32_t crc32c_table[256];

    static void crc32c_fill(void) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t rest = byte;
            for (int bit = 0; bit < 8; bit++)
                rest = (rest >> 1) ^ ((rest & 1) ? 0x82F63B78u : 0);
            crc32c_table[byte] = rest;
        }
    }

    static uint32_t crc32c_by_table(const uint8_t *at, size_t length) {
        uint32_t rest = 0xFFFFFFFFu;
        while (length--)
            rest = (rest >> 8) ^ crc32c_table[(rest ^ *at++) & 0xFF];
        return ~rest;
    }

    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    __attribute__((target("sse4.2")))
    static uint32_t crc32c_by_instruction(const uint8_t *at, size_t length) {
        uint64_t rest = 0xFFFFFFFFu;
        uint64_t word;
        while (length >= 8) {
            memcpy(&word, at, 8);
            rest = __builtin_ia32_crc32di(rest, word);
            at += 8;
            length -= 8;
        }
        while (length--)
            rest = __builtin_ia32_crc32qi((uint32_t) rest, *at++);
        return ~(uint32_t) rest;
    }

    static int crc32c_has_instruction(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("sse4.2");
    }
    #else
    #define crc32c_by_instruction crc32c_by_table
    static int crc32c_has_instruction(void) { return 0; }
    #endif
    """
    void crc32c_fill()
    int crc32c_has_instruction()
    uint32_t crc32c_by_table(const uint8_t *at, size_t length) noexcept nogil
    uint32_t crc32c_by_instruction(const uint8_t *at, size_t length) noexcept nogil


cdef enum:
    BATCH_HEADER_BYTES = 61
    LENGTH_AT = 8
    LENGTH_MIN = 49
    BYTES_BEFORE_LENGTH = 12
    MAGIC_AT = 16
    CRC_AT = 17
    CHECKED_FROM = 21
    LAST_DELTA_AT = 23
    BASE_TIME_AT = 27
    MAX_TIME_AT = 35
    PRODUCER_AT = 43
    COUNT_AT = 57
    LOG_APPEND_TIME = 0x08
    HORIZON = 0x40
    SLOW = 0x37
    # The bits of the codec, of a transaction and of a control batch.
    COPIES_MAX = 4096


cdef struct Head:
    # The fields of a batch's header that the log cleaner needs.
    int64_t base_offset
    int64_t last_offset
    int64_t base_time
    int64_t max_time
    int64_t producer_id
    int64_t count
    uint64_t attributes
    Py_ssize_t size


cdef struct Copy:
    # A batch in the output: its position, length, last offset and largest timestamp.
    Py_ssize_t position
    Py_ssize_t size
    int64_t last_offset
    int64_t max_time


crc32c_fill()
cdef bint _has_crc_instruction = crc32c_has_instruction()


cdef inline uint32_t _crc(const uint8_t *at, Py_ssize_t length) noexcept nogil:
    if _has_crc_instruction:
        return crc32c_by_instruction(at, length)
    return crc32c_by_table(at, length)


cdef inline uint64_t _big_endian(const uint8_t *at, int size) noexcept nogil:
    cdef uint64_t number = 0
    cdef int n
    for n in range(size):
        number = number << 8 | at[n]
    return number


cdef inline void _put_big_endian(uint8_t *at, uint64_t number, int size) noexcept nogil:
    cdef int n
    for n in range(size):
        at[size - 1 - n] = <uint8_t> (number >> 8 * n)


cdef bint _is_plain(const uint8_t *at, Py_ssize_t left, Head *head) noexcept nogil:
    """Read the header of the batch at `at`. Return whether the batch is whole and undamaged, and of
    the kind that these loops handle."""
    cdef int64_t length
    if left < BATCH_HEADER_BYTES:
        return False
    length = <int32_t> _big_endian(at + LENGTH_AT, 4)
    if at[MAGIC_AT] != 2 or length < LENGTH_MIN or length > left - BYTES_BEFORE_LENGTH:
        return False
    head.size = length + BYTES_BEFORE_LENGTH
    head.attributes = _big_endian(at + CHECKED_FROM, 2)
    head.base_offset = <int64_t> _big_endian(at, 8)
    head.last_offset = <int32_t> _big_endian(at + LAST_DELTA_AT, 4)
    head.base_time = <int64_t> _big_endian(at + BASE_TIME_AT, 8)
    head.max_time = <int64_t> _big_endian(at + MAX_TIME_AT, 8)
    head.producer_id = <int64_t> _big_endian(at + PRODUCER_AT, 8)
    head.count = <int32_t> _big_endian(at + COUNT_AT, 4)
    if head.attributes & SLOW or head.count <= 0:
        return False
    if head.count > (head.size - BATCH_HEADER_BYTES) // RECORD_BYTES_MIN:
        return False
    if head.last_offset < 0 or not 0 <= head.base_offset < INT64_MAX - INT32_MAX:
        return False
    head.last_offset += head.base_offset
    return _crc(at + CHECKED_FROM, head.size - CHECKED_FROM) == _big_endian(at + CRC_AT, 4)


cdef int _check_block(Py_ssize_t position, Py_ssize_t size) except -1:
    if not 0 <= position <= size:
        raise ValueError(f"position is {position}, expected 0 to {size}")
    return 0


def put_batches(
    KeyTable table not None,
    const uint8_t[::1] data not None,
    Py_ssize_t position,
    int64_t first_offset,
):
    cdef Py_ssize_t size = data.shape[0]
    cdef const uint8_t *start
    cdef Head head
    cdef Reader outer
    cdef Step outcome = DONE
    cdef int64_t end = 0
    _check_block(position, size)
    start = &data[0] if size else NULL
    table._begin()
    with nogil:
        while _is_plain(start + position, size - position, &head):
            if head.last_offset >= first_offset:
                outer.at = start + position + BATCH_HEADER_BYTES
                outer.end = start + position + head.size
                outcome = table._put(&outer, head.count, head.base_offset)
                if outcome != DONE or outer.at != outer.end:
                    break
            position += head.size
            end = head.last_offset + 1
    table._is_in_use = False
    if outcome == NO_MEMORY:
        raise MemoryError
    return position, end


cdef bint _copy_batch(
    KeyTable table, const uint8_t *batch, Head *head, int64_t now_ms, uint8_t *to, Copy *copy
) noexcept nogil:
    """Copy the batch with its retained records to `to`, which has room for the whole batch. Set
    `copy.size` to 0 if no record is retained. Return False if `compaction/` must handle the
    batch."""
    cdef Reader outer
    cdef int64_t kept = 0, latest = INT64_MIN
    cdef Py_ssize_t copied = 0
    cdef bint has_tombstone = False
    cdef bint has_horizon = head.attributes & HORIZON != 0
    outer.at = batch + BATCH_HEADER_BYTES
    outer.end = batch + head.size
    if table._select(
        &outer, head.count, head.base_offset, has_horizon and head.base_time <= now_ms,
        to + BATCH_HEADER_BYTES, &kept, &has_tombstone, &latest, &copied,
    ) != DONE or outer.at != outer.end:
        return False
    copy.size = 0
    if not kept:
        return head.producer_id < 0
    if has_tombstone and not has_horizon:
        return False
    memcpy(to, batch, BATCH_HEADER_BYTES)
    copy.size = copied + BATCH_HEADER_BYTES
    copy.last_offset = head.last_offset
    copy.max_time = head.max_time
    if kept == head.count:
        return True
    if not head.attributes & LOG_APPEND_TIME:
        if (latest > 0 and head.base_time > INT64_MAX - latest) or (
            latest < 0 and head.base_time < INT64_MIN - latest
        ):
            return False
        copy.max_time = head.base_time + latest
    _put_big_endian(to + LENGTH_AT, copy.size - BYTES_BEFORE_LENGTH, 4)
    _put_big_endian(to + MAX_TIME_AT, <uint64_t> copy.max_time, 8)
    _put_big_endian(to + COUNT_AT, kept, 4)
    _put_big_endian(to + CRC_AT, _crc(to + CHECKED_FROM, copy.size - CHECKED_FROM), 4)
    return True


def select_batches(
    KeyTable table not None,
    const uint8_t[::1] data not None,
    Py_ssize_t position,
    int64_t now_ms,
    uint8_t[::1] output not None,
    Py_ssize_t length,
):
    cdef Py_ssize_t size = data.shape[0], room = output.shape[0]
    cdef const uint8_t *start
    cdef uint8_t *to
    cdef Head head
    cdef Copy *copies
    cdef Py_ssize_t count = 0, n
    _check_block(position, size)
    _check_block(length, room)
    start = &data[0] if size else NULL
    to = &output[0] if room else NULL
    copies = <Copy *> malloc(COPIES_MAX * sizeof(Copy))
    if copies == NULL:
        raise MemoryError
    try:
        table._begin()
        with nogil:
            while count < COPIES_MAX and _is_plain(start + position, size - position, &head):
                if head.size > room - length:
                    break
                if not _copy_batch(
                    table, start + position, &head, now_ms, to + length, copies + count
                ):
                    break
                position += head.size
                if copies[count].size:
                    copies[count].position = length
                    length += copies[count].size
                    count += 1
        table._is_in_use = False
        return position, length, [
            (copies[n].position, copies[n].size, copies[n].last_offset, copies[n].max_time)
            for n in range(count)
        ]
    finally:
        free(copies)


def block_checksum(const uint8_t[::1] data not None, bint by_table):
    """Return the CRC-32C of `data`, which is not empty, for tests of both ways to compute it."""
    if by_table or not _has_crc_instruction:
        return crc32c_by_table(&data[0], data.shape[0])
    return crc32c_by_instruction(&data[0], data.shape[0])
