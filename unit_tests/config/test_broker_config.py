"""Tests of the broker's options: Kafka's names, defaults and precedence, and an error that lists
all faults."""

from __future__ import annotations

import pytest

from pybroker.config.broker_config import BROKER_OPTIONS, BrokerConfig, small_cluster_properties
from pybroker.config.kafka_options import NOT_IMPLEMENTED, REFUSED
from pybroker.errors import ConfigError

HOUR_MS = 3_600_000


def parse(**properties: str) -> BrokerConfig:
    return BrokerConfig.parse({name.replace("_", "."): text for name, text in properties.items()})


def faults_of(properties: dict[str, str]) -> list[str]:
    try:
        BrokerConfig.parse(properties)
    except ConfigError as error:
        return error.faults
    return []


def test_an_empty_configuration_has_kafkas_defaults() -> None:
    config = BrokerConfig.parse({})
    assert config == BrokerConfig()
    assert config.warnings == ()
    assert config.given == {}
    assert (config.message_max_bytes, config.log_segment_bytes) == (1_048_588, 1_073_741_824)
    assert config.log_directories == ("/tmp/kafka-logs",)
    assert [str(listener) for listener in config.bound_listeners] == ["PLAINTEXT://:9092"]


@pytest.mark.parametrize("name", BROKER_OPTIONS)
def test_each_row_is_named_like_its_attribute_and_takes_its_own_default(name: str) -> None:
    row = BROKER_OPTIONS[name]
    assert row.meaning.endswith(".")
    assert hasattr(BrokerConfig(), row.attribute)
    text = row.format(row.default)
    if text is not None:
        assert row.parse(text) == row.default


def test_values_have_every_row() -> None:
    config = parse(num_partitions="3")
    assert config.values.keys() == BROKER_OPTIONS.keys()
    assert config.values["num.partitions"] == config.num_partitions == 3
    assert config.given == {"num.partitions": "3"}


@pytest.mark.parametrize(
    "name",
    [name for name, row in BROKER_OPTIONS.items() if not row.effective and name not in REFUSED],
)
def test_setting_a_row_without_effect_is_warned_of(name: str) -> None:
    default = BROKER_OPTIONS[name].format(BROKER_OPTIONS[name].default)
    text = "1" if default is None else default
    (warning,) = BrokerConfig.parse({name: text}).warnings
    assert warning == f"options without effect in this broker: {name}"


def test_an_option_has_a_row_or_is_listed_as_not_implemented_never_both() -> None:
    assert not BROKER_OPTIONS.keys() & NOT_IMPLEMENTED
    assert not NOT_IMPLEMENTED & REFUSED.keys()


@pytest.mark.parametrize(
    ("given", "attribute", "value"),
    [
        ({}, "retention_ms", 168 * HOUR_MS),
        ({"log.retention.hours": "1"}, "retention_ms", HOUR_MS),
        ({"log.retention.hours": "1", "log.retention.minutes": "1"}, "retention_ms", 60_000),
        ({"log.retention.minutes": "1", "log.retention.ms": "7"}, "retention_ms", 7),
        ({"log.retention.hours": "-1"}, "retention_ms", -1),
        ({"log.retention.ms": "-5"}, "retention_ms", -1),
        ({"log.roll.hours": "2"}, "roll_ms", 2 * HOUR_MS),
        ({"log.roll.hours": "2", "log.roll.ms": "9"}, "roll_ms", 9),
        ({"log.roll.jitter.hours": "2"}, "roll_jitter_ms", 2 * HOUR_MS),
        ({"log.roll.jitter.hours": "2", "log.roll.jitter.ms": "0"}, "roll_jitter_ms", 0),
        ({"log.flush.scheduler.interval.ms": "5"}, "flush_ms", 5),
        (
            {"log.flush.interval.ms": "6", "log.flush.scheduler.interval.ms": "5"},
            "flush_ms",
            6,
        ),
        ({"zookeeper.session.timeout.ms": "4000"}, "zookeeper_wait_ms", 4000),
        ({"zookeeper.connection.timeout.ms": "1"}, "zookeeper_wait_ms", 1),
        ({"log.dir": "/a"}, "log_directories", ("/a",)),
        ({"log.dir": "/a", "log.dirs": "/b, /c"}, "log_directories", ("/b", "/c")),
        (
            {"max.connections.per.ip.overrides": "127.0.0.1:5, ::1:6"},
            "connections_per_ip_overrides",
            {"127.0.0.1": 5, "::1": 6},
        ),
        (
            {"max.connections.per.ip.overrides": "[2001:DB8:0:0::1]:5, ::ffff:10.0.0.7:6"},
            "connections_per_ip_overrides",
            {"2001:db8::1": 5, "10.0.0.7": 6},
        ),
    ],
)
def test_options_of_one_meaning_have_kafkas_precedence(
    given: dict[str, str], attribute: str, value: object
) -> None:
    assert getattr(BrokerConfig.parse(given), attribute) == value


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"broker.id": "1001"}, "reserved.broker.max.id=1000"),
        ({"broker.id": "-2"}, "broker.id=-2"),
        ({"broker.id.generation.enable": "false"}, "broker.id=-1: expected an integer from 0"),
        ({"zookeeper.connect": ""}, "zookeeper.connect="),
        ({"zookeeper.connect": "h:1,,k:2"}, "HOST:PORT,HOST:PORT/chroot"),
        ({"zookeeper.connect": "h:1/"}, "HOST:PORT,HOST:PORT/chroot"),
        ({"zookeeper.connect": "h:1/a//b"}, "HOST:PORT,HOST:PORT/chroot"),
        ({"log.dirs": ""}, "at least one directory"),
        ({"log.dirs": "/a,/b,/a"}, ": /a is named twice"),
        ({"log.retention.ms": "0"}, "log.retention.ms=0"),
        ({"log.retention.minutes": "0"}, "log.retention.minutes=0"),
        (
            {
                "log.cleaner.min.compaction.lag.ms": "2",
                "log.cleaner.max.compaction.lag.ms": "1",
            },
            "log.cleaner.min.compaction.lag.ms=2",
        ),
        ({"max.connections.per.ip": "0"}, "max.connections.per.ip=0"),
        ({"max.connections.per.ip.overrides": "10.0.0.7"}, "ADDRESS:COUNT"),
        ({"max.connections.per.ip.overrides": "name:5"}, "not an IP address"),
        ({"pybroker.log.levels": "kazoo"}, "kazoo: expected LOGGER=LEVEL"),
        ({"pybroker.log.levels": "7=INFO"}, "7=INFO: expected LOGGER=LEVEL"),
        ({"pybroker.log.levels": "kazoo=LOUD"}, "kazoo=LOUD: 'LOUD' is not a log level"),
        ({"pybroker.http.listener": "h"}, "pybroker.http.listener=h: expected HOST:PORT"),
        (
            {
                "inter.broker.listener.name": "PLAINTEXT",
                "security.inter.broker.protocol": "PLAINTEXT",
            },
            "expected only one of the two",
        ),
        ({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}, "no authorizer"),
        ({"process.roles": "broker"}, "process.roles=broker"),
        ({"port": "9093"}, "use listeners="),
        ({"log.segmnet.bytes": "1"}, "did you mean log.segment.bytes?"),
        ({"pybroker.nonsense": "1"}, "pybroker.nonsense: no such option"),
        ({"listeners": "SSL://:9093"}, "SSL"),
    ],
)
def test_an_option_that_cannot_work_is_one_fault(given: dict[str, str], fault: str) -> None:
    faults = faults_of(given)
    assert len(faults) == 1
    assert fault in faults[0]


@pytest.mark.parametrize(
    "text",
    ["h:2181", "h", "a:1,b:2,[::1]:3", "h:2181/chroot", "h:2181,k:2181/a/b"],
)
def test_connect_strings_of_zookeeper(text: str) -> None:
    assert BrokerConfig.parse({"zookeeper.connect": text}).zookeeper_connect == text


def test_every_fault_is_listed_at_once() -> None:
    faults = faults_of(
        {
            "log.segment.bytes": "abc",
            "auto.create.topics.enable": "yes",
            "log.retention.ms": "0",
            "num.partions": "2",
            "listeners": "PLAINTEXT://h",
        }
    )
    assert "log.segment.bytes=abc: expected an integer from 14 to 2147483647" in faults
    assert len(faults) == 5


def test_options_without_effect_are_named_in_one_warning() -> None:
    config = BrokerConfig.parse(
        {
            "num.io.threads": "8",
            "confluent.license.topic.replication.factor": "1",
            "my.own": "x",
            "authorizer.class.name": "",
        }
    )
    (warning,) = config.warnings
    assert warning.endswith(": confluent.license.topic.replication.factor, my.own, num.io.threads")


def test_an_option_with_a_plugin_prefix_never_counts_as_misspelled() -> None:
    assert not faults_of({"listener.name.external.ssl.keystore.location": "x"})


@pytest.mark.parametrize(
    ("brokers", "replicas", "in_sync"), [(1, "1", "1"), (2, "2", "2"), (5, "3", "2")]
)
def test_small_cluster_defaults_need_no_more_brokers_than_started(
    brokers: int, replicas: str, in_sync: str
) -> None:
    properties = small_cluster_properties(brokers)
    config = BrokerConfig.parse(properties)
    assert config.offsets_topic_replication_factor == int(replicas)
    assert config.transaction_state_log_min_isr == int(in_sync)
    assert config.group_initial_rebalance_delay_ms == 0
    assert config.default_replication_factor == int(replicas)
    assert config.min_insync_replicas == (2 if brokers > 2 else 1)


def test_only_a_configured_port_of_the_embedded_zookeeper_is_mandatory() -> None:
    default = BrokerConfig.parse({})
    assert default.pybroker_embedded_zookeeper_port == 2181
    assert default.embedded_zookeeper_may_move
    asked = BrokerConfig.parse({"pybroker.embedded.zookeeper.port": "2181"})
    assert not asked.embedded_zookeeper_may_move
