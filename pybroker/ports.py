"""The protocols (Python's interfaces) of the clock, the disk, ZooKeeper and other brokers. Code
that makes decisions depends only on these protocols. Each protocol has one real implementation
(`clock.py`, `storage/files.py`, `coordinator/zookeeper/session.py`, `broker/app.py`); tests use
simulated ones.

Timers are asyncio's own (`loop.call_later`, `asyncio.sleep`), because a simulation brings an event
loop with simulated time. Only *reading* a clock uses `Clock`.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

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
    """Reads the time. Wall time is only for records and for people; every decision about durations
    uses the other two methods."""

    def wall_ms(self) -> int:
        """Return the milliseconds since 1970 by the machine's clock. The clock may jump forwards or
        backwards."""

    def monotonic(self) -> float:
        """Return the seconds since some fixed instant in the past. The value never decreases."""

    def boottime(self) -> float:
        """Return the seconds since some fixed instant in the past. Unlike `monotonic`, this
        includes the time in which the machine was suspended."""


class Rng(Protocol):
    """Random numbers for choices, such as the placement of replicas. `random.Random` and
    `random.SystemRandom` are implementations."""

    def randrange(self, stop: int, /) -> int: ...

    def randbytes(self, n: int, /) -> bytes: ...


class Proc(Protocol):
    """Facts about this process and this machine that the operating system provides."""

    def boot_id(self) -> str:
        """Return an id that changes each time the kernel boots. While the id is unchanged, the page
        cache still has everything that was written to files, even if it is not on disk."""

    def pid(self) -> int: ...


class Blocking(Protocol):
    """Runs blocking work, such as disk access and compression, outside the event loop."""

    def run(self, function: Callable[..., T], *args: object) -> Awaitable[T]:
        """Call `function(*args)` outside the event loop. The awaitable returns the result of the
        call or raises its exception."""


class File(Protocol):
    """An open file of a log. Every method may raise StorageError; the message names the path and
    the operation."""

    @property
    def path(self) -> str: ...

    def size(self) -> int:
        """Return the length of the file in bytes."""

    def append(self, data: Buffer) -> None:
        """Write all of `data` at the end of the file. If the disk writes only a part, truncate the
        file to its old length and raise StorageError."""

    def pread(self, position: int, length: int) -> bytes:
        """Return `length` bytes of the file from `position` on, fewer only if the file ends
        earlier. The call may wait for the disk."""

    def pread_cached(self, position: int, length: int) -> Buffer | None:
        """Return the bytes as `pread` does if all of them are in the page cache, else None. The
        call never waits for the disk. The memory of a long result is reused by a later read once
        nothing refers to the result any more."""

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make the content and the length of the file durable (fdatasync)."""

    def close(self) -> None:
        """Close the file. Idempotent."""


class Disk(Protocol):
    """The operations on files and directories that the logs need. Paths are absolute. All methods
    block and may raise StorageError."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and appending. If the file is missing, create it if `create` is
        True, else raise StorageError."""

    def read(self, path: str) -> bytes:
        """Return the whole content of a file. Raise FileNotFoundError if there is no such file."""

    def replace(self, path: str, data: bytes) -> None:
        """Replace the content of a file, atomically and durably: write a temporary file, fsync it,
        rename it, and fsync the directory."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file, atomically. The new name is durable only after a `sync_dir` of the
        directory."""

    def unlink(self, path: str) -> None:
        """Remove a file. Do nothing if there is no such file."""

    def list_dir(self, path: str) -> list[str]:
        """Return the names of the files and directories in a directory, sorted."""

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """Return the length of a file in bytes, without opening the file."""

    def write(self, path: str, data: bytes) -> None:
        """Replace the content of a file, neither atomically nor durably. Only for a file that has a
        checksum of its own and can be rebuilt."""

    def writable(self, path: str) -> bool:
        """Return whether new files can be created in a directory."""

    def lock(self, path: str, owner: str) -> Callable[[], None] | None:
        """Take the exclusive lock of the file `path`, which is created if it is missing, and write
        `owner` into the file. Return the function that releases the lock, or None if another
        process holds the lock."""

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
    """The event that a one-shot watch of a node reports. A watch is never called after its session
    has ended."""

    kind: WatchKind
    path: str


Watch = Callable[[WatchEvent], None]
SessionListener = Callable[[SessionEvent], None]


@dataclass(frozen=True, slots=True)
class NodeStat:
    """The metadata of a node. `version` is the number of changes of the node's data since its
    creation. `czxid` is the number of the transaction that created the node: a node that was
    created later has a larger one."""

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
    """The coordination service (ZooKeeper): a tree of small nodes with versions, ephemeral nodes,
    one-shot watches, and multis (groups of operations that are applied together).

    The errors are the subclasses of CoordError in `errors.py`. After ConnectionLoss an operation
    may or may not have been applied; after every other error it was not applied. A request over 512
    KiB is not sent and raises RequestTooLarge. Version -1 means any version. Watches and listeners
    are called on the event loop, in the order of the events, and never for a session that has
    ended.
    """

    @property
    def generation(self) -> int:
        """How many sessions this process has had so far; 0 before the first one."""

    @property
    def session_id(self) -> int:
        """The id of the current session, as in `NodeStat.ephemeral_owner`; 0 if there is no
        session."""

    def silence(self) -> float:
        """Return the time (s, boottime) since this session sent the latest request that ZooKeeper
        has certainly received. Only an answer that the quorum has confirmed proves that: a server
        that is cut off from the quorum still answers reads."""

    def add_listener(self, listener: SessionListener) -> None: ...

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]: ...

    async def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None: ...

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the names of the node's children, sorted. If `watch` is given, it is called once,
        at the next change."""

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> str: ...

    async def set(self, path: str, data: bytes, version: int = -1) -> NodeStat: ...

    async def delete(self, path: str, version: int = -1) -> None: ...

    async def multi(self, ops: Sequence[CoordOp]) -> list[OpResult]:
        """Apply all operations or none, and return their results. Raise MultiFailed for the first
        operation that failed."""

    async def sync(self, path: str = "/") -> None:
        """Wait until the server to which this session is connected has all changes that ZooKeeper
        had committed before this call."""


class BrokerChannel(Protocol):
    """The channel on which a controller sends commands to one broker. The commands arrive in the
    order in which they were sent. Each method raises BrokerError if the broker rejects the whole
    command. It raises another PybrokerError, OSError or TimeoutError if it is unknown whether the
    command arrived."""

    async def close(self) -> None:
        """Close the connection at once, if there is one. Commands without an answer may be lost.
        Idempotent."""

    async def leader_and_isr(self, command: LeaderAndIsr) -> Mapping[TopicPartition, ErrorCode]: ...

    async def update_metadata(self, command: UpdateMetadata) -> None: ...

    async def stop_replica(self, command: StopReplica) -> Mapping[TopicPartition, ErrorCode]: ...


class MarkerChannel(Protocol):
    """The channel on which a transaction coordinator sends markers to a broker that leads
    partitions of the transactions."""

    async def write_markers(
        self, markers: Sequence[TransactionMarker]
    ) -> Sequence[Mapping[TopicPartition, ErrorCode]]:
        """Ask the other broker to append the markers to its partitions. Return for each marker a
        mapping from partition to error code: NONE if the partition's in-sync replicas have the
        marker. No two markers may have the same producer id. Raise PybrokerError, OSError or
        TimeoutError if it is unknown whether the markers were written."""


@dataclass(frozen=True, slots=True)
class FetchPosition:
    """How far a follower has copied a partition: the position that its next fetch states to the
    leader."""

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


@dataclass(frozen=True, slots=True)
class FetchedPartition:
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
    the leader may wait until it has at least `min_bytes`."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int


class LeaderChannel(Protocol):
    """The channel on which a follower sends requests to one leader. It connects at the first
    request, and again after every failure. All methods may raise BrokerError if the leader rejects
    the whole request. They may raise another PybrokerError, OSError or TimeoutError if the leader
    cannot be reached."""

    async def fetch(
        self,
        positions: Mapping[TopicPartition, FetchPosition],
        limits: FetchLimits,
        changed: Iterable[TopicPartition] | None = None,
    ) -> Sequence[FetchedPartition]:
        """Fetch `positions` from the leader, and return its results. In a fetch session, only
        changed positions are sent (KIP-227). `changed` names the partitions whose position may have
        changed since the last call; None means that any position may have. If nothing has changed
        in a partition, its result may be missing."""

    async def earliest_offset(self, topic_partition: TopicPartition, leader_epoch: int) -> int:
        """Return the leader's log start offset of a partition. Raise BrokerError if the leader does
        not lead it in this epoch."""

    async def latest_offset(self, topic_partition: TopicPartition, leader_epoch: int) -> int:
        """Return the leader's log end offset of a partition. Raise BrokerError if the leader does
        not lead it in this epoch."""

    async def close(self) -> None:
        """Close the connection, if there is one. Idempotent."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A record of an internal topic. If `value` is None, the record is a tombstone."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Producer:
    """A transactional producer whose records a coordinator appends. `guard` is the proof that the
    partition is in the producer's transaction (KIP-890); only the log reads it."""

    producer_id: int
    epoch: int
    guard: object = None


class PartitionLog(Protocol):
    """A partition of an internal topic on the broker that leads it. A coordinator stores its
    decisions in it. Every method may raise BrokerError KAFKA_STORAGE_ERROR and, once another broker
    leads the partition, NOT_LEADER_OR_FOLLOWER."""

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
    def is_surely_led(self) -> bool:
        """Whether it is certain that no other broker leads the partition at this moment, because
        ZooKeeper has answered this broker recently enough. Never raises."""

    async def is_led_now(self) -> bool:
        """Whether it is certain that this broker leads the partition at this moment:
        `is_surely_led` is True, and the controller cannot have elected another leader without this
        broker's knowledge. If the followers have not fetched recently, the method asks ZooKeeper.
        Never raises."""

    @property
    def is_certainly_led(self) -> bool:
        """The result of `is_led_now`, if that can be known without a request to ZooKeeper;
        otherwise False. Never raises."""

    async def followed(self) -> None:
        """Wait until every in-sync replica has fetched from this leader in the current leader
        epoch. After such a fetch a replica no longer acts as a leader itself. If an in-sync replica
        does not fetch, wait until it leaves the ISR. Raise BrokerError NOT_LEADER_OR_FOLLOWER if
        another broker becomes the leader during the wait."""

    @property
    def has_other_copies(self) -> bool:
        """Whether the partition has replicas on other brokers. Even a replica that is not in sync
        can become the leader later, and can have records that this replica lacks. Never raises."""

    def suspect(self, offset: int) -> None:
        """Report that the bytes read at `offset` are not those that were written. The log is then
        checked."""

    async def read(self, offset: int, bytes_max: int) -> Sequence[Buffer]:
        """Return whole batches, beginning with the batch that contains `offset`: about `bytes_max`
        bytes, and at least one batch. Batches above the high watermark are included. The result is
        empty only at the log end. Each buffer has one or more batches. Also raise BrokerError
        OFFSET_OUT_OF_RANGE, and CORRUPT_MESSAGE if the first batch is damaged."""

    def append(
        self, records: Sequence[KeyValue], timestamp_ms: int, producer: Producer | None = None
    ) -> int:
        """Append the records, at least one, as one batch with acks=all, and return the offset that
        follows the last record. This method never yields to the event loop, and does not wait until
        the in-sync replicas have the batch. All records get the timestamp `timestamp_ms` (since
        1970). With a `producer` (a result of `verified`), the batch is part of the producer's
        transaction. Also raise BrokerError NOT_ENOUGH_REPLICAS, MESSAGE_TOO_LARGE if the batch is
        too large, and INVALID_PRODUCER_EPOCH or INVALID_TXN_STATE if the producer may not
        append."""

    async def verified(self, transactional_id: str, producer: Producer) -> Producer:
        """Return the producer with the proof that this partition is in its transaction. If the
        transaction is not open in this partition yet, its coordinator has to confirm it (KIP-890).
        Also raise BrokerError with the coordinator's code, for example INVALID_TXN_STATE."""

    async def committed(self, offset: int) -> None:
        """Wait, without a time limit, until the high watermark is at least `offset`."""
