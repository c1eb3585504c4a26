"""Tests of the messages about a broker that the client cannot reach at the address that the broker
advertises. Such a client has the metadata of the cluster, because another broker is reachable."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pybroker.client import Consumer, DeliveryFailed, Producer
from pybroker.client.errors import ClientError
from pybroker.model import TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from pybroker.wire.schema import Message
from unit_tests.client.fake_broker import FakeBroker
from unit_tests.patience import PATIENCE_S

QUICK: dict[str, Any] = {
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 5,
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 5,
}
PLACE = TopicPartition("t", 0)


@contextlib.asynccontextmanager
async def web_server() -> AsyncIterator[int]:
    """A server that answers as a web server does. Gives its port."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def leader_at(broker: FakeBroker, host: str, port: int) -> Any:
    """Return metadata in which broker 2 leads the only partition and has this address."""

    def answer(_: Message) -> Message:
        partition = MetadataResponsePartition(
            partition_index=0, leader_id=2, leader_epoch=1, replica_nodes=[2], isr_nodes=[2]
        )
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=1, host="127.0.0.1", port=broker.port),
                MetadataResponseBroker(node_id=2, host=host, port=port),
            ],
            cluster_id="fake",
            controller_id=1,
            topics=[MetadataResponseTopic(name="t", partitions=[partition])],
        )

    return answer


@contextlib.asynccontextmanager
async def wrong_leader(kind: str) -> AsyncIterator[tuple[FakeBroker, str, str]]:
    """A reachable broker, the leader's wrong address, and the reason that the client must name."""
    async with FakeBroker({"t": 1}) as broker, web_server() as web_port:
        host, port, reason = {
            "nothing listens": ("127.0.0.1", 1, "connection refused"),
            "unknown name": (
                "nosuch.invalid",
                9092,
                "the name nosuch.invalid cannot be resolved",
            ),
            "another protocol": ("127.0.0.1", web_port, "connected, but not to a Kafka broker"),
        }[kind]
        broker.handlers[ApiKey.METADATA] = leader_at(broker, host, port)
        where = f"broker 2 at {host}:{port} (from its advertised.listeners)"
        yield broker, where, reason


KINDS = ["nothing listens", "unknown name", "another protocol"]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_undelivered_record_names_the_leaders_address_and_the_option(kind: str) -> None:
    async with wrong_leader(kind) as (broker, where, reason):
        limits: dict[str, Any] = {
            "delivery_timeout_ms": 1_000,
            "request_timeout_ms": 500,
            "linger_ms": 0,
        }
        async with Producer(broker.address, **QUICK, **limits) as producer:
            with pytest.raises(DeliveryFailed) as caught:
                await producer.send_and_wait("t", b"v")
        assert f"{where}: {reason}" in str(caught.value)
        assert caught.value.definite


@pytest.mark.parametrize("kind", KINDS)
async def test_a_lookup_of_offsets_names_the_leaders_address_and_the_option(kind: str) -> None:
    async with wrong_leader(kind) as (broker, where, reason):
        options: dict[str, Any] = {"default_api_timeout_ms": 1_000, "request_timeout_ms": 500}
        async with Consumer(broker.address, **QUICK, **options) as consumer:
            with pytest.raises(ClientError) as caught:
                await consumer.end_offsets([PLACE])
        assert where in str(caught.value)
        assert reason in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_reading_consumer_logs_the_leaders_address_once(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        wrong_leader(kind) as (broker, where, reason),
        Consumer(broker.address, **QUICK) as consumer,
    ):
        consumer.assign([PLACE])
        async with asyncio.timeout(PATIENCE_S):
            while not caplog.messages:
                assert await consumer.getmany(timeout_ms=20) == {}
            assert await consumer.getmany(timeout_ms=100) == {}
    (line,) = [line for line in caplog.messages if line.startswith("connect failed")]
    assert f"address={where} reason={reason}" in line
