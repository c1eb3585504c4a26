"""Functions that damage files of a broker: flipped bits and torn tails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pybroker.records.batch import BatchHeader, iter_headers

Batches = list[tuple[int, BatchHeader]]


def flip(path: Path, position: int, bit: int = 0) -> None:
    """Flip one bit in place, so that a broker that has the file open sees the change too."""
    with path.open("r+b", buffering=0) as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


def flip_in_text(path: Path, after: str) -> None:
    """Flip the lowest bit of the last digit of the first number after `after`. The result is still
    a number.
    """
    text = path.read_text()
    start = text.index(after) + len(after)
    end = start
    while text[end].isdigit():
        end += 1
    assert end > start, f"{path}: no number behind {after!r}"
    flip(path, end - 1)


def segments(folder: Path) -> list[Path]:
    """Return the segments of a partition, the active segment last."""
    return sorted(folder.glob("*.log"))


def batches(path: Path) -> Batches:
    """Return position and header of each complete batch of a segment."""
    return list(iter_headers(path.read_bytes()))


def in_body(position: int, header: BatchHeader) -> int:
    """Return the position of a byte in the batch's records."""
    return position + header.size - 1


def in_length(position: int, header: BatchHeader) -> int:
    """Return the position of the last byte of the batch's length field."""
    return position + 11


def flip_in_batch(
    path: Path, place: Callable[[int, BatchHeader], int], number: int = 0
) -> BatchHeader:
    """Flip a bit in a batch that is not the last batch of its segment. Return the header of the
    batch.
    """
    found = batches(path)
    assert len(found) > number + 1, f"{path} has only {len(found)} batches"
    position, header = found[number]
    flip(path, place(position, header))
    return header
