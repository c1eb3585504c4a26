"""The values that a log uses and returns: its parts, the result of an append, its damage, and its
owner."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pybroker.errors import BrokerError, DiskFull, ErrorCode, StorageError
from pybroker.model import TopicPartition
from pybroker.ports import Disk, Rng
from pybroker.storage.epochs import EpochHistory
from pybroker.storage.log_changes import LogChanges
from pybroker.storage.log_config import LogConfig
from pybroker.storage.producer_state import ProducerState
from pybroker.storage.segment import Segment
from pybroker.storage.segments import Segments
from pybroker.storage.snapshot_files import SnapshotFiles


class AppendResult(NamedTuple):
    """The offsets of an appended batch. `duplicate`: the log already had the batch at these
    offsets, and nothing was written. `log_append_time_ms` is -1 unless the topic uses
    LogAppendTime."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Damage:
    """The first damaged part of a log, at `position` in the file `path`. Records below `offset`
    stay readable.

    - `is_whole`: whether all records are intact, and only a leader epoch is wrong.
    - `is_doubt`: whether a batch header contradicts the epoch file. Either of them may be wrong.
    """

    offset: int
    path: str
    position: int
    reason: str
    is_doubt: bool = False
    is_whole: bool = False

    def encode(self) -> bytes:
        """Return the content of the file `pybroker.damaged` for this damage."""
        fields = {
            "offset": self.offset,
            "path": self.path,
            "position": self.position,
            "reason": self.reason,
        }
        return json.dumps(fields).encode() + b"\n"

    @staticmethod
    def decode(data: bytes, path: str) -> Damage:
        """Return the damage in the content `data` of the file `pybroker.damaged` at `path`. If
        `data` is unreadable, the damage begins at offset 0."""
        try:
            fields = json.loads(data)
            return Damage(
                int(fields["offset"]),
                str(fields["path"]),
                int(fields["position"]),
                str(fields["reason"]),
            )
        except (ValueError, KeyError, TypeError):
            return Damage(
                0,
                path,
                0,
                "the file pybroker.damaged, which describes the damage, cannot be read",
            )

    def told(self, topic_partition: TopicPartition) -> str:
        return f"{topic_partition} is damaged from offset {self.offset}: {self.reason}"

    def as_error(self, topic_partition: TopicPartition) -> BrokerError:
        """Return the error that refuses every append, and each read at or after the corrupt
        range."""
        return BrokerError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{self.told(topic_partition)}; to accept the loss of all records at and after that"
            f" offset, write {topic_partition} into the file pybroker.accept-loss in the log"
            " directory and restart this broker",
        )


@dataclass(slots=True)
class LogParts:
    """The parts of an opened log: its files, and the state read from them."""

    directory: str
    disk: Disk
    config: LogConfig
    segments: Segments
    epochs: EpochHistory
    producers: ProducerState
    snapshots: SnapshotFiles
    log_start_offset: int
    recovery_point: int
    damage: Damage | None = None
    unreachable: tuple[Segment, ...] = ()
    """The segments of a damaged log after its first corrupt range; readers cannot reach them."""
    settled_end: int = -1
    """The log end if the log was closed cleanly and has not changed since; else -1."""
    epochs_changed: bool = False
    """Whether the leader epochs in `epochs` differ from those in the epoch file."""


class Flushable(Protocol):
    """The properties and methods of a log that `replication/group_commit.py` uses to sync the log
    before the broker acknowledges appended records."""

    @property
    def topic_partition(self) -> TopicPartition: ...

    @property
    def directory(self) -> str: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def durable_end(self) -> int: ...

    @property
    def failure(self) -> StorageError | None: ...

    def flush(self) -> None:
        """Make all appended records durable. Raises BrokerError."""


@dataclass(frozen=True, slots=True)
class LogOwner:
    """The callbacks of a log to the log manager.

    - `lowering`: lowers a partition's checkpointed values to at most the given offset. Called
      before and after each truncation, because another thread may checkpoint meanwhile.
    - `failed`: a failure has ended the use of the log.
    - `refused`: a write has failed on a full disk; the log stays usable.
    - `sync_due`: asks for a flush because of flush.messages. If the result is False, the log
      flushes itself.
    - `changes`: where the log notes its changes, for periodic work such as retention.
    """

    lowering: Callable[[TopicPartition, int], None] = lambda partition, offset: None
    failed: Callable[[TopicPartition, StorageError], None] = lambda partition, error: None
    rng: Rng = field(default_factory=random.SystemRandom)
    refused: Callable[[TopicPartition, StorageError], None] = lambda partition, error: None
    sync_due: Callable[[Flushable], bool] = lambda log: False
    changes: LogChanges = field(default_factory=LogChanges)

    def lower(self, partition: TopicPartition, offset: int) -> None:
        """Lower the partition's checkpointed values to at most `offset`. Raises BrokerError
        KAFKA_STORAGE_ERROR."""
        try:
            self.lowering(partition, offset)
        except StorageError as error:
            raise self.refuse(partition, error) from error

    def refuse(self, partition: TopicPartition, error: StorageError) -> BrokerError:
        """Report a failed operation: call `refused` if the disk was full, else `failed`. Return the
        BrokerError that the caller has to raise."""
        tell = self.refused if isinstance(error, DiskFull) else self.failed
        tell(partition, error)
        return BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
