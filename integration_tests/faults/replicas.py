"""Reads the content of a partition's files on a broker, for the comparison of replicas.

The files are read while no client writes: from running brokers after the clients have stopped, or
from stopped brokers, which have also written their last producer snapshots.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

from pybroker.model import TopicPartition
from pybroker.records.batch import crc_matches, iter_headers
from pybroker.records.record import decode_records
from pybroker.storage import checkpoints, producer_snapshot
from pybroker.storage.filename import HIGH_WATERMARKS, LEADER_EPOCHS
from pybroker.storage.producer_state import ProducerEntry
from unit_tests.patience import wait_until

_DIGEST_CHARACTERS: Final = 12
_BATCH_BYTES_MAX: Final = 1 << 24


class DamagedFile(AssertionError):
    """The error for a damaged file of a broker."""


def files_of(log_dir: Path, partition: tuple[str, int], *, stopped: bool) -> dict[str, Any]:
    """Return the keys of a `files` operation, except for the broker. `stopped`: the broker was
    stopped cleanly, so that its last producer snapshot is at the log end. Raises DamagedFile for a
    batch with a wrong checksum.
    """
    topic, number = partition
    folder = log_dir / f"{topic}-{number}"
    batches = [batch for path in sorted(folder.glob("*.log")) for batch in _batches(path)]
    segments = sorted(int(path.stem) for path in folder.glob("*.log"))
    checkpoint = log_dir / HIGH_WATERMARKS
    marks = (
        checkpoints.decode_offsets(checkpoint.read_bytes(), str(checkpoint))
        if checkpoint.exists()
        else {}
    )
    epochs = folder / LEADER_EPOCHS
    entries = checkpoints.decode_epochs(epochs.read_bytes(), str(epochs)) if epochs.exists() else []
    return {
        "tp": [topic, number],
        "start": segments[0] if segments else 0,
        "hw": marks.get(TopicPartition(topic, number), -1),
        "batches": batches,
        "epochs": [[entry.epoch, entry.start_offset] for entry in entries],
        "producers": _producers(folder) if stopped else None,
    }


def records_of(log_dir: Path, partition: tuple[str, int], end: int) -> tuple[int, list[list[Any]]]:
    """Return the first offset in the files, and [offset, value, leader epoch] of each record below
    `end`.
    """
    topic, number = partition
    paths = sorted((log_dir / f"{topic}-{number}").glob("*.log"))
    rows: list[list[Any]] = []
    for path in paths:
        data = memoryview(path.read_bytes())
        for position, header in iter_headers(data):
            batch = data[position : position + header.size]
            for record in decode_records(batch, decompressed_bytes_max=_BATCH_BYTES_MAX):
                if record.offset < end:
                    value = bytes(record.value or b"").decode(errors="replace")
                    rows.append([record.offset, value, header.leader_epoch])
    return int(paths[0].stem) if paths else 0, rows


def _batches(path: Path) -> list[list[Any]]:
    data = path.read_bytes()
    found: list[list[Any]] = []
    end = 0
    for position, header in iter_headers(data):
        end = position + header.size
        if not crc_matches(data, position, header.size):
            raise DamagedFile(f"{path}: the batch at position {position} does not match its CRC")
        digest = hashlib.sha256(data[position:end]).hexdigest()[:_DIGEST_CHARACTERS]
        writer = f"{header.producer_id}/{header.producer_epoch}" if header.has_producer else ""
        found.append([header.base_offset, header.last_offset, header.leader_epoch, digest, writer])
    if end != len(data):
        raise DamagedFile(f"{path}: {len(data) - end} bytes after position {end} are not a batch")
    return found


def _producers(folder: Path) -> list[str]:
    snapshots = sorted(folder.glob("*.snapshot"))
    if not snapshots:
        return []
    entries = producer_snapshot.decode(snapshots[-1].read_bytes(), str(snapshots[-1]))
    return [_told(entry) for entry in sorted(entries, key=lambda entry: entry.producer_id)]


def _told(entry: ProducerEntry) -> str:
    batches = [(batch.last_sequence, batch.last_offset) for batch in entry.batches]
    return f"producer {entry.producer_id} epoch {entry.epoch}: {batches}"


def log_end(log_dir: Path, partition: tuple[str, int]) -> int:
    """Return the offset after the last record in a broker's files."""
    batches = files_in_use(log_dir, partition)["batches"]
    return batches[-1][1] + 1 if batches else 0


def files_in_use(log_dir: Path, partition: tuple[str, int]) -> dict[str, Any]:
    """Return the result of `files_of` for a broker that is writing. Retry while a batch is
    incomplete, or when a segment is deleted meanwhile.
    """
    found: list[dict[str, Any]] = []

    def read() -> bool:
        try:
            found.append(files_of(log_dir, partition, stopped=False))
        except (DamagedFile, FileNotFoundError):
            return False
        return True

    wait_until(read, what=f"{log_dir} has only complete batches of {partition}")
    return found[0]
