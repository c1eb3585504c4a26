"""The seams to the world. Everything that decides is given these; the real implementations stand in
one place each (`clock.py`, `storage/files.py`, `coordinator/zookeeper/session.py`,
`broker/app.py`), simulated ones serve the tests.

Timers are asyncio's own (`loop.call_later`, `asyncio.sleep`): whoever simulates time brings a loop.
Only *reading* a
clock goes through `Clock`.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
    """What the operating system says of this process and machine."""

    def boot_id(self) -> str:
        """Changes with every boot of the kernel: the same id means that the page cache of then
        is still there."""

    def pid(self) -> int: ...


class Blocking(Protocol):
    """Where work that blocks (disk, compression) is done without stopping the event loop."""

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
        """Write all of `data` at the end. When the disk takes only a part, the file is cut back to
        what it was before
        StorageError is raised."""

    def pread(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; fewer only at the end of the file. May wait for
        the disk."""

    def pread_cached(self, position: int, length: int) -> Buffer | None:
        """As `pread`, but None if any byte would have to come from the disk. Never waits. The
        memory of a long read may be used again when nobody holds it any more."""

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
        """Give the file this content, neither atomically nor durably: only for what carries its
        own checksum and can be made again."""

    def writable(self, path: str) -> bool:
        """Whether files can be made in the directory."""

    def lock(self, path: str, owner: str) -> Callable[[], None] | None:
        """Take the exclusive lock of the file (made if missing) and write `owner` into it. Gives
        what releases it, or None while another process holds it."""

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
    """What happens to our session with the coordination service."""

    CONNECTED = "connected"
    """A new session exists. Ephemeral nodes and watches of an earlier one are gone."""
    SUSPENDED = "suspended"
    """The connection is lost; the session may or may not live on. Nothing is known until one of
    the others comes."""
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
"""Of a create its path, of a set the new stat, of delete and check None."""


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
        """Seconds (boottime) since the service is known to have heard this session. What one of its
        members answers by itself is no sign of that: it may be cut off from the others."""

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
        """All or nothing. Raises MultiFailed with the first operation that failed."""

    async def sync(self, path: str = "/") -> None:
        """Wait until the server that we talk to has seen everything that was committed before
        this call."""


class BrokerChannel(Protocol):
    """How a controller reaches one broker. Commands arrive in the order in which they were sent.
    All raise BrokerError for what the broker refuses as a whole; another PybrokerError, OSError or
    TimeoutError when nobody knows whether it arrived."""

    async def close(self) -> None:
        """End the connection, if there is one, at once: what is under way may be lost.
        Idempotent."""

    async def leader_and_isr(self, command: LeaderAndIsr) -> Mapping[TopicPartition, ErrorCode]: ...

    async def update_metadata(self, command: UpdateMetadata) -> None: ...

    async def stop_replica(self, command: StopReplica) -> Mapping[TopicPartition, ErrorCode]: ...


@dataclass(frozen=True, slots=True)
class FetchPosition:
    """Where a follower is in one partition: what it asks its leader for next."""

    fetch_offset: int
    """The follower's log end: it has everything below, durably if its log is told to sync."""
    log_start_offset: int
    leader_epoch: int
    """The epoch in which it follows; a leader of another epoch refuses (KIP-320)."""
    last_epoch: int = NO_EPOCH
    """The leader epoch of its last batch; the leader says where the logs part (KIP-595)."""


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """What a leader answers for one partition."""

    topic_partition: TopicPartition
    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    diverging_epoch: int = NO_EPOCH
    diverging_end_offset: int = NO_OFFSET
    """Set together, when the follower's log has to be cut: the largest epoch of the leader that is
    not above the follower's, and where it ends."""
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
    """How a follower reads from one leader. Connects by itself, again after every failure; all may
    raise BrokerError for a refusal as a whole; another PybrokerError, OSError or TimeoutError when
    the leader cannot be reached."""

    async def fetch(
        self, positions: Mapping[TopicPartition, FetchPosition], limits: FetchLimits
    ) -> Sequence[FetchedPartition]:
        """Ask for all of `positions` (in a session only the changes travel, KIP-227). Partitions
        without news may be missing in the answer."""

    async def earliest_offset(self, topic_partition: TopicPartition, leader_epoch: int) -> int:
        """Where the leader's log starts. Raises BrokerError."""

    async def latest_offset(self, topic_partition: TopicPartition, leader_epoch: int) -> int:
        """Where the leader's log ends. Raises BrokerError."""

    async def close(self) -> None:
        """End the connection, if there is one. Idempotent."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A record to be kept in an internal topic. A value of None is a tombstone."""

    key: bytes
    value: bytes | None


class PartitionLog(Protocol):
    """A partition of an internal topic, as its leader sees it for as long as nobody else leads:
    where a coordinator keeps what it has decided. Everything may raise BrokerError
    NOT_LEADER_OR_FOLLOWER as soon as that is over, and KAFKA_STORAGE_ERROR."""

    @property
    def topic_partition(self) -> TopicPartition: ...

    @property
    def leader_epoch(self) -> int:
        """Of now: it rises while the same broker leads on."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int:
        """Everything below is committed."""

    @property
    def is_surely_led(self) -> bool:
        """Whether nobody else can lead it at this moment, as far as ZooKeeper was heard of in time.
        Never raises."""

    async def is_led_now(self) -> bool:
        """The same, and also not if the controller has elected somebody else and could not say so:
        ZooKeeper is asked where the followers have not been heard of. Never raises."""

    @property
    def is_certainly_led(self) -> bool:
        """What `is_led_now` says without asking ZooKeeper: False also where it would have to.
        Never raises."""

    async def followed(self) -> None:
        """Wait until every in-sync replica has fetched from this leader in its epoch: from then on
        none of them acts as the leader. A replica that does not fetch holds up the wait until it
        leaves the ISR. Raises BrokerError NOT_LEADER_OR_FOLLOWER."""

    @property
    def has_other_copies(self) -> bool:
        """Whether there are other replicas. One that is not in sync may have what this one lacks,
        too, be in sync in a moment, and lead instead. Never raises."""

    def suspect(self, offset: int) -> None:
        """What was read there is not what was written: let it be looked at."""

    async def read(self, offset: int, bytes_max: int) -> Sequence[Buffer]:
        """Whole batches from the one that holds `offset` on up to the log end, committed or not,
        about `bytes_max` of them and at least one; empty only at the end. Each buffer holds one or
        more. Also raises OFFSET_OUT_OF_RANGE, and CORRUPT_MESSAGE where the first batch is not what
        was written."""

    def append(self, records: Sequence[KeyValue], timestamp_ms: int) -> int:
        """Append them, at least one, as one batch, in this very step; gives the offset after the
        last. `timestamp_ms` since 1970 is the time of all of them. Asks for acks=all: also raises
        NOT_ENOUGH_REPLICAS, and MESSAGE_TOO_LARGE for more than a batch may hold."""

    async def committed(self, offset: int) -> None:
        """Wait until everything below `offset` is committed; no limit of time."""
