"""Reads the files of a broker by the project's own parsers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pybroker.records.batch import BatchHeader, crc_matches, iter_headers


def partition_folder(data: Path, topic: str, partition: int = 0) -> Path:
    """Return the directory of a partition, anywhere below the data directory. Directories that
    vanish meanwhile, such as directories of deleted topics, are skipped.
    """
    folders = (Path(folder) for folder, _, _ in os.walk(data))
    found = [folder for folder in folders if folder.name == f"{topic}-{partition}"]
    assert len(found) == 1, f"{topic}-{partition} below {data}: {found}"
    return found[0]


def segments(data: Path, topic: str, partition: int = 0) -> list[Path]:
    """Return the segment files, oldest first."""
    return sorted(partition_folder(data, topic, partition).glob("*.log"))


def batches(data: Path, topic: str, partition: int = 0) -> Iterator[BatchHeader]:
    """Return the headers of all batches, in order. Fail on a wrong CRC, a gap, or bytes after the
    last complete batch.
    """
    return batches_of(segments(data, topic, partition))


def batches_of(segments: Iterable[Path]) -> Iterator[BatchHeader]:
    """Return the headers of all batches in these segment files, oldest first, like `batches`."""
    next_offset: int | None = None
    for path in segments:
        content = path.read_bytes()
        end = 0
        for position, header in iter_headers(content):
            assert position == end, f"{path}: gap at byte {end}"
            assert crc_matches(content, position, header.size), (
                f"{path}: wrong CRC of the batch at position {position}"
            )
            assert next_offset in (None, header.base_offset), (
                f"{path}: base offset {header.base_offset}, expected at least {next_offset}"
            )
            next_offset = header.next_offset
            end = position + header.size
            yield header
        assert end == len(content), f"{path}: {len(content) - end} bytes after the last batch"
