"""Tests of the appending of single records to open batches, by both implementations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.records import _pure_open_batches, _pure_record_buffer
from unit_tests.records.vocabulary import NOW_MS, implementation

RECORDS_MAX = 200
USED_MAX = 10_000
PARTITIONS = 3


@dataclass
class Batch:
    records: Any
    memory: int = 0
    closed: bool = False


@dataclass
class Queue:
    last: Batch | None


@dataclass
class Route:
    queues: dict[int, Queue]
    sticky: Queue | None
    partition_count: int = PARTITIONS


@dataclass
class Budget:
    used: int = 0
    waiting: deque[object] = field(default_factory=deque)


class Stage:
    """An appender with one topic, `t`, of which each partition has an open batch."""

    def __init__(self, name: str, **changes: Any) -> None:
        module = implementation(name)
        buffers = _pure_record_buffer if module is _pure_open_batches else module
        self.batches = [Batch(buffers.RecordBuffer()) for _ in range(PARTITIONS)]
        queues = {number: Queue(batch) for number, batch in enumerate(self.batches)}
        self.route = Route(queues, queues[1])
        self.routes = {"t": self.route}
        self.budget = Budget()
        self.calls: list[str] = []
        options: dict[str, Any] = {
            "has_partitioner": False,
            "check_open": None,
            "check_time": int,
            "wall_ns": lambda: NOW_MS * 1_000_000 + 999_999,
            "on_filled": self.called("filled"),
        }
        self.place_type: Any = type("Place", (module.RecordPlace,), {"__slots__": ()})
        self.appender = module.OpenBatchAppender(
            self.place_type, self.routes, self.budget, USED_MAX, RECORDS_MAX, **options | changes
        )

    def called(self, name: str) -> Callable[[], None]:
        return lambda: self.calls.append(name)

    def append(
        self,
        value: Any = b"v",
        key: Any = None,
        headers: Any = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Any:
        return self.appender.append("t", value, key, headers, partition, timestamp_ms)

    @property
    def contents(self) -> list[tuple[int, int, bytes]]:
        return [
            (each.memory, each.records.count, bytes(each.records.encoded()))
            for each in self.batches
        ]


NAMES = ("_pure_open_batches", "_speedups")


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_record_joins_the_batch_of_its_partition(name: str) -> None:
    stage = Stage(name)
    place = stage.append(partition=2)
    assert type(place) is stage.place_type
    assert (place._batch, place._index, place._timestamp) == (stage.batches[2], 0, NOW_MS)
    assert stage.append(partition=2, timestamp_ms=7)._timestamp == 7
    assert [each.records.count for each in stage.batches] == [0, 0, 2]


def test_record_without_key_joins_the_sticky_batch(name: str) -> None:
    stage = Stage(name)
    assert stage.append()._batch is stage.batches[1]
    stage.route.sticky = None
    assert stage.append() is None


@pytest.mark.parametrize("key", [b"", b"a", b"key", b"another key"])
def test_record_with_key_joins_the_batch_of_javas_partition(name: str, key: bytes) -> None:
    stage = Stage(name)
    number = _pure_record_buffer.partition_of_key(key, PARTITIONS)
    assert stage.append(key=key)._batch is stage.batches[number]


def test_key_needs_a_partition(name: str) -> None:
    stage = Stage(name)
    stage.route.partition_count = 0
    with pytest.raises(ZeroDivisionError):
        stage.append(key=b"k")


def test_memory_of_a_record_is_taken_from_the_budget(name: str) -> None:
    stage = Stage(name)
    stage.budget.used = 100
    stage.batches[1].memory = 3  # a call of send_many has taken the memory of other records
    stage.append(b"v" * 20)
    size = stage.batches[1].records.size
    assert (stage.batches[1].memory, stage.budget.used) == (size, 100 + size - 3)


def test_record_that_fills_its_batch_is_reported(name: str) -> None:
    stage = Stage(name)
    assert stage.append(b"v" * 60) is not None
    assert stage.calls == []
    assert stage.append(b"v" * 60) is not None
    assert stage.calls == ["filled"]
    assert stage.append(b"v" * 60) is None
    assert stage.batches[1].records.count == 2


def close(stage: Stage) -> None:
    stage.batches[1].closed = True


def wait_for_memory(stage: Stage) -> None:
    stage.budget.waiting.append(object())


def use_memory(stage: Stage) -> None:
    stage.budget.used = USED_MAX + 1


def forget_topic(stage: Stage) -> None:
    stage.routes.clear()


def forget_queue(stage: Stage) -> None:
    del stage.route.queues[1]


def empty_queue(stage: Stage) -> None:
    stage.route.queues[1].last = None


@pytest.mark.parametrize(
    "change", [close, wait_for_memory, use_memory, forget_topic, forget_queue, empty_queue]
)
def test_record_that_cannot_join_is_not_appended(
    name: str, change: Callable[[Stage], None]
) -> None:
    stage = Stage(name)
    change(stage)
    used = stage.budget.used
    assert stage.append(partition=1) is None
    assert stage.budget.used == used
    assert [each.records.count for each in stage.batches] == [0, 0, 0]


def test_exactly_the_maximum_of_memory_may_be_used_before(name: str) -> None:
    stage = Stage(name)
    stage.budget.used = USED_MAX
    assert stage.append() is not None


@pytest.mark.parametrize("key", [bytearray(b"k"), memoryview(b"k"), type("B", (bytes,), {})(b"k")])
def test_key_that_is_not_plain_bytes_needs_a_check(name: str, key: object) -> None:
    assert Stage(name).append(key=key) is None


def test_partitioner_is_left_to_the_caller(name: str) -> None:
    stage = Stage(name, has_partitioner=True)
    assert stage.append() is None
    assert stage.append(key=b"k") is None
    assert stage.append(partition=0) is not None


def refuse(*_: object) -> int:
    raise LookupError


def test_refused_record_leaves_the_batch_unchanged(name: str) -> None:
    for changes in ({"check_open": refuse}, {"check_time": refuse}):
        stage = Stage(name, **changes)
        with pytest.raises(LookupError):
            stage.append(timestamp_ms=1)
        assert stage.contents == Stage(name).contents
    stage = Stage(name)
    for record in ((1, None), ("text", None), (b"", None, (("h", 1),)), (b"", None, ((1, b""),))):
        with pytest.raises(TypeError):
            stage.append(*record)
    assert stage.contents == Stage(name).contents
    assert stage.budget.used == 0


def test_each_record_is_checked(name: str) -> None:
    calls: list[str] = []
    stage = Stage(name, check_open=lambda: calls.append("open"))
    stage.append()
    stage.append(partition=0)
    assert calls == ["open", "open"]


def test_place_type_is_a_subclass_of_record_place(name: str) -> None:
    with pytest.raises(TypeError, match="int is no subclass of RecordPlace"):
        implementation(name).OpenBatchAppender(
            int, {}, Budget(), 0, 0, has_partitioner=False, check_open=None, check_time=int,
            wall_ns=int, on_filled=int,
        )  # fmt: skip


small = st.none() | st.binary(max_size=40)
header_lists = st.lists(st.tuples(st.text("aé", max_size=5), small), max_size=3).map(tuple)
records = st.tuples(
    small, small, header_lists, st.none() | st.integers(0, 4), st.none() | st.integers(0, 2**63 - 1)
)


@given(st.lists(records, max_size=20))
@settings(max_examples=100)
def test_both_implementations_do_the_same(rows: list[tuple[Any, ...]]) -> None:
    pure, compiled = (Stage(name) for name in NAMES)
    for row in rows:
        places = [stage.append(*row) for stage in (pure, compiled)]
        found = [place and (place._index, place._timestamp) for place in places]
        assert found[0] == found[1]
        assert pure.contents == compiled.contents
        assert (pure.budget, pure.calls) == (compiled.budget, compiled.calls)
