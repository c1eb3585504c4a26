"""Tests of the layers of the broker's options: the value in force, its source, and allowed
changes."""

from __future__ import annotations

import pytest

from pybroker.config.broker_config import BrokerConfig
from pybroker.config.layered_config import (
    LayeredConfig,
    Source,
    broker_synonyms,
    merged,
    option_of,
    overlaid,
    usable_values,
)
from pybroker.config.topic_config import TOPIC_OPTIONS
from pybroker.errors import BrokerError, ConfigError, ErrorCode

SET, DELETE, APPEND, SUBTRACT = range(4)


def layers(
    file: dict[str, str] | None = None,
    for_all: dict[str, str] | None = None,
    for_this: dict[str, str] | None = None,
) -> LayeredConfig:
    return LayeredConfig(BrokerConfig.parse(file or {}), for_all or {}, for_this or {})


def refusal(found: LayeredConfig, values: dict[str, str], *, per_broker: bool) -> str:
    with pytest.raises(BrokerError) as caught:
        found.checked(values, per_broker=per_broker)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    return caught.value.detail


def test_without_dynamic_values_the_file_is_in_force() -> None:
    static = BrokerConfig.parse({"message.max.bytes": "5"})
    assert LayeredConfig(static).current is static


def test_values_of_one_broker_override_those_of_all_and_of_the_file() -> None:
    name = "message.max.bytes"
    assert layers({name: "1"}).current.message_max_bytes == 1
    assert layers({name: "1"}, {name: "2"}).current.message_max_bytes == 2
    assert layers({name: "1"}, {name: "2"}, {name: "3"}).current.message_max_bytes == 3


def test_a_dynamic_value_in_another_unit_overrides_the_file() -> None:
    found = layers({"log.roll.ms": "5", "log.retention.ms": "7"}, {"log.retention.hours": "1"})
    assert (found.current.roll_ms, found.current.retention_ms) == (5, 3_600_000)


@pytest.mark.parametrize(
    ("base", "over", "result"),
    [
        ({"a": "1"}, {"b": "2"}, {"a": "1", "b": "2"}),
        ({"log.roll.ms": "1"}, {"log.roll.hours": "2"}, {"log.roll.hours": "2"}),
        (
            {"log.retention.hours": "1", "log.retention.minutes": "2"},
            {"log.retention.ms": "3"},
            {"log.retention.ms": "3"},
        ),
    ],
)
def test_a_dynamic_value_hides_all_synonyms_below(
    base: dict[str, str], over: dict[str, str], result: dict[str, str]
) -> None:
    assert overlaid(base, over) == result


def test_synonyms_are_listed_from_the_strongest_on() -> None:
    found = layers(
        {"log.retention.hours": "100"}, {"log.retention.ms": "2"}, {"log.retention.ms": "1"}
    )
    assert found.synonyms("log.retention.ms") == [
        ("log.retention.ms", "1", Source.BROKER),
        ("log.retention.ms", "2", Source.ALL_BROKERS),
        ("log.retention.hours", "100", Source.FILE),
        ("log.retention.hours", "168", Source.DEFAULT),
    ]


def test_as_in_kafka_synonyms_before_the_own_name_do_not_count() -> None:
    found = layers({"log.retention.hours": "100"})
    assert found.synonyms("log.retention.ms") == []
    assert [item.source for item in found.synonyms("log.retention.hours")] == [
        Source.FILE,
        Source.DEFAULT,
    ]
    assert broker_synonyms("log.flush.interval.ms")[1] == "log.flush.scheduler.interval.ms"


def test_a_topics_own_value_overrides_the_brokers() -> None:
    found = layers({"log.segment.bytes": "100"}, {"log.segment.bytes": "200"})
    assert found.topic_synonyms("segment.bytes", {"segment.bytes": "50"}) == [
        ("segment.bytes", "50", Source.TOPIC),
        ("log.segment.bytes", "200", Source.ALL_BROKERS),
        ("log.segment.bytes", "100", Source.FILE),
        ("log.segment.bytes", "1073741824", Source.DEFAULT),
    ]
    assert found.topic_synonyms("follower.replication.throttled.replicas", {}) == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num.partitions": "3"}, "Cannot update these configs dynamically: Set(num.partitions)"),
        (
            {"broker.id": "3", "num.partitions": "x"},
            "Cannot update these configs dynamically: Set(broker.id, num.partitions)",
        ),
        ({"ssl.keystore.location": "/k"}, "Set(ssl.keystore.location)"),
        ({"listener.name.x.ssl.key.password": "p"}, "Cannot update these configs dynamically"),
        (
            {"log.segment.bytes": "1"},
            "Invalid value 1 for configuration log.segment.bytes: expected an integer from 14",
        ),
        ({"leader.replication.throttled.rate": "-1"}, "expected an integer from 0"),
        ({"log.retention.ms": "0"}, "log.retention.ms=0"),
        ({"log.retention.mss": "5"}, "did you mean log.retention.ms?"),
        (
            {"background.threads": "21"},
            "Dynamic thread count update validation failed for background.threads=21, value "
            "should not be greater than double the current value 10",
        ),
        ({"background.threads": "4"}, "value should be at least half the current value 10"),
    ],
)
@pytest.mark.parametrize("per_broker", [True, False])
def test_a_forbidden_change_is_refused_with_kafkas_message(
    values: dict[str, str], words: str, per_broker: bool
) -> None:
    assert words in refusal(layers(), values, per_broker=per_broker)


@pytest.mark.parametrize(
    "values",
    [
        {"message.max.bytes": "1000"},
        {"log.cleanup.policy": "compact,delete"},
        {"background.threads": "20"},
        {"background.threads": "5"},
        {"follower.replication.throttled.rate": "1"},
        {"a.plugins.own": "anything"},
        {},
    ],
)
@pytest.mark.parametrize("per_broker", [True, False])
def test_allowed_changes(values: dict[str, str], per_broker: bool) -> None:
    changed = layers().checked(values, per_broker=per_broker)
    assert (changed.for_this if per_broker else changed.for_all) == values


def test_contradictory_values_are_rejected() -> None:
    with pytest.raises(ConfigError):
        layers({}, {"max.connections.per.ip": "0"})


def test_values_that_cannot_be_applied_are_left_out_and_reported() -> None:
    values = {
        "message.max.bytes": "5",
        "log.segment.bytes": "x",
        "num.partitions": "3",
        "own": "kept",
    }
    usable, faults = usable_values(values, per_broker=False)
    assert usable == {"message.max.bytes": "5", "own": "kept"}
    assert ["log.segment.bytes" in faults[0], "num.partitions" in faults[1]] == [True, True]


@pytest.mark.parametrize(
    ("current", "operation", "result"),
    [
        ({}, (SET, "retention.ms", "5"), {"retention.ms": "5"}),
        ({"retention.ms": "1"}, (SET, "retention.ms", "5"), {"retention.ms": "5"}),
        ({"retention.ms": "1"}, (DELETE, "retention.ms", None), {}),
        ({}, (DELETE, "unknown", None), {}),
        ({}, (APPEND, "cleanup.policy", "compact"), {"cleanup.policy": "delete,compact"}),
        (
            {"cleanup.policy": ""},
            (APPEND, "cleanup.policy", "compact"),
            {"cleanup.policy": "compact"},
        ),
        (
            {"cleanup.policy": "compact"},
            (APPEND, "cleanup.policy", "compact,delete"),
            {"cleanup.policy": "compact,delete"},
        ),
        (
            {"cleanup.policy": "compact,delete"},
            (SUBTRACT, "cleanup.policy", "compact"),
            {"cleanup.policy": "delete"},
        ),
        ({}, (SUBTRACT, "cleanup.policy", "delete"), {"cleanup.policy": ""}),
    ],
)
def test_incremental_changes(
    current: dict[str, str], operation: tuple[int, str, str | None], result: dict[str, str]
) -> None:
    before = dict(current)
    assert merged(current, [operation], TOPIC_OPTIONS.get) == result
    assert current == before


@pytest.mark.parametrize(
    ("operation", "code", "words"),
    [
        (
            (APPEND, "retention.ms", "1"),
            ErrorCode.INVALID_CONFIG,
            "Config value append is not allowed for config key: retention.ms",
        ),
        ((SUBTRACT, "retention.ms", "1"), ErrorCode.INVALID_CONFIG, "subtract is not allowed"),
        ((APPEND, "nope", "1"), ErrorCode.INVALID_CONFIG, "Unknown config name: nope"),
        ((9, "retention.ms", "1"), ErrorCode.INVALID_REQUEST, "Unknown operations type 9"),
    ],
)
def test_invalid_incremental_changes_are_rejected(
    operation: tuple[int, str, str | None], code: ErrorCode, words: str
) -> None:
    with pytest.raises(BrokerError, match=words) as caught:
        merged({}, [operation], TOPIC_OPTIONS.get)
    assert caught.value.code is code


def test_throttle_rates_have_rows_although_no_file_may_set_them() -> None:
    row = option_of("leader.replication.throttled.rate")
    assert row is not None
    assert not row.effective
    assert option_of("message.max.bytes") is not None
    assert option_of("nope") is None
