"""Tests of the producer's serializers: which calls use them, what they get, and their errors."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pybroker.client import ConfigError, Producer, SerializationFailed, WouldBlock
from pybroker.config.properties import PropertyText
from pybroker.ports import Buffer
from pybroker.records.record import Headers, decode_records
from pybroker.records.record_buffer import partition_of_key
from unit_tests.client.fake_broker import FakeBroker
from unit_tests.client.test_producer import QUICK

Row = tuple[bytes | None, bytes | None]


def to_json(value: object) -> bytes:
    return json.dumps(value).encode()


def producer(broker: FakeBroker, **options: Any) -> Producer[Any, Any]:
    return Producer(broker.address, **{**QUICK, **options})


def stored(broker: FakeBroker, partition: int = 0) -> list[Row]:
    return [
        (record.key, record.value)
        for batch in broker.partition("t", partition).batches
        for record in decode_records(batch, decompressed_bytes_max=1 << 24)
    ]


async def test_every_call_for_records_serializes_keys_and_values() -> None:
    async with FakeBroker({"t": 1}) as broker:
        async with producer(
            broker, key_serializer=str.encode, value_serializer=to_json, linger_ms=5
        ) as target:
            await target.send_and_wait("t", {"n": 0}, key="a")
            for number in (1, 2):  # the second record joins the batch of the first
                await target.send("t", {"n": number}, key="b")
            for number in (3, 4):
                target.send_nowait("t", {"n": number}, key="c")
            await target.send_many("t", [{"n": 5}, [6]], ["d", "e"])
        assert stored(broker) == [
            *((key, b'{"n": %d}' % number) for number, key in enumerate(b"a b b c c d".split())),
            (b"e", b"[6]"),
        ]


async def test_the_serialized_key_chooses_the_partition() -> None:
    async with FakeBroker({"t": 5}) as broker:
        async with producer(broker, key_serializer=to_json) as target:
            one = [await target.send_and_wait("t", b"", key=key) for key in range(20)]
            many = await (await target.send_many("t", [b""] * 20, range(20)))
        expected = [partition_of_key(to_json(key), 5) for key in range(20)]
        assert [each.partition for each in one] == expected
        assert [each.partition for each in many] == expected


async def test_a_partitioner_gets_serialized_fields() -> None:
    seen: list[Row] = []

    def choose(_: object, key: bytes | None, value: bytes | None) -> int | None:
        seen.append((key, value))
        return None

    async with FakeBroker({"t": 1}) as broker:
        options = {"key_serializer": str.encode, "value_serializer": to_json}
        async with producer(broker, partitioner=choose, **options) as target:
            await target.send_and_wait("t", 1, key="k")
        assert set(seen) == {(b"k", b"1")}


class Recorder:
    """A serializer that notes its arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def serialize(self, topic: str, value: object) -> Buffer | None:
        self.calls.append((topic, value))
        return None if value is None else memoryview(to_json(value))


class RecorderWithHeaders:
    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def serialize(self, topic: str, headers: Headers, value: object) -> bytes:
        self.calls.append((topic, headers, value))
        return to_json(value)


async def test_an_object_gets_the_topic_and_if_it_wants_the_headers() -> None:
    keys, values = Recorder(), RecorderWithHeaders()
    async with FakeBroker({"t": 1}) as broker:
        async with producer(broker, key_serializer=keys, value_serializer=values) as target:
            await target.send_and_wait("t", 1, key=2, headers={"h": b"x"})
            await target.send_many("t", [3], [4])
        assert stored(broker) == [(b"2", b"1"), (b"4", b"3")]
    assert keys.calls == [("t", 2), ("t", 4)]
    assert values.calls == [("t", (("h", b"x"),), 1), ("t", (), 3)]


async def test_serializers_are_also_called_for_none() -> None:
    keys = Recorder()
    async with FakeBroker({"t": 1}) as broker:
        async with producer(broker, key_serializer=keys, value_serializer=to_json) as target:
            await target.send_and_wait("t")
            await target.send_many("t", [None, 1])
        assert stored(broker) == [(None, b"null"), (None, b"null"), (None, b"1")]
    assert keys.calls == [("t", None)] * 3


async def test_one_serializer_leaves_the_other_field_as_it_is() -> None:
    async with FakeBroker({"t": 1}) as broker:
        async with producer(broker, value_serializer=to_json, acks=1) as target:
            await target.send_and_wait("t", 1, key=b"k")
            await target.send_many("t", [2], [b"k"])
            with pytest.raises(TypeError, match="the key of a record must be bytes, not str"):
                await target.send("t", 1, key="k")
        async with producer(broker, key_serializer=to_json, acks=1) as target:
            await target.send_and_wait("t", b"3", key=1)
            await target.send_many("t", [b"4"], [1])
        assert stored(broker) == [(b"k", b"1"), (b"k", b"2"), (b"1", b"3"), (b"1", b"4")]


async def test_arrow_batches_are_bytes_already() -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra arrow")
    async with FakeBroker({"t": 1}) as broker:
        async with producer(broker, key_serializer=to_json, value_serializer=to_json) as target:
            table = pyarrow.RecordBatch.from_pydict({"key": [b"k"], "value": [b"v"]})
            await (await target.send_arrow("t", table))
        assert stored(broker) == [(b"k", b"v")]


Call = Callable[[Producer[Any, Any], Any], Awaitable[object] | object]
CALLS: dict[str, Call] = {
    "send": lambda target, value: target.send("t", value, key="k", partition=0),
    "send_and_wait": lambda target, value: target.send_and_wait("t", value, key="k", partition=0),
    "send_nowait": lambda target, value: target.send_nowait("t", value, key="k", partition=0),
    "send_many": lambda target, value: target.send_many("t", [1, value], ["k", "k"], partition=0),
}


async def outcome(call: Call, target: Producer[Any, Any], value: object) -> None:
    made = call(target, value)
    if isinstance(made, Awaitable):
        await made


@pytest.mark.parametrize("name", CALLS)
async def test_a_record_that_cannot_be_serialized_is_not_sent(name: str) -> None:
    async with FakeBroker({"t": 1}) as broker:
        options = {"key_serializer": str.encode, "value_serializer": to_json}
        async with producer(broker, linger_ms=1_000, **options) as target:
            await target.send("t", 0, key="k")
            used = target._budget.used
            with pytest.raises(SerializationFailed) as caught:
                await outcome(CALLS[name], target, {1})
            error = caught.value
            assert (error.topic, error.partition, error.field) == ("t", 0, "value")
            assert error.index == (1 if name == "send_many" else None)
            assert isinstance(error.__cause__, TypeError)
            assert (error.definite, error.retriable) == (True, False)
            which = "record 1" if name == "send_many" else "a record"
            assert str(error).startswith(f"the value of {which} for t-0 was not serialized: TypeE")
            assert target._budget.used == used > 0
            await target.send("t", 1, key="k")
        assert stored(broker) == [(b"k", b"0"), (b"k", b"1")]


async def test_a_failed_key_is_named() -> None:
    async with (
        FakeBroker({"t": 1}) as broker,
        producer(broker, key_serializer=str.encode) as target,
    ):
        with pytest.raises(
            SerializationFailed, match=r"^the key of a record for t was not serialized: Type"
        ) as caught:
            await target.send("t", b"v")
        assert (caught.value.field, caught.value.partition) == ("key", None)
        with pytest.raises(SerializationFailed, match=r"^the key of record 0 for t was not"):
            await target.send_many("t", [b"v"])


async def test_a_serializer_must_return_bytes() -> None:
    async with (
        FakeBroker({"t": 1}) as broker,
        producer(broker, value_serializer=json.dumps) as target,
    ):
        with pytest.raises(SerializationFailed, match="returned str, expected bytes"):
            await target.send("t", 1)
        with pytest.raises(SerializationFailed, match="returned str, expected bytes"):
            await target.send_many("t", [1])


async def test_a_record_that_would_block_is_serialized_again_by_the_next_call() -> None:
    async with FakeBroker({"t": 1}) as broker:
        async with producer(broker, value_serializer=to_json) as target:
            with pytest.raises(WouldBlock):
                target.send_nowait("t", 1)
            await target.send("t", 1)
        assert stored(broker) == [(None, b"1")]


async def test_other_tasks_run_while_many_records_are_serialized() -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker, value_serializer=to_json) as target:
        turns = 0

        async def give_way() -> None:
            nonlocal turns
            turns += 1

        assert target._serializers is not None
        await target._serializers.columns("t", None, range(2_500), None, give_way)
        assert turns == 2


async def wait(value: object) -> bytes:
    return b""


class Odd:
    def serialize(self, topic: str) -> bytes:
        return b""


WRONG: list[tuple[Any, str]] = [
    (3, "option value_serializer must be a function or an object with a method serialize, not 3"),
    ("utf-8", "must be a function or an object with a method serialize, not 'utf-8'"),
    (wait, "must be a plain function, not an async one"),
    (Odd(), "option value_serializer: the method serialize must take a topic and a value"),
]


@pytest.mark.parametrize(("given", "words"), WRONG)
def test_something_else_than_a_serializer_is_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Producer(value_serializer=given)


def test_all_wrong_arguments_are_reported_together() -> None:
    wrong: dict[str, Any] = {"key_serializer": 1, "value_serializer": 2, "linger_ms": "x"}
    with pytest.raises(ConfigError) as caught:
        Producer(**wrong)
    assert [fault.split()[1] for fault in caught.value.faults] == list(wrong)


def test_a_class_of_java_in_a_properties_file_is_no_serializer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given: dict[str, Any] = {"value_serializer": PropertyText("org.example.Serializer")}
    with caplog.at_level(logging.WARNING):
        assert Producer(**given)._serializers is None
    assert "option without effect name=value_serializer" in caplog.text
