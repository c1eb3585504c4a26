"""Test that a damaged node in ZooKeeper affects its own topic only."""

from __future__ import annotations

from collections.abc import Iterator

import kazoo.client  # type: ignore[import-untyped]
import pytest

from integration_tests.wire_client import Connection, batch_of, create_topic, produce
from pybroker.testing.cluster import Cluster

pytestmark = pytest.mark.ours


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(1) as started:
        yield started


def test_a_damaged_topic_does_not_delay_a_start(cluster: Cluster) -> None:
    with Connection(cluster.bootstrap) as connection:
        create_topic(connection, "whole")
    zookeeper = kazoo.client.KazooClient(cluster.zookeeper)
    zookeeper.start()
    try:
        for name, data in {
            "garbage": b"garbage",
            "nobody": b'{"version":2,"partitions":{"0":[]}}',
            "a b": b'{"version":2,"partitions":{"0":[1]}}',
        }.items():
            zookeeper.create(f"/brokers/topics/{name}", data)
    finally:
        zookeeper.stop()
        zookeeper.close()
    (broker,) = cluster.ids
    cluster.restart(broker)
    with Connection(cluster.bootstrap) as connection:
        assert produce(connection, "whole", batch_of(b"value")).error_code == 0
    log = cluster.log_text(broker)
    assert "Traceback" not in log
    assert "topics not open yet" not in log, "the start waited for the damaged topic"
    for name in ("garbage", "nobody", "a b"):
        assert f"/brokers/topics/{name}" in log
