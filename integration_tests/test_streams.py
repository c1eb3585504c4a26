"""Tests of Kafka Streams with `exactly_once_v2` on three brokers: a word count and a join with a
table, while a leader, a coordinator and an instance of the application are killed. In another test
the log cleaner cleans the changelogs from which the application restores its state."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from integration_tests.ranges import make_topic
from integration_tests.streams import (
    CHANGELOGS,
    Counts,
    Instance,
    Text,
    count_records,
    read_all,
)
from integration_tests.wire_client import Connection
from pybroker.model import TopicPartition
from pybroker.storage.checkpoints import decode_offsets
from pybroker.storage.filename import CLEANER_OFFSETS
from pybroker.testing.cluster import Cluster
from pybroker.wire.messages.transaction_admin import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from unit_tests.patience import PATIENCE_S, WORK_S, wait_until

pytestmark = pytest.mark.ours

PARTITIONS: Final = 4
MEGABYTE: Final = 1_000_000
CLUSTER: Final = {
    "min.insync.replicas": 2,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 5,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 5,
    "group.initial.rebalance.delay.ms": 0,
    "log.cleaner.backoff.ms": 50,
}
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": "16384",
}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3, config=CLUSTER) as running:
        yield running


def make_topics(bootstrap: str) -> None:
    for topic in ("text", "labels", "counts", "label-counts"):
        make_topic(bootstrap, topic, PARTITIONS, replicas=3)


def coordinator_with_transactions(cluster: Cluster) -> int:
    """Return a broker that coordinates the producer of an instance."""
    for broker in cluster.running:
        with Connection(cluster.address(broker)) as connection:
            answer = connection.ask(0, ListTransactionsRequest(), ListTransactionsResponse)
        if answer.transaction_states:
            return broker
    raise AssertionError("no broker coordinates a transaction")


@pytest.mark.parametrize("size", [MEGABYTE, 50 * MEGABYTE], ids=["1-MB", "50-MB"])
def test_words_are_counted_exactly_once(
    cluster: Cluster, jars: str, size: int, tmp_path: Path
) -> None:
    assert jars
    bootstrap = cluster.bootstrap
    make_topics(bootstrap)
    text = Text.of_size(size)
    total = text.words.total()
    text.produce_labels(bootstrap)
    instances = [Instance(bootstrap, tmp_path / str(n), PARTITIONS) for n in range(2)]
    try:
        with closing(Counts(bootstrap, "counts", PARTITIONS)) as counts:
            text.produce(bootstrap)

            def count_until(share: float) -> None:
                while sum(counts.last.values()) < share * total:
                    for instance in instances:
                        assert instance.process.running, instance.process.output
                    counts.poll()

            def kill_broker(choose: Callable[[], int]) -> None:
                broker = choose()
                cluster.kill(broker)
                count_until(sum(counts.last.values()) / total + 0.01)
                cluster.restart(broker)
                cluster.wait_until_in_sync()

            count_until(0.1)
            kill_broker(lambda: cluster.leader("counts", 0))
            count_until(0.3)
            kill_broker(lambda: coordinator_with_transactions(cluster))
            count_until(0.5)
            instances[0].process.kill9()
            instances[0] = Instance(bootstrap, tmp_path / "0", PARTITIONS)
            counts.wait_for(text.words, WORK_S)
        with closing(Counts(bootstrap, "label-counts", PARTITIONS)) as counts:
            counts.wait_for(text.expected["label-counts"], PATIENCE_S)
        for instance in instances:
            instance.stop()
    finally:
        for instance in instances:
            instance.process.close()
    for topic, expected in text.expected.items():
        assert read_all(bootstrap, topic, PARTITIONS) == expected
        assert read_all(bootstrap, CHANGELOGS[topic], PARTITIONS) == expected


def cleaned_to(cluster: Cluster, broker: int, topic: str) -> list[int]:
    """Return the offset of each partition in the broker's cleaner checkpoint; 0 without one."""
    path = cluster.log_dir(broker) / CLEANER_OFFSETS
    offsets = decode_offsets(path.read_bytes(), str(path)) if path.exists() else {}
    return [offsets.get(TopicPartition(topic, number), 0) for number in range(PARTITIONS)]


def test_state_is_restored_from_compacted_changelogs(
    cluster: Cluster, jars: str, tmp_path: Path
) -> None:
    assert jars
    bootstrap, state = cluster.bootstrap, tmp_path / "state"
    make_topics(bootstrap)
    for changelog in CHANGELOGS.values():
        make_topic(bootstrap, changelog, PARTITIONS, replicas=3, configs=COMPACTED)
    changelog = CHANGELOGS["counts"]
    text = Text.of_size(MEGABYTE // 3)
    text.produce_labels(bootstrap)
    instance = Instance(bootstrap, state, PARTITIONS, cache_bytes=0)
    try:
        with closing(Counts(bootstrap, "counts", PARTITIONS)) as counts:
            text.produce(bootstrap)
            counts.wait_for(text.words, WORK_S)
            instance.stop()
            wait_until(
                lambda: all(min(cleaned_to(cluster, each, changelog)) > 0 for each in cluster.ids),
                what="all brokers have cleaned the changelog",
            )
            wait_until(
                lambda: count_records(bootstrap, changelog, PARTITIONS) < counts.records / 3,
                what="most records of the changelog are gone",
            )
            for broker in cluster.ids:
                cluster.kill(broker)
                cluster.restart(broker)
                cluster.wait_until_in_sync()
            assert read_all(bootstrap, changelog, PARTITIONS) == text.words
            shutil.rmtree(state)
            instance = Instance(bootstrap, state, PARTITIONS, cache_bytes=0)
            text.produce(bootstrap)
            counts.wait_for(text.words + text.words, WORK_S)
        by_label = text.expected["label-counts"]
        with closing(Counts(bootstrap, "label-counts", PARTITIONS)) as counts:
            counts.wait_for(by_label + by_label, PATIENCE_S)
        instance.stop()
    finally:
        instance.process.close()
    for topic, once in text.expected.items():
        twice: Counter[bytes] = once + once
        assert read_all(bootstrap, topic, PARTITIONS) == twice
        assert read_all(bootstrap, CHANGELOGS[topic], PARTITIONS) == twice
