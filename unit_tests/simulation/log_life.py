"""All logs of a broker on a simulated disk, and the state that the logs must have after any crash.

`LogLife` uses the logs like a broker, and records which data was acknowledged, which was synced,
and which operation the crash may have interrupted.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field
from typing import Final

from pybroker.errors import BrokerError
from pybroker.model import TopicPartition
from pybroker.records.batch import iter_headers, read_header, stamp
from pybroker.storage.log import Log
from pybroker.storage.log_config import NEVER, LogConfig
from pybroker.storage.manager import LogManager
from pybroker.testing.simulation.disk import SimDisk
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.environment import Environment
from pybroker.testing.simulation.machine import Machine
from unit_tests.storage.batches import FIRST_TIMESTAMP, batch, marker

A, B, C = (TopicPartition("orders", number) for number in range(3))
TOPIC_ID: Final = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
NOWHERE: Final = 1 << 60
EVERYTHING: Final = 1 << 40


@dataclass(slots=True)
class ExpectedLog:
    """The expected state of one partition's log. All positions are offsets; `NOWHERE` means that
    nothing is uncertain.
    """

    exists: bool | None = None
    """Whether the log exists; None if the crash may have interrupted its creation or deletion."""
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    """(first offset, last offset, bytes) of each batch that must exist, unless it is uncertain."""
    ever: set[bytes] = field(default_factory=set)
    """The bytes of all batches that were ever written."""
    uncertain_from: int = NOWHERE
    """The offset from which batches were being written or truncated at the crash."""
    cut_from: int = NOWHERE
    """The lowest offset of a truncation. Batches from this offset on may reappear after a power
    loss.
    """
    synced: int = 0
    start_min: int = 0
    start_max: int = 0
    last_sent: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Idempotent producer without a transaction -> first offset and bytes of its last batch."""
    aborted: list[tuple[int, int]] = field(default_factory=list)
    """(producer, offset of the marker that ended its transaction)."""
    high_watermark: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1][1] + 1 if self.batches else self.start_max

    def must_have(self, *, power_lost: bool) -> list[tuple[int, int, bytes]]:
        limit = min(self.uncertain_from, self.synced if power_lost else NOWHERE)
        return [each for each in self.batches if each[1] < limit and each[0] >= self.start_max]


class LogLife:
    """One machine with log directories, and the log manager that runs on it between crashes."""

    def __init__(self, seed: object, *, flush_messages: int = NEVER, directories: int = 1) -> None:
        self.environment = Environment(str(seed))
        self.machine = Machine(self.environment, "m")
        self.disk = SimDisk.of_machine(self.machine)
        self.disk.writes_back = False
        self.config = LogConfig(
            segment_bytes=900,
            index_interval_bytes=200,
            flush_messages=flush_messages,
            file_delete_delay_ms=1000,
        )
        self.directories = [f"/data{number}" for number in range(directories)]
        self.expected_logs: dict[TopicPartition, ExpectedLog] = {
            key: ExpectedLog(exists=False) for key in (A, B, C)
        }
        self.manager: LogManager
        self.power_lost = False

    # start and crash

    def start(self) -> None:
        self.manager = LogManager(
            directories=self.directories,
            disk=DiskView(self.disk),
            clock=self.machine.clock,
            proc=self.machine,
            defaults=self.config,
            rng=random.Random(self.environment.seed),
        )
        self.manager.start(1, "cluster-A")
        self.manager.record_incarnation(self.environment.number())

    def stop(self) -> None:
        self.manager.shutdown(self._high_watermarks())
        for expected in self.expected_logs.values():
            self._synced(expected)
            expected.start_min = expected.start_max
        self.disk.process_ended()

    def _high_watermarks(self) -> dict[TopicPartition, int]:
        return {key: self.log(key).log_end_offset for key in self.manager.all()}

    def log(self, key: TopicPartition) -> Log:
        log = self.manager.log(key)
        assert log is not None
        return log

    # operations of a broker

    def create(self, key: TopicPartition) -> None:
        expected = self.expected_logs[key] = ExpectedLog()
        self.manager.create(key, self.config, TOPIC_ID)
        expected.exists = True

    def lead(self, key: TopicPartition, epoch: int) -> None:
        log = self.log(key)
        log.begin_epoch(epoch, log.log_end_offset)
        log.persist_epochs()

    def append(
        self, key: TopicPartition, count: int = 1, *, length: int = 100, producer: int = -1,
        sequence: int = -1, transactional: bool = False,
    ) -> None:  # fmt: skip
        expected = self.expected_logs[key]
        sent = batch(
            count,
            value=random.Random(len(expected.ever)).randbytes(length),
            timestamp=FIRST_TIMESTAMP + expected.end * 10,
            step_ms=10,
            producer=producer,
            sequence=sequence,
            transactional=transactional,
        )
        self._put(key, sent)
        if producer >= 0 and not transactional:
            expected.last_sent[producer] = (expected.batches[-1][0], bytes(sent))

    def abort(self, key: TopicPartition, producer: int) -> None:
        expected = self.expected_logs[key]
        self._put(key, marker(producer, commit=False))
        expected.aborted.append((producer, expected.end - 1))

    def _put(self, key: TopicPartition, sent: bytearray) -> None:
        expected, log = self.expected_logs[key], self.log(key)
        stored = bytearray(sent)
        stamp(stored, 0, expected.end, log.latest_epoch)
        expected.ever.add(bytes(stored))
        expected.uncertain_from = expected.end
        header = read_header(sent)
        result = log.append(
            bytearray(sent),
            header,
            leader_epoch=log.latest_epoch,
            now_ms=self.machine.clock.wall_ms(),
        )
        assert result.first_offset == expected.end
        expected.batches.append((result.first_offset, result.last_offset, bytes(stored)))
        expected.uncertain_from = NOWHERE
        if self.config.flush_messages == 1:
            self._synced(expected)

    def _synced(self, expected: ExpectedLog) -> None:
        expected.synced, expected.cut_from = expected.end, NOWHERE

    def flush(self, key: TopicPartition) -> None:
        self.log(key).flush()
        self._synced(self.expected_logs[key])

    def truncate(self, key: TopicPartition, offset: int) -> None:
        expected = self.expected_logs[key]
        expected.uncertain_from = next(
            first for first, last, _ in expected.batches if last >= offset
        )
        expected.synced = min(expected.synced, expected.uncertain_from)
        expected.high_watermark = min(expected.high_watermark, expected.uncertain_from)
        self.log(key).truncate_to(offset)
        expected.batches = [each for each in expected.batches if each[1] < offset]
        expected.last_sent = {
            key: sent for key, sent in expected.last_sent.items() if sent[0] < expected.end
        }
        expected.aborted = [each for each in expected.aborted if each[1] < offset]
        expected.uncertain_from, expected.cut_from = NOWHERE, min(expected.cut_from, offset)

    def start_over(self, key: TopicPartition, offset: int) -> None:
        expected = self.expected_logs[key]
        expected.uncertain_from = expected.synced = expected.high_watermark = 0
        expected.start_min, expected.start_max = 0, offset
        self.log(key).truncate_fully_and_start_at(offset)
        expected.batches, expected.aborted, expected.last_sent = [], [], {}
        expected.uncertain_from, expected.cut_from = NOWHERE, 0

    def advance_start(self, key: TopicPartition, offset: int) -> None:
        self.expected_logs[key].start_max = offset
        self.log(key).advance_log_start(offset)

    def clean_up(self) -> None:
        """Apply retention, and delete the files that retention has renamed."""
        now_ms = self.machine.clock.wall_ms()
        self.manager.run_retention(now_ms, lambda key: self.expected_logs[key].end)
        self.manager.remove_deleted(now_ms + 10_000)

    def delete(self, key: TopicPartition) -> None:
        self.expected_logs[key].exists, self.expected_logs[key].high_watermark = None, 0
        self.manager.delete(key)
        self.expected_logs[key] = ExpectedLog(exists=False)

    def checkpoint(self) -> None:
        marks = self._high_watermarks()
        for key in marks:  # a partition does so when its high watermark moves
            self.log(key).changes.unsaved.add(key)
        self.manager.write_checkpoints(marks)
        for key, mark in marks.items():
            self.expected_logs[key].high_watermark = mark
            self.expected_logs[key].start_min = self.expected_logs[key].start_max

    def flush_closed(self) -> None:
        self.manager.flush_idle(self.machine.clock.wall_ms())

    # expected state

    def verify(self) -> None:
        for key, expected in self.expected_logs.items():
            LogCheck(self, key, expected).give()

    def go_on(self) -> None:
        """Append to all logs after a crash, shut down cleanly, and check all records."""
        for key in self.expected_logs:
            log = self.manager.log(key)
            if log is None:
                self.expected_logs[key] = ExpectedLog(exists=False)
                continue
            if log.damage is not None:
                log.truncate_fully_and_start_at(log.log_end_offset)
            found = stored_batches(log)
            start = log.log_start_offset
            self.expected_logs[key] = ExpectedLog(True, found, {each[2] for each in found})
            self.expected_logs[key].start_min = self.expected_logs[key].start_max = start
            if not found:
                self.expected_logs[key].start_max = log.log_end_offset
            self.lead(key, log.latest_epoch + 1)
            self.append(key, 2)
        self.stop()
        self.power_lost = False
        self.start()
        self.verify()
        self.disk.process_ended()


class LogCheck:
    """A check of one partition's log against its expected state."""

    def __init__(self, life: LogLife, key: TopicPartition, expected: ExpectedLog) -> None:
        self.life = life
        self.key = key
        self.expected = expected

    def give(self) -> None:
        expected = self.expected
        wanted = expected.must_have(power_lost=self.life.power_lost)
        log = self.life.manager.log(self.key)
        if log is None:
            assert expected.exists is not True or (self.life.power_lost and not wanted), str(
                self.key
            )
            return
        assert expected.exists is not False, f"the deleted log {self.key} exists again"
        found = stored_batches(log)
        for each in wanted:
            assert each in found, (
                f"{self.key} has lost the batch with offsets {each[0]} to {each[1]}"
            )
        if log.damage is not None:
            assert self.life.power_lost, str(log.damage)
            assert log.damage.offset >= expected.synced, str(log.damage)
        elif not self.life.power_lost:
            assert log.log_end_offset >= min(expected.end, expected.uncertain_from)
            assert self._mark() >= min(expected.high_watermark, log.log_end_offset)
        assert (
            expected.start_min
            <= log.log_start_offset
            <= max(expected.start_max, expected.start_min)
        )
        self._check_content(log, found)
        if log.damage is None:
            self._check_lookups(log, found)
            self._check_producers(log, found)

    def _mark(self) -> int:
        return self.life.manager.high_watermark_checkpoint(self.key)

    def _check_content(self, log: Log, found: list[tuple[int, int, bytes]]) -> None:
        following, epoch = log.log_start_offset, -1
        for first, last, data in found:
            assert data in self.expected.ever, (
                f"the batch with offsets {first} to {last} was never written"
            )
            # The order of names may change at a power loss.
            if following < min(self.expected.uncertain_from, self.expected.cut_from):
                assert first == following or first < following <= last
            header = read_header(data)
            assert header.leader_epoch >= epoch, (
                f"{self.key}: the leader epoch decreases at offset {first}"
            )
            assert log.epoch_of(max(first, log.log_start_offset)) == header.leader_epoch
            following, epoch = last + 1, header.leader_epoch
        assert log.log_end_offset == following

    def _check_lookups(self, log: Log, found: list[tuple[int, int, bytes]]) -> None:
        for first, last, data in found:
            for offset in range(max(first, log.log_start_offset), last + 1):
                assert read(log, offset, 1) == data
                at = log.offset_for_timestamp(FIRST_TIMESTAMP + offset * 10, EVERYTHING)
                assert read_header(data).is_control or (at is not None and at[0] == offset)

    def _check_producers(self, log: Log, found: list[tuple[int, int, bytes]]) -> None:
        offsets = {first for first, _, _ in found}
        for producer, marker_offset in self.expected.aborted:
            if marker_offset in offsets:
                listed = log.aborted_transactions(0, EVERYTHING)
                assert [each for each in listed if each.producer_id == producer]
        for first, sent in self.expected.last_sent.values():
            if first in offsets:
                header = read_header(sent)
                again = log.append(bytearray(sent), header, leader_epoch=log.latest_epoch, now_ms=0)
                assert again.duplicate
                assert again.first_offset == first


def read(log: Log, offset: int, max_bytes: int) -> bytes:
    data = log.read(
        offset,
        max_bytes,
        upper_offset=EVERYTHING,
        at_least_one_batch=True,
        cached_only=False,
    )
    assert data is not None
    return bytes(data)


def stored_batches(log: Log) -> list[tuple[int, int, bytes]]:
    """Return (first offset, last offset, bytes) of all readable batches."""
    found: list[tuple[int, int, bytes]] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        try:
            data = read(log, offset, 500)
        except BrokerError:
            assert log.damage is not None
            break
        assert data, (
            f"no batch is read at offset {offset}, but the log end offset is {log.log_end_offset}"
        )
        for position, header in iter_headers(data):
            content = data[position : position + header.size]
            found.append((header.base_offset, header.last_offset, content))
            offset = header.next_offset
    return found
