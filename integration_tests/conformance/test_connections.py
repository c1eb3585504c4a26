"""Tests of connections that end early, or that do not use Kafka's client protocol."""

from __future__ import annotations

import struct
from typing import Final

import pytest

from integration_tests.broker import Broker
from integration_tests.wire_client import (
    Connection,
    ConnectionClosed,
    batch_of,
    create_topic,
    fetch_one,
    metadata,
    produce,
    produce_request,
)
from pybroker.wire.api import APIS, BETWEEN_BROKERS
from pybroker.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from pybroker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from unit_tests.patience import wait_until

INTER_BROKER_KEYS: Final = {
    "LeaderAndIsr": 4,
    "StopReplica": 5,
    "UpdateMetadata": 6,
    "ControlledShutdown": 7,
    "AlterPartition": 56,
}


def test_requests_sent_before_the_client_closed_its_side_are_answered(broker: Broker) -> None:
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, "half-closed")
        versions = [connection.send(0, ApiVersionsRequest()) for _ in range(3)]
        connection.end_sending()
        for correlation_id in versions:
            connection.receive(0, ApiVersionsResponse, correlation_id)
        with pytest.raises(ConnectionClosed):
            connection.receive_frame()


def test_records_with_acks_0_are_appended_after_the_client_disconnected(
    broker: Broker,
) -> None:
    topic = "sent-and-gone"
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, topic)
        for number in range(20):
            connection.send(7, produce_request(topic, batch_of(b"%d" % number), acks=0))
    with Connection(broker.bootstrap) as connection:
        wait_until(
            lambda: fetch_one(connection, topic, 0).high_watermark == 20,
            what="all records are readable",
        )


def test_a_topic_that_is_named_many_times_is_described_once(broker: Broker) -> None:
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, "named-twice")
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name="named-twice") for _ in range(1000)],
            allow_auto_topic_creation=False,
        )
        answer = connection.ask(8, request, MetadataResponse)
    assert [topic.name for topic in answer.topics] == ["named-twice"]


@pytest.mark.ours
@pytest.mark.parametrize("name", INTER_BROKER_KEYS)
def test_a_client_that_sends_broker_requests_is_disconnected_without_effect(
    broker: Broker, name: str
) -> None:
    """Apache without an authorizer carries out the request."""
    topic = f"not-commanded-{name}"
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, topic)
        before = metadata(connection)
    spoken = {int(key): APIS[key].max_version for key in BETWEEN_BROKERS}
    for version in set(range(9)) - {spoken.get(INTER_BROKER_KEYS[name])}:
        with Connection(broker.bootstrap) as connection:
            connection.send_frame(
                struct.pack(">hhih", INTER_BROKER_KEYS[name], version, 1, -1) + bytes(64)
            )
            assert connection.is_closed_by_broker()
    with Connection(broker.bootstrap) as connection:
        assert metadata(connection) == before
        assert produce(connection, topic, batch_of(b"x")).error_code == 0


@pytest.mark.ours
@pytest.mark.parametrize(
    ("data", "told"),
    [
        (bytes.fromhex("16030100c8010000c40303") + bytes(200), "TLS handshake"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP request"),
    ],
)
def test_the_log_names_the_protocol_of_a_wrong_client(
    broker: Broker, data: bytes, told: str
) -> None:
    with Connection(broker.bootstrap) as connection:
        connection.send_bytes(data)
        assert connection.is_closed_by_broker()
    wait_until(lambda: told in broker.log_text, what="the line in the log")
