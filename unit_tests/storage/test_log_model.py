"""Tests that a log and a list have the same records after any sequence of operations."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pybroker.records.batch import iter_headers
from pybroker.storage.log_config import LogConfig
from pybroker.testing.simulation.disk import SimDisk
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.environment import Environment
from unit_tests.storage.batches import FIRST_TIMESTAMP, batch
from unit_tests.storage.bench import Bench

SEGMENT_BYTES = 700


class LogAgainstList(RuleBasedStateMachine):
    """A log and its expected content: (base offset, bytes) of each batch, and the log start."""

    def __init__(self) -> None:
        super().__init__()
        self.home: Path | None = None
        self.bench: Bench
        self.batches: list[tuple[int, int, bytes]] = []
        self.start = 0
        self.end = 0
        self.epoch = 0
        self.random = random.Random(5)

    @initialize(interval=st.sampled_from([0, 150, 4096]))
    def create(self, interval: int) -> None:
        config = LogConfig(
            segment_bytes=SEGMENT_BYTES, index_interval_bytes=interval, retention_ms=1000
        )
        self.home = Path(tempfile.mkdtemp(prefix="pybroker-log-"))
        self.bench = Bench(self.home, config)

    def teardown(self) -> None:
        self.bench.log.close()
        if self.home is not None:
            shutil.rmtree(self.home)

    @rule(count=st.integers(1, 6), length=st.integers(0, 300), late=st.integers(-50, 50))
    def append(self, count: int, length: int, late: int) -> None:
        time = FIRST_TIMESTAMP + self.end * 10 + late
        data = batch(count, value=self.random.randbytes(length), timestamp=time)
        result = self.bench.put(data, epoch=self.epoch)
        assert (result.first_offset, result.last_offset) == (self.end, self.end + count - 1)
        self.batches.append((self.end, self.end + count, bytes(data)))
        self.end += count

    @rule()
    def roll(self) -> None:
        self.bench.log.roll()

    @rule()
    def next_epoch(self) -> None:
        self.epoch += 1
        self.bench.log.begin_epoch(self.epoch, self.end)

    @rule(back=st.integers(0, 30))
    def truncate(self, back: int) -> None:
        target = max(self.start, self.end - back)
        self.bench.log.truncate_to(target)
        if target < self.end:
            self.batches = [entry for entry in self.batches if entry[1] <= target]
            self.end = self.batches[-1][1] if self.batches else min(self.end, target)
            self.end = self.bench.log.log_end_offset if not self.batches else self.end
            self.start = min(self.start, self.end)
            self.epoch = max(self.epoch, self.bench.log.latest_epoch) + 1

    @rule(part=st.floats(0, 1))
    def advance_start(self, part: float) -> None:
        self.start += int((self.end - self.start) * part)
        self.bench.log.advance_log_start(self.start)
        self.bench.log.persist_epochs()  # the manager does, before it stores the log start
        self._drop_below_start()

    @rule(part=st.floats(0, 1))
    def delete_expired(self, part: float) -> None:
        now = FIRST_TIMESTAMP + int(self.end * 10 * part) + 1000
        self.bench.log.delete_expired(now, self.end)
        self.bench.log.remove_doomed(now + 10**9)
        start = self.bench.log.log_start_offset
        kept_too_long = [entry for entry in self.batches if entry[1] <= start]
        assert all(entry[0] * 10 + FIRST_TIMESTAMP < now for entry in kept_too_long)
        assert self.start <= start <= self.end
        self.start = start
        self._drop_below_start()

    def _drop_below_start(self) -> None:
        self.batches = [entry for entry in self.batches if entry[1] > self.start]

    @rule()
    def reopen(self) -> None:
        self.bench.reopen()

    @rule(flushed=st.booleans())
    def kill(self, flushed: bool) -> None:
        if flushed:
            self.bench.log.flush()
        self.bench.crash(recovery_point=self.bench.log.recovery_point)
        self.started()

    def started(self) -> None:
        """Run the other steps of a broker's start."""

    @rule(torn=st.integers(1, 60))
    def tear(self, torn: int) -> None:
        if self.batches and self.bench.log.recovery_point < self.batches[-1][0]:
            last = self.bench.segment()
            if last.stat().st_size:
                self.bench.tear(torn)
                self.end = self.batches.pop()[0]
                self.start = min(self.start, self.end)
                self.bench.crash(recovery_point=self.bench.log.recovery_point)

    @rule(
        where=st.floats(0, 1),
        max_bytes=st.integers(0, 1500),
        upper=st.floats(0, 1),
        at_least_one=st.booleans(),
    )
    def read(self, where: float, max_bytes: int, upper: float, at_least_one: bool) -> None:
        offset = self.start + int((self.end - self.start) * where)
        bound = offset + round((self.end - offset) * upper)
        data = self.bench.read(offset, max_bytes, bound, at_least_one)
        assert data is not None
        readable = [entry for entry in self.batches if offset < entry[1] <= bound]
        expected = b"".join(entry[2] for entry in readable)
        assert expected.startswith(data)
        assert list(iter_headers(data))[-1:] == [] or len(data) == sum(
            header.size for _, header in iter_headers(data)
        )
        first = len(readable[0][2]) if readable else 0
        if readable and (at_least_one or first <= max_bytes):
            assert data
            assert len(data) <= max(max_bytes, first)
        else:
            assert not data

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "bench"):
            return
        log = self.bench.log
        assert log.damage is None
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert log.recovery_point <= self.end
        found = b""
        offset = self.start
        while data := self.bench.read(offset, 400):
            found += data
            offset = list(iter_headers(data))[-1][1].next_offset
        assert found == b"".join(entry[2] for entry in self.batches)


class LogOnSimulatedDisk(LogAgainstList):
    """The same operations on a simulated disk that loses power: flushed bytes survive."""

    @initialize(interval=st.sampled_from([0, 150, 4096]))
    def create(self, interval: int) -> None:
        config = LogConfig(
            segment_bytes=SEGMENT_BYTES, index_interval_bytes=interval, retention_ms=1000
        )
        self.simulated = SimDisk(Environment("1"), "m")
        disk = DiskView(self.simulated)
        disk.make_dirs("/data")
        disk.sync_dir("/")
        self.bench = Bench(Path("/data"), config, disk)

    def started(self) -> None:
        """Sync the log directory, as a broker does before it registers."""
        self.bench.disk.sync_dir("/data")

    @rule(torn=st.integers(1, 60))
    def tear(self, torn: int) -> None:
        """Do nothing: the simulated disk tears writes by itself."""

    @precondition(lambda self: bool(self.bench.log.log_end_offset))
    @rule()
    def lose_power(self) -> None:
        """Lose power, but not with an empty log, whose directory may disappear."""
        self.bench.log.flush()
        self.simulated.lose_power()
        self.bench.disk = DiskView(self.simulated)
        self.bench.crash(recovery_point=self.bench.log.recovery_point)


TestLogAgainstList = LogAgainstList.TestCase
TestLogOnSimulatedDisk = LogOnSimulatedDisk.TestCase
TestLogOnSimulatedDisk.settings = TestLogAgainstList.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_a_segment_created_just_before_a_kill_survives_a_power_loss() -> None:
    """The next broker synced the segment's file, but the file's name was not durable."""
    life = LogOnSimulatedDisk()
    life.create(interval=0)
    life.append(count=1, late=0, length=0)
    life.bench.log.flush()
    life.append(count=6, late=0, length=83)
    assert life.bench.log.segment_count == 2
    life.kill(flushed=False)
    life.lose_power()
    life.same()


def test_the_directory_of_an_emptied_and_closed_log_survives_a_power_loss() -> None:
    """The names in the directory were durable, but the name of the directory was not."""
    life = LogOnSimulatedDisk()
    life.create(interval=0)
    life.append(count=1, late=0, length=0)
    life.truncate(back=1)
    life.delete_expired(part=0.0)
    life.reopen()
    life.append(count=1, late=0, length=0)
    life.lose_power()
    life.same()
