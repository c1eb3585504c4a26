"""Tests of transactions of kafkajs and of franz-go on three real brokers. Those of aiokafka are
in test_transactions.py, those of the Java client and librdkafka in test_transformers.py."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest

from integration_tests import golang, npm
from integration_tests.conftest import or_skip
from integration_tests.process import ChildProcess
from integration_tests.ranges import make_topic
from integration_tests.test_transactions import (
    CLUSTER,
    GROUP_KEY,
    TRANSACTION_KEY,
    coordinator_of,
    finish,
    produce,
    read,
)
from pybroker.testing.cluster import Cluster
from unit_tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.ours

PARTITIONS: Final = 2
RECORDS: Final = 400
"""Input records of each partition of franz-go's topic."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, config=CLUSTER) as running:
        yield running


class Kafkajs:
    """A transactional producer of kafkajs for partition 0 of the topic "js-input"."""

    def __init__(self, bootstrap: str) -> None:
        packages = or_skip(lambda: npm.node_modules(npm.KAFKAJS))
        script = str(Path(__file__).parent / "node" / "takeover.js")
        words = [bootstrap, "js-input-0", "js-input", "js-output", "js"]
        environment = {
            **os.environ,
            "NODE_PATH": str(packages),
            "KAFKAJS_NO_PARTITIONER_WARNING": "1",
        }
        self._process = ChildProcess(
            [npm.node(), script, *words], environment=environment, interactive=True
        )

    def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        line = self._process.ask(json.dumps({"do": do, **arguments}), "^RESULT ")
        result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
        return result

    def must(self, do: str, **arguments: object) -> dict[str, Any]:
        result = self.ask(do, **arguments)
        assert "error" not in result, (do, result)
        return result

    def copy(self, values: Sequence[bytes], beyond: int) -> None:
        """Copy records in a transaction, and leave it open."""
        self.must("copy", values=[value.decode() for value in values], beyond=beyond)

    def close(self) -> None:
        self._process.close()


def test_kafkajs_zombie_is_fenced_by_the_id_of_its_input_partition(cluster: Cluster) -> None:
    """kafkajs sends TxnOffsetCommit without the metadata of the group. So a zombie is fenced only
    if the next program takes over its transactional id."""
    bootstrap, values = cluster.bootstrap, [b"%d" % number for number in range(20)]
    for topic in ("js-input", "js-output"):
        make_topic(bootstrap, topic, replicas=3)
    produce(bootstrap, "js-input", {0: values})
    coordinator_of(bootstrap, "js", GROUP_KEY)  # kafkajs does not wait until there is one
    with closing(Kafkajs(bootstrap)) as zombie, closing(Kafkajs(bootstrap)) as successor:
        zombie.must("start")
        zombie.copy(values[:5], 5)
        zombie.must("commit")
        zombie.copy(values[5:10], 10)
        successor.must("start")
        assert successor.must("committed") == {"offset": 5}
        successor.copy(values[5:10], 10)
        assert zombie.ask("commit") == {"error": "INVALID_PRODUCER_EPOCH"}
        successor.must("commit")
        successor.copy(values[10:], len(values))
        successor.must("commit")
        wait_until(
            lambda: successor.must("committed") == {"offset": len(values)},
            what="the offsets of the last transaction are committed",
        )
    finish(bootstrap, "js-output", 1)
    assert read(bootstrap, "js-output", 1) == {0: values}
    uncommitted = read(bootstrap, "js-output", 1, "read_uncommitted")
    assert uncommitted == {0: values[:10] + values[5:]}


class Copier:
    """The Go program; `restart` kills it and starts it again."""

    def __init__(self, bootstrap: str) -> None:
        self._command = [or_skip(lambda: golang.program("copier")), bootstrap, "go-copier"]
        self._earlier = 0
        self._process = self._started()

    def _started(self) -> ChildProcess:
        return ChildProcess(self._command, interactive=True)

    @property
    def committed(self) -> int:
        """The number of records in transactions whose commit the program has reported."""
        output = self._process.output
        assert "FAILED" not in output, output
        return self._earlier + sum(
            int(line.split()[1]) for line in output.splitlines() if line.startswith("COMMITTED")
        )

    def restart(self) -> None:
        self._process.kill9()
        self._earlier = self.committed
        self._process = self._started()

    def close(self) -> None:
        self._process.close()


def committed_offsets(bootstrap: str) -> list[int]:
    """Return the committed offsets of the Go program's group."""
    options = {"bootstrap.servers": bootstrap, "group.id": "go", "enable.auto.commit": False}
    places = [confluent_kafka.TopicPartition("go-input", number) for number in range(PARTITIONS)]
    with closing(confluent_kafka.Consumer(options)) as consumer:
        return [place.offset for place in consumer.committed(places, PATIENCE_S)]


def test_franz_go_copies_each_record_once_under_kills(cluster: Cluster) -> None:
    """The program and the coordinator of its transactions are killed."""
    bootstrap, output = cluster.bootstrap, "go-output"
    for topic in ("go-input", output):
        make_topic(bootstrap, topic, PARTITIONS, replicas=3)
    values = {
        partition: [b"%d:%d" % (partition, number) for number in range(RECORDS)]
        for partition in range(PARTITIONS)
    }
    produce(bootstrap, "go-input", values)
    total = PARTITIONS * RECORDS
    with closing(Copier(bootstrap)) as copier:

        def wait_for(share: float) -> None:
            wait_until(
                lambda: copier.committed >= share * total, what=f"{share:.0%} of the records"
            )

        wait_for(0.2)
        copier.restart()
        wait_for(0.4)
        broker = coordinator_of(bootstrap, "go-copier", TRANSACTION_KEY)
        cluster.kill(broker)
        wait_for(0.6)
        cluster.restart(broker)
        cluster.wait_until_in_sync()
        # The program may have been killed before it printed a commit, so that its count stays low.
        wait_until(
            lambda: committed_offsets(bootstrap) == [RECORDS] * PARTITIONS,
            what="the offsets of all records are committed",
        )
    finish(bootstrap, output, PARTITIONS)
    assert read(bootstrap, output, PARTITIONS) == values
    uncommitted = read(bootstrap, output, PARTITIONS, "read_uncommitted")
    assert any(value.startswith(b"aborted ") for value in uncommitted[0] + uncommitted[1])
