"""Tests of the consumer's deserializers: which calls use them, what they get, and what a record is
whose key or value cannot be deserialized."""

from __future__ import annotations

import asyncio
import copy
import gc
import importlib.util
import json
import pickle
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from pybroker.client import ConfigError, Consumer, ConsumerRecord, DeserializationFailed
from pybroker.client.fetched import begin_data
from pybroker.client.subscription import BYTES_PER_TURN, PartitionReader, Rules, Turn
from pybroker.config.properties import PropertyText
from pybroker.records import consumed
from pybroker.records.batch import TimestampType
from pybroker.records.builder import BatchBuilder
from pybroker.records.record import Headers
from unit_tests.client.fake_broker import FakeBroker
from unit_tests.client.group_readers import a_group, member, tp
from unit_tests.client.held_logs import QUICK, T0, batch, holding
from unit_tests.patience import PATIENCE_S
from unit_tests.records.test_consumed import NAMES, module


def consumer(broker: FakeBroker, **options: Any) -> Consumer[Any, Any]:
    found = Consumer(broker.address, **{**QUICK, "auto_offset_reset": "earliest", **options})
    found.assign([T0])
    return found


async def getmany(target: Consumer[Any, Any]) -> list[ConsumerRecord[Any, Any]]:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for records in (await target.getmany(timeout_ms=1_000)).values():
                return records


async def getone(target: Consumer[Any, Any]) -> list[ConsumerRecord[Any, Any]]:
    async with asyncio.timeout(PATIENCE_S):
        return [await target.getone() for _ in range(3)]


async def iterate(target: Consumer[Any, Any]) -> list[ConsumerRecord[Any, Any]]:
    found = []
    async with asyncio.timeout(PATIENCE_S):
        async for record in target:
            found.append(record)
            if len(found) == 3:
                break
    return found


@pytest.mark.parametrize("read", [getmany, getone, iterate])
async def test_every_call_for_records_deserializes_keys_and_values(read: Any) -> None:
    async with FakeBroker({"t": 1}) as broker:
        holding(broker.partition(), batch(b"1", b"[2]", b"{}"))
        options = {"key_deserializer": bytes.decode, "value_deserializer": json.loads}
        async with consumer(broker, **options) as target:
            found = await read(target)
            assert [(one.key, one.value) for one in found] == [("k", 1), ("k", [2]), ("k", {})]
            assert [one.offset for one in found] == [0, 1, 2]
            assert (found[0].topic, found[0].partition, found[0].timestamp) == ("t", 0, 1_000)
            assert (found[0].headers, found[0].leader_epoch) == ((("h", b"1"),), 7)
            assert found[0].timestamp_type is TimestampType.CREATE_TIME
            assert await target.position(T0) == 3


async def test_arrow_columns_stay_bytes() -> None:
    pytest.importorskip("pyarrow", reason="needs the extra arrow")
    async with FakeBroker({"t": 1}) as broker:
        holding(broker.partition(), batch(b"1", b"2"))
        async with consumer(broker, value_deserializer=json.loads, max_poll_records=1) as target:
            assert [one.value for one in await getmany(target)] == [1]
            async with asyncio.timeout(PATIENCE_S):
                (table,) = (await target.poll_arrow(1_000)).values()
            assert table.column("value").to_pylist() == [b"2"]


async def test_a_record_that_cannot_be_deserialized_stops_no_other_record() -> None:
    async with FakeBroker({"t": 1}) as broker:
        holding(broker.partition(), batch(b"0", b"1", b"bad", b"3"), batch(b"4"))
        async with consumer(broker, value_deserializer=json.loads, max_poll_records=4) as target:
            found = await getmany(target)
            assert [one.offset for one in found] == [0, 1, 2, 3]
            assert await target.position(T0) == 4, "behind the record: nothing needs to be skipped"
            values: list[object] = []
            for record in found:
                try:
                    values.append(record.value)
                except DeserializationFailed as error:
                    values.append((error.offset, error.data))
            assert values == [0, 1, (2, b"bad"), 3]
            assert [one.value for one in await getmany(target)] == [4]
            target.seek(T0, 3)
            assert [one.value for one in await getmany(target)] == [3, 4]


async def test_the_error_names_the_record() -> None:
    async with FakeBroker({"t": 1}) as broker:
        holding(broker.partition(), batch(b"0", b"bad"))
        options = {"key_deserializer": json.loads, "value_deserializer": json.loads}
        async with consumer(broker, **options) as target:
            record = (await getmany(target))[1]
            for _ in range(2):
                with pytest.raises(DeserializationFailed) as caught:
                    record.value.get("n")
            error = caught.value
            assert (error.topic_partition, error.offset) == (T0, 1)
            assert (error.field, error.data) == ("value", b"bad")
            assert isinstance(error.__cause__, json.JSONDecodeError)
            assert str(error).startswith(
                "the value of the record at offset 1 of t-0 was not deserialized: JSONDecodeError("
            )
            with pytest.raises(DeserializationFailed, match="the key of the record at offset 1"):
                record.key.lower()


async def test_a_block_that_such_a_record_ends_commits_the_records_before_it() -> None:
    async with a_group(t=1) as group:
        holding(group.broker.partition(), batch(b"0", b"1", b"bad", b"3"))
        target = member(group, topics=["t"], value_deserializer=json.loads)
        with pytest.raises(DeserializationFailed):
            async with asyncio.timeout(PATIENCE_S), target as reader:
                async for record in reader:
                    value: object = record.value
                    assert value == record.offset
        assert group.committed == {tp(0): 2}


class Recorder:
    """A deserializer that notes its arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def deserialize(self, topic: str, data: bytes | None) -> object:
        self.calls.append((topic, data))
        return [data]


class RecorderWithHeaders:
    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def deserialize(self, topic: str, headers: Headers, data: bytes | None) -> object:
        self.calls.append((topic, headers, data))
        return len(self.calls)


async def test_an_object_gets_the_topic_and_if_it_wants_the_headers() -> None:
    keys, values = Recorder(), RecorderWithHeaders()
    async with FakeBroker({"t": 1}) as broker:
        holding(broker.partition(), batch(b"v"))
        async with consumer(broker, key_deserializer=keys, value_deserializer=values) as target:
            (record,) = await getmany(target)
            assert not keys.calls, "nothing looked at the key"
            assert record.key is record.key
            assert (record.value, record.value) == (1, 1)
    assert keys.calls == [("t", b"k")]
    assert values.calls == [("t", (("h", b"1"),), b"v")]


async def test_deserializers_are_also_called_for_none() -> None:
    keys, values = Recorder(), Recorder()
    builder = BatchBuilder()
    builder.append(1_000, None, None, ())
    async with FakeBroker({"t": 1}) as broker:
        holding(broker.partition(), builder.build())
        async with consumer(broker, key_deserializer=keys, value_deserializer=values) as target:
            (record,) = await getmany(target)
            assert (record.key, record.value) == ([None], [None])


async def test_one_deserializer_leaves_the_other_field_as_it_is() -> None:
    async with FakeBroker({"t": 1}) as broker:
        holding(broker.partition(), batch(b"1"))
        async with consumer(broker, value_deserializer=json.loads) as target:
            (record,) = await getmany(target)
            assert (record.key, record.value) == (b"k", 1)
        async with consumer(broker, key_deserializer=bytes.decode) as target:
            (record,) = await getmany(target)
            assert (record.key, record.value) == ("k", b"1")


def test_many_small_records_are_made_in_several_turns() -> None:
    made = 0

    def wrap(record: ConsumerRecord) -> ConsumerRecord[Any, Any]:
        nonlocal made
        made += 1
        return record

    reader = PartitionReader(T0)
    reader.jump(0)
    for start in range(0, 20_000, 2_000):
        data = bytearray(batch(*[b""] * 2_000))
        data[:8] = start.to_bytes(8, "big")
        assert reader.add(begin_data(bytes(data), []))
    rules = Rules(check_crcs=False, committed_only=False, wrap=wrap)
    turns = []
    while not reader.decode(20_000, Turn(BYTES_PER_TURN), rules):
        turns.append(made)
    assert made == 20_000
    assert len(turns) >= 2
    assert all(after - before <= 8_000 for before, after in zip([0, *turns], turns, strict=False))


# The record itself, by both implementations of its base


@pytest.fixture(params=NAMES)
def base(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of records without deserializers, in one implementation."""
    found = module(request.param).ConsumerRecord
    monkeypatch.setattr(consumed, "ConsumerRecord", found)
    return found


@pytest.fixture
def made(base: Any) -> ModuleType:
    """The module `deserializers` with this implementation."""
    spec = importlib.util.find_spec("pybroker.client.deserializers")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def record(
    base: Any,
    made: ModuleType,
    value: bytes | None = b"[1]",
    *,
    key: Any = None,
    decode: Any = json.loads,
) -> ConsumerRecord[Any, Any]:
    plain = base("t", 1, 2, 3, TimestampType.CREATE_TIME, b"k", value, (("h", b"x"),), 4)
    faults: list[str] = []
    deserializers = made.Deserializers.of(key, decode, faults)
    assert not faults
    found: ConsumerRecord[Any, Any] = deserializers.wrap(plain)
    return found


def test_a_deserialized_record_is_a_frozen_value(base: Any, made: ModuleType) -> None:
    one = record(base, made, key=bytes.decode)
    plain = base("t", 1, 2, 3, TimestampType.CREATE_TIME, "k", [1], (("h", b"x"),), 4)
    assert isinstance(one, base)
    assert one == record(base, made, key=bytes.decode) == plain == one
    assert one != record(base, made)
    assert one != ("t", 1, 2)
    assert repr(one) == repr(plain)
    assert hash(record(base, made, b"1")) == hash(
        base("t", 1, 2, 3, TimestampType.CREATE_TIME, b"k", 1, (("h", b"x"),), 4)
    )
    for name in one.__match_args__:
        with pytest.raises(AttributeError):
            setattr(one, name, None)
    match one:
        case base("t", 1, offset=2, value=[1]):
            pass
        case _:
            pytest.fail("the record does not match its fields")


def test_a_deserialized_record_can_be_copied_and_pickled(base: Any, made: ModuleType) -> None:
    one = record(base, made)
    again = pickle.loads(pickle.dumps(one))
    assert type(again) is base
    assert again == one == copy.copy(one) == copy.deepcopy(one)


def test_a_record_that_cannot_be_deserialized_can_be_shown(base: Any, made: ModuleType) -> None:
    assert "key=b'k', value=b'bad', headers" in repr(record(base, made, b"bad"))


def test_a_value_may_refer_to_its_record(base: Any, made: ModuleType) -> None:
    class Order:
        record: object = None

    one = record(base, made, decode=lambda _: Order())
    one.value.record = one
    order = weakref.ref(one.value)
    del one
    gc.collect()
    assert order() is None


async def wait(data: object) -> object:
    return data


class Odd:
    def deserialize(self, topic: str) -> bytes:
        return b""


WRONG: list[tuple[Any, str]] = [
    (3, "option key_deserializer must be a function or an object with a method deserialize, not 3"),
    (wait, "must be a plain function, not an async one"),
    (Odd(), "option key_deserializer: the method deserialize must take a topic and a value"),
]


@pytest.mark.parametrize(("given", "words"), WRONG)
def test_something_else_than_a_deserializer_is_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Consumer(key_deserializer=given)


def test_classes_and_functions_without_a_signature_are_deserializers() -> None:
    functions: list[Callable[[Any], object]] = [int, str, dict.fromkeys, bytes.decode]
    for function in functions:
        Consumer(key_deserializer=function)


def test_a_class_of_java_in_a_properties_file_is_no_deserializer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given: dict[str, Any] = {"value_deserializer": PropertyText("org.example.Deserializer")}
    Consumer(**given)
    assert "option without effect name=value_deserializer" in caplog.text
