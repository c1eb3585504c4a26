"""Measures the cost of pybroker's log above bare file I/O. It appends and reads batches of 16 KiB,
and compares this with a loop of `os.write` and `os.pread` of the same bytes in the same run.

    python benchmarks/log_append.py [megabytes] [directory]

Nothing is synced: the program measures the code, not the disk. It prints microseconds per call and
MB/s for each step, and the ratio of the time to that of the bare loop.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pybroker.model import TopicPartition
from pybroker.records.batch import HEADER_SIZE, read_header
from pybroker.records.builder import BatchBuilder
from pybroker.storage.files import SystemDisk
from pybroker.storage.loader import Known, create_log, open_log
from pybroker.storage.log import Log
from pybroker.storage.log_config import LogConfig
from pybroker.storage.log_parts import LogOwner

BATCH_BYTES = 16 * 1024
FETCH_BYTES = 1024**2
PARTITION = TopicPartition("benchmark", 0)


def make_batch(producer_id: int = -1, sequence: int = -1) -> bytearray:
    """Return a batch of one record that is exactly BATCH_BYTES long. The default is a batch without
    a producer id."""
    for surplus in range(HEADER_SIZE, HEADER_SIZE + 32):
        builder = BatchBuilder()
        builder.append(1_700_000_000_000, None, random.randbytes(BATCH_BYTES - surplus), ())
        data = builder.build(producer_id, 0 if producer_id >= 0 else -1, sequence)
        if len(data) == BATCH_BYTES:
            return bytearray(data)
    raise AssertionError("no value makes a batch of {BATCH_BYTES} bytes")


def timed(action: Callable[[], int]) -> tuple[float, int]:
    """Call `action`. Return the seconds that it took, and its result, the number of steps."""
    begin = time.perf_counter()
    steps = action()
    return time.perf_counter() - begin, steps


def report(name: str, seconds: float, steps: int, size: int, base: float | None) -> float:
    each = seconds / steps
    ratio = "" if base is None else f"  {each / base:5.2f} x bare"
    print(f"{name:34} {each * 1e6:8.1f} us  {size / seconds / 1e6:8.0f} MB/s{ratio}")
    return each


def bare_append(path: str, data: bytes, count: int) -> int:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    for _ in range(count):
        os.write(descriptor, data)
    os.close(descriptor)
    return count


def bare_read(path: str, length: int) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    position = 0
    while data := os.pread(descriptor, length, position):
        position += len(data)
    os.close(descriptor)
    return -(-position // length)


def append(log: Log, data: bytearray, count: int) -> int:
    for _ in range(count):
        log.append(data, read_header(data), leader_epoch=0, now_ms=0)
    return count


def append_each(log: Log, batches: Sequence[bytearray]) -> int:
    for data in batches:
        log.append(data, read_header(data), leader_epoch=0, now_ms=0)
    return len(batches)


def read(log: Log, length: int, *, cached_only: bool) -> int:
    offset = log.log_start_offset
    steps = 0
    while data := log.read(
        offset,
        length,
        upper_offset=log.log_end_offset,
        at_least_one_batch=True,
        cached_only=cached_only,
    ):
        offset += len(data) // BATCH_BYTES
        steps += 1
    return steps


def read_at_random(log: Log, count: int) -> int:
    end = log.log_end_offset
    for _ in range(count):
        log.read(
            random.randrange(end),
            BATCH_BYTES,
            upper_offset=end,
            at_least_one_batch=True,
            cached_only=True,
        )
    return count


def main(megabytes: int, home: str) -> None:
    count = megabytes * 1024**2 // BATCH_BYTES
    size = count * BATCH_BYTES
    data = make_batch()
    config = LogConfig(segment_bytes=max(size // 4, FETCH_BYTES))
    disk, owner = SystemDisk(), LogOwner()
    print(f"{count} batches of {len(data)} bytes")
    bare = f"{home}/bare"
    base = report("bare write", *timed(lambda: bare_append(bare, bytes(data), count)), size, None)
    log = create_log(PARTITION, f"{home}/log-0", config, disk, owner)
    report("append", *timed(lambda: append(log, data, count)), size, base)
    other = create_log(PARTITION, f"{home}/log-1", config, disk, owner)
    other.begin_epoch(0, 0)
    other.persist_epochs()
    batches = [make_batch(7, sequence) for sequence in range(min(count, 512))]
    steps = timed(lambda: append_each(other, batches))
    report("append, idempotent", *steps, steps[1] * BATCH_BYTES, base)
    for length, label in ((FETCH_BYTES, "1 MiB"), (BATCH_BYTES, "one batch")):
        base = report(f"bare read, {label}", *timed(partial(bare_read, bare, length)), size, None)
        for cached in (True, False):
            how = "cached" if cached else "waiting"
            steps = timed(partial(read, log, length, cached_only=cached))
            report(f"read, {label}, {how}", *steps, size, base)
    steps = timed(lambda: read_at_random(log, 2000))
    report("read, one batch, at random", *steps, 2000 * BATCH_BYTES, base)
    log.close()
    for name, known in (
        ("open, clean", Known(True, log.log_end_offset)),
        ("open, checking all", Known(False, 0)),
    ):
        steps = timed(partial(reopen, f"{home}/log-0", config, known))
        report(name, *steps, size, None)


def reopen(path: str, config: LogConfig, known: Known) -> int:
    open_log(PARTITION, path, config, SystemDisk(), LogOwner(), known, now_ms=0)
    return 1


if __name__ == "__main__":
    arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory(dir=arguments[1] if len(arguments) > 1 else None) as made:
        main(int(arguments[0]) if arguments else 256, str(Path(made)))
