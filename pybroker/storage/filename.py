"""The names of everything in a log directory: built and parsed here and nowhere else.

Layout (Kafka's): a log directory holds one directory a partition, `<topic>-<partition>`, with
segment files named after the offset at which they begin, and a few files for all partitions. No
function here touches the disk.
"""

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
"""In a partition's directory: its log is damaged. The file describes the corrupt range, and the
replica does not count."""
META_PROPERTIES: Final = "meta.properties"
CLEAN_MARK: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"
BOOT: Final = "pybroker.boot"
FAILED: Final = "pybroker.failed"
"""The disk has failed since the last start: records that were not synced may be in memory only."""
FAMILY: Final = "pybroker.directories"
ACCEPTED_LOSS: Final = "pybroker.accept-loss"
"""The operator's file: names log directories, by path or id, that will not come back."""
MOVED_HERE: Final = "pybroker.moved"
"""In a partition's directory: it is a copy. The original is, or was a moment ago, in the log
directory that this file names."""
OUTDATED: Final = "pybroker.outdated"
"""In a partition's directory: it was moved, and the log in the other directory was truncated
since."""
MOVING_AWAY: Final = "pybroker.moving"
"""In a partition's directory: a copy replaces it, or did so a moment ago, in the log directory that
this file names."""
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
"""What a log directory may hold beside the directories of partitions."""

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
"""The name ends as Kafka's stray directories do, so Kafka leaves it alone, too."""
NAME_LENGTH_MAX: Final = 255

_MARKED_DIRECTORY = re.compile(r".+\.[0-9a-f]{32}-(delete|stray|future|damaged-stray)")
_FUTURE = re.compile(r"(.+)\.[0-9a-f]{32}-future")
_PARTITION = re.compile(r"([a-zA-Z0-9._-]+)-(0|[1-9]\d*)")


class SegmentFile(enum.Enum):
    """The kinds of files that are named after an offset."""

    LOG = "log"
    INDEX = "index"
    TIME_INDEX = "timeindex"
    TXN_INDEX = "txnindex"
    SNAPSHOT = "snapshot"


class ParsedName(NamedTuple):
    offset: int
    kind: SegmentFile


def segment_file(offset: int, kind: SegmentFile) -> str:
    """`00000000000000000000.log`: 20 digits and the kind."""
    return f"{offset:020d}.{kind.value}"


def parse_segment_file(name: str) -> ParsedName | None:
    """Offset and kind, or None if `name` is not that of a segment's file."""
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None:
        return None
    return ParsedName(int(match[1]), SegmentFile(match[2]))


def corrupt_file(segment_name: str, position: int, number: int) -> str:
    """Return the name of the file with the bytes that were cut off a segment at `position` for the
    `number`th time."""
    return f"{segment_name}.{position}.{number}{CORRUPT_SUFFIX}"


def partition_directory(topic_partition: TopicPartition) -> str:
    return str(topic_partition)


def parse_partition_directory(name: str) -> TopicPartition | None:
    """The partition, or None if `name` is not that of a partition's directory."""
    match = _PARTITION.fullmatch(name)
    if match is None or _MARKED_DIRECTORY.fullmatch(name):
        return None
    return TopicPartition(match[1], int(match[2]))


def marked_directory(topic_partition: TopicPartition, unique: uuid.UUID, purpose: str) -> str:
    """Return the name of a partition's directory that is not in use, by purpose. DELETED_DIRECTORY:
    the topic is deleted, its files are not yet. STRAY_DIRECTORY: it belongs to an earlier topic of
    that name. DAMAGED_DIRECTORY: its log is damaged and is copied anew. FUTURE_DIRECTORY, only if
    `can_have_future`: it is being filled in another log directory. As in Kafka, the topic is cut so
    that the name has at most 255 characters."""
    suffix = f"-{topic_partition.partition}.{unique.hex}-{purpose}"
    return topic_partition.topic[: NAME_LENGTH_MAX - len(suffix)] + suffix


def can_have_future(topic_partition: TopicPartition) -> bool:
    """Whether the name of its FUTURE_DIRECTORY holds the whole name of the topic."""
    return len(str(topic_partition)) + len(f".{'0' * 32}-future") <= NAME_LENGTH_MAX


def parse_future_directory(name: str) -> TopicPartition | None:
    """The partition that was being moved to this directory; None for any other name."""
    match = _FUTURE.fullmatch(name)
    return None if match is None else parse_partition_directory(match[1])


def is_deleted_directory(name: str) -> bool:
    return _purpose(name) == DELETED_DIRECTORY


def is_stray_directory(name: str) -> bool:
    return _purpose(name) in (STRAY_DIRECTORY, DAMAGED_DIRECTORY)


def _purpose(name: str) -> str | None:
    match = _MARKED_DIRECTORY.fullmatch(name)
    return None if match is None else match[1]
