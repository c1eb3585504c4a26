"""The protocols behind which clock, disk, ZooKeeper and other brokers stand. Code that decides
gets its collaborators as these protocols; the real implementations stand in one place each
(`clock.py`, `storage/files.py`, `coordinator/zookeeper/session.py`, `broker/app.py`), the tests
use simulated ones.

Timers are asyncio's own (`loop.call_later`, `asyncio.sleep`): a simulation of time brings an event
loop of its own. Only *reading* a clock goes through `Clock`.
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
    UpdateMetadata,
)

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class Clock(Protocol):
    """Readings of time. Wall time is for records and people only; every decision about durations
    uses the others."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as the machine's clock says; may jump."""

    def monotonic(self) -> float:
        """Seconds since some fixed instant; never goes back."""

    def boottime(self) -> float:
        """As `monotonic`, but also counts time in which the machine was suspended."""


class Rng(Protocol):
    """Randomness for choices (placement, ids); `random.Random` and `random.SystemRandom` fit."""

    def randrange(self, stop: int, /) -> int: ...

    def randbytes(self, n: int, /) -> bytes: ...


class Proc(Protocol):
    """Facts that the operating system knows of this process and machine."""

    def boot_id(self) -> str:
        """An id that changes with every boot of the kernel. If it is unchanged, the page cache
        still has everything that was written under that id."""

    def pid(self) -> int: ...


class Blocking(Protocol):
    """Runs blocking work (disk, compression) outside the event loop."""

    def run(self, function: Callable[..., T], *args: object) -> Awaitable[T]:
        """Call `function(*args)` elsewhere; the awaitable gives its result or raises its
        exception."""


class File(Protocol):
    """An open file of the log. Every method may raise StorageError with path and operation."""

    @property
    def path(self) -> str: ...

    def size(self) -> int:
        """Length in bytes."""

    def append(self, data: Buffer) -> None:
        """Write all of `data` at the end. If the disk writes only a part, the file is cut back to
        its old length before StorageError is raised."""

    def pread(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; fewer only at the end of the file. May wait for
        the disk."""

    def pread_cached(self, position: int, length: int) -> Buffer | None:
        """As `pread`, but None if any byte would have to come from the disk. Never waits. The
        memory of a long read is reused once no reference to it is left."""

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make content and length durable (fdatasync)."""

    def close(self) -> None:
        """Idempotent."""


class Disk(Protocol):
    """The file system, as far as the log needs it. Paths are absolute. All methods block and may
    raise StorageError."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and appending. Raises StorageError if the file is missing and
        `create` is not set."""

    def read(self, path: str) -> bytes:
        """The whole content. Raises FileNotFoundError if there is no such file."""

    def replace(self, path: str, data: bytes) -> None:
        """Give the file this content, atomically and durably: temporary file, fsync, rename,
        fsync of the directory."""

    def rename(self, old: str, new: str) -> None:
        """Atomic; durable only after `sync_dir`."""

    def unlink(self, path: str) -> None:
        """No error if the file is missing."""

    def list_dir(self, path: str) -> list[str]:
        """The names in the directory, sorted."""

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """Length of the file in bytes, without opening it."""

    def write(self, path: str, data: bytes) -> None:
        """Give the file this content, neither atomically nor durably. Only for files that have a
        checksum of their own and can be rebuilt."""

    def writable(self, path: str) -> bool:
        """Whether files can be created in the directory."""

    def lock(self, path: str, owner: str) -> Callable[[], None] | None:
        """Take the exclusive lock of the file (created if missing) and write `owner` into it.
        Return the function that releases the lock, or None if another process holds it."""

    def is_dir(self, path: str) -> bool: ...

    def make_dirs(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and deletions in the directory durable."""

    def remove_tree(self, path: str) -> None: ...

    def modified_ms(self, path: str) -> int:
        """Time of the last change of the content, in ms since 1970."""

    def free_bytes(self, path: str) -> int:
        """Bytes that can still be written on the file system that holds `path`."""


class SessionEvent(enum.Enum):
    """The events of our session with the coordination service."""

    CONNECTED = "connected"
    """A new session exists. Ephemeral nodes and watches of an earlier one are gone."""
    SUSPENDED = "suspended"
    """The connection is lost. The session may or may not survive; one of the other events
    decides."""
    RECONNECTED = "reconnected"
    """The connection is back and the session has survived; watches are still set."""
    EXPIRED = "expired"
    """The session is over. A CONNECTED of a new session follows when the service can be reached."""


class WatchKind(enum.Enum):
    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILD = "child"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A one-shot watch fired. Watches of a session that ended never fire."""

    kind: WatchKind
    path: str


Watch = Callable[[WatchEvent], None]
SessionListener = Callable[[SessionEvent], None]


@dataclass(frozen=True, slots=True)
class NodeStat:
    """Metadata of a node. `version` counts changes of its data from 0; `czxid` orders creations
    in the whole service."""

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
"""The result of an operation: the path for a create, the new stat for a set, None for delete and
check."""


class Coord(Protocol):
    """The coordination service: a tree of small nodes with versions, ephemeral nodes, one-shot
    watches, and multis.

    Errors are the CoordError classes of `errors.py`. After ConnectionLoss an operation may or may
    not have been
    applied; after every other error it was not. Requests over 512 KiB are refused locally with
    RequestTooLarge.
    Version -1 means "any". Callbacks run on the event loop, in order, and never for a session that
    has ended.
    """

    @property
    def generation(self) -> int:
        """Counts our sessions from 1; 0 before the first."""

    @property
    def session_id(self) -> int:
        """The service's number for the current session, as in `NodeStat.ephemeral_owner`; 0 if
        there is none."""

    def silence(self) -> float:
        """Seconds (boottime) since the service is known to have heard this session. A reply that a
        single server gives by itself does not count, because that server may be cut off from the
        quorum."""

    def add_listener(self, listener: SessionListener) -> None: ...

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]: ...

    async def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None: ...

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """The names of the children, sorted."""

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> str: ...

    async def set(self, path: str, data: bytes, version: int = -1) -> NodeStat: ...

    async def delete(self, path: str, version: int = -1) -> None: ...

    async def multi(self, ops: Sequence[CoordOp]) -> list[OpResult]:
        """Apply all operations or none. Raises MultiFailed with the first operation that
        failed."""

    async def sync(self, path: str = "/") -> None:
        """Wait until the server that we talk to has seen everything that was committed before
        this call."""


class BrokerChannel(Protocol):
    """How a controller reaches one broker. Commands arrive in the order in which they were sent.
    All raise BrokerError if the broker refuses the whole command, and another PybrokerError,
    OSError or TimeoutError if it is unknown whether the command arrived."""

    async def close(self) -> None:
        """Close the connection, if there is one, at once. Commands in flight may be lost.
        Idempotent."""

    async def leader_and_isr(self, command: LeaderAndIsr) -> Mapping[TopicPartition, ErrorCode]: ...

    async def update_metadata(self, command: UpdateMetadata) -> None: ...

    async def stop_replica(self, command: StopReplica) -> Mapping[TopicPartition, ErrorCode]: ...


@dataclass(frozen=True, slots=True)
class FetchPosition:
    """A follower's position in one partition: the next Fetch asks its leader for this."""

    fetch_offset: int
    """The follower's log end offset. It has every record below, durably if its log is configured
    to sync."""
    log_start_offset: int
    leader_epoch: int
    """The leader epoch that the follower knows. A leader with another epoch refuses the fetch
    (KIP-320)."""
    last_epoch: int = NO_EPOCH
    """The leader epoch of the follower's last batch. From it the leader finds where the two logs
    diverge (KIP-595)."""


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """A leader's answer for one partition."""

    topic_partition: TopicPartition
    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    diverging_epoch: int = NO_EPOCH
    diverging_end_offset: int = NO_OFFSET
    """Both are set if the follower has to truncate its log: the leader's largest epoch that is not
    above the follower's, and the end offset of that epoch."""
    records: Buffer = b""
    """Whole batches from the fetch offset on. Valid until the next call."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How much a follower asks for at a time, and how long the leader may wait for it."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int


class LeaderChannel(Protocol):
    """How a follower reads from one leader. The channel connects by itself, and again after every
    failure. All methods may raise BrokerError if the leader refuses the whole request, and another
    PybrokerError, OSError or TimeoutError if the leader cannot be reached."""

    async def fetch(
        self,
        positions: Mapping[TopicPartition, FetchPosition],
        limits: FetchLimits,
        changed: Iterable[TopicPartition] | None = None,
    ) -> Sequence[FetchedPartition]:
        """Ask for all of `positions` (in a session only the changes travel, KIP-227). Each position
        that differs from the last call is named in `changed`; None: any may differ. Partitions
        without news may be missing in the answer."""

    async def earliest_offset(self, topic_partition: TopicPartition, leader_epoch: int) -> int:
        """The leader's log start offset. Raises BrokerError."""

    async def latest_offset(self, topic_partition: TopicPartition, leader_epoch: int) -> int:
        """The leader's log end offset. Raises BrokerError."""

    async def close(self) -> None:
        """End the connection, if there is one. Idempotent."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A record to be kept in an internal topic. A value of None is a tombstone."""

    key: bytes
    value: bytes | None


class PartitionLog(Protocol):
    """A partition of an internal topic on its leader: a coordinator keeps its decisions there.
    Every method may raise BrokerError NOT_LEADER_OR_FOLLOWER once another broker leads, and
    KAFKA_STORAGE_ERROR."""

    @property
    def topic_partition(self) -> TopicPartition: ...

    @property
    def leader_epoch(self) -> int:
        """The current leader epoch. It may rise while the same broker goes on leading."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int:
        """All records below this offset are committed."""

    @property
    def is_surely_led(self) -> bool:
        """Whether no other broker can lead the partition at this moment, judged by how recently
        ZooKeeper was heard. Never raises."""

    async def is_led_now(self) -> bool:
        """As `is_surely_led`, but also False if the controller has elected another leader and
        could not tell this broker: ZooKeeper is asked if the followers have not been heard
        recently. Never raises."""

    @property
    def is_certainly_led(self) -> bool:
        """As `is_led_now`, but without asking ZooKeeper: False if that would be necessary. Never
        raises."""

    async def followed(self) -> None:
        """Wait until every in-sync replica has fetched from this leader in its epoch. From then on
        none of them acts as the leader. A replica that does not fetch delays the return until it
        leaves the ISR. Raises BrokerError NOT_LEADER_OR_FOLLOWER."""

    @property
    def has_other_copies(self) -> bool:
        """Whether there are other replicas. Even one that is out of sync may have records that
        this replica lacks: it may join the ISR and lead instead. Never raises."""

    def suspect(self, offset: int) -> None:
        """Report that the bytes read at `offset` differ from those that were written, so that the
        log is checked."""

    async def read(self, offset: int, bytes_max: int) -> Sequence[Buffer]:
        """Whole batches from the one that holds `offset` on up to the log end, committed or not,
        about `bytes_max` of them and at least one; empty only at the end. Each buffer holds one or
        more. Also raises OFFSET_OUT_OF_RANGE, and CORRUPT_MESSAGE if the first batch is
        damaged."""

    def append(self, records: Sequence[KeyValue], timestamp_ms: int) -> int:
        """Append the records (at least one) as one batch, without yielding to the event loop;
        return the offset after the last. All get the timestamp `timestamp_ms` (since 1970). The
        append is one with acks=all: it also raises NOT_ENOUGH_REPLICAS, and MESSAGE_TOO_LARGE for
        more than a batch may hold."""

    async def committed(self, offset: int) -> None:
        """Wait until all records below `offset` are committed, without a time limit."""
