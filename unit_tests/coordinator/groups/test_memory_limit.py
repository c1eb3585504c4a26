"""Tests of the memory limit of coordinators."""

from __future__ import annotations

import logging

import pytest

from pybroker.coordinator.groups.memory_limit import FULL_S, MemoryLimit
from pybroker.errors import BrokerError, ErrorCode
from unit_tests.coordinator.runtime.vocabulary import MemoryShard


class Measured:
    """A limit of 800 bytes whose memory the test sets."""

    def __init__(self) -> None:
        self.shard = MemoryShard()
        self.used = 0
        self.measured = 0
        self.limit = MemoryLimit(self.shard.clock, self._measure, 800, what="ids")

    def _measure(self) -> int:
        self.measured += 1
        return self.used

    def is_refused(self, size: int, *, is_new: bool = False) -> bool:
        try:
            (self.limit.take_for_new if is_new else self.limit.take)(size)
        except BrokerError as error:
            assert error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
            return True
        return False


def test_new_clients_get_seven_eighths_of_the_memory() -> None:
    memory = Measured()
    memory.used = 700
    assert not memory.is_refused(700, is_new=True)
    assert memory.is_refused(1, is_new=True)
    assert not memory.is_refused(100)
    assert memory.is_refused(1)


def test_new_clients_get_memory_again_when_it_is_free() -> None:
    memory = Measured()
    assert not memory.is_refused(700, is_new=True)
    memory.used = 700
    assert memory.is_refused(1, is_new=True)
    memory.used = 600
    assert memory.is_refused(1, is_new=True), "the memory is measured again after a pause"
    memory.shard.advance(FULL_S + 0.1)
    assert not memory.is_refused(100, is_new=True)
    memory.used = 700
    assert memory.is_refused(1, is_new=True)


def test_memory_is_measured_once_in_a_pause_of_the_limit() -> None:
    memory = Measured()
    memory.used = 700
    for _ in range(1_000):
        assert memory.is_refused(701, is_new=True) and memory.is_refused(801)
    assert memory.measured == 1


def test_refusal_names_the_limit_that_was_reached(caplog: pytest.LogCaptureFixture) -> None:
    memory = Measured()
    memory.used = 650
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(BrokerError, match="650 of at most 700 bytes"),
    ):
        memory.limit.take_for_new(701)
    assert "memory limit reached of=ids bytes_used=650 bytes_max=700" in caplog.text
