"""Fault tests of snapshots that Spark reads while brokers are killed, leaders move, and records are
written and deleted: each of two reads returns the rows of a model.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from integration_tests import spark_topics
from integration_tests.conftest import BrokerMaker
from integration_tests.samples import Sample
from integration_tests.spark_topics import KafkaRow, fault, kafka_rows, numbered
from integration_tests.topic_model import Cut, TopicModel
from integration_tests.wire_client import Connection, metadata
from pybroker.spark import snapshot
from pybroker.testing.cluster import Cluster
from unit_tests.patience import wait_until

pytestmark = pytest.mark.ours

# Small segments, so that whole files are deleted, too. The timestamps are in the past.
CONFIG: Final = {"log.segment.bytes": 65536, "log.retention.ms": -1}
STEPS: Final = 9


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(3, data=folder, config=CONFIG) as running:
        yield running


class Torment:
    """Random faults and changes for the topic of a model."""

    def __init__(self, cluster: Cluster, model: TopicModel, dice: random.Random) -> None:
        self._cluster = cluster
        self._model = model
        self._dice = dice
        self._down: list[int] = []
        self.done: list[str] = []

    def step(self) -> None:
        name = self._dice.choice(["write", "write", "delete", "kill", "start", "stop", "grow"])
        self.done.append(name)
        if name == "write":
            self._model.write(self._dice.randrange(1, 400))
        elif name == "delete":
            self._model.delete_records()
        elif name == "grow":
            self.recover()
            self._model.grow()
            wait_until(self._all_tell_of_it, what=f"all know {self._model.partitions} partitions")
        else:
            self._turn_over(stop=name == "stop")

    def kill_a_leader(self) -> None:
        """Kill a leader without waiting for the next leader. No other broker may be down."""
        self.recover()
        leader = self._cluster.leader(self._model.topic, 0)
        self._cluster.kill(leader)
        self._down.append(leader)
        self.done.append(f"kill {leader}")

    def recover(self) -> None:
        """Start the brokers that are down, and wait until all replicas are in sync."""
        for broker in self._down:
            self._cluster.restart(broker)
        self._down.clear()
        self._cluster.wait_until_in_sync(self._model.topic)

    def _all_tell_of_it(self) -> bool:
        for broker in self._cluster.ids:
            with Connection(self._cluster.address(broker)) as connection:
                (found,) = metadata(connection, self._model.topic).topics
            if len(found.partitions) != self._model.partitions or found.error_code:
                return False
        return True

    def _turn_over(self, *, stop: bool) -> None:
        """Stop or kill a broker, or start the broker that is down."""
        if self._down:
            self.recover()
            return
        broker = self._cluster.leader(self._model.topic, 0)
        if stop:
            assert self._cluster.terminate(broker) == 0
        else:
            self._cluster.kill(broker)
        self._down.append(broker)


@pytest.mark.parametrize("seed", [5])
def test_a_snapshot_read_twice_gives_the_rows_of_the_model(
    cluster: Cluster, spark: SparkSession, topic: str, seed: int
) -> None:
    """Each snapshot continues the previous snapshot, and together they have every record once.
    Their records are counted, so a changed number would fail the read.
    """
    dice = random.Random(seed)
    model = TopicModel(cluster.bootstrap, topic, 3, dice, replicas=3)
    torment = Torment(cluster, model, dice)
    before: snapshot.Snapshot | None = None
    seen: list[tuple[int, int]] = []
    model.write(200)
    for step in range(STEPS):
        torment.step()
        if step % 3 != 2:
            continue
        with model.writing():
            taken = snapshot.take(cluster.bootstrap, topics=[topic], since=before, count="always")
            cut = cut_of(taken, topic)
            gone = [(p, cut[p][0]) for p, start in model.starts().items() if start > cut[p][0]]
            if gone:
                assert before is not None, "a first snapshot begins where the logs do"
                with pytest.raises(PySparkException, match=one_of(topic, gone)):
                    rows_of(taken, spark)
                taken = snapshot.take(cluster.bootstrap, topics=[topic], count="always")
                cut = cut_of(taken, topic)
                seen.clear()
            first = rows_of(taken, spark)
            torment.kill_a_leader()
            second = rows_of(taken, spark)
        torment.recover()
        assert set(cut) == set(range(model.partitions))
        expected = model.rows(cut)
        assert taken.records()[topic] == len(expected)
        assert first == expected, f"after {torment.done}"
        assert second == expected, f"the second time, after {torment.done}"
        seen += [(row.partition, row.offset) for row in first]
        before = taken
    assert len(seen) == len(set(seen)) > 500


def rows_of(taken: snapshot.Snapshot, spark: SparkSession) -> list[KafkaRow]:
    return kafka_rows(taken.read(spark, include_headers=True))


def cut_of(taken: snapshot.Snapshot, topic: str) -> Cut:
    partitions = taken.topics[topic].partitions
    return {number: (found.start, found.end) for number, found in partitions.items()}


def one_of(topic: str, gone: list[tuple[int, int]]) -> str:
    """Return the only one of these positions that the text names."""
    return "|".join(re.escape(f"{topic}-{partition}@{offset}") for partition, offset in gone)


def flip_a_bit(segment: Path, position: int) -> None:
    content = bytearray(segment.read_bytes())
    content[position] ^= 1
    segment.write_bytes(content)


def test_a_damaged_batch_is_not_returned(
    spark: SparkSession, new_broker: BrokerMaker, topic: str
) -> None:
    """A bit of a closed segment is flipped while the broker is stopped. The damaged batch must not
    be skipped silently, even if the reader accepts data loss.
    """
    broker = new_broker(overrides={"log.segment.bytes": "20000", "log.retention.ms": "-1"})
    broker.start()
    spark_topics.create(broker.bootstrap, topic, 1)
    dice = random.Random(5)
    for _ in range(20):
        samples = [(0, Sample(b"key", dice.randbytes(100))) for _ in range(50)]
        spark_topics.produce(broker.bootstrap, topic, samples)
    taken = snapshot.take(broker.bootstrap, topics=[topic])
    assert taken.read(spark).count() == 1000
    assert broker.stop() == 0
    segment = sorted(broker.data.rglob(f"{topic}-0/*.log"))[1]
    flip_a_bit(segment, segment.stat().st_size // 2)
    broker.start()
    base = int(segment.stem)
    for lenient in (False, True):
        reader = spark.read.format("pybroker").option("snapshot", taken.to_json())
        reader.option("failOnDataLoss", str(not lenient))
        reader.option("kafkaConsumer.pollTimeoutMs", "2000")
        said = fault(reader.load().count)
        where = int(said.split(f"{topic}-0@", 1)[1].split(":", 1)[0])
        assert base <= where <= base + 200, said


def test_a_removed_topic_is_named(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    spark_topics.create(cluster.bootstrap, topic, 2)
    spark_topics.produce(cluster.bootstrap, topic, numbered(range(10), partitions=2))
    taken = snapshot.take(cluster.bootstrap, topics=[topic])
    spark_topics.delete(cluster.bootstrap, topic)
    said = fault(taken.read(spark).count)
    assert f"{topic}-" in said and "the partition does not exist" in said
