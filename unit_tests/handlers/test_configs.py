"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pybroker.coordinator.zookeeper import paths
from pybroker.errors import ErrorCode
from pybroker.layered_config import Source
from pybroker.model import TopicPartition
from pybroker.ports import CreateOp, SetOp
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from unit_tests.handlers.bench import BROKER_ID, Bench, batch, code, the_only

TOPIC, BROKER, LOGGER = 2, 4, 8
ME = str(BROKER_ID)
SET, DELETE, APPEND, SUBTRACT = range(4)
Resource = tuple[int, str]
Operation = tuple[int, str, str | None]


async def describe(
    bench: Bench, *resources: Resource, keys: list[str] | None = None, version: int = 4
) -> list[DescribeConfigsResult]:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for kind, name in resources
        ]
    )
    if version >= 1:
        request.include_synonyms = True
    if version >= 3:
        request.include_documentation = True
    answer = await bench.ask(ApiKey.DESCRIBE_CONFIGS, version, request)
    results: list[DescribeConfigsResult] = answer.results
    assert [(item.resource_type, item.resource_name) for item in results] == list(resources)
    return results


async def option(bench: Bench, resource: Resource, name: str) -> DescribeConfigsResourceResult:
    (result,) = await describe(bench, resource, keys=[name])
    assert code(result) is ErrorCode.NONE
    return the_only(result.configs)


async def shown(bench: Bench, resource: Resource, name: str) -> tuple[str | None, int]:
    """Value and source."""
    found = await option(bench, resource, name)
    return found.value, found.config_source


async def change(
    bench: Bench,
    resource: Resource,
    *operations: Operation,
    validate_only: bool = False,
    version: int = 1,
) -> tuple[ErrorCode, str | None]:
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsResource(
                resource_type=resource[0],
                resource_name=resource[1],
                configs=[
                    IncrementalAlterableConfig(name=name, config_operation=kind, value=text)
                    for kind, name, text in operations
                ],
            )
        ],
        validate_only=validate_only,
    )
    answer = await bench.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, request)
    result = the_only(answer.responses)
    return code(result), result.error_message


async def replace(
    bench: Bench,
    resource: Resource,
    values: dict[str, str | None],
    *,
    validate_only: bool = False,
    version: int = 2,
) -> tuple[ErrorCode, str | None]:
    request = AlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=resource[0],
                resource_name=resource[1],
                configs=[AlterableConfig(name=name, value=text) for name, text in values.items()],
            )
        ],
        validate_only=validate_only,
    )
    answer = await bench.ask(ApiKey.ALTER_CONFIGS, version, request)
    result = the_only(answer.responses)
    return code(result), result.error_message


def stored(bench: Bench, entity: str) -> Any:
    found = bench.tree.node(f"/config/{entity}")
    return None if found is None else json.loads(found[0])["config"]


def notes(bench: Bench) -> int:
    return sum(path.startswith(paths.CONFIG_CHANGE_PREFIX) for path in bench.tree.paths())


def write_as_a_tool(bench: Bench, entity: str, data: bytes) -> None:
    """What Apache's kafka-configs does through ZooKeeper: the node, then the notification."""
    path = f"/config/{entity}"
    exists = bench.tree.node(path) is not None
    note = json.dumps({"version": 2, "entity_path": entity}).encode()
    session = bench.coord.session_id
    bench.tree.apply([SetOp(path, data) if exists else CreateOp(path, data)], session)
    bench.tree.apply([CreateOp(paths.CONFIG_CHANGE_PREFIX, note, sequence=True)], session)


def config(**values: str) -> bytes:
    texts = {name.replace("_", "."): text for name, text in values.items()}
    return json.dumps({"version": 1, "config": texts}).encode()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def until_largest_is(bench: Bench, size: int) -> None:
    """Until batches of topic t may be so large."""
    log = bench.logs.log(TopicPartition("t", 0))
    assert log is not None
    await until(lambda: log.config.max_message_bytes == size)


# describing


@pytest.mark.parametrize("version", range(5))
async def test_each_version_describes_a_topic_and_a_broker(bench: Bench, version: int) -> None:
    await bench.create("t", configs={"retention.ms": "5"})
    topic, broker = await describe(bench, (TOPIC, "t"), (BROKER, ME), version=version)
    own = {item.name: item for item in topic.configs}["retention.ms"]
    default = {item.name: item for item in broker.configs}["num.partitions"]
    assert (own.value, default.value, default.read_only) == ("5", "1", True)
    if version == 0:
        assert (own.is_default, default.is_default) == (False, True)
    else:
        assert (own.config_source, default.config_source) == (Source.TOPIC, Source.DEFAULT)
        assert [item.source for item in own.synonyms] == [Source.TOPIC]
    if version >= 3:
        assert (own.config_type, default.config_type) == (5, 3)
        assert own.documentation == "The age at which a segment is deleted, -1 for never."


async def test_sources_of_all_layers(tmp_path: Path) -> None:
    name = "log.segment.bytes"
    async with Bench(tmp_path, properties={name: "100000"}) as bench:
        await bench.create("t")
        topic = (TOPIC, "t")
        assert await shown(bench, topic, "segment.bytes") == ("100000", Source.FILE)
        await change(bench, (BROKER, ""), (SET, name, "200000"))
        assert await shown(bench, topic, "segment.bytes") == ("200000", Source.ALL_BROKERS)
        await change(bench, (BROKER, ME), (SET, name, "300000"))
        assert await shown(bench, topic, "segment.bytes") == ("300000", Source.BROKER)
        await change(bench, topic, (SET, "segment.bytes", "400000"))
        found = await option(bench, topic, "segment.bytes")
        assert [(item.name, item.value, item.source) for item in found.synonyms] == [
            ("segment.bytes", "400000", Source.TOPIC),
            (name, "300000", Source.BROKER),
            (name, "200000", Source.ALL_BROKERS),
            (name, "100000", Source.FILE),
            (name, "1073741824", Source.DEFAULT),
        ]
        assert await shown(bench, (BROKER, ""), name) == ("200000", Source.ALL_BROKERS)


async def test_keys_choose_options_and_unknown_ones_are_left_out(bench: Bench) -> None:
    await bench.create("t")
    (some,) = await describe(bench, (TOPIC, "t"), keys=["retention.ms", "nope"])
    (all_of_them,) = await describe(bench, (TOPIC, "t"), keys=[])
    assert [item.name for item in some.configs] == ["retention.ms"]
    assert len(all_of_them.configs) > 25


@pytest.mark.parametrize(
    ("resource", "expected", "words"),
    [
        ((TOPIC, "gone"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "does not exist"),
        ((TOPIC, "no name"), ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid"),
        ((TOPIC, ""), ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid"),
        (
            (BROKER, "7"),
            ErrorCode.INVALID_REQUEST,
            "Unexpected broker id, expected 1 or empty string, but received 7",
        ),
        (
            (BROKER, "x"),
            ErrorCode.INVALID_REQUEST,
            "Broker id must be an integer, but it is: x",
        ),
        ((LOGGER, ""), ErrorCode.INVALID_REQUEST, "Broker id must not be empty"),
        (
            (LOGGER, "7"),
            ErrorCode.INVALID_REQUEST,
            "Unexpected broker id, expected 1 but received 7",
        ),
        ((16, "x"), ErrorCode.INVALID_REQUEST, "only supported on KRaft clusters"),
        ((3, "x"), ErrorCode.INVALID_REQUEST, "Unexpected resource type 3 for resource x"),
    ],
)
async def test_a_resource_that_cannot_be_described(
    bench: Bench, resource: Resource, expected: ErrorCode, words: str
) -> None:
    failed, fine = await describe(bench, resource, (BROKER, ME))
    assert (code(failed), failed.configs) == (expected, [])
    assert words in str(failed.error_message)
    assert code(fine) is ErrorCode.NONE


async def test_what_nobody_knows_is_shown_without_its_value(bench: Bench) -> None:
    assert (await change(bench, (BROKER, ME), (SET, "my.plugin.password", "p")))[0] == 0
    found = await option(bench, (BROKER, ME), "my.plugin.password")
    assert (found.value, found.is_sensitive, found.config_type) == (None, True, 0)


# changing: what lies in ZooKeeper afterwards


async def test_a_script_of_changes_to_a_topic(bench: Bench) -> None:
    await bench.create("t")
    topic = (TOPIC, "t")
    script: list[tuple[Operation, dict[str, str]]] = [
        ((SET, "retention.ms", "1000"), {"retention.ms": "1000"}),
        (
            (APPEND, "cleanup.policy", "compact"),
            {"retention.ms": "1000", "cleanup.policy": "delete,compact"},
        ),
        ((DELETE, "retention.ms", None), {"cleanup.policy": "delete,compact"}),
        ((SUBTRACT, "cleanup.policy", "delete"), {"cleanup.policy": "compact"}),
        ((DELETE, "never.was.there", ""), {"cleanup.policy": "compact"}),
    ]
    for number, (operation, left) in enumerate(script, 1):
        assert await change(bench, topic, operation) == (ErrorCode.NONE, None)
        assert stored(bench, "topics/t") == left
        assert notes(bench) == number
    assert await replace(bench, topic, {"segment.bytes": "2000"}) == (ErrorCode.NONE, None)
    assert stored(bench, "topics/t") == {"segment.bytes": "2000"}
    assert await replace(bench, topic, {}) == (ErrorCode.NONE, None)
    assert stored(bench, "topics/t") == {}


@pytest.mark.parametrize("version", [0, 1])
async def test_each_version_changes(bench: Bench, version: int) -> None:
    await change(bench, (BROKER, ""), (SET, "log.retention.ms", "7"), version=version)
    assert stored(bench, "brokers/<default>") == {"log.retention.ms": "7"}


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_each_version_replaces(bench: Bench, version: int) -> None:
    await change(bench, (BROKER, ME), (SET, "log.retention.ms", "7"))
    await replace(bench, (BROKER, ME), {"log.roll.ms": "8"}, version=version)
    assert stored(bench, f"brokers/{ME}") == {"log.roll.ms": "8"}


@pytest.mark.parametrize("resource", [(TOPIC, "t"), (BROKER, ME), (BROKER, "")])
async def test_to_validate_changes_nothing(bench: Bench, resource: Resource) -> None:
    await bench.create("t")
    name = "retention.ms" if resource[0] == TOPIC else "log.retention.ms"
    before = bench.tree.paths()
    assert (await change(bench, resource, (SET, name, "5"), validate_only=True))[0] == 0
    assert (await replace(bench, resource, {name: "5"}, validate_only=True))[0] == 0
    bad, _ = await change(bench, resource, (SET, name, "x"), validate_only=True)
    assert bad in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)
    assert bench.tree.paths() == before


@pytest.mark.parametrize(
    ("resource", "operations", "expected", "words"),
    [
        ((TOPIC, "t"), [(SET, "retention.ms", "x")], 40, "retention.ms=x: expected an integer"),
        ((TOPIC, "t"), [(SET, "nope", "1")], 40, "Unknown topic config name: nope"),
        ((TOPIC, "t"), [(APPEND, "retention.ms", "1")], 40, "append is not allowed"),
        (
            (TOPIC, "t"),
            [(SET, "min.compaction.lag.ms", "9"), (SET, "max.compaction.lag.ms", "8")],
            40,
            "min.compaction.lag.ms=9",
        ),
        (
            (TOPIC, "t"),
            [(SET, "retention.ms", None), (SET, "flush.ms", None)],
            42,
            "Null value not supported for : retention.ms, flush.ms",
        ),
        (
            (TOPIC, "t"),
            [(SET, "retention.ms", "1"), (DELETE, "retention.ms", "")],
            42,
            "Error due to duplicate config keys",
        ),
        ((TOPIC, "t"), [(9, "retention.ms", "1")], 42, "Unknown operations type 9"),
        ((TOPIC, "gone"), [(SET, "retention.ms", "1")], 3, "The topic 'gone' does not exist."),
        ((TOPIC, ""), [(SET, "retention.ms", "1")], 42, "Default topic resources are not allowed"),
        ((BROKER, "7"), [(SET, "log.retention.ms", "1")], 42, "Unexpected broker id"),
        (
            (BROKER, ME),
            [(SET, "num.partitions", "3")],
            42,
            "Cannot update these configs dynamically: Set(num.partitions)",
        ),
        ((BROKER, ""), [(SET, "log.segment.bytes", "1")], 42, "Invalid value 1 for configuration"),
        ((LOGGER, ME), [(SET, "nobody", "INFO")], 40, "Logger nobody does not exist!"),
        ((LOGGER, ME), [(SET, "root", "LOUD")], 40, "is not a supported log level"),
        ((LOGGER, ME), [(DELETE, "root", "")], 42, "Removing the log level of the root logger"),
        ((LOGGER, ME), [(APPEND, "root", "INFO")], 42, "APPEND operation is not allowed"),
        ((16, "x"), [(SET, "a", "b")], 42, "only supported for topics and brokers"),
        ((99, "x"), [(SET, "a", "b")], 42, "Unknown resource type 99"),
    ],
)
async def test_a_change_that_is_refused_changes_nothing(
    bench: Bench, resource: Resource, operations: list[Operation], expected: int, words: str
) -> None:
    await bench.create("t")
    before = bench.tree.paths()
    found, message = await change(bench, resource, *operations)
    assert (found, words in str(message)) == (expected, True), message
    assert bench.tree.paths() == before


async def test_a_resource_named_twice_is_refused_both_times(bench: Bench) -> None:
    await bench.create("t")
    resource = IncrementalAlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[])
    other = IncrementalAlterConfigsResource(resource_type=BROKER, resource_name=ME, configs=[])
    request = IncrementalAlterConfigsRequest(resources=[resource, other, resource])
    answer = await bench.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
    assert [code(item) for item in answer.responses] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]
    assert answer.responses[0].error_message == "Each resource must appear at most once."


async def test_replacing_has_no_loggers(bench: Bench) -> None:
    assert await replace(bench, (LOGGER, ME), {"root": "INFO"}) == (
        ErrorCode.INVALID_REQUEST,
        "Unknown resource type 8",
    )


async def test_without_zookeeper_every_item_is_answered(bench: Bench) -> None:
    await bench.create("t")
    bench.coord.suspend()
    expected = ErrorCode.REQUEST_TIMED_OUT
    assert (await change(bench, (TOPIC, "t"), (SET, "retention.ms", "1")))[0] is expected
    assert (await replace(bench, (BROKER, ""), {"log.retention.ms": "1"}))[0] is expected
    topic, broker = await describe(bench, (TOPIC, "t"), (BROKER, ME))
    assert (code(topic), code(broker)) == (expected, ErrorCode.NONE)
    bench.coord.resume()


async def test_a_damaged_node_is_told_and_can_be_replaced(bench: Bench) -> None:
    await bench.create("t")
    write_as_a_tool(bench, "topics/t", b"nonsense")
    (result,) = await describe(bench, (TOPIC, "t"))
    assert code(result) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "/config/topics/t" in str(result.error_message)
    found, _ = await change(bench, (TOPIC, "t"), (SET, "retention.ms", "1"))
    assert found is ErrorCode.UNKNOWN_SERVER_ERROR
    assert (await replace(bench, (TOPIC, "t"), {"retention.ms": "1"}))[0] is ErrorCode.NONE
    assert stored(bench, "topics/t") == {"retention.ms": "1"}


# what holds


async def test_a_change_holds_when_it_is_answered(bench: Bench) -> None:
    await bench.create("t")
    assert code(await bench.produce("t", batch(bytes(500)))) is ErrorCode.NONE
    await change(bench, (TOPIC, "t"), (SET, "max.message.bytes", "100"))
    assert code(await bench.produce("t", batch(bytes(500)))) is ErrorCode.MESSAGE_TOO_LARGE
    await change(bench, (TOPIC, "t"), (DELETE, "max.message.bytes", None))
    assert code(await bench.produce("t", batch(bytes(500)))) is ErrorCode.NONE


@pytest.mark.parametrize("broker", ["", ME])
async def test_a_brokers_change_holds_for_topics_without_an_own_value(
    bench: Bench, broker: str
) -> None:
    await bench.create("t")
    await bench.create("own", configs={"max.message.bytes": "5000"})
    await change(bench, (BROKER, broker), (SET, "message.max.bytes", "100"))
    assert code(await bench.produce("t", batch(bytes(500)))) is ErrorCode.MESSAGE_TOO_LARGE
    assert code(await bench.produce("own", batch(bytes(500)))) is ErrorCode.NONE
    await bench.create("later")
    assert code(await bench.produce("later", batch(bytes(500)))) is ErrorCode.MESSAGE_TOO_LARGE


async def test_a_change_outlives_the_broker(bench: Bench) -> None:
    await bench.create("t")
    await change(bench, (BROKER, ""), (SET, "message.max.bytes", "100"))
    await bench.stop()
    async with bench.again() as again:
        assert code(await again.produce("t", batch(bytes(500)))) is ErrorCode.MESSAGE_TOO_LARGE
        assert await shown(again, (BROKER, ME), "message.max.bytes") == (
            "100",
            Source.ALL_BROKERS,
        )


async def test_what_a_tool_writes_to_zookeeper_holds_soon(bench: Bench) -> None:
    await bench.create("t")
    write_as_a_tool(bench, "topics/t", config(max_message_bytes="100"))
    await until_largest_is(bench, 100)
    write_as_a_tool(bench, "topics/t", config())
    await until_largest_is(bench, 1_048_588)
    write_as_a_tool(bench, "brokers/<default>", config(message_max_bytes="200"))
    await until_largest_is(bench, 200)


async def test_values_that_are_none_in_zookeeper_are_ignored(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.create("t")
    write_as_a_tool(
        bench,
        "brokers/<default>",
        config(message_max_bytes="300", log_segment_bytes="x", num_partitions="9"),
    )
    await until_largest_is(bench, 300)
    assert "log.segment.bytes" in caplog.text
    assert "num.partitions" in caplog.text
    write_as_a_tool(bench, f"brokers/{ME}", b"nonsense")
    write_as_a_tool(bench, "topics/t", b"nonsense")
    await until(lambda: "topic options ignored topic=t" in caplog.text)
    await until_largest_is(bench, 300)
    assert await shown(bench, (BROKER, ME), "log.segment.bytes") == ("1073741824", Source.DEFAULT)
    await bench.stop()
    async with bench.again() as again:
        await until_largest_is(again, 300)


async def test_the_broker_wide_limits_follow(bench: Bench) -> None:
    before = bench.app.live.current
    await change(
        bench,
        (BROKER, ME),
        (SET, "max.connections", "5"),
        (SET, "producer.id.expiration.ms", "1000"),
    )
    now = bench.app.live.current
    assert (before.max_connections, now.max_connections) == (2_147_483_647, 5)
    assert bench.logs.producer_id_expiration_ms == 1000


async def test_levels_of_loggers_change(bench: Bench) -> None:
    name = "pybroker.handlers.a_test"
    logger = logging.getLogger(name)
    resource = (LOGGER, ME)
    assert (await change(bench, resource, (SET, name, "DEBUG"), validate_only=True))[0] == 0
    assert logger.level == logging.NOTSET
    assert (await change(bench, resource, (SET, name, "DEBUG")))[0] == 0
    assert logger.level == logging.DEBUG
    assert await shown(bench, resource, name) == ("DEBUG", Source.LOGGER)
    assert (await change(bench, resource, (DELETE, name, "")))[0] == 0
    assert logger.level == logging.NOTSET


async def test_creating_a_topic_tells_the_same_sources(tmp_path: Path) -> None:
    async with Bench(tmp_path, properties={"log.segment.bytes": "100000"}) as bench:
        await change(bench, (BROKER, ""), (SET, "message.max.bytes", "9000"))
        await bench.create("t", configs={"flush.ms": "5"})
        names = ("flush.ms", "segment.bytes", "max.message.bytes", "retention.ms")
        assert [await shown(bench, (TOPIC, "t"), name) for name in names] == [
            ("5", Source.TOPIC),
            ("100000", Source.FILE),
            ("9000", Source.ALL_BROKERS),
            ("604800000", Source.DEFAULT),
        ]
