"""Tests that a container's variables become Kafka's options, or messages that name the variable."""

from __future__ import annotations

import pytest

from pybroker.config.broker_config import BROKER_OPTIONS, BrokerConfig
from pybroker.config.kafka_options import NOT_IMPLEMENTED
from pybroker.tools.container_environment import (
    DATA_DIRECTORY,
    Settings,
    WantedTopic,
    option_name,
    parse_topics,
    read_settings,
    variable_name,
)

SECRETS = {"/etc/kafka/secrets/creds": "hush\n"}
TESTCONTAINERS = {
    "KAFKA_LISTENERS": "PLAINTEXT://0.0.0.0:9093,BROKER://0.0.0.0:9092",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
    "KAFKA_BROKER_ID": "1",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
    "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": "9223372036854775807",
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "KAFKA_ZOOKEEPER_CONNECT": "localhost:2181",
    "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://localhost:32768,BROKER://172.17.0.2:9092",
}


def secret(path: str) -> str:
    if path not in SECRETS:
        raise FileNotFoundError(2, "No such file or directory")
    return SECRETS[path]


def read(file: dict[str, str] | None = None, /, **environment: str) -> Settings:
    return read_settings(environment, file, secret)


def set_by(**environment: str) -> dict[str, str]:
    """Return the options that these variables set, without a container's defaults."""
    settings = read(**environment)
    assert settings.faults == ()
    return {option: settings.properties[option] for option in settings.sources}


def config_of(settings: Settings) -> BrokerConfig:
    assert settings.faults == ()
    return BrokerConfig.parse(settings.properties)


# Names


@pytest.mark.parametrize(
    ("variable", "option"),
    [
        ("KAFKA_BROKER_ID", "broker.id"),
        ("KAFKA_CFG_NUM_PARTITIONS", "num.partitions"),
        ("KAFKA_ZOOKEEPER_CONNECT", "zookeeper.connect"),
        ("KAFKA_ZOOKEEPER_CLIENTCNXNSOCKET", "zookeeper.clientCnxnSocket"),
        ("KAFKA_PYBROKER_HTTP_LISTENER", "pybroker.http.listener"),
        ("KAFKA_A__B", "a_b"),
        ("KAFKA_A___B", "a-b"),
        ("KAFKA_A____B", "a-.b"),
        ("KAFKA_LISTENER_NAME_MY___NAME_SASL_ENABLED_MECHANISMS",
         "listener.name.my-name.sasl.enabled.mechanisms"),
    ],
)  # fmt: skip
def test_the_option_of_a_variable(variable: str, option: str) -> None:
    assert option_name(variable) == option


@pytest.mark.parametrize("option", sorted({*BROKER_OPTIONS, *NOT_IMPLEMENTED}))
def test_every_kafka_option_has_a_variable(option: str) -> None:
    assert option_name(variable_name(option)) == option


def test_variable_names_of_other_images_are_accepted() -> None:
    assert set_by(KAFKA_NUM_PARTITIONS="3", KAFKA_CFG_BROKER_ID="7") == {
        "num.partitions": "3",
        "broker.id": "7",
    }


def test_two_variables_of_one_option_must_be_equal() -> None:
    assert set_by(KAFKA_BROKER_ID="1", KAFKA_CFG_BROKER_ID="1") == {"broker.id": "1"}
    (fault,) = read(KAFKA_BROKER_ID="1", KAFKA_CFG_BROKER_ID="2").faults
    assert "KAFKA_BROKER_ID" in fault and "KAFKA_CFG_BROKER_ID" in fault


def test_empty_variable_is_ignored() -> None:
    assert set_by(KAFKA_BROKER_RACK="", KAFKA_PROCESS_ROLES=" ") == {}


# Defaults


def test_without_variables_the_broker_embeds_zookeeper() -> None:
    config = config_of(read(PATH="/bin", HOME="/home/kafka"))
    assert [str(each) for each in config.bound_listeners] == ["PLAINTEXT://0.0.0.0:9092"]
    assert [str(each) for each in config.advertised] == ["PLAINTEXT://localhost:9092"]
    assert config.log_directories == (DATA_DIRECTORY,)
    assert config.zookeeper_connect is None
    assert config.offsets_topic_replication_factor == 1
    assert config.http_address == ("0.0.0.0", 8090)


def test_with_zookeeper_connect_kafkas_defaults_apply() -> None:
    config = config_of(read(KAFKA_ZOOKEEPER_CONNECT="zoo:2181/kafka"))
    assert config.zookeeper_connect == "zoo:2181/kafka"
    assert config.offsets_topic_replication_factor == 3


@pytest.mark.parametrize(
    ("advertised", "listeners"),
    [
        ("PLAINTEXT://kafka:9092", "PLAINTEXT://0.0.0.0:9092"),
        ("A://kafka:29092,B://localhost:9092", "A://0.0.0.0:29092,B://0.0.0.0:9092"),
        ("PLAINTEXT://[::1]:9092", "PLAINTEXT://0.0.0.0:9092"),
        ("PLAINTEXT://:9092", "PLAINTEXT://0.0.0.0:9092"),
    ],
)
def test_listeners_use_the_advertised_ports(advertised: str, listeners: str) -> None:
    settings = read(KAFKA_ADVERTISED_LISTENERS=advertised)
    assert settings.properties["listeners"] == listeners
    assert settings.sources["listeners"] == "KAFKA_ADVERTISED_LISTENERS"


@pytest.mark.parametrize("where", ["variable", "file"])
def test_given_listeners_are_unchanged(where: str) -> None:
    given = "PLAINTEXT://127.0.0.1:1"
    advertised = "PLAINTEXT://kafka:9092"
    if where == "file":
        settings = read({"listeners": given}, KAFKA_ADVERTISED_LISTENERS=advertised)
    else:
        settings = read(KAFKA_LISTENERS=given, KAFKA_ADVERTISED_LISTENERS=advertised)
    assert settings.properties["listeners"] == given
    assert settings.properties["advertised.listeners"] == advertised


def test_the_environment_wins_over_the_mounted_file() -> None:
    file = {"num.partitions": "3", "broker.id": "3", "log.dir": "/from/file"}
    settings = read(file, KAFKA_BROKER_ID="4")
    assert settings.properties["num.partitions"] == "3"
    assert settings.properties["broker.id"] == "4"
    assert "log.dirs" not in settings.properties
    assert "offsets.topic.replication.factor" not in settings.properties


def test_the_variables_of_testcontainers_configure_a_broker() -> None:
    settings = read(**TESTCONTAINERS)
    config = config_of(settings)
    assert (config.broker_id, config.inter_broker_listener) == (1, "BROKER")
    assert [each.port for each in config.bound_listeners] == [9093, 9092]
    assert settings.notices == ()


# Ignored variables


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("KAFKA_HEAP_OPTS", "-Xmx1G"),
        ("KAFKA_OPTS", "-Dx=y"),
        ("KAFKA_JVM_PERFORMANCE_OPTS", "-XX:+UseG1GC"),
        ("KAFKA_JMX_PORT", "9999"),
        ("KAFKA_JMX_OPTS", "-Dcom.sun"),
        ("JMX_PORT", "9999"),
        ("KAFKA_LOG4J_LOGGERS", "kafka=INFO"),
        ("KAFKA_TOOLS_LOG4J_LOGLEVEL", "ERROR"),
        ("CLUSTER_ID", "MkU3OEVBNTcwNTJENDM2Qk"),
        ("KAFKA_PORT", "tcp://10.0.0.1:9092"),
        ("KAFKA_PORT_9092_TCP_ADDR", "10.0.0.1"),
        ("KAFKA_SERVICE_HOST", "10.0.0.1"),
        ("KAFKA_SERVICE_PORT_CLIENTS", "9092"),
    ],
)
def test_variables_of_other_images_are_ignored_with_a_notice(variable: str, value: str) -> None:
    settings = read(**{variable: value})
    assert settings.sources == {}
    (notice,) = settings.notices
    assert notice.startswith(f"{variable} is ignored: ")
    config_of(settings)


@pytest.mark.parametrize("variable", ["ALLOW_PLAINTEXT_LISTENER", "KAFKA_HOME", "SOMETHING_ELSE"])
def test_unrelated_variables_are_ignored_without_a_notice(variable: str) -> None:
    assert read(**{variable: "yes"}) == read()


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("KAFKA_NUM_PARTITION", "; did you mean KAFKA_NUM_PARTITIONS?"),
        ("KAFKA_LOG_RETENTION_HOUR", "; did you mean KAFKA_LOG_RETENTION_HOURS?"),
        ("KAFKA_COMPLETELY_DIFFERENT", ""),
    ],
)
def test_an_unknown_variable_gets_a_notice_with_the_nearest_name(variable: str, hint: str) -> None:
    settings = read(**{variable: "1"})
    (notice,) = settings.notices
    assert notice.startswith(f"{variable} is ignored") and notice.endswith(hint)
    assert bool(hint) == ("did you mean" in notice)
    config_of(settings)


def test_log_level_variable_sets_the_brokers_log_levels() -> None:
    assert set_by(KAFKA_LOG4J_ROOT_LOGLEVEL="warn") == {"pybroker.log.level": "WARN"}


# Faults


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("KAFKA_PROCESS_ROLES", "broker,controller", "remove it"),
        ("KAFKA_NODE_ID", "1", "KAFKA_BROKER_ID"),
        ("KAFKA_CFG_NODE_ID", "1", "KAFKA_BROKER_ID"),
        ("KAFKA_CONTROLLER_QUORUM_VOTERS", "1@localhost:9093", "KAFKA_ZOOKEEPER_CONNECT"),
        ("KAFKA_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS", "c:9093", "KAFKA_ZOOKEEPER_CONNECT"),
        ("KAFKA_CONTROLLER_LISTENER_NAMES", "CONTROLLER", "KAFKA_LISTENERS"),
        ("KAFKA_SSL_KEYSTORE_CREDENTIALS", "missing", "/etc/kafka/secrets/missing"),
        ("KAFKA_CREATE_TOPICS", "a:b:c", "partitions"),
    ],
)
def test_invalid_value_gives_a_fault_with_its_variable(
    variable: str, value: str, says: str
) -> None:
    (fault,) = read(**{variable: value}).faults
    assert fault.startswith(variable) and says in fault and "\n" not in fault


def test_secrets_come_from_the_mounted_files() -> None:
    assert set_by(
        KAFKA_SSL_KEYSTORE_FILENAME="broker.jks", KAFKA_SSL_KEYSTORE_CREDENTIALS="creds"
    ) == {
        "ssl.keystore.location": "/etc/kafka/secrets/broker.jks",
        "ssl.keystore.password": "hush",
    }


def test_a_fault_of_an_option_names_its_variable() -> None:
    settings = read(KAFKA_ADVERTISED_LISTENERS="PLAINTEXT://kafka")
    assert settings.name_source("listeners=x: wrong") == (
        "KAFKA_ADVERTISED_LISTENERS: listeners=x: wrong"
    )
    assert settings.name_source("broker.id=x: wrong") == "broker.id=x: wrong"
    assert settings.name_source("(nothing)") == "(nothing)"


# Topics


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ("", []),
        ("orders:3:1", [WantedTopic("orders", 3, 1)]),
        ("orders", [WantedTopic("orders")]),
        ("a:1:1,b:2:3:compact", [WantedTopic("a", 1, 1), WantedTopic("b", 2, 3, "compact")]),
        (" a:1:1 ,\n b:1:1\n,", [WantedTopic("a", 1, 1), WantedTopic("b", 1, 1)]),
        ("a::2", [WantedTopic("a", -1, 2)]),
        ("a:1:1:compact;delete", [WantedTopic("a", 1, 1, "compact,delete")]),
    ],
)
def test_topics_to_create(text: str, topics: list[WantedTopic]) -> None:
    assert parse_topics(text) == (topics, [])


def test_topics_may_have_another_separator() -> None:
    expected: tuple[list[WantedTopic], list[str]] = (
        [WantedTopic("a", 1, 1), WantedTopic("b", 1, 1)],
        [],
    )
    assert parse_topics("a:1:1|b:1:1", "|") == expected
    assert parse_topics("a:1:1\nb:1:1", "$'\\n'") == expected
    assert parse_topics("a:1:1\nb:1:1", "\n") == expected


@pytest.mark.parametrize(
    "item", ["a:0:1", "a:1:0", "a:1:40000", "a:x:1", "a b:1:1", "..:1:1", ":1:1", "a:1:1:keep",
             "a:1:1:compact:x", "a:99999999999:1"]
)  # fmt: skip
def test_each_malformed_topic_gives_a_fault(item: str) -> None:
    topics, faults = parse_topics(f"good:1:1,{item}")
    assert topics == [WantedTopic("good", 1, 1)]
    assert len(faults) == 1
    assert faults[0].startswith(f"KAFKA_CREATE_TOPICS: {item}: ")


def test_topic_listed_twice_is_a_fault() -> None:
    assert parse_topics("a:1:1,a:2:1")[1] == [
        "KAFKA_CREATE_TOPICS: a:2:1: the topic is listed twice"
    ]
