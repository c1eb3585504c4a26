"""The classic consumer with a real broker and a real ZooKeeper: members that come, go, are killed
and stopped under load, and Kafka's own programs of its ZooKeeper years beside them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from integration_tests.test_documents import output_of, program
from pybroker.classic import ClassicConsumer, Stream
from pybroker.client import Admin, NewTopic, Producer, TopicPartition
from pybroker.client.subscription import ConsumerRecord
from pybroker.testing.cluster import Cluster

pytestmark = pytest.mark.ours

PARTITIONS: Final = 6
SESSION_MS: Final = 2_000
QUICK: Final[Mapping[str, str]] = {
    "auto.offset.reset": "smallest",
    "auto.commit.interval.ms": "100",
    "zookeeper.session.timeout.ms": str(SESSION_MS),
    "zookeeper.connection.timeout.ms": "20000",
    "rebalance.backoff.ms": "500",
    "rebalance.max.retries": "40",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(1, data=tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


async def make_topic(cluster: Cluster, topic: str, partitions: int) -> None:
    async with Admin(cluster.bootstrap) as admin:
        (made,) = await admin.create_topics([NewTopic(topic, partitions)])
        made.check()


async def send(cluster: Cluster, topic: str, numbers: range, partitions: int) -> None:
    """Each number as a value, in turn to the partitions."""
    async with Producer(cluster.bootstrap, linger_ms=5) as producer:
        sent = [
            await producer.send(topic, b"%d" % number, partition=number % partitions)
            for number in numbers
        ]
        for each in sent:
            await each


async def read(stream: Stream, count: int) -> list[ConsumerRecord]:
    async with asyncio.timeout(60):
        return [await stream.getone() for _ in range(count)]


def shell(cluster: Cluster, *words: str) -> str:
    """The last line of `pybroker zookeeper-shell`."""
    command = [sys.executable, "-m", "pybroker", "zookeeper-shell", cluster.zookeeper, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip().splitlines()[-1]


async def test_one_member_then_two(cluster: Cluster, topic: str) -> None:
    """The nodes are looked at with zookeeper-shell."""
    await make_topic(cluster, topic, 2)
    await send(cluster, topic, range(100), 2)
    group = f"of-{topic}"
    keys = [TopicPartition(topic, number) for number in range(2)]
    options: dict[str, Any] = {"group_id": group, **QUICK}
    async with ClassicConsumer(cluster.zookeeper, consumer_id="a", **options) as first:
        (one,) = (await first.subscribe({topic: 1}))[topic]
        assert {int(record.value or b"") for record in await read(one, 100)} == set(range(100))
        assert first.owned() == dict.fromkeys(keys, f"{group}_a-0")
        assert shell(cluster, "ls", f"/consumers/{group}/ids") == f"[{group}_a]"
        registered = json.loads(shell(cluster, "get", f"/consumers/{group}/ids/{group}_a"))
        assert registered.pop("timestamp").isdigit()
        assert registered == {"version": 1, "subscription": {topic: 1}, "pattern": "static"}
        assert shell(cluster, "get", f"/consumers/{group}/owners/{topic}/1") == f"{group}_a-0"
        await first.commit()
        assert shell(cluster, "get", f"/consumers/{group}/offsets/{topic}/0") == "50"
        async with ClassicConsumer(cluster.zookeeper, consumer_id="b", **options) as second:
            (two,) = (await second.subscribe({topic: 1}))[topic]
            assert (first.owned(), second.owned()) == (
                {keys[0]: f"{group}_a-0"},
                {keys[1]: f"{group}_b-0"},
            )
            await send(cluster, topic, range(100, 110), 2)
            assert {int(record.value or b"") % 2 for record in await read(one, 5)} == {0}
            assert {int(record.value or b"") % 2 for record in await read(two, 5)} == {1}
            await second.commit()
        assert shell(cluster, "get", f"/consumers/{group}/offsets/{topic}/1") == "55"
        assert shell(cluster, "ls", f"/consumers/{group}/ids") == f"[{group}_a]"
        await send(cluster, topic, range(110, 120), 2)
        assert {int(record.value or b"") for record in await read(one, 10)} == set(range(110, 120))


def test_the_program_of_the_page(cluster: Cluster) -> None:
    code = program("docs/classic.rst", "import asyncio")
    for written, real in (
        ("127.0.0.1:9092", cluster.bootstrap),
        ("127.0.0.1:2181", cluster.zookeeper),
    ):
        assert written in code
        code = code.replace(written, real)
    printed = output_of("-c", code).splitlines()
    assert sorted(printed[:8]) == sorted(f"{n % 4} b'{n} EUR'" for n in range(8))
    assert printed[8:] == [f"bills-{n} {n // 2} has 2" for n in range(4)]
