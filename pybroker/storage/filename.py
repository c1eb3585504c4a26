"""The names of all files and directories in a log directory, as in Kafka. Only this module builds
and parses them. No I/O."""

from __future__ import annotations

import enum
import re
import uuid
from typing import Final, NamedTuple

from pybroker.model import TopicPartition

LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
INCOMPLETE: Final = "pybroker.incomplete"
DAMAGED: Final = "pybroker.damaged"
"""A file in the directory of a damaged log. It describes the corrupt range, and keeps the broker
from using the replica."""
META_PROPERTIES: Final = "meta.properties"
CLEAN_MARK: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"
BOOT: Final = "pybroker.boot"
FAILED: Final = "pybroker.failed"
"""A file in a log directory whose disk failed during the last run of the broker. Records that were
not synced may then be in memory only."""
FAMILY: Final = "pybroker.directories"
ACCEPTED_LOSS: Final = "pybroker.accept-loss"
"""A file that the operator writes to accept losses. Each line names a lost log directory, by its
path or id, or a damaged partition."""
MOVED_HERE: Final = "pybroker.moved"
"""A file in the directory of a log that was copied from another log directory. It names the log
directory of the original log, which may have been removed already."""
OUTDATED: Final = "pybroker.outdated"
"""A file that marks one of the two directories of a moved log, the original or the copy, as
outdated: the log in the other directory was truncated later."""
MOVING_AWAY: Final = "pybroker.moving"
"""A file in the directory of a log that is moved to another log directory. It names the log
directory of the copy, which the broker may already use instead."""
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"

DIRECTORY_FILES: Final = frozenset(
    {
        META_PROPERTIES,
        CLEAN_MARK,
        LOCK,
        BOOT,
        FAILED,
        FAMILY,
        ACCEPTED_LOSS,
        HIGH_WATERMARKS,
        RECOVERY_POINTS,
        LOG_STARTS,
        CLEANER_OFFSETS,
    }
)
"""The names of the files that a log directory contains besides the directories of partitions."""

DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
CORRUPT_SUFFIX: Final = ".corrupt"
TEMPORARY_SUFFIX: Final = ".tmp"

_SEGMENT_FILE = re.compile(r"(\d{20})\.(log|index|timeindex|txnindex|snapshot)")
DELETED_DIRECTORY: Final = "delete"
STRAY_DIRECTORY: Final = "stray"
FUTURE_DIRECTORY: Final = "future"
DAMAGED_DIRECTORY: Final = "damaged-stray"
"""The end of the name of a damaged log's directory. It ends in `-stray`, so that Kafka ignores the
directory."""
NAME_LENGTH_MAX: Final = 255

_MARKED_DIRECTORY = re.compile(r".+\.[0-9a-f]{32}-(delete|stray|future|damaged-stray)")
_FUTURE = re.compile(r"(.+)\.[0-9a-f]{32}-future")
_PARTITION = re.compile(r"([a-zA-Z0-9._-]+)-(0|[1-9]\d*)")


class SegmentFile(enum.Enum):
    """The file name extensions of files that are named after an offset."""

    LOG = "log"
    INDEX = "index"
    TIME_INDEX = "timeindex"
    TXN_INDEX = "txnindex"
    SNAPSHOT = "snapshot"


class ParsedName(NamedTuple):
    offset: int
    kind: SegmentFile


def segment_file(offset: int, kind: SegmentFile) -> str:
    """Return the name of a segment's file, such as `00000000000000000042.log`."""
    return f"{offset:020d}.{kind.value}"


def parse_segment_file(name: str) -> ParsedName | None:
    """Return the offset and the kind in the name of a segment's file; None for any other name."""
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None:
        return None
    return ParsedName(int(match[1]), SegmentFile(match[2]))


def corrupt_file(segment_name: str, position: int, number: int) -> str:
    """Return the name of the file for the bytes that recovery cuts off a segment file from
    `position` on. `number` distinguishes files of the same position."""
    return f"{segment_name}.{position}.{number}{CORRUPT_SUFFIX}"


def partition_directory(topic_partition: TopicPartition) -> str:
    return str(topic_partition)


def parse_partition_directory(name: str) -> TopicPartition | None:
    """Return the partition to which a directory of this name belongs; None for any other name."""
    match = _PARTITION.fullmatch(name)
    if match is None or _MARKED_DIRECTORY.fullmatch(name):
        return None
    return TopicPartition(match[1], int(match[2]))


def marked_directory(topic_partition: TopicPartition, unique: uuid.UUID, purpose: str) -> str:
    """Return the name of a directory of a partition. The directory does not contain the log in use.
    The purposes:

    - DELETED_DIRECTORY: the topic is deleted.
    - STRAY_DIRECTORY: this broker no longer has a replica, or the topic was created again.
    - DAMAGED_DIRECTORY: the log is damaged, and the broker copies the partition anew.
    - FUTURE_DIRECTORY: a move copies the log into this directory. Requires `can_have_future`.

    `unique` distinguishes several directories of a partition. As in Kafka, a long topic name is cut
    to keep the result within 255 characters.
    """
    suffix = f"-{topic_partition.partition}.{unique.hex}-{purpose}"
    return topic_partition.topic[: NAME_LENGTH_MAX - len(suffix)] + suffix


def can_have_future(topic_partition: TopicPartition) -> bool:
    """Return whether the name of the partition's future directory (see FUTURE_DIRECTORY) has room
    for the whole topic name."""
    return len(str(topic_partition)) + len(f".{'0' * 32}-future") <= NAME_LENGTH_MAX


def parse_future_directory(name: str) -> TopicPartition | None:
    """If `name` is the name of a future log directory (`*-future`), return the directory's
    partition. Otherwise return None."""
    match = _FUTURE.fullmatch(name)
    return None if match is None else parse_partition_directory(match[1])


def is_deleted_directory(name: str) -> bool:
    return _purpose(name) == DELETED_DIRECTORY


def is_stray_directory(name: str) -> bool:
    return _purpose(name) in (STRAY_DIRECTORY, DAMAGED_DIRECTORY)


def _purpose(name: str) -> str | None:
    match = _MARKED_DIRECTORY.fullmatch(name)
    return None if match is None else match[1]
