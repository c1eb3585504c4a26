"""The values around a log: what it is made of, what it answers, and whom it tells."""

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
from pybroker.storage.log_config import LogConfig
from pybroker.storage.producer_state import ProducerState
from pybroker.storage.segment import Segment
from pybroker.storage.segments import Segments
from pybroker.storage.snapshot_files import SnapshotFiles


class AppendResult(NamedTuple):
    """Where a batch went. `duplicate`: it was there before, at these offsets, and nothing was
    written. `log_append_time_ms` is -1 unless the topic's timestamps are the broker's."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Damage:
    """A hole in a log: bytes at `position` of `path` are not what was written, and others after
    them are whole or had been made durable. Everything below `offset` can be served. `is_whole`:
    all records are, and only the leader epoch of a batch is wrong, or in doubt (`is_doubt`: it may
    as well be that of the file); where there is no other replica that does not matter."""

    offset: int
    path: str
    position: int
    reason: str
    is_doubt: bool = False
    is_whole: bool = False

    def encode(self) -> bytes:
        """For a file beside the log."""
        fields = {
            "offset": self.offset,
            "path": self.path,
            "position": self.position,
            "reason": self.reason,
        }
        return json.dumps(fields).encode() + b"\n"

    @staticmethod
    def decode(data: bytes, path: str) -> Damage:
        """What such a file says. One that cannot be read says enough: nothing can be served."""
        try:
            fields = json.loads(data)
            return Damage(
                int(fields["offset"]),
                str(fields["path"]),
                int(fields["position"]),
                str(fields["reason"]),
            )
        except (ValueError, KeyError, TypeError):
            return Damage(0, path, 0, "it was found before")

    def told(self, topic_partition: TopicPartition) -> str:
        return f"{topic_partition} is damaged from offset {self.offset}: {self.reason}"

    def as_error(self, topic_partition: TopicPartition) -> BrokerError:
        """What is answered at the hole and behind it."""
        return BrokerError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{self.told(topic_partition)}; to give up what lies from there on, name"
            f" {topic_partition} in pybroker.accept-loss in the log directory and start this broker"
            " again",
        )


@dataclass(slots=True)
class LogParts:
    """What a log is made of; put together by `loader.py`."""

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
    """Segments behind the hole of a damaged log."""
    settled_end: int = -1
    """Log end if the log was closed properly and is as it was then."""
    epochs_changed: bool = False
    """The epochs differ from those in the file."""


class Flushable(Protocol):
    """A log, for who makes it durable."""

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
        """Raises BrokerError."""


@dataclass(frozen=True, slots=True)
class LogOwner:
    """What a log tells its manager. `lowering` comes before bytes are removed at the end: what is
    checkpointed beyond that offset must be forgotten first; and again when they are gone, for who
    has read or noted in between what there was. `failed` comes after a failure that
    ends the use of the log, `refused` after one that does not. `sync_due` asks for a flush soon, as
    flush.messages says; where it gives False nobody will see to it, and the log does it itself."""

    lowering: Callable[[TopicPartition, int], None] = lambda partition, offset: None
    failed: Callable[[TopicPartition, StorageError], None] = lambda partition, error: None
    rng: Rng = field(default_factory=random.SystemRandom)
    refused: Callable[[TopicPartition, StorageError], None] = lambda partition, error: None
    sync_due: Callable[[Flushable], bool] = lambda log: False

    def lower(self, partition: TopicPartition, offset: int) -> None:
        """Raises BrokerError KAFKA_STORAGE_ERROR."""
        try:
            self.lowering(partition, offset)
        except StorageError as error:
            raise self.refuse(partition, error) from error

    def refuse(self, partition: TopicPartition, error: StorageError) -> BrokerError:
        """Tell of a failure after which the log is as it was; gives what to raise. A disk that is
        only full is tried again; one that is broken or read-only ends the use of its directory."""
        tell = self.refused if isinstance(error, DiskFull) else self.failed
        tell(partition, error)
        return BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
