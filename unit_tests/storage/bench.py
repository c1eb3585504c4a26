"""A test bench for a log: it appends, damages files, opens the log again, and reads records."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.errors import BrokerError, ErrorCode, StorageError
from pybroker.model import TopicPartition
from pybroker.ports import Disk
from pybroker.records.batch import iter_headers, read_header
from pybroker.records.record import Record, decode_records
from pybroker.storage.files import SystemDisk
from pybroker.storage.loader import Known, create_log, open_log
from pybroker.storage.log import Log
from pybroker.storage.log_config import LogConfig
from pybroker.storage.log_parts import AppendResult, LogOwner
from pybroker.testing.simulation.disk import SimDisk
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.environment import Environment
from unit_tests.storage.batches import FIRST_TIMESTAMP, batch

PARTITION = TopicPartition("orders", 0)
EVERYTHING = 2**62


@contextlib.contextmanager
def refused(code: ErrorCode) -> Iterator[None]:
    """Expect that the block raises BrokerError with that code."""
    with pytest.raises(BrokerError) as caught:
        yield
    assert caught.value.code is code


def storage_error() -> contextlib.AbstractContextManager[None]:
    return refused(ErrorCode.KAFKA_STORAGE_ERROR)


class Bench:
    """A log in `home`. `known` are the values of the checkpoints at a start."""

    def __init__(self, home: Path, config: LogConfig | None = None, disk: Disk | None = None):
        self.path = home / str(PARTITION)
        self.config = config or LogConfig()
        self.disk: Disk = disk or SystemDisk()
        self.lowered: list[int] = []
        self.failures: list[StorageError] = []
        self.owner = LogOwner(
            lambda partition, offset: self.lowered.append(offset),
            lambda partition, error: self.failures.append(error),
            random.Random(0),
        )
        self.now_ms = FIRST_TIMESTAMP
        self.cut_bytes = 0
        self.recovered = False
        self.log: Log = create_log(PARTITION, str(self.path), self.config, self.disk, self.owner)

    # writing

    def put(self, data: bytearray, *, epoch: int = 0) -> AppendResult:
        return self.log.append(data, read_header(data), leader_epoch=epoch, now_ms=self.now_ms)

    def append(self, *counts: int, value: bytes = b"value", epoch: int = 0) -> None:
        """Append one batch of each count; every record is a millisecond later than the one
        before."""
        for count in counts or (1,):
            start = FIRST_TIMESTAMP + self.log.log_end_offset
            self.put(batch(count, value=value, timestamp=start), epoch=epoch)

    # damaging

    def segment(self, number: int = -1, kind: str = "log") -> Path:
        return sorted(self.path.glob(f"*.{kind}"))[number]

    def tear(self, bytes_off: int, number: int = -1) -> None:
        """Cut bytes off a file, as if the last write had not reached the disk entirely."""
        path = self.segment(number)
        data = path.read_bytes()
        path.write_bytes(data[: len(data) - bytes_off])

    def add_tail(self, data: bytes) -> None:
        with self.segment().open("ab") as stream:
            stream.write(data)

    def flip_bit(self, offset: int, at: int = 70, mask: int = 1) -> None:
        """Flip bits in the batch that contains `offset`, `at` bytes after its start."""
        for path in sorted(self.path.glob("*.log")):
            data = bytearray(path.read_bytes())
            for position, header in iter_headers(bytes(data)):
                if header.base_offset <= offset <= header.last_offset:
                    data[position + at] ^= mask
                    path.write_bytes(data)
                    return
        raise AssertionError(f"no batch contains offset {offset}")

    def lose(self, kind: str, number: int = -1) -> None:
        self.segment(number, kind).unlink()

    def garble(self, kind: str, number: int = -1) -> None:
        path = self.segment(number, kind)
        data = path.read_bytes()
        path.write_bytes(random.Random(1).randbytes(len(data) or 8))

    def zero(self, kind: str, length: int, number: int = -1) -> None:
        self.segment(number, kind).write_bytes(bytes(length))

    # opening again

    def close(self) -> None:
        self.log.flush()
        self.log.close()

    def open(
        self,
        *,
        clean: bool = False,
        recovery_point: int | None = 0,
        log_start: int | None = None,
        floor: int = 0,
        same_boot: bool = False,
        lost_power: bool = False,
        accepts_loss: bool = False,
    ) -> None:
        known = Known(
            *(clean, recovery_point, log_start, floor),
            same_boot=same_boot,
            lost_power=lost_power,
            accepts_loss=accepts_loss,
        )
        opened = open_log(
            PARTITION,
            str(self.path),
            self.config,
            self.disk,
            self.owner,
            known,
            now_ms=self.now_ms,
        )
        self.log, self.cut_bytes, self.recovered = opened.log, opened.cut_bytes, opened.recovered

    def reopen(self) -> None:
        """Close the log cleanly and open it again."""
        end = self.log.log_end_offset
        self.close()
        self.open(clean=True, recovery_point=end, log_start=self.log.log_start_offset)

    def crash(
        self, recovery_point: int | None = 0, floor: int = 0, *, same_boot: bool = False
    ) -> None:
        """Open the log again after a kill: all written bytes are in the files."""
        start = self.log.log_start_offset
        self.open(recovery_point=recovery_point, log_start=start, floor=floor, same_boot=same_boot)

    # reading

    def read(
        self,
        offset: int,
        max_bytes: int = EVERYTHING,
        upper: int = EVERYTHING,
        at_least_one: bool = True,
        cached_only: bool = False,
    ) -> bytes | None:
        data = self.log.read(
            offset,
            max_bytes,
            upper_offset=upper,
            at_least_one_batch=at_least_one,
            cached_only=cached_only,
        )
        return None if data is None else bytes(data)

    def records(self, start: int | None = None, max_bytes: int = 300) -> list[Record]:
        """Return all records from `start` on, by reads of about `max_bytes`."""
        offset = self.log.log_start_offset if start is None else start
        found: list[Record] = []
        while data := self.read(offset, max_bytes):
            for position, header in iter_headers(data):
                assert header.last_offset >= offset, "the read returned a batch twice"
                size = header.size
                found += decode_records(
                    data[position : position + size], decompressed_bytes_max=EVERYTHING
                )
                offset = header.next_offset
        return [record for record in found if start is None or record.offset >= start]

    def offsets(self) -> list[int]:
        return [record.offset for record in self.records()]

    def kept_aside(self) -> list[str]:
        return sorted(path.name for path in self.path.glob("*.corrupt"))

    def offsets_before_the_damage(self) -> list[int]:
        assert self.log.damage is not None
        found: list[int] = []
        offset = self.log.log_start_offset
        while offset < self.log.damage.offset:
            data = self.read(offset, 1)
            assert data
            for _, header in iter_headers(data):
                found += range(header.base_offset, header.next_offset)
                offset = header.next_offset
        return found


def on_simulated_disk(config: LogConfig, seed: int) -> tuple[SimDisk, Bench]:
    """Return a log of 60 records in many segments, all of it durable."""
    disk = SimDisk(Environment(str(seed)), "m")
    bench = Bench(Path("/logs"), config, DiskView(disk))
    for folder in ("/", "/logs"):
        bench.disk.sync_dir(folder)
    bench.append(*[1] * 60)
    bench.log.flush()
    return disk, bench
