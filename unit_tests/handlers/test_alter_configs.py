"""Tests of AlterConfigs and IncrementalAlterConfigs: the values in ZooKeeper afterwards, and the
errors."""

from __future__ import annotations

import time

import pytest

from pybroker.config.declaration import SUGGESTIONS_MAX, VALUE_BYTES_MAX
from pybroker.config.layered_config import merged
from pybroker.config.topic_config import TOPIC_OPTIONS
from pybroker.errors import ErrorCode
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from unit_tests.handlers.bench import Bench, code
from unit_tests.handlers.config_words import (
    APPEND,
    BROKER,
    DELETE,
    LOGGER,
    ME,
    SET,
    SUBTRACT,
    TOPIC,
    Operation,
    Resource,
    change,
    describe,
    notes,
    replace,
    stored,
    write_as_a_tool,
)


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
async def test_each_version_of_incremental_alter_configs_changes_values(
    bench: Bench, version: int
) -> None:
    await change(bench, (BROKER, ""), (SET, "log.retention.ms", "7"), version=version)
    assert stored(bench, "brokers/<default>") == {"log.retention.ms": "7"}


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_each_version_of_alter_configs_replaces_values(bench: Bench, version: int) -> None:
    await change(bench, (BROKER, ME), (SET, "log.retention.ms", "7"))
    await replace(bench, (BROKER, ME), {"log.roll.ms": "8"}, version=version)
    assert stored(bench, f"brokers/{ME}") == {"log.roll.ms": "8"}


@pytest.mark.parametrize("resource", [(TOPIC, "t"), (BROKER, ME), (BROKER, "")])
async def test_validate_only_alter_configs_changes_nothing(
    bench: Bench, resource: Resource
) -> None:
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


async def test_alter_configs_does_not_change_loggers(bench: Bench) -> None:
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


async def test_a_malformed_config_node_is_an_error_and_can_be_replaced(bench: Bench) -> None:
    await bench.create("t")
    write_as_a_tool(bench, "topics/t", b"nonsense")
    (result,) = await describe(bench, (TOPIC, "t"))
    assert code(result) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "/config/topics/t" in str(result.error_message)
    found, _ = await change(bench, (TOPIC, "t"), (SET, "retention.ms", "1"))
    assert found is ErrorCode.UNKNOWN_SERVER_ERROR
    assert (await replace(bench, (TOPIC, "t"), {"retention.ms": "1"}))[0] is ErrorCode.NONE
    assert stored(bench, "topics/t") == {"retention.ms": "1"}


@pytest.mark.parametrize("resource", [(TOPIC, "t"), (BROKER, "")])
async def test_thousands_of_unknown_options_are_answered_quickly(
    bench: Bench, resource: Resource, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.create("t")
    looked_up: list[str] = []

    def nearest(name: str, known: object) -> None:
        looked_up.append(name)

    monkeypatch.setattr("pybroker.config.topic_config.nearest_name", nearest)
    monkeypatch.setattr("pybroker.config.layered_config.nearest_name", nearest)
    names = [(SET, f"nobody.knows.this.{number:05}", "1") for number in range(3000)]
    found, detail = await change(bench, resource, *names)
    assert found in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)
    assert detail is not None and len(detail) < 10_000
    assert len(looked_up) <= 2 * SUGGESTIONS_MAX


async def test_a_value_too_long_for_a_message_is_rejected_and_not_stored(bench: Bench) -> None:
    """A stored value of more than 32,767 bytes would close the connection of DescribeConfigs."""
    await bench.create("t")
    topic, option_name = (TOPIC, "t"), "leader.replication.throttled.replicas"
    for start in range(4):
        items = ",".join(f"{number}:1" for number in range(start * 3000, start * 3000 + 3000))
        found, _ = await change(bench, topic, (APPEND, option_name, items))
    assert found is ErrorCode.INVALID_CONFIG
    assert len(stored(bench, "topics/t")[option_name]) <= VALUE_BYTES_MAX
    bad, detail = await change(bench, topic, (SET, "segment.bytes", "9" * 32_000))
    assert bad is ErrorCode.INVALID_CONFIG
    assert detail is not None and "32000 characters" in detail


async def test_lists_with_many_items_are_changed_quickly() -> None:
    items = "delete," * 4000 + "compact"
    row_of = TOPIC_OPTIONS.get
    began = time.process_time()
    for operation in (APPEND, SUBTRACT):
        for _ in range(20):
            merged(
                {"cleanup.policy": items},
                [(operation, "cleanup.policy", ",".join(["compact"] * 8000))],
                row_of,
            )
    assert time.process_time() - began < 2
