"""Types of the compiled loops. `_pure.py` and `columns.Store` describe the functions."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from pybroker.ports import Buffer
from pybroker.records._pure_open_batches import Budget, TopicRoute
from pybroker.records.batch import TimestampType
from pybroker.records.record import Headers

IMPLEMENTATION: Final = "extension"

R = TypeVar("R", bound=tuple[Any, ...])

def read_records(
    data: bytes,
    record_count: int,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    append_time: int | None,
    timestamp_type: object,
    record_type: type[R],
) -> list[R]: ...
def scan_records(data: bytes, record_count: int) -> tuple[int, int, int, int]: ...
def put_batches(
    table: KeyTable, data: Buffer, position: int, first_offset: int
) -> tuple[int, int]: ...
def select_batches(
    table: KeyTable,
    data: Buffer,
    position: int,
    now_ms: int,
    output: bytearray | memoryview,
    length: int,
) -> tuple[int, int, list[tuple[int, int, int, int]]]: ...
def block_checksum(data: Buffer, by_table: bool) -> int: ...

class ColumnStore:
    @property
    def rows(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def weight(self) -> int: ...
    def __init__(self, *, headers: bool, keys: bool, values: bool) -> None: ...
    def add(
        self,
        payload: Buffer,
        record_count: int,
        base_offset: int,
        last_offset_delta: int,
        base_timestamp: int,
        append_time: int | None,
        timestamp_type: int,
        first_delta: int,
        end_delta: int,
    ) -> int: ...
    def finish(self) -> tuple[Any, ...]: ...

RECORDS_PER_TURN: int

class ConsumerRecord:
    __match_args__: tuple[str, ...]

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int,
        timestamp_type: TimestampType,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        leader_epoch: int,
    ) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def timestamp_type(self) -> TimestampType: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def leader_epoch(self) -> int: ...

class BatchReader:
    def __init__(
        self,
        topic: str,
        partition: int,
        leader_epoch: int,
        payload: Buffer,
        record_count: int,
        base_offset: int,
        last_offset_delta: int,
        base_timestamp: int,
        append_time: int | None,
        timestamp_type: TimestampType,
        first_offset: int,
    ) -> None: ...
    @property
    def done(self) -> bool: ...
    def check(self, bytes_max: int) -> bool: ...
    def read(self) -> list[ConsumerRecord]: ...

def record_slice(data: Buffer, position: int, count: int, bytes_max: int) -> tuple[int, int]: ...
def outline_batches(data: Buffer, first_offset: int) -> tuple[int, list[tuple[int, int]]]: ...

class KeyTable:
    ENTRY_BYTES: int
    RECORDS_PER_SLICE: int
    capacity: int

    def __init__(self, memory_bytes: int, load_factor: float, secret: bytes) -> None: ...
    def __len__(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def put(self, payload: Buffer, position: int, record_count: int, base_offset: int) -> int: ...
    def select(
        self,
        payload: Buffer,
        position: int,
        record_count: int,
        base_offset: int,
        drops_tombstones: bool,
    ) -> tuple[int, int, bool, int, bytes | None]: ...

def shift_times(payload: Buffer, record_count: int, shift: int) -> bytes: ...
def sip_digest(data: bytes, secret: bytes) -> bytes: ...

class RecordBuffer:
    @property
    def count(self) -> int: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def full(self) -> bool: ...
    @property
    def size(self) -> int: ...
    def append(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]],
        limit: int,
    ) -> int: ...
    def encoded(self) -> bytearray: ...
    def release(self) -> None: ...

def murmur2(data: bytes) -> int: ...
def partition_of_key(key: bytes, partition_count: int) -> int: ...

class ArrowColumn:
    def __init__(
        self,
        rows: int,
        offsets: Buffer | None,
        data: Buffer | None,
        validity: Buffer | None,
        first: int,
        offset_bytes: int,
    ) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> bytes | None: ...
    def __iter__(self) -> Iterator[bytes | None]: ...

def record_bytes(
    values: list[Buffer | None] | ArrowColumn, keys: list[Buffer | None] | ArrowColumn | None
) -> tuple[int, int]: ...
def append_records(
    buffers: list[RecordBuffer | None],
    values: list[bytes | None] | ArrowColumn,
    keys: list[bytes | None] | ArrowColumn | None,
    chosen: list[int | None] | None,
    timestamp: int,
    start: int,
    without_key: int,
    limit: int,
    room: int,
    places: list[int],
) -> tuple[int, int, int]: ...

class RecordPlace:
    def __init__(self, batch: Any, index: int, timestamp: int) -> None: ...

class OpenBatchAppender:
    def __init__(
        self,
        place_type: type[RecordPlace],
        routes: Mapping[str, TopicRoute],
        budget: Budget,
        used_max: int,
        records_max: int,
        *,
        has_partitioner: bool,
        check_open: Callable[[], object] | None,
        check_time: Callable[[int], int],
        wall_ns: Callable[[], int],
        on_filled: Callable[[], object],
    ) -> None: ...
    def append(
        self,
        topic: str,
        value: Buffer | None,
        key: Any,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> RecordPlace | None: ...
