"""Tests of a topic's options: values inherited from the broker, values of the topic, and invalid
values."""

from __future__ import annotations

import pytest

from pybroker.config.broker_config import BROKER_OPTIONS, BrokerConfig
from pybroker.config.topic_config import (
    TOPIC_OPTIONS,
    TopicConfig,
    topic_config_faults,
    usable_overrides,
)
from pybroker.errors import ConfigError

BROKER = BrokerConfig()


@pytest.mark.parametrize("name", TOPIC_OPTIONS)
def test_each_row_inherits_from_options_that_exist(name: str) -> None:
    row = TOPIC_OPTIONS[name]
    assert row.meaning.endswith(".")
    assert set(row.inherits) <= BROKER_OPTIONS.keys()
    assert (row.inherited is None) == (len(row.inherits) < 2)
    assert row.inherited_attribute is None or hasattr(BROKER, row.inherited_attribute)


def test_without_overrides_on_a_default_broker_all_is_kafkas_default() -> None:
    assert TopicConfig.parse(BROKER, {}) == TopicConfig()


@pytest.mark.parametrize(
    ("broker", "attribute", "value"),
    [
        ({"log.segment.bytes": "100"}, "segment_bytes", 100),
        ({"log.retention.minutes": "1"}, "retention_ms", 60_000),
        ({"log.roll.hours": "1"}, "segment_ms", 3_600_000),
        ({"log.roll.jitter.ms": "3"}, "segment_jitter_ms", 3),
        ({"message.max.bytes": "5"}, "max_message_bytes", 5),
        ({"log.cleanup.policy": "compact"}, "cleanup_policy", ("compact",)),
        ({"log.flush.scheduler.interval.ms": "8"}, "flush_ms", 8),
    ],
)
def test_the_broker_gives_the_default_and_the_topic_overrides_it(
    broker: dict[str, str], attribute: str, value: object
) -> None:
    config = TopicConfig.parse(BrokerConfig.parse(broker), {})
    assert getattr(config, attribute) == value
    name = attribute.replace("_", ".")
    text = TOPIC_OPTIONS[name].format(TOPIC_OPTIONS[name].default)
    assert text is not None
    overridden = TopicConfig.parse(BrokerConfig.parse(broker), {name: text})
    assert getattr(overridden, attribute) == TOPIC_OPTIONS[name].default
    assert overridden.overrides == {name: text}


@pytest.mark.parametrize(
    ("overrides", "before", "after"),
    [
        ({}, (1 << 63) - 1, (1 << 63) - 1),
        ({"message.timestamp.difference.max.ms": "5"}, 5, 5),
        (
            {
                "message.timestamp.difference.max.ms": "5",
                "message.timestamp.after.max.ms": "7",
            },
            5,
            7,
        ),
        ({"message.timestamp.before.max.ms": "6"}, 6, (1 << 63) - 1),
    ],
)
def test_the_newer_timestamp_options_override_the_older_one(
    overrides: dict[str, str], before: int, after: int
) -> None:
    config = TopicConfig.parse(BROKER, overrides)
    assert (config.timestamp_before_max_ms, config.timestamp_after_max_ms) == (before, after)


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("segment.bytes", "x", "segment.bytes=x: expected an integer from 14 to 2147483647"),
        ("cleanup.policy", "compact,keep", "a list of compact, delete"),
        ("compression.type", "GZIP", "one of uncompressed"),
        ("min.cleanable.dirty.ratio", "2", "a number from 0 to 1"),
        ("retention.ms", "-2", "from -1"),
        ("compression.gzip.level", "0", "an integer from -1 to 9, but not 0"),
        ("message.format.version", "new", "a version of Kafka such as 3.0"),
        ("leader.replication.throttled.replicas", "1-2", "PARTITION:BROKER"),
        ("min.compaction.lag.ms", "9223372036854775807", ""),
        ("retention.mss", "1", "did you mean retention.ms?"),
        ("nonsense", "1", "Unknown topic config name: nonsense"),
        ("remote.storage.enable", "true", "tiered storage"),
        ("segment.bytes", None, "the value is missing"),
    ],
)
def test_a_client_gets_the_faults_of_topic_options(name: str, text: str | None, fault: str) -> None:
    faults = topic_config_faults(BROKER, {name: text})
    if fault:
        assert len(faults) == 1
        assert fault in faults[0]
    else:
        assert faults == []


def test_the_two_compaction_lags_must_fit() -> None:
    overrides = {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}
    with pytest.raises(ConfigError, match=r"max\.compaction\.lag\.ms=5"):
        TopicConfig.parse(BROKER, overrides)


def test_overrides_in_zookeeper_are_used_without_invalid_ones() -> None:
    usable, faults = usable_overrides(
        BROKER, {"segment.bytes": "x", "retention.ms": "7", "unknown": "1"}
    )
    assert usable == {"retention.ms": "7"}
    assert len(faults) == 2
    assert TopicConfig.parse(BROKER, usable).retention_ms == 7


def test_texts_read_back_as_the_same_configuration() -> None:
    config = TopicConfig.parse(BROKER, {"cleanup.policy": "compact,delete"})
    assert config.texts["cleanup.policy"] == "compact,delete"
    assert TopicConfig.parse(BROKER, config.texts) == config


@pytest.mark.parametrize(
    ("overrides", "left"),
    [
        ({"max.compaction.lag.ms": "10"}, {}),
        ({"min.compaction.lag.ms": "50"}, {"min.compaction.lag.ms": "50"}),
        (
            {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "10"},
            {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "10"},
        ),
        (
            {"min.compaction.lag.ms": "11", "max.compaction.lag.ms": "10"},
            {},
        ),
    ],
)
def test_a_topics_compaction_lag_that_contradicts_the_brokers_is_ignored(
    overrides: dict[str, str], left: dict[str, str]
) -> None:
    broker = BrokerConfig.parse({"log.cleaner.min.compaction.lag.ms": "100"})
    usable, faults = usable_overrides(broker, overrides)
    assert (usable, bool(faults)) == (left, not left)
    TopicConfig.parse(broker, usable)
