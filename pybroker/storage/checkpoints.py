"""The text files for offsets and leader epochs, in Kafka's format. Pure functions.

    0                      version
    2                      number of the lines that follow
    orders 0 1042          topic, partition, offset      (offset checkpoints)
    orders 1 77

The leader epoch checkpoint has the same first two lines. Each further line contains an epoch and
its start offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pybroker.errors import CorruptionError
from pybroker.model import TopicPartition
from pybroker.storage.epochs import EpochStart

_VERSION: Final = "0"


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return _frame(
        f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())
    )


def decode_offsets(data: bytes, path: str) -> dict[TopicPartition, int]:
    """Return partition -> offset from the content `data` of the checkpoint file `path`. Raises
    CorruptionError."""
    offsets = {}
    for line in _lines(data, path):
        words = line.split(" ")
        if len(words) != 3:
            raise CorruptionError(f"{path}: expected topic, partition and offset in line {line!r}")
        offset = _number(words[2], path)
        if offset < 0:
            raise CorruptionError(f"{path}: line {line!r}: expected an offset of at least 0")
        offsets[TopicPartition(words[0], _number(words[1], path))] = offset
    return offsets


def encode_epochs(entries: Iterable[EpochStart]) -> bytes:
    return _frame(f"{entry.epoch} {entry.start_offset}" for entry in entries)


def decode_epochs(data: bytes, path: str) -> list[EpochStart]:
    """Decode the leader epoch file `path`. Raises CorruptionError if `data` is malformed, the
    epochs do not rise strictly, or a start offset is below the previous one."""
    entries: list[EpochStart] = []
    for line in _lines(data, path):
        words = line.split(" ")
        if len(words) != 2:
            raise CorruptionError(f"{path}: expected leader epoch and offset in line {line!r}")
        entry = EpochStart(_number(words[0], path), _number(words[1], path))
        if entries and (
            entry.epoch <= entries[-1].epoch or entry.start_offset < entries[-1].start_offset
        ):
            raise CorruptionError(
                f"{path}: line {line!r}: expected an epoch above {entries[-1].epoch} and an"
                f" offset of at least {entries[-1].start_offset}"
            )
        entries.append(entry)
    return entries


def _frame(lines: Iterable[str]) -> bytes:
    content = list(lines)
    return "\n".join((_VERSION, str(len(content)), *content, "")).encode()


def _lines(data: bytes, path: str) -> list[str]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CorruptionError(f"{path}: the content is not text in UTF-8") from error
    lines = text.splitlines()
    if len(lines) < 2 or lines[0] != _VERSION:
        raise CorruptionError(
            f"{path}: expected version {_VERSION} in the first line and the number of entries in"
            " the second line"
        )
    if _number(lines[1], path) != len(lines) - 2 or not text.endswith("\n"):
        raise CorruptionError(
            f"{path}: expected {lines[1]} entries, each on a whole line, but found"
            f" {len(lines) - 2} lines, the last of which may be cut off"
        )
    return lines[2:]


def _number(word: str, path: str) -> int:
    try:
        return int(word)
    except ValueError as error:
        raise CorruptionError(f"{path}: expected a number instead of {word!r}") from error
