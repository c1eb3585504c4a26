"""The protocols of clock, disk, ZooKeeper and other brokers. The code that makes decisions receives
its collaborators as these protocols. Each has one real implementation (`clock.py`,
`storage/files.py`, `coordinator/zookeeper/session.py`, `broker/app.py`); the tests use simulated
ones.

Timers are asyncio's own (`loop.call_later`, `asyncio.sleep`), because a simulation of time has an
event loop of its own. Only *reading* a clock uses `Clock`.
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
    uses the other two."""

    def wall_ms(self) -> int:
        """Return the milliseconds since 1970 by the machine's clock, which may jump."""

    def monotonic(self) -> float:
        """Return the seconds since some fixed instant. They never decrease."""

    def boottime(self) -> float:
        """Return the seconds as `monotonic` does, including the time in which the machine was
        suspended."""


class Rng(Protocol):
    """Randomness for choices (replica placement, ids), such as `random.Random` or
    `random.SystemRandom`."""

    def randrange(self, stop: int, /) -> int: ...

    def randbytes(self, n: int, /) -> bytes: ...


class Proc(Protocol):
    """Facts about this process and machine that the operating system provides."""

    def boot_id(self) -> str:
        """Return an id that changes with every boot of the kernel. While it is unchanged, the page
        cache still has everything that was written."""

    def pid(self) -> int: ...


class Blocking(Protocol):
    """Runs blocking work (disk, compression) outside the event loop."""

    def run(self, function: Callable[..., T], *args: object) -> Awaitable[T]:
        """Call `function(*args)` outside the event loop. The awaitable returns its result or raises
        its exception."""


class File(Protocol):
    """An open file of a log. Every method may raise StorageError with the path and the
    operation."""

    @property
    def path(self) -> str: ...

    def size(self) -> int:
        """Return the length in bytes."""

    def append(self, data: Buffer) -> None:
        """Write all of `data` at the end. If the disk writes only a part, the file is truncated to
        its old length before StorageError is raised."""

    def pread(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes from `position`; fewer only at the end of the file. May wait
        for the disk."""

    def pread_cached(self, position: int, length: int) -> Buffer | None:
        """Return the bytes as `pread` does, or None if any of them would have to come from the
        disk. Never waits. The memory of a long read is reused after the last reference to the
        result is gone."""

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make content and length durable (fdatasync)."""

    def close(self) -> None:
        """Close the file. Idempotent."""


class Disk(Protocol):
    """The file system, as far as the logs need it. Paths are absolute. All methods block and may
    raise StorageError."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and appending. Raise StorageError if the file is missing and
        `create` is not set."""

    def read(self, path: str) -> bytes:
        """Return the whole content. Raise FileNotFoundError if there is no such file."""

    def replace(self, path: str, data: bytes) -> None:
        """Replace the content of the file, atomically and durably: write a temporary file, fsync,
        rename, fsync the directory."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file, atomically. The new name is durable only after `sync_dir`."""

    def unlink(self, path: str) -> None:
        """Remove a file. No error if the file is missing."""

    def list_dir(self, path: str) -> list[str]:
        """Return the names in the directory, sorted."""

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """Return the length of the file in bytes, without opening it."""

    def write(self, path: str, data: bytes) -> None:
        """Replace the content of the file, neither atomically nor durably. Only for files that have
        a checksum of their own and can be rebuilt."""

    def writable(self, path: str) -> bool:
        """Return whether files can be created in the directory."""

    def lock(self, path: str, owner: str) -> Callable[[], None] | None:
        """Take the exclusive lock of the file (created if missing) and write `owner` into it.
        Return the function that releases the lock, or None if another process holds it."""

    def is_dir(self, path: str) -> bool: ...

    def make_dirs(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and deletions in the directory durable."""

    def remove_tree(self, path: str) -> None: ...

    def modified_ms(self, path: str) -> int:
        """Return the time of the last change of the content (ms since 1970)."""

    def free_bytes(self, path: str) -> int:
        """Return how many bytes can still be written on the file system that contains `path`."""


class SessionEvent(enum.Enum):
    """The events of this process's session with the coordination service."""

    CONNECTED = "connected"
    """A new session exists. Ephemeral nodes and watches of the previous session are gone."""
    SUSPENDED = "suspended"
    """The connection is lost. The session may survive or expire, and a later event reports
    which."""
    RECONNECTED = "reconnected"
    """The connection is restored and the session has survived. Its watches are still set."""
    EXPIRED = "expired"
    """The session has expired. A CONNECTED event of a new session follows when the service can be
    reached."""


class WatchKind(enum.Enum):
    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILD = "child"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """The event of a one-shot watch. Watches of a session that has ended never fire."""

    kind: WatchKind
    path: str


Watch = Callable[[WatchEvent], None]
SessionListener = Callable[[SessionEvent], None]


@dataclass(frozen=True, slots=True)
class NodeStat:
    """The metadata of a node. `version` counts the changes of its data from 0. `czxid` orders all
    creations of nodes in the service."""

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

    The errors are the CoordError classes of `errors.py`. After ConnectionLoss an operation may or
    may not have been applied; after every other error it was not applied. Requests over 512 KiB are
    rejected locally with RequestTooLarge. Version -1 means any version. Callbacks run on the event
    loop, in order, and never for a session that has ended.
    """

    @property
    def generation(self) -> int:
        """The number of this process's sessions so far; 0 before the first one."""

    @property
    def session_id(self) -> int:
        """The service's id of the current session, as in `NodeStat.ephemeral_owner`; 0 if there is
        none."""

    def silence(self) -> float:
        """Return the seconds (boottime) since the service is known to have received a request of
        this session. An answer of a single server that may be cut off from the quorum does not
        count."""

    def add_listener(self, listener: SessionListener) -> None: ...

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]: ...

    async def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None: ...

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the names of the children, sorted."""

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> str: ...

    async def set(self, path: str, data: bytes, version: int = -1) -> NodeStat: ...

    async def delete(self, path: str, version: int = -1) -> None: ...

    async def multi(self, ops: Sequence[CoordOp]) -> list[OpResult]:
        """Apply all operations or none. Raise MultiFailed with the first operation that failed."""

    async def sync(self, path: str = "/") -> None:
        """Wait until the connected server has everything that was committed before this call."""


class BrokerChannel(Protocol):
    """A controller's channel to one broker. Commands arrive in the order in which they were sent.
    All methods raise BrokerError if the broker rejects the whole command, and another
    PybrokerError, OSError or TimeoutError if it is unknown whether the command arrived."""

    async def close(self) -> None:
        """Close the connection, if there is one, at once. Commands in flight may be lost.
        Idempotent."""

    async def leader_and_isr(self, command: LeaderAndIsr) -> Mapping[TopicPartition, ErrorCode]: ...

    async def update_metadata(self, command: UpdateMetadata) -> None: ...

    async def stop_replica(self, command: StopReplica) -> Mapping[TopicPartition, ErrorCode]: ...


@dataclass(frozen=True, slots=True)
class FetchPosition:
    """A follower's position in one partition, which its next fetch sends to the leader."""

    fetch_offset: int
    """The follower's log end offset. It has every record below this offset, durably if its log is
    configured to sync."""
    log_start_offset: int
    leader_epoch: int
    """The current leader epoch on the follower. A leader with another epoch rejects the fetch
    (KIP-320)."""
    last_epoch: int = NO_EPOCH
    """The leader epoch of the follower's last batch. With it the leader finds where the two logs
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
    """The maximal amount of data that a follower requests at a time, and how long the leader may
    wait for data."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int


class LeaderChannel(Protocol):
    """A follower's channel to one leader. The channel connects by itself, and again after every
    failure. All methods may raise BrokerError if the leader rejects the whole request, and another
    PybrokerError, OSError or TimeoutError if the leader cannot be reached."""

    async def fetch(
        self,
        positions: Mapping[TopicPartition, FetchPosition],
        limits: FetchLimits,
        changed: Iterable[TopicPartition] | None = None,
    ) -> Sequence[FetchedPartition]:
        """Return the leader's answers for `positions` (in a session, only changes are sent,
        KIP-227). `changed` names each partition whose position may differ from the last call;
        None: any may. Partitions without news may be missing in the answer."""

    async def earliest_offset(self, topic_partition: TopicPartition, leader_epoch: int) -> int:
        """Return the leader's log start offset. Raise BrokerError."""

    async def latest_offset(self, topic_partition: TopicPartition, leader_epoch: int) -> int:
        """Return the leader's log end offset. Raise BrokerError."""

    async def close(self) -> None:
        """Close the connection, if there is one. Idempotent."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A record for an internal topic. A value of None is a tombstone."""

    key: bytes
    value: bytes | None


class PartitionLog(Protocol):
    """A partition of an internal topic on its leader, in which a coordinator stores its decisions.
    Every method may raise BrokerError NOT_LEADER_OR_FOLLOWER once another broker leads, and
    KAFKA_STORAGE_ERROR."""

    @property
    def topic_partition(self) -> TopicPartition: ...

    @property
    def leader_epoch(self) -> int:
        """The current leader epoch. It may increase while the same broker remains the leader."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int:
        """All records below this offset are committed."""

    @property
    def is_surely_led(self) -> bool:
        """Whether no other broker can lead the partition at this moment, judged by the time since
        ZooKeeper last answered. Never raises."""

    async def is_led_now(self) -> bool:
        """Whether `is_surely_led`, and no other leader is elected whose election the controller
        could not report to this broker. If the followers have not fetched recently, ZooKeeper is
        asked. Never raises."""

    @property
    def is_certainly_led(self) -> bool:
        """Return the result of `is_led_now`, or False if ZooKeeper would have to be asked. Never
        raises."""

    async def followed(self) -> None:
        """Wait until every in-sync replica has fetched from this leader in its epoch. From then on
        none of them acts as the leader. A replica that does not fetch delays the return until it
        leaves the ISR. Raise BrokerError NOT_LEADER_OR_FOLLOWER."""

    @property
    def has_other_copies(self) -> bool:
        """Whether the partition has other replicas. Even an out-of-sync replica may have records
        that this replica lacks: it may join the ISR and lead instead. Never raises."""

    def suspect(self, offset: int) -> None:
        """Report that the bytes read at `offset` differ from those that were written, so that the
        log is checked."""

    async def read(self, offset: int, bytes_max: int) -> Sequence[Buffer]:
        """Return whole batches from the one that contains `offset` up to the log end, committed or
        not: about `bytes_max` bytes and at least one batch; none only at the log end. Each buffer
        has one or more batches. Also raise OFFSET_OUT_OF_RANGE, and CORRUPT_MESSAGE if the first
        batch is damaged."""

    def append(self, records: Sequence[KeyValue], timestamp_ms: int) -> int:
        """Append the records (at least one) as one batch, without yielding to the event loop, and
        return the offset after the last one. All records get the timestamp `timestamp_ms` (since
        1970). As an append with acks=all, it also raises NOT_ENOUGH_REPLICAS, and MESSAGE_TOO_LARGE
        if the batch is too large."""

    async def committed(self, offset: int) -> None:
        """Wait until all records below `offset` are committed, without a time limit."""
