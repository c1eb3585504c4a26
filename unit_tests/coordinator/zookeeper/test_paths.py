"""Tests that every path is built as Kafka's tools expect it, and parsed again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.paths import ConfigEntity, OffsetKey
from pybroker.model import TopicPartition

ORDERS_3 = TopicPartition("orders", 3)


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        (paths.broker(7), "/brokers/ids/7"),
        (paths.topic("orders"), "/brokers/topics/orders"),
        (paths.partitions("orders"), "/brokers/topics/orders/partitions"),
        (paths.partition(ORDERS_3), "/brokers/topics/orders/partitions/3"),
        (paths.partition_state(ORDERS_3), "/brokers/topics/orders/partitions/3/state"),
        (paths.delete_topic("orders"), "/admin/delete_topics/orders"),
        (paths.config_root("topics"), "/config/topics"),
        (paths.topic_config("orders"), "/config/topics/orders"),
        (paths.broker_config(7), "/config/brokers/7"),
        (paths.broker_config(None), "/config/brokers/<default>"),
        (paths.CONFIG_CHANGE_PREFIX, "/config/changes/config_change_"),
        (paths.ISR_CHANGE_PREFIX, "/isr_change_notification/isr_change_"),
        (paths.group_member("g", "g_host-1"), "/consumers/g/ids/g_host-1"),
        (paths.group_owner("g", ORDERS_3), "/consumers/g/owners/orders/3"),
        (paths.offset("g", ORDERS_3), "/consumers/g/offsets/orders/3"),
        (paths.offset("..", ORDERS_3), "/consumers/%2E%2E/offsets/orders/3"),
        (paths.incarnation(7), "/pybroker/incarnations/7"),
        (paths.coordinator(49), "/pybroker/coordinators/49"),
        (paths.acl("Topic", "orders"), "/kafka-acl/Topic/orders"),
        (paths.acl("Topic", "o", prefixed=True), "/kafka-acl-extended/prefixed/Topic/o"),
        (
            paths.config(ConfigEntity((("users", "al/ice"), ("clients", "app 1")))),
            "/config/users/al%2Fice/clients/app%201",
        ),
    ],
)
def test_paths_are_those_of_kafka(built: str, expected: str) -> None:
    assert built == expected


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("plain-Name_1.x", "plain-Name_1.x"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("...", "..."),
        ("a b", "a%20b"),
        ("a+b*c~d", "a%2Bb%2Ac%7Ed"),
        ("CN=user,OU=x/y", "CN%3Duser%2COU%3Dx%2Fy"),
        ("grün", "gr%C3%BCn"),
    ],
)
def test_names_are_encoded_as_kafka_does(name: str, encoded: str) -> None:
    assert paths.encode_name(name) == encoded
    assert paths.decode_name(encoded) == name


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_any_name_survives_and_stays_one_component(name: str) -> None:
    encoded = paths.encode_name(name)
    assert "/" not in encoded
    assert encoded not in (".", "..")
    assert encoded.isascii()
    assert paths.decode_name(encoded) == name


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.integers(0, 2**31 - 1))
def test_parsing_reverses_building(name: str, number: int) -> None:
    key = TopicPartition(name, number)
    assert paths.parse_broker(paths.broker(number)) == number
    assert paths.parse_coordinator(paths.coordinator(number)) == number
    assert paths.parse_topic(paths.topic(name)) == name
    assert paths.parse_delete_topic(paths.delete_topic(name)) == name
    assert paths.parse_partition_state(paths.partition_state(key)) == key
    assert paths.parse_offset(paths.offset(name, key)) == OffsetKey(name, key)
    for entity in (
        ConfigEntity((("topics", name),)),
        ConfigEntity((("users", name), ("clients", paths.DEFAULT_ENTITY))),
    ):
        assert paths.parse_config(paths.config(entity)) == entity


@pytest.mark.parametrize(
    "path",
    [
        "/brokers/ids",
        "/brokers/ids/",
        "/brokers/ids/x",
        "/brokers/ids/01",
        "/brokers/ids/2147483648",
        "/brokers/ids/1/2",
        "/",
    ],
)
def test_other_paths_are_no_brokers(path: str) -> None:
    assert paths.parse_broker(path) is None


@pytest.mark.parametrize(
    "entity_path",
    ["", "topics", "topics/", "groups/g", "topics/a/b", "clients/c/users/u", "topics/a/clients/c"],
)
def test_other_config_paths_name_no_entity(entity_path: str) -> None:
    assert paths.parse_config_entity_path(entity_path) is None


def test_sequence_number_is_the_last_ten_digits() -> None:
    assert paths.sequence_of("config_change_0000000042") == 42
    assert paths.sequence_of("config_change_42") is None
    assert paths.sequence_of("") is None


def test_all_nodes_have_created_parents() -> None:
    for prefix in (
        paths.CONFIG_CHANGE_PREFIX,
        paths.ISR_CHANGE_PREFIX,
        paths.LOG_DIR_EVENT_PREFIX,
    ):
        assert paths.parent(prefix) in paths.PERSISTENT_PARENTS
    for node in (paths.broker(1), paths.topic("t"), paths.topic_config("t"), paths.incarnation(1)):
        assert paths.parent(node) in paths.PERSISTENT_PARENTS
