# Part of `_speedups.pyx`: the last offset of each key, for the log cleaner; `_pure_key_table.py`
# does the same.
#
# A table with open addressing and linear probing in one block of memory. Keys are stored as
# SipHash-2-4 digests of 16 bytes (Aumasson and Bernstein, 2012) under a secret. The loops release
# the GIL.

cdef enum:
    FIRST_SLOTS = 1024
    SECRET_BYTES = 16
    SHIFT_GROWTH_MAX = 16
    # A record whose timestamp delta changes gets up to 10 bytes for it and up to 5 for its length.


cdef struct Digest:
    uint64_t low
    uint64_t high


cdef struct Entry:
    uint64_t low
    uint64_t high
    uint64_t next_offset
    # The offset behind the key's last record; 0 marks a free slot.


cdef struct Keyed:
    # The fields of a record that the log cleaner needs.
    const uint8_t *start
    const uint8_t *after_time
    const uint8_t *end
    const uint8_t *key
    int64_t key_length
    int64_t value_length
    int64_t time_delta
    int64_t offset


cdef enum Step:
    DONE = 0
    DAMAGED
    FULL
    NO_MEMORY


cdef inline uint64_t _rotated(uint64_t word, int bits) noexcept nogil:
    return (word << bits) | (word >> (64 - bits))


cdef inline void _sip_rounds(uint64_t *v, int rounds) noexcept nogil:
    while rounds:
        v[0] += v[1]
        v[2] += v[3]
        v[1] = _rotated(v[1], 13) ^ v[0]
        v[3] = _rotated(v[3], 16) ^ v[2]
        v[0] = _rotated(v[0], 32)
        v[2] += v[1]
        v[0] += v[3]
        v[1] = _rotated(v[1], 17) ^ v[2]
        v[3] = _rotated(v[3], 21) ^ v[0]
        v[2] = _rotated(v[2], 32)
        rounds -= 1


cdef inline uint64_t _word(const uint8_t *at) noexcept nogil:
    return (
        <uint64_t> at[0] | <uint64_t> at[1] << 8 | <uint64_t> at[2] << 16 | <uint64_t> at[3] << 24
        | <uint64_t> at[4] << 32 | <uint64_t> at[5] << 40 | <uint64_t> at[6] << 48
        | <uint64_t> at[7] << 56
    )


cdef inline uint64_t _last_word(const uint8_t *at, int length) noexcept nogil:
    cdef uint64_t word = 0
    while length:
        length -= 1
        word = (word << 8) | at[length]
    return word


cdef Digest _digest(const uint8_t *at, int64_t length, uint64_t k0, uint64_t k1) noexcept nogil:
    cdef uint64_t v[4]
    cdef uint64_t word
    cdef int64_t left = length
    cdef Digest digest
    v[0] = k0 ^ <uint64_t> 0x736F6D6570736575
    v[1] = k1 ^ <uint64_t> 0x646F72616E646F6D ^ 0xEE
    v[2] = k0 ^ <uint64_t> 0x6C7967656E657261
    v[3] = k1 ^ <uint64_t> 0x7465646279746573
    while left >= 8:
        word = _word(at)
        v[3] ^= word
        _sip_rounds(v, 2)
        v[0] ^= word
        at += 8
        left -= 8
    word = (<uint64_t> (length & 0xFF) << 56) | _last_word(at, <int> left)
    v[3] ^= word
    _sip_rounds(v, 2)
    v[0] ^= word
    v[2] ^= 0xEE
    _sip_rounds(v, 4)
    digest.low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    _sip_rounds(v, 4)
    digest.high = v[0] ^ v[1] ^ v[2] ^ v[3]
    return digest


cdef inline uint64_t _home(uint64_t high, uint64_t slots) noexcept nogil:
    """Return the first slot of a digest. There are fewer than 2^32 slots."""
    return ((high >> 32) * slots) >> 32


cdef inline Entry *_find(Entry *entries, uint64_t slots, Digest *digest) noexcept nogil:
    """Return the entry of the digest, or the free slot for it. At least one slot is free."""
    cdef uint64_t slot = _home(digest.high, slots)
    while entries[slot].next_offset:
        if entries[slot].high == digest.high and entries[slot].low == digest.low:
            break
        slot += 1
        if slot == slots:
            slot = 0
    return entries + slot


cdef inline bint _next_keyed(Reader *outer, int64_t base_offset, Keyed *record) noexcept nogil:
    """Read the next record from `outer`, up to the begin of its value. Return False if the record
    is damaged."""
    cdef Reader reader
    cdef int64_t length = 0, offset_delta = 0
    record.start = outer.at
    if _number(outer, 32, &length) != READ:
        return False
    if length < RECORD_BYTES_MIN - 1 or length > outer.end - outer.at:
        return False
    reader.at = outer.at + 1
    reader.end = record.end = outer.at + length
    outer.at = reader.end
    if _number(&reader, 64, &record.time_delta) != READ:
        return False
    record.after_time = reader.at
    if _number(&reader, 32, &offset_delta) != READ:
        return False
    if _number(&reader, 32, &record.key_length) != READ:
        return False
    if record.key_length < -1 or record.key_length > reader.end - reader.at:
        return False
    record.key = reader.at
    if record.key_length > 0:
        reader.at += record.key_length
    if _number(&reader, 32, &record.value_length) != READ:
        return False
    if record.value_length < -1 or record.value_length > reader.end - reader.at:
        return False
    if offset_delta > 0 and base_offset > INT64_MAX - offset_delta:
        return False
    record.offset = base_offset + offset_delta
    return base_offset >= 0 and record.offset >= 0


cdef int _open_payload(
    Reader *outer, const uint8_t[::1] payload, Py_ssize_t position, int64_t record_count
) except -1:
    cdef Py_ssize_t size = payload.shape[0]
    if not 0 <= position <= size:
        raise ValueError(f"position is {position}, expected 0 to {size}")
    _check_count(record_count, size - position)
    # An empty buffer may have no address.
    outer.at = &payload[0] + position if size else NULL
    outer.end = outer.at + (size - position)
    return 0


cdef int _damage(Py_ssize_t position, int64_t record_count, Py_ssize_t size) except -1:
    return _fail(
        f"one of {record_count} records from byte {position} on is damaged, in {size} bytes of"
        " records"
    )


cdef int _check_secret(bytes secret) except -1:
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"the secret has {len(secret)} bytes, expected {<int> SECRET_BYTES}")
    return 0


cdef class KeyTable:
    """See `key_table.Table`."""

    ENTRY_BYTES = sizeof(Entry)
    RECORDS_PER_SLICE = INT32_MAX

    cdef readonly Py_ssize_t capacity
    cdef Entry *_entries
    cdef uint64_t _slots, _slots_max, _k0, _k1
    cdef Py_ssize_t _filled
    cdef uint8_t *_scratch
    cdef Py_ssize_t _scratch_size
    cdef bint _is_in_use

    def __cinit__(self, int64_t memory_bytes, double load_factor, bytes secret not None):
        _check_secret(secret)
        self._k0 = _word(<const uint8_t *> PyBytes_AS_STRING(secret))
        self._k1 = _word(<const uint8_t *> PyBytes_AS_STRING(secret) + 8)
        slots_max = min(max(memory_bytes // <int64_t> sizeof(Entry), 2), 2**32 - 1)
        self._slots_max = slots_max
        self.capacity = max(1, min(int(slots_max * load_factor), slots_max - 1))
        self._slots = min(<uint64_t> FIRST_SLOTS, self._slots_max)
        self._entries = <Entry *> calloc(self._slots, sizeof(Entry))
        if self._entries == NULL:
            raise MemoryError

    def __dealloc__(self):
        # Returning tens of megabytes to the operating system takes some milliseconds.
        with nogil:
            free(self._entries)
            free(self._scratch)

    def __len__(self):
        return self._filled

    @property
    def size_bytes(self):
        return self._slots * sizeof(Entry)

    def put(
        self,
        const uint8_t[::1] payload not None,
        Py_ssize_t position,
        int64_t record_count,
        int64_t base_offset,
    ):
        cdef Reader outer
        cdef Step outcome
        cdef const uint8_t *start
        _open_payload(&outer, payload, position, record_count)
        start = outer.at
        self._begin()
        with nogil:
            outcome = self._put(&outer, record_count, base_offset)
        self._is_in_use = False
        if outcome == FULL:
            return -1
        self._check(outcome, position, record_count, payload.shape[0])
        return position + (outer.at - start)

    def select(
        self,
        const uint8_t[::1] payload not None,
        Py_ssize_t position,
        int64_t record_count,
        int64_t base_offset,
        bint drops_tombstones,
    ):
        cdef Reader outer
        cdef Step outcome
        cdef const uint8_t *start
        cdef int64_t kept = 0, latest = INT64_MIN
        cdef Py_ssize_t copied = 0
        cdef bint has_tombstone = False
        _open_payload(&outer, payload, position, record_count)
        start = outer.at
        self._begin()
        with nogil:
            outcome = NO_MEMORY
            if self._has_scratch(outer.end - outer.at):
                outcome = self._select(
                    &outer, record_count, base_offset, drops_tombstones, self._scratch,
                    &kept, &has_tombstone, &latest, &copied,
                )
        self._is_in_use = False
        self._check(outcome, position, record_count, payload.shape[0])
        records = None
        if kept < record_count:
            records = PyBytes_FromStringAndSize(<const char *> self._scratch, copied)
        return (
            position + (outer.at - start), kept, has_tombstone, latest if kept else 0, records
        )

    cdef int _begin(self) except -1:
        if self._is_in_use:
            raise RuntimeError("another thread uses the table")
        self._is_in_use = True
        return 0

    cdef int _check(
        self, Step outcome, Py_ssize_t position, int64_t record_count, Py_ssize_t size
    ) except -1:
        if outcome == NO_MEMORY:
            raise MemoryError
        if outcome == DAMAGED:
            _damage(position, record_count, size)
        return 0

    cdef bint _has_scratch(self, Py_ssize_t size) noexcept nogil:
        if size > self._scratch_size:
            free(self._scratch)
            self._scratch = <uint8_t *> malloc(size)
            self._scratch_size = size if self._scratch != NULL else 0
        return size <= self._scratch_size

    cdef Step _put(self, Reader *outer, int64_t count, int64_t base_offset) noexcept nogil:
        cdef Keyed record
        cdef Digest digest
        cdef Entry *entry
        while count:
            count -= 1
            if not _next_keyed(outer, base_offset, &record):
                return DAMAGED
            if record.key_length < 0:
                continue
            digest = _digest(record.key, record.key_length, self._k0, self._k1)
            entry = _find(self._entries, self._slots, &digest)
            if not entry.next_offset:
                if self._filled >= self.capacity:
                    return FULL
                if self._slots < self._slots_max and 4 * self._filled >= <Py_ssize_t> (3 * self._slots):
                    if not self._grow():
                        return NO_MEMORY
                    entry = _find(self._entries, self._slots, &digest)
                entry.low = digest.low
                entry.high = digest.high
                self._filled += 1
            entry.next_offset = <uint64_t> record.offset + 1
        return DONE

    cdef Step _select(
        self, Reader *outer, int64_t count, int64_t base_offset, bint drops_tombstones,
        uint8_t *to, int64_t *kept, bint *has_tombstone, int64_t *latest, Py_ssize_t *copied,
    ) noexcept nogil:
        cdef Keyed record
        cdef Digest digest
        cdef Entry *entry
        cdef Py_ssize_t length
        while count:
            count -= 1
            if not _next_keyed(outer, base_offset, &record):
                return DAMAGED
            if record.key_length < 0 or (drops_tombstones and record.value_length < 0):
                continue
            digest = _digest(record.key, record.key_length, self._k0, self._k1)
            entry = _find(self._entries, self._slots, &digest)
            if entry.next_offset > <uint64_t> record.offset + 1:
                continue
            length = record.end - record.start
            memcpy(to + copied[0], record.start, length)
            copied[0] += length
            kept[0] += 1
            has_tombstone[0] |= record.value_length < 0
            latest[0] = max(latest[0], record.time_delta)
        return DONE

    cdef bint _grow(self) noexcept nogil:
        """Double the number of slots, up to the maximum, and move all entries within the block, so
        that no second block is needed. Return False without memory; the table is unchanged then."""
        cdef uint64_t before = self._slots
        cdef uint64_t slots = min(2 * before, self._slots_max)
        cdef uint64_t at, slot
        cdef Entry carried, replaced
        cdef Entry *entries
        cdef uint8_t *placed = <uint8_t *> calloc(slots // 8 + 1, 1)
        if placed == NULL:
            return False
        entries = <Entry *> realloc(self._entries, slots * sizeof(Entry))
        if entries == NULL:
            free(placed)
            return False
        memset(entries + before, 0, (slots - before) * sizeof(Entry))
        for at in range(before):
            if not entries[at].next_offset or placed[at >> 3] >> (at & 7) & 1:
                continue
            carried = entries[at]
            entries[at].next_offset = 0
            while carried.next_offset:
                slot = _home(carried.high, slots)
                while placed[slot >> 3] >> (slot & 7) & 1:
                    slot += 1
                    if slot == slots:
                        slot = 0
                placed[slot >> 3] |= <uint8_t> (1 << (slot & 7))
                # The slot may have an entry that has no new place yet: that one is carried next.
                replaced = entries[slot]
                entries[slot] = carried
                carried = replaced
        free(placed)
        self._entries = entries
        self._slots = slots
        return True


cdef inline int _put_shifted(Keyed *record, int64_t shift, uint8_t **at) noexcept nogil:
    cdef Py_ssize_t rest = record.end - record.after_time
    cdef int64_t delta = record.time_delta
    if (shift > 0 and delta > INT64_MAX - shift) or (shift < 0 and delta < INT64_MIN - shift):
        return False
    delta += shift
    at[0] = _put_varint(at[0], 1 + _varint_size(delta) + rest)
    at[0][0] = 0
    at[0] = _put_varint(at[0] + 1, delta)
    memcpy(at[0], record.after_time, rest)
    at[0] += rest
    return True


def shift_times(const uint8_t[::1] payload not None, int64_t record_count, int64_t shift):
    cdef Reader outer
    cdef Keyed record
    cdef int64_t left = record_count
    cdef bint is_whole = True
    cdef uint8_t *shifted
    cdef uint8_t *at
    _open_payload(&outer, payload, 0, record_count)
    shifted = at = <uint8_t *> malloc(payload.shape[0] + SHIFT_GROWTH_MAX * record_count + 1)
    if shifted == NULL:
        raise MemoryError
    try:
        with nogil:
            while left and is_whole:
                left -= 1
                is_whole = _next_keyed(&outer, 0, &record) and _put_shifted(&record, shift, &at)
        if not is_whole or outer.at != outer.end:
            _damage(0, record_count, payload.shape[0])
        return PyBytes_FromStringAndSize(<const char *> shifted, at - shifted)
    finally:
        free(shifted)


def sip_digest(bytes data not None, bytes secret not None):
    """Return the digest of 16 bytes under a secret of 16 bytes, for tests of the digests."""
    cdef const uint8_t *key = <const uint8_t *> PyBytes_AS_STRING(secret)
    cdef Digest digest
    _check_secret(secret)
    digest = _digest(
        <const uint8_t *> PyBytes_AS_STRING(data), len(data),
        _word(key), _word(key + 8),
    )
    return int(digest.low).to_bytes(8, "little") + int(digest.high).to_bytes(8, "little")


include "_key_blocks.pxi"
