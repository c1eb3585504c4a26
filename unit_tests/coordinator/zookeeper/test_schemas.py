"""Tests that nodes are written as every Kafka with ZooKeeper reads them, and all their versions
are read."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.coordinator.zookeeper import schemas
from pybroker.coordinator.zookeeper.schemas import (
    ConsumerRegistration,
    ProducerIdBlock,
    TopicAssignment,
)
from pybroker.errors import MalformedNode
from pybroker.model import Endpoint, PartitionState, TopicPartition

PATH = "/some/node"
TOPIC_ID = uuid.UUID("01020304-0506-0708-090a-0b0c0d0e0f10")
TOPIC_ID_TEXT = "AQIDBAUGBwgJCgsMDQ4PEA"
PLAIN = Endpoint("PLAINTEXT", "h1", 9092)
SECURE = Endpoint("CLIENTS", "::1", 9093, "SSL")

DECODERS: list[Callable[[str, bytes], object]] = [
    schemas.decode_broker,
    schemas.decode_topic,
    schemas.decode_state,
    schemas.decode_partitions,
    schemas.decode_reassignment,
    schemas.decode_controller,
    schemas.decode_number,
    schemas.decode_config,
    schemas.decode_config_change,
    schemas.decode_cluster_id,
    schemas.decode_producer_id_block,
    schemas.decode_log_dir_event,
    schemas.decode_consumer,
]


def content(data: bytes) -> object:
    return json.loads(data)


def test_broker_is_written_as_version_4() -> None:
    data = schemas.encode_broker((PLAIN, SECURE), "r1", 1_700_000_000_000)
    assert content(data) == {
        "version": 4,
        "host": "h1",
        "port": 9092,
        "jmx_port": -1,
        "timestamp": "1700000000000",
        "endpoints": ["PLAINTEXT://h1:9092", "CLIENTS://[::1]:9093"],
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT", "CLIENTS": "SSL"},
        "rack": "r1",
    }
    assert b" " not in data
    assert schemas.decode_broker(PATH, data) == ((PLAIN, SECURE), "r1")


def test_broker_without_plaintext_has_no_host_at_the_top() -> None:
    written = content(schemas.encode_broker((SECURE,), None, 0))
    assert isinstance(written, dict)
    assert (written["host"], written["port"], "rack" in written) == (None, -1, False)


@pytest.mark.parametrize(
    ("text", "endpoints"),
    [
        ('{"version":1,"host":"h1","port":9092,"jmx_port":-1,"timestamp":"1"}', (PLAIN,)),
        (
            '{"version":2,"host":null,"port":-1,"endpoints":["SSL://h2:9"],"timestamp":"1"}',
            (Endpoint("SSL", "h2", 9, "SSL"),),
        ),
        (
            '{"version":5,"endpoints":["A://h:1"],"listener_security_protocol_map":{"A":"SSL"},'
            '"features":{}}',
            (Endpoint("A", "h", 1, "SSL"),),
        ),
    ],
)
def test_older_and_newer_brokers_are_read(text: str, endpoints: tuple[Endpoint, ...]) -> None:
    assert schemas.decode_broker(PATH, text.encode()) == (endpoints, None)


def test_topic_is_written_as_version_3_with_its_id() -> None:
    assignment = TopicAssignment({0: (1, 2), 1: (2, 1)}, TOPIC_ID, adding={1: (3,)})
    data = schemas.encode_topic(assignment)
    assert content(data) == {
        "version": 3,
        "partitions": {"0": [1, 2], "1": [2, 1]},
        "adding_replicas": {"1": [3]},
        "removing_replicas": {},
        "topic_id": TOPIC_ID_TEXT,
    }
    assert schemas.decode_topic(PATH, data) == assignment


def test_topics_of_all_versions_are_read_and_unknown_keys_kept() -> None:
    first = b'{"version":1,"partitions":{"0":[1]}}'
    assert schemas.decode_topic(PATH, first) == TopicAssignment({0: (1,)})
    later = b'{"version":9,"partitions":{"0":[1]},"novelty":{"x":[1.5]}}'
    kept = schemas.decode_topic(PATH, later)
    assert kept.unknown == {"novelty": {"x": [1.5]}}
    rewritten = content(schemas.encode_topic(kept))
    assert isinstance(rewritten, dict)
    assert rewritten["novelty"] == {"x": [1.5]}
    assert rewritten["version"] == 2


def test_state_has_eligible_only_if_a_replica_is_eligible() -> None:
    state = PartitionState(leader=1, leader_epoch=5, isr=(1, 2), controller_epoch=3)
    data = schemas.encode_state(state)
    assert content(data) == {
        "controller_epoch": 3,
        "leader": 1,
        "version": 1,
        "leader_epoch": 5,
        "isr": [1, 2],
    }
    assert schemas.decode_state(PATH, data) == state
    waiting = PartitionState(-1, 6, (2,), 3, eligible=(1, 4))
    assert schemas.decode_state(PATH, schemas.encode_state(waiting)) == waiting


def test_unknown_keys_of_a_state_survive_and_old_eligible_does_not() -> None:
    previous = b'{"controller_epoch":1,"isr":[1],"eligible":[4],"leader_recovery_state":1}'
    state = PartitionState(1, 2, (1,), 3)
    rewritten = content(schemas.encode_state(state, previous))
    assert isinstance(rewritten, dict)
    assert rewritten["leader_recovery_state"] == 1
    assert "eligible" not in rewritten


def test_malformed_previous_state_is_replaced() -> None:
    state = PartitionState(1, 2, (1,), 3)
    assert schemas.encode_state(state, b"{torn") == schemas.encode_state(state)


def test_controller_is_read_in_all_its_forms() -> None:
    data = schemas.encode_controller(7, 1)
    assert content(data) == {"version": 1, "brokerid": 7, "timestamp": "1"}
    newer = b'{"version":2,"brokerid":7,"timestamp":"1","kraftControllerEpoch":-1}'
    assert [schemas.decode_controller(PATH, text) for text in (data, newer, b"7")] == [7, 7, 7]


def test_config_change_is_written_as_version_2_and_read_in_all_forms() -> None:
    data = schemas.encode_config_change("users/alice/clients/app1")
    assert content(data) == {"version": 2, "entity_path": "users/alice/clients/app1"}
    assert schemas.decode_config_change(PATH, data) == "users/alice/clients/app1"
    first = b'{"version":1,"entity_type":"topics","entity_name":"orders"}'
    assert schemas.decode_config_change(PATH, first) == "topics/orders"
    assert schemas.decode_config_change(PATH, b'"orders"') == "topics/orders"


def test_config_is_version_1_and_may_be_empty() -> None:
    data = schemas.encode_config({"retention.ms": "60000", "x": "ü"})
    assert data == '{"version":1,"config":{"retention.ms":"60000","x":"ü"}}'.encode()
    assert schemas.decode_config(PATH, data) == {"retention.ms": "60000", "x": "ü"}
    assert schemas.decode_config(PATH, b"") == {}


def test_other_nodes_round_trip() -> None:
    keys = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
    assert schemas.decode_partitions(PATH, schemas.encode_partitions(keys)) == keys
    moves = {keys[0]: (3, 4)}
    assert schemas.decode_reassignment(PATH, schemas.encode_reassignment(moves)) == moves
    block = ProducerIdBlock(1, 2**40, 2**40 + 999)
    written = schemas.encode_producer_id_block(block)
    assert content(written) == {
        "version": 1,
        "broker": 1,
        "block_start": str(2**40),
        "block_end": str(2**40 + 999),
    }
    assert schemas.decode_producer_id_block(PATH, written) == block
    assert schemas.decode_producer_id_block(PATH, b"") is None
    for event in schemas.LogDirEvent:
        encoded = schemas.encode_log_dir_event(2, event)
        assert content(encoded) == {"version": 1, "broker": 2, "event": int(event)}
        assert schemas.decode_log_dir_event(PATH, encoded) == (2, event)
    assert schemas.decode_number(PATH, schemas.encode_number(42)) == 42
    consumer = ConsumerRegistration({"orders": 2}, "static", 1_700_000_000_000)
    assert schemas.decode_consumer(PATH, schemas.encode_consumer(consumer)) == consumer
    cluster = schemas.encode_cluster_id(TOPIC_ID_TEXT)
    assert cluster == f'{{"version":"1","id":"{TOPIC_ID_TEXT}"}}'.encode()
    assert schemas.decode_cluster_id(PATH, cluster) == TOPIC_ID_TEXT


@pytest.mark.parametrize(
    ("decode", "data", "said"),
    [
        (schemas.decode_state, b"", "expected JSON, found b''"),
        (schemas.decode_state, b"[]", "expected a JSON object"),
        (schemas.decode_config, b'{"version":1,"config":{"a":"\\ud800"}}', "expected JSON"),
        (schemas.decode_config, b'{"version":1,"config":{"a":"\xed\xa0\x80"}}', "expected JSON"),
        (schemas.decode_config, b"[" * 100_000, "expected JSON"),
        (schemas.decode_state, b'{"leader":true}', "32 bits at leader, found True"),
        (schemas.decode_state, b'{"leader":2147483648}', "32 bits at leader, found 2147483648"),
        (schemas.decode_state, b'{"leader":1.0}', "32 bits at leader, found 1.0"),
        (
            schemas.decode_state,
            b'{"leader":1,"leader_epoch":1,"isr":5}',
            "expected a list at isr, found 5",
        ),
        (schemas.decode_topic, b'{"partitions":{"x":[1]}}', "numbers as keys of partitions"),
        (
            schemas.decode_topic,
            b'{"partitions":{"2147483648":[1]}}',
            "numbers as keys of partitions",
        ),
        (schemas.decode_topic, b'{"partitions":{"%s":[1]}}' % (b"9" * 5000), "numbers as keys"),
        (schemas.decode_topic, b'{"partitions":{"0":["1"]}}', "at partitions.0, found '1'"),
        (schemas.decode_topic, b'{"partitions":{"0":[]}}', "replicas at partitions.0"),
        (schemas.decode_topic, b'{"partitions":{"0":[1,1]}}', "replicas at partitions.0"),
        (schemas.decode_topic, b'{"partitions":{},"topic_id":"short"}', "UUID of 22 characters"),
        (schemas.decode_broker, b'{"version":4,"endpoints":["h:1"]}', "LISTENER://host:port"),
        (
            schemas.decode_broker,
            b'{"version":4,"endpoints":["A://h:%s"]}' % (b"9" * 5000),
            "LISTENER://host:port",
        ),
        (
            schemas.decode_broker,
            b'{"version":4,"endpoints":["A://h:1"],"listener_security_protocol_map":{"A":"B"}}',
            "one of the security protocols PLAINTEXT, SSL",
        ),
        (
            schemas.decode_broker,
            b'{"version":4,"endpoints":["SSL://h:1"],"rack":"%s"}' % (b"r" * 2**15),
            "at most 32767 bytes",
        ),
        (schemas.decode_cluster_id, b'{"version":"1"}', "a string at id, found 'nothing'"),
        (schemas.decode_number, b"x", "a decimal number, found b'x'"),
        (schemas.decode_number, b"1_0", "a decimal number, found b'1_0'"),
        (schemas.decode_number, b"9223372036854775808", "a decimal number, found"),
        (schemas.decode_number, b"-9223372036854775809", "a decimal number, found"),
    ],
)
def test_malformed_node_is_named_with_what_was_expected(
    decode: Callable[[str, bytes], object], data: bytes, said: str
) -> None:
    with pytest.raises(MalformedNode) as failed:
        decode(PATH, data)
    assert PATH in str(failed.value)
    assert said in str(failed.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
KEYS = [
    "version",
    "partitions",
    "topic",
    "partition",
    "replicas",
    "leader",
    "isr",
    "config",
    "entity_path",
    "brokerid",
    "endpoints",
    "host",
    "port",
    "topic_id",
    "adding_replicas",
    "subscription",
    "pattern",
    "timestamp",
    "block_start",
    "id",
]


@given(
    st.binary(max_size=40)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(st.sampled_from(KEYS), JSON).map(lambda value: json.dumps(value).encode())
)
def test_any_bytes_give_a_value_or_malformed_node(data: bytes) -> None:
    for decode in DECODERS:
        try:
            decode(PATH, data)
        except MalformedNode as error:
            assert PATH in str(error)
