"""Tests that real clients transfer records through our broker unchanged, and read each other's
records.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pytest

from integration_tests.broker import Broker
from integration_tests.conftest import or_skip
from integration_tests.outside_clients import JavaClient, KafkaJs, Kcat
from integration_tests.python_clients import AioKafka, ConfluentKafka, KafkaPython, Pybroker
from integration_tests.samples import CODECS, KafkaClient, Read, Sample, as_read
from integration_tests.stored import batches

# The timestamps of the samples lie years back.
BROKER_OVERRIDES: Final = {"log.retention.ms": "-1"}

READERS: Final[dict[str, Callable[[str], KafkaClient]]] = {
    "confluent-kafka": ConfluentKafka,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
    "pybroker": Pybroker,
    "kcat": Kcat,
    "java": JavaClient,
}
CODECS_OF_KAFKAJS: Final = ("none", "gzip", "snappy")


class Clients:
    """The clients of a module, each created at its first use: one JVM serves many cases."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._made: dict[str, KafkaClient] = {}
        self._kafkajs: list[KafkaJs] = []

    def __getitem__(self, name: str) -> KafkaClient:
        if name not in self._made:
            self._made[name] = or_skip(lambda: READERS[name](self._bootstrap))
        return self._made[name]

    @property
    def kafkajs(self) -> KafkaJs:
        if not self._kafkajs:
            self._kafkajs.append(or_skip(lambda: KafkaJs(self._bootstrap)))
        return self._kafkajs[0]

    def close(self) -> None:
        for client in [*self._made.values(), *self._kafkajs]:
            if isinstance(client, JavaClient | KafkaJs):
                client.close()


@pytest.fixture(scope="module")
def clients(shared_broker: Broker) -> Iterator[Clients]:
    with contextlib.closing(Clients(shared_broker.bootstrap)) as made:
        yield made


def assert_reads_back(client: KafkaClient, topic: str, written: Sequence[Sample]) -> None:
    read = client.read(topic)
    assert read == expected_by(client, written)


def expected_by(
    client: KafkaClient, written: Sequence[Sample], first_offset: int = 0
) -> list[Read]:
    """Return the records as the client reads them. kcat prints headers as C strings, and a null
    value as a word; all other clients return the original values.
    """
    expected = as_read(written)
    if client.name != "kcat":
        return expected
    return [
        dataclasses.replace(r, headers=tuple((name, _as_c_string(v)) for name, v in r.headers))
        for r in expected
    ]


def _as_c_string(value: bytes | None) -> bytes:
    return b"NULL" if value is None else value.partition(b"\x00")[0]


def assert_stored_with(broker: Broker, topic: str, codec: str, *, idempotent: bool) -> None:
    stored = list(batches(broker.data, topic))
    codecs = {CODECS[batch.codec] for batch in stored}
    # librdkafka does not compress a batch that would only grow: a short one, if the machine is
    # slow.
    assert codec in codecs and codecs <= {codec, "none"}
    assert {batch.has_producer for batch in stored} == {idempotent}


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", READERS)
def test_client_reads_back_what_it_wrote(
    broker: Broker, clients: Clients, topic: str, name: str, codec: str, idempotent: bool
) -> None:
    client = clients[name]
    client.create_topic(topic)
    client.produce(topic, client.samples, codec=codec, idempotent=idempotent)
    assert_reads_back(client, topic, client.samples)
    assert client.read(topic, 3) == expected_by(client, client.samples)[3:]
    assert_stored_with(broker, topic, codec, idempotent=idempotent)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", READERS)
def test_client_finds_offsets_by_timestamp(
    clients: Clients, topic: str, name: str, codec: str
) -> None:
    client, written = clients[name], clients["confluent-kafka"].samples
    clients["confluent-kafka"].create_topic(topic)
    clients["confluent-kafka"].produce(topic, written, codec=codec, idempotent=False)
    found = [client.offset_for_time(topic, sample.timestamp) for sample in written]
    assert found == list(range(len(written)))
    assert client.offset_for_time(topic, written[4].timestamp - 1) == 4
    assert client.offset_for_time(topic, 0) == 0
    assert client.offset_for_time(topic, written[-1].timestamp + 1) == -1
    read = client.read(topic)
    assert [record.timestamp for record in read] == [sample.timestamp for sample in written]


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS_OF_KAFKAJS)
def test_other_clients_read_records_of_kafkajs(
    broker: Broker, clients: Clients, topic: str, codec: str, idempotent: bool
) -> None:
    kafkajs = clients.kafkajs
    kafkajs.create_topic(topic)
    kafkajs.produce(topic, kafkajs.samples, codec=codec, idempotent=idempotent)
    assert_reads_back(clients["confluent-kafka"], topic, kafkajs.samples)
    assert_reads_back(clients["kafka-python"], topic, kafkajs.samples)
    assert_stored_with(broker, topic, codec, idempotent=idempotent)


@pytest.mark.parametrize("writer", READERS)
def test_every_client_reads_the_records_of_one_client_in_every_codec(
    clients: Clients, topic: str, writer: str
) -> None:
    client = clients[writer]
    client.create_topic(topic)
    for codec in CODECS:
        client.produce(topic, client.samples, codec=codec, idempotent=True)
    written = list(client.samples) * len(CODECS)
    for reader in READERS:
        assert_reads_back(clients[reader], topic, written)
