"""Tests of the times of the notifications of changed ISRs to the controller."""

from __future__ import annotations

from pybroker.model import TopicPartition
from pybroker.replication.isr_notifications import (
    DELAY_MAX_S,
    PARTITIONS_MAX,
    QUIET_S,
    ChangedPartitions,
)
from unit_tests.replication.vocabulary import T0, T1


def test_only_the_first_change_after_a_quiet_time_is_sent_at_once() -> None:
    changed = ChangedPartitions()
    assert changed.add(T0, 100.0)
    assert changed.take(100.0) == [T0]
    assert not changed.add(T1, 101.0)
    assert not changed.is_due(101.0 + QUIET_S - 0.1)
    assert changed.is_due(101.0 + QUIET_S)
    assert changed.take(106.0) == [T1]
    assert not changed.is_due(1000.0)
    assert changed.add(T0, 101.0 + QUIET_S)


def test_changes_that_never_stop_are_sent_once_a_minute() -> None:
    changed = ChangedPartitions()
    changed.add(T0, 0.0)
    changed.take(0.0)
    for second in range(1, int(DELAY_MAX_S)):
        assert not changed.add(T0, float(second))
        assert not changed.is_due(float(second))
    changed.add(T1, DELAY_MAX_S)
    assert changed.is_due(DELAY_MAX_S)
    assert changed.take(DELAY_MAX_S) == [T0, T1]


def test_a_batch_that_was_not_sent_is_due_again() -> None:
    changed = ChangedPartitions()
    changed.add(T0, 0.0)
    batch = changed.take(0.0)
    changed.add(T1, 1.0)
    changed.put_back(batch)
    assert changed.is_due(1.0)
    assert changed.take(1.0) == [T0, T1]


def test_a_notification_has_a_limited_number_of_partitions() -> None:
    changed = ChangedPartitions()
    keys = [TopicPartition("t", number) for number in range(PARTITIONS_MAX + 1)]
    for key in keys:
        changed.add(key, 0.0)
    assert changed.take(0.0) == keys[:-1]
    assert changed.take(0.0) == keys[-1:]
    assert len(changed) == 0
