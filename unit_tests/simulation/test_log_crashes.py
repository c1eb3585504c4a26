"""Tests that kill a broker, or cut its power, at every single disk operation in turn. Afterwards
all acknowledged or synced records must exist, and no record that was never written.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pybroker.model import TopicPartition
from pybroker.storage.log_config import NEVER
from pybroker.testing.simulation.disk_faults import ProcessKilled
from unit_tests.simulation.log_life import A, B, C, LogLife


def script(life: LogLife) -> None:
    """Run every operation on logs."""
    life.start()
    life.create(A)
    life.lead(A, 0)
    for _ in range(4):
        life.append(A, 2)
    life.append(A, producer=7, sequence=0)
    life.append(A, producer=7, sequence=1, length=400)
    life.flush_closed()
    life.checkpoint()
    life.create(B)
    life.lead(B, 0)
    life.append(B, 3)
    life.flush(A)
    life.lead(A, 1)
    life.append(A, 3, length=200)
    life.append(A, 1, length=300)
    life.truncate(A, life.expected_logs[A].end - 1)
    life.truncate(A, 7)
    life.lead(A, 2)
    life.append(A, 2)
    life.append(A, producer=8, sequence=0, transactional=True)
    life.abort(A, 8)
    for _ in range(3):
        life.append(A, 1, length=400)
    life.advance_start(A, 5)
    life.clean_up()
    life.checkpoint()
    life.delete(B)
    life.create(C)
    life.lead(C, 0)
    life.append(C)
    life.append(C)
    life.clean_up()
    life.stop()
    life.start()
    life.append(A, 3)
    life.start_over(C, 20)
    life.append(C, 2)
    life.create(B)
    life.lead(B, 3)
    life.append(B, 2)
    life.stop()


def crash_at(
    point: int,
    *,
    power: bool,
    flush_messages: int,
    seed: int = 1,
    after_bytes: int = 0,
    again_at: int | None = None,
) -> bool:
    """Run the script up to the disk operation of that number, crash, check the logs and continue
    with them. With `again_at` the start after the crash is interrupted, too. Return False if the
    script ended before the crash.
    """
    life = LogLife(seed, flush_messages=flush_messages)
    life.power_lost = power
    disk = life.disk
    end = life.machine.lose_power if power else disk.process_ended
    disk.kill_at(point, end, after_bytes=after_bytes)
    try:
        script(life)
        return False
    except ProcessKilled:
        pass
    if again_at is not None:
        disk.kill_at(again_at, end, after_bytes=after_bytes)
        try:
            life.start()
            disk.process_ended()
        except ProcessKilled:
            pass
    life.start()
    life.verify()
    life.go_on()
    return True


@pytest.mark.parametrize("after_bytes", [0, 100])
def test_a_kill_at_any_operation_loses_nothing_that_was_acknowledged(after_bytes: int) -> None:
    point = 0
    while crash_at(point, power=False, flush_messages=NEVER, after_bytes=after_bytes):
        point += 1
    assert point > 100


@pytest.mark.parametrize("seed", [1, 2])
def test_a_power_loss_at_any_operation_loses_no_synced_data(seed: int) -> None:
    point = 0
    while crash_at(point, power=True, flush_messages=NEVER, seed=seed, after_bytes=100):
        point += 1
    assert point > 100


def test_an_interrupted_recovery_finds_all_data_at_the_next_start() -> None:
    for power in (False, True):
        point = 0
        while crash_at(
            point,
            power=power,
            flush_messages=1,
            seed=3,
            after_bytes=512,
            again_at=(7 + point * 3) % 23,
        ):
            point += 1


@pytest.mark.parametrize("seed", [1, 2])
def test_with_a_sync_per_append_a_power_loss_loses_no_acknowledged_data(seed: int) -> None:
    point = 0
    while crash_at(point, power=True, flush_messages=1, seed=seed, after_bytes=100):
        point += 1
    assert point > 100


def filled(seed: int) -> LogLife:
    life = LogLife(seed)
    life.start()
    life.create(A)
    life.lead(A, 0)
    for _ in range(6):
        life.append(A)
    life.flush(A)
    return life


@pytest.mark.parametrize(("shorten", "end"), [(LogLife.truncate, 2), (LogLife.start_over, 20)])
def test_truncated_records_do_not_return_after_a_power_loss(
    shorten: Callable[[LogLife, TopicPartition, int], None], end: int
) -> None:
    """Otherwise the truncated records would be taken for records of the leader epoch that replaced
    them.
    """
    for seed in range(20):
        life = filled(seed)
        shorten(life, A, end)
        life.machine.lose_power()
        life.start()
        assert life.log(A).damage is None
        assert life.log(A).log_end_offset == end


def test_a_power_loss_after_a_clean_shutdown_loses_nothing() -> None:
    for seed in range(20):
        life = filled(seed)
        life.stop()
        life.machine.lose_power()
        life.start()
        life.verify()


def test_a_gap_caused_by_a_power_loss_is_still_known_after_the_next_start() -> None:
    """The disk had the name of the next segment, but not the end of the previous segment."""
    found = 0
    for seed in range(60):
        life = filled(seed)
        for _ in range(9):
            life.append(A)
        life.machine.lose_power()
        life.start()
        was = life.log(A).damage
        found += was is not None
        life.disk.process_ended()
        life.start()
        again = life.log(A).damage
        assert (was is None) == (again is None)
    assert found > 3
