"""Tests of transactions in the log of a real broker: consumers of several clients, our readers,
Apache's DumpLogSegments, restarts and leader changes. Raw requests write the transactions."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import aiokafka
import confluent_kafka
import kafka
import pytest

from integration_tests.conftest import BrokerMaker
from integration_tests.kafka_python import polled
from integration_tests.ranges import make_topic, read
from integration_tests.stored import partition_folder
from integration_tests.test_dump_tool import SUFFIXES, assert_same
from integration_tests.transactions import UNVERIFIED, Transactions
from integration_tests.wire_client import (
    Connection,
    create_topic,
    fetch,
    fetch_request,
    list_offsets_request,
)
from pybroker.client import Consumer
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.spark import snapshot
from pybroker.testing.cluster import Cluster
from pybroker.wire.messages.fetch import PartitionData
from pybroker.wire.messages.list_offsets import ListOffsetsResponse
from pybroker.wire.messages.transaction_admin import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
)
from unit_tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.ours

TOPIC: Final = "orders"
SMALL_SEGMENTS: Final = {"segment.bytes": "4096"}
READ_COMMITTED: Final = 1
LATEST: Final = -1


def stable(connection: Connection) -> PartitionData:
    """Return the partition's part of a read_committed Fetch from offset 0."""
    request = fetch_request(TOPIC, {0: 0}, isolation_level=READ_COMMITTED)
    return fetch(connection, request)[0]


def latest(connection: Connection, isolation_level: int) -> int:
    request = list_offsets_request(TOPIC, LATEST, isolation_level=isolation_level)
    answer = connection.ask(7, request, ListOffsetsResponse)
    (part,) = answer.topics[0].partitions
    assert part.error_code == 0
    return part.offset


def write(connection: Connection) -> Transactions:
    """Write transactions of several producers, interleaved, over several segments. The last one
    stays open."""
    written = Transactions(TOPIC)
    for number in range(40):
        for producer in (1, 2, 0, 3):
            if producer != 3 or number % 4 == 0:
                values = [b"%d:%d:%d" % (number, producer, each) for each in range(3)]
                written.put(connection, producer, *values)
        if number % 2:
            written.end(connection, 1, commit=number % 4 == 1)
        if number % 3 == 2:
            written.end(connection, 2, commit=number % 6 == 2)
        if number % 8 == 7:
            written.end(connection, 3, commit=False)
    for producer in (1, 2, 3):
        written.end(connection, producer, commit=True)
    written.put(connection, 4, b"open")
    written.put(connection, 0, b"after")
    return written


def by_kafka_python(bootstrap: str, isolation: str, count: int) -> list[bytes]:
    with closing(
        kafka.KafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level=isolation, auto_offset_reset="earliest"
        )
    ) as consumer:
        consumer.assign([kafka.TopicPartition(TOPIC, 0)])
        found: list[bytes] = []
        while len(found) < count:
            found += [each.value for rows in polled(consumer).values() for each in rows]
        return found


def by_aiokafka(bootstrap: str, isolation: str, count: int) -> list[bytes]:
    async def consume() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level=isolation, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            consumer.assign([aiokafka.TopicPartition(TOPIC, 0)])
            async with asyncio.timeout(PATIENCE_S):
                return [(await consumer.getone()).value for _ in range(count)]
        finally:
            await consumer.stop()

    return asyncio.run(consume())


def by_confluent(bootstrap: str, isolation: str, count: int) -> list[bytes]:
    options = {
        "bootstrap.servers": bootstrap,
        "group.id": "g",
        "isolation.level": isolation,
        "enable.auto.commit": False,
    }
    with closing(confluent_kafka.Consumer(options)) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
        messages = consumer.consume(count, PATIENCE_S)
        return [message.value() or b"" for message in messages]


def by_our_client(bootstrap: str, isolation: Any, count: int) -> list[bytes]:
    async def consume() -> list[bytes]:
        async with Consumer(
            bootstrap, isolation_level=isolation, auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([TopicPartition(TOPIC, 0)])
            async with asyncio.timeout(PATIENCE_S):
                return [(await consumer.getone()).value or b"" for _ in range(count)]

    return asyncio.run(consume())


READERS: Final[tuple[Callable[[str, str, int], list[bytes]], ...]] = (
    by_kafka_python,
    by_aiokafka,
    by_confluent,
    by_our_client,
)


def test_consumers_of_all_clients_read_the_committed_transactions(new_broker: BrokerMaker) -> None:
    broker = new_broker(overrides=UNVERIFIED)
    broker.start()
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, TOPIC, configs=SMALL_SEGMENTS)
        written = write(connection)
        assert len(written.committed) > 150
        for reader in READERS:
            for isolation, values in (
                ("read_committed", written.committed),
                ("read_uncommitted", written.order),
            ):
                assert reader(broker.bootstrap, isolation, len(values)) == values, reader.__name__
        assert latest(connection, READ_COMMITTED) < latest(connection, 0)
        assert latest(connection, READ_COMMITTED) == stable(connection).last_stable_offset
        before = snapshot.take(broker.bootstrap, topics=[TOPIC], isolation="read_committed")
        (item,) = before.ranges()
        assert item.end == latest(connection, READ_COMMITTED)
        assert [value for _, value in read(broker.bootstrap, item)] == written.committed
        written.end(connection, 4, commit=True)
        assert latest(connection, READ_COMMITTED) == latest(connection, 0)
        assert written.committed[-2:] == [b"open", b"after"]
        values = written.committed
        assert by_our_client(broker.bootstrap, "read_committed", len(values)) == values


def test_apaches_tool_reads_the_index_of_aborted_transactions(
    new_broker: BrokerMaker, tmp_path: Path, jars: str
) -> None:
    assert jars
    broker = new_broker(overrides=UNVERIFIED)
    broker.start()
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, TOPIC, configs=SMALL_SEGMENTS)
        write(connection)
    broker.stop()
    shutil.copytree(partition_folder(broker.data, TOPIC), tmp_path / "copy")
    files = sorted(each for each in (tmp_path / "copy").iterdir() if each.suffix in SUFFIXES)
    indexes = [each for each in files if each.suffix == ".txnindex"]
    assert len(indexes) > 2
    assert sum(each.stat().st_size for each in indexes) // 34 == 21
    printed = assert_same(files, "--deep-iteration")
    assert printed.count("lastStableOffset: ") == 21
    assert "endTxnMarker: ABORT coordinatorEpoch: 0" in printed
    assert "producerId: 4 producerEpoch: 0" in printed
    assert "currentTxnFirstOffset: OptionalLong[" in printed


@pytest.mark.parametrize("way", ["kill", "stop"])
def test_open_transaction_survives_a_restart(new_broker: BrokerMaker, way: str) -> None:
    broker = new_broker(overrides=UNVERIFIED)
    broker.start()
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, TOPIC, configs=SMALL_SEGMENTS)
        written = write(connection)
        before = stable(connection)
    (broker.kill9 if way == "kill" else broker.stop)()
    broker.start()
    with Connection(broker.bootstrap) as connection:
        wait_until(lambda: not stable(connection).error_code, what="the broker leads again")
        after = stable(connection)
        assert after.last_stable_offset == before.last_stable_offset < before.high_watermark
        assert after.aborted_transactions == before.aborted_transactions
        request = DescribeProducersRequest(
            topics=[DescribeProducersTopic(name=TOPIC, partition_indexes=[0])]
        )
        described = connection.ask(0, request, DescribeProducersResponse)
        starts = {
            each.producer_id: each.current_txn_start_offset
            for each in described.topics[0].partitions[0].active_producers
        }
        assert starts == {1: -1, 2: -1, 3: -1, 4: before.last_stable_offset}
        written.end(connection, 4, commit=False)
        values = written.committed
        assert values[-1] == b"after" and b"open" not in values
        assert by_our_client(broker.bootstrap, "read_committed", len(values)) == values


def test_new_leader_continues_the_transactions(tmp_path: Path) -> None:
    with Cluster(data=tmp_path, brokers=3, config=UNVERIFIED) as cluster:
        make_topic(cluster.bootstrap, TOPIC, replicas=3, configs=SMALL_SEGMENTS)
        first = cluster.leader(TOPIC, 0)
        with Connection(cluster.address(first)) as connection:
            # The state node may name the leader before that broker leads.
            wait_until(lambda: stable(connection).error_code == 0, what="the leader serves")
            written = write(connection)
            before = stable(connection)
        cluster.kill(first)
        second = cluster.leader(TOPIC, 0, other_than=first)
        with Connection(cluster.address(second)) as connection:
            wait_until(
                lambda: stable(connection).last_stable_offset == before.last_stable_offset,
                what="the new leader knows the high watermark",
            )
            assert stable(connection).aborted_transactions == before.aborted_transactions
            wait_until(
                lambda: written.try_to_end(connection, 4, commit=True) is ErrorCode.NONE,
                what="the new leader writes the marker",
            )
            assert latest(connection, READ_COMMITTED) == latest(connection, 0)
        values = written.committed
        assert values[-2:] == [b"open", b"after"]
        bootstrap = cluster.address(second)
        assert by_our_client(bootstrap, "read_committed", len(values)) == values
        cluster.restart(first)
        cluster.wait_until_in_sync(TOPIC)
        indexes = {
            broker: {
                path.name: path.read_bytes()
                for path in partition_folder(cluster.log_dir(broker), TOPIC).glob("*.txnindex")
            }
            for broker in cluster.ids
        }
        assert indexes[1] == indexes[2] == indexes[3] != {}
