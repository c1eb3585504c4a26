"""Tests of the node by which Kafka's older tools request a reassignment. The controller refuses
the request."""

from __future__ import annotations

import json
import logging

import pytest

from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.model import TopicPartition
from unit_tests.coordinator.controller.cluster import Cluster, key
from unit_tests.patience import until


async def started(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.create("orders", {0: (1,), 1: (1,)})
    await cluster.received(1, "metadata orders-1 leader=1 epoch=0")


async def ask(cluster: Cluster, wanted: dict[TopicPartition, list[int]]) -> None:
    await cluster.tool.create(paths.REASSIGNMENTS, schemas.encode_reassignment(wanted))


async def removed(cluster: Cluster) -> None:
    await until(lambda: not cluster.exists(paths.REASSIGNMENTS))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [(line.levelno, line.getMessage()) for line in caplog.records]
    return [text for level, text in lines if level == logging.WARNING and "reassignment" in text]


async def test_a_reassignment_is_refused_with_one_line_and_removed(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await started(cluster)
    before = cluster.json("/brokers/topics/orders")
    await ask(cluster, {key("orders-0"): [2, 3], key("nosuch-7"): [1], key("orders-1"): [1]})
    await removed(cluster)
    (line,) = warnings(caplog)
    assert "path=/admin/reassign_partitions partitions=orders-0:[2,3] nosuch-7:[1] " in line
    assert "this version does not reassign partitions" in line
    assert cluster.json("/brokers/topics/orders") == before
    await ask(cluster, {key("orders-1"): [3]})
    await removed(cluster)
    assert "partitions=orders-1:[3] " in warnings(caplog)[1]


async def test_a_reassignment_to_the_present_replicas_gets_no_warning(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await started(cluster)
    await ask(cluster, {key("orders-0"): [1]})
    await removed(cluster)
    assert warnings(caplog) == []


async def test_a_new_controller_finds_the_request(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await ask(cluster, {key("orders-0"): [2]})
    await started(cluster)
    await removed(cluster)
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"7", b'{"partitions": [{"topic": 1}]}', b"[" * 100_000]
)
async def test_a_request_that_cannot_be_read_is_removed(
    cluster: Cluster, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await started(cluster)
    await cluster.tool.create(paths.REASSIGNMENTS, content)
    await removed(cluster)
    (line,) = warnings(caplog)
    assert "path=/admin/reassign_partitions reason=" in line
    assert len(line) < 1000


async def test_a_request_for_many_partitions_does_not_fill_the_log(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await started(cluster)
    asked = [{"topic": "t" * 200, "partition": each, "replicas": [2]} for each in range(2_000)]
    data = json.dumps({"version": 1, "partitions": asked}).encode()
    await cluster.tool.create(paths.REASSIGNMENTS, data)
    await removed(cluster)
    (line,) = warnings(caplog)
    assert "and 1980 more" in line
    assert len(line) < 6_000
