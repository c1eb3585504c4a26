"""The protocols (Python's interfaces) of the clock, the disk, ZooKeeper and other brokers, which
tests simulate. Timers are asyncio's own: a simulation brings an event loop with simulated time."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from pybroker.errors import ErrorCode
from pybroker.model import (
    NO_EPOCH,
    NO_OFFSET,
    LeaderAndIsr,
    StopReplica,
    TopicPartition,
    TransactionMarker,
    UpdateMetadata,
)

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class Clock(Protocol):
    """Reads the time. Use `wall_ms` only for times in records and for times that people read.
    Measure durations with `monotonic` or `boottime`."""

    def wall_ms(self) -> int:
        """Return the milliseconds since 1970 by the machine's clock, which may jump forwards or
        backwards."""

    def monotonic(self) -> float:
        """Return the seconds since some fixed instant in the past. The value never decreases."""

    def boottime(self) -> float:
        """Return the seconds since some fixed instant in the past. Unlike `monotonic`, this
        includes the time in which the machine was suspended."""


class Rng(Protocol):
    """Random numbers, as `random.Random` and `random.SystemRandom` make them."""

    def randrange(self, stop: int, /) -> int: ...

    def randbytes(self, n: int, /) -> bytes: ...


class Proc(Protocol):
    """Facts about this process and this machine that the operating system provides."""

    def boot_id(self) -> str:
        """Return an id that changes each time the kernel boots. While the id is unchanged, files
        still have all bytes that were written, even without a sync."""

    def pid(self) -> int: ...


class Blocking(Protocol):
    """Runs blocking work, such as disk access and compression, outside the event loop."""

    def run(self, function: Callable[..., T], *args: object) -> Awaitable[T]:
        """Call `function(*args)` outside the event loop. The awaitable returns what the function
        returns, or raises the exception of the function."""


class File(Protocol):
    """An open file of a log. Every method may raise StorageError, which names the path and the
    operation."""

    @property
    def path(self) -> str: ...

    def size(self) -> int:
        """Return the length of the file in bytes."""

    def append(self, data: Buffer) -> None:
        """Write all of `data` at the end of the file. If only a part can be written, restore the
        old length and raise StorageError."""

    def pread(self, position: int, length: int) -> bytes:
        """Return `length` bytes from `position` on, fewer only if the file ends earlier. May wait
        for the disk."""

    def pread_cached(self, position: int, length: int) -> Buffer | None:
        """Return the bytes as `pread` does, or None if that would wait for the disk. The result may
        be a view of a shared buffer, which is not reused while a view exists."""

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make the content and the length of the file durable (fdatasync)."""

    def close(self) -> None:
        """Close the file. Idempotent."""


class Disk(Protocol):
    """The operations on files and directories that the logs need. Paths are absolute. All methods
    block and may raise StorageError."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and appending. Raise StorageError if it is missing and `create`
        is False."""

    def read(self, path: str) -> bytes:
        """Return the whole content of a file. Raise FileNotFoundError if it does not exist."""

    def replace(self, path: str, data: bytes) -> None:
        """Replace the content of a file, atomically and durably."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file, atomically. The new name is durable only after `sync_dir`."""

    def unlink(self, path: str) -> None:
        """Remove a file, if it exists."""

    def list_dir(self, path: str) -> list[str]:
        """Return the names of the files and directories in a directory, sorted."""

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """Return the length of a file in bytes."""

    def write(self, path: str, data: bytes) -> None:
        """Replace the content of a file, neither atomically nor durably. Only for a file that has a
        checksum of its own and can be rebuilt."""

    def writable(self, path: str) -> bool:
        """Return whether new files can be created in a directory."""

    def lock(self, path: str, owner: str) -> Callable[[], None] | None:
        """Take the exclusive lock of the file `path`, and write `owner` into the file. Return the
        function that releases the lock, or None if another process holds the lock."""

    def is_dir(self, path: str) -> bool: ...

    def make_dirs(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Make the creations, renames and deletions of files in a directory durable."""

    def remove_tree(self, path: str) -> None: ...

    def modified_ms(self, path: str) -> int:
        """Return when the content of a file last changed (ms since 1970)."""

    def free_bytes(self, path: str) -> int:
        """Return how many bytes can still be written on the file system that contains `path`."""


class SessionEvent(enum.Enum):
    """Events of this process's session with the coordination service (ZooKeeper)."""

    CONNECTED = "connected"
    """A new session has begun. The ephemeral nodes and the watches of the session before are
    gone."""
    SUSPENDED = "suspended"
    """The connection is lost. The session may survive or expire; a later event says which."""
    RECONNECTED = "reconnected"
    """There is a connection again, and the session has survived. Its watches are still set."""
    EXPIRED = "expired"
    """The session has expired. When the service can be reached again, a new session begins with a
    CONNECTED event."""


class WatchKind(enum.Enum):
    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILD = "child"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """The event that a one-shot watch of a node reports."""

    kind: WatchKind
    path: str


Watch = Callable[[WatchEvent], None]
SessionListener = Callable[[SessionEvent], None]


@dataclass(frozen=True, slots=True)
class NodeStat:
    """The metadata of a node. `version` counts the changes of its data. `czxid` is the id of the
    creating transaction; later transactions have larger ids."""

    czxid: int
    mzxid: int
    version: int
    ephemeral_owner: int
    ctime_ms: int
    mtime_ms: int
    data_length: int
    num_children: int


@dataclass(frozen=True, slots=True)
class CreateOp:
    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class SetOp:
    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class DeleteOp:
    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class CheckOp:
    path: str
    version: int


CoordOp = CreateOp | SetOp | DeleteOp | CheckOp
OpResult = str | NodeStat | None
"""The result of one operation of a multi: the path for a create, the new metadata for a set, None
for a delete or a check."""


class Coord(Protocol):
    """The coordination service (ZooKeeper).

    All methods may raise subclasses of CoordError. After ConnectionLoss it is unknown whether the
    operation was applied; after any other error it was not. A request over 512 KiB raises
    RequestTooLarge. Version -1 means any version. Watches and listeners are called on the event
    loop, in the order of the events, and never for an ended session.
    """

    @property
    def generation(self) -> int:
        """How many sessions this process has had so far."""

    @property
    def session_id(self) -> int:
        """The id of the current session, as in `NodeStat.ephemeral_owner`; 0 without a session."""

    def silence(self) -> float:
        """Return the seconds (boottime) since the sending of the newest write or sync that
        ZooKeeper has answered. Reads do not count: a server without a quorum answers reads, too."""

    def add_listener(self, listener: SessionListener) -> None: ...

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]: ...

    async def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None: ...

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the names of the node's children, sorted. `watch` is called once, at the next
        change."""

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> str: ...

    async def set(self, path: str, data: bytes, version: int = -1) -> NodeStat: ...

    async def delete(self, path: str, version: int = -1) -> None: ...

    async def multi(self, ops: Sequence[CoordOp]) -> list[OpResult]:
        """Apply all operations or none, and return their results. Raise MultiFailed for the first
        operation that failed."""

    async def sync(self, path: str = "/") -> None:
        """Wait until the server of this session has all changes that ZooKeeper had committed before
        this call."""


class BrokerChannel(Protocol):
    """The controller's channel to one broker. Commands arrive in order. Methods raise BrokerError
    if the broker rejects the whole command. If it is unknown whether the command arrived, they
    raise another PybrokerError, OSError or TimeoutError."""

    async def close(self) -> None:
        """Close the connection at once. Commands without an answer may be lost. Idempotent."""

    async def leader_and_isr(self, command: LeaderAndIsr) -> Mapping[TopicPartition, ErrorCode]: ...

    async def update_metadata(self, command: UpdateMetadata) -> None: ...

    async def stop_replica(self, command: StopReplica) -> Mapping[TopicPartition, ErrorCode]: ...


class MarkerChannel(Protocol):
    """The channel on which a transaction coordinator sends markers to a partition leader's
    broker."""

    async def write_markers(
        self, markers: Sequence[TransactionMarker]
    ) -> Sequence[Mapping[TopicPartition, ErrorCode]]:
        """Append the markers. Each marker must have a different producer id. Return, for each
        marker, partition -> error code: NONE if the in-sync replicas have the marker. Raise
        PybrokerError, OSError or TimeoutError if it is unknown whether the markers were written."""


class FetchPosition(NamedTuple):
    """The position of a follower in a partition, as its next fetch states it."""

    fetch_offset: int
    """The follower's log end offset. If flush.messages is set, all records below it are on the
    follower's disk."""
    log_start_offset: int
    leader_epoch: int
    """The leader epoch that the follower knows. A leader that is in another epoch rejects the fetch
    (KIP-320)."""
    last_epoch: int = NO_EPOCH
    """The leader epoch of the last batch in the follower's log. From this epoch the leader finds
    where the follower's log differs from the leader's log (KIP-595)."""


class FetchedPartition(NamedTuple):
    """The leader's result for one partition of a follower's fetch."""

    topic_partition: TopicPartition
    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    diverging_epoch: int = NO_EPOCH
    diverging_end_offset: int = NO_OFFSET
    """`diverging_epoch` and `diverging_end_offset` are set if the follower has to truncate its log:
    the leader's largest epoch that is not above the epoch of the follower's last batch, and the end
    offset of that epoch in the leader's log."""
    records: Buffer = b""
    """Whole batches, from the fetch offset on. The bytes are valid until the next fetch."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How much data a follower requests in one fetch, in total and for each partition, and how long
    the leader may wait for `min_bytes`."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int


class LeaderChannel(Protocol):
    """A follower's channel to one leader. Methods may raise BrokerError if the leader rejects the
    whole request. They may raise another PybrokerError, OSError or TimeoutError if the leader
    cannot be reached."""

    async def fetch(
        self,
        positions: Mapping[TopicPartition, FetchPosition],
        limits: FetchLimits,
        changed: Iterable[TopicPartition] | None = None,
    ) -> Sequence[FetchedPartition]:
        """Fetch `positions`. A partition without new data may have no result. `changed` must name
        all partitions whose position may have changed since the last call, because a fetch session
        (KIP-227) sends only changed positions. With None, any position may have changed."""

    async def earliest_offset(self, topic_partition: TopicPartition, leader_epoch: int) -> int:
        """Return the leader's log start offset. Raise BrokerError if the leader does not lead the
        partition in this epoch."""

    async def latest_offset(self, topic_partition: TopicPartition, leader_epoch: int) -> int:
        """Return the leader's log end offset. Raise BrokerError if the leader does not lead the
        partition in this epoch."""

    async def close(self) -> None:
        """Close the connection, if there is one. Idempotent."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A record of an internal topic. If `value` is None, the record is a tombstone."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Producer:
    """A transactional producer. `guard` proves to `PartitionLog.append` that the partition is in
    the producer's transaction (KIP-890). `PartitionLog.verified` sets `guard`."""

    producer_id: int
    epoch: int
    guard: object = None


class PartitionLog(Protocol):
    """The log in which a coordinator stores its decisions: the leader's log of one partition of an
    internal topic. Methods may raise BrokerError: KAFKA_STORAGE_ERROR if the log fails,
    NOT_LEADER_OR_FOLLOWER if this broker no longer leads the partition."""

    @property
    def topic_partition(self) -> TopicPartition: ...

    @property
    def leader_epoch(self) -> int:
        """The current leader epoch. It may grow while the same broker remains the leader."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int:
        """The offset below which all records are committed."""

    @property
    def has_zookeeper_lease(self) -> bool:
        """Whether this broker leads the partition as far as it knows, and has a recently confirmed
        ZooKeeper session (not needed if no other broker has a replica). Even so, another leader may
        already have been elected. Never raises."""

    async def is_led_now(self) -> bool:
        """Return whether it is certain that this broker leads the partition at this moment. If the
        in-sync replicas have not fetched recently, send a request to ZooKeeper. Never raises."""

    @property
    def has_leader_lease(self) -> bool:
        """Whether it is certain, without a request to ZooKeeper, that this broker leads the
        partition. If False, `is_led_now` may still return True. Never raises."""

    async def followed(self) -> None:
        """Wait until every in-sync replica has fetched in the current leader epoch. From then on,
        no in-sync replica acts as the leader of an earlier epoch."""

    @property
    def has_other_copies(self) -> bool:
        """Whether the partition has replicas on other brokers, in sync or not. Such a replica may
        have records that this replica lacks. Never raises."""

    def suspect(self, offset: int) -> None:
        """Make the log check itself for damage. The bytes that the caller has read at `offset` seem
        damaged."""

    async def read(self, offset: int, bytes_max: int) -> Sequence[Buffer]:
        """Return whole batches of about `bytes_max` bytes together, also above the high watermark.
        The first batch contains `offset`, and may be larger than `bytes_max`. The result is empty
        only at the log end offset.

        In addition to the errors of every method, raises BrokerError OFFSET_OUT_OF_RANGE if
        `offset` is outside the log, and CORRUPT_MESSAGE if the first batch is damaged.
        """

    def append(
        self,
        records: Sequence[KeyValue],
        timestamp_ms: int,
        producer: Producer | None = None,
        *,
        is_awaited: bool = True,
    ) -> int:
        """Append `records` (at least one) as one batch, and return the next offset. This method
        never yields to the event loop, and does not wait for the in-sync replicas (see
        `committed`). `timestamp_ms` (since 1970) is the timestamp of every record. `producer` must
        be a result of `verified`. `is_awaited`: whether the append wakes the followers' waiting
        fetches.

        In addition to the errors of every method, raises BrokerError:

        - NOT_ENOUGH_REPLICAS: the ISR is smaller than min.insync.replicas.
        - MESSAGE_TOO_LARGE.
        - INVALID_PRODUCER_EPOCH or INVALID_TXN_STATE: the producer must not append.
        """

    async def verified(self, transactional_id: str, producer: Producer) -> Producer:
        """Check that this partition is in the producer's transaction (KIP-890). Return a copy of
        `producer` with a `guard`, by which `append` knows that the check succeeded. Besides the
        errors of the class, raises BrokerErrors of the transaction coordinator, for example
        INVALID_TXN_STATE."""

    async def committed(self, offset: int) -> None:
        """Wait, without a time limit, until the high watermark is at least `offset`."""
