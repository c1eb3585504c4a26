"""Tests of fenced writes: the effect of a failed write on the other writes, and of a lost reply."""

from __future__ import annotations

import pytest

from pybroker.coordinator.controller.writes import FencedWriter, Write
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import BadVersion, ConnectionLoss, NodeExists, SessionExpired
from pybroker.ports import CreateOp, NodeStat, SetOp
from unit_tests.coordinator.controller.cluster import Cluster


def create(path: str, size: int = 0) -> Write:
    return Write((CreateOp(path, bytes(size)),))


async def writer(cluster: Cluster) -> FencedWriter:
    await cluster.tool.create(paths.CONTROLLER_EPOCH, b"1")
    return FencedWriter(cluster.tool, 0)


async def test_one_bad_write_does_not_stop_the_others(cluster: Cluster) -> None:
    fenced = await writer(cluster)
    await cluster.tool.create("/taken")
    outcomes = await fenced.write_all(
        [create("/a"), create("/taken"), Write((SetOp("/taken", b"x", 7),)), create("/b")]
    )
    assert outcomes[0] == ["/a"]
    assert isinstance(outcomes[1], NodeExists)
    assert isinstance(outcomes[2], BadVersion)
    assert outcomes[3] == ["/b"]
    assert cluster.exists("/a")
    assert cluster.exists("/b")


async def test_results_belong_to_their_writes(cluster: Cluster) -> None:
    fenced = await writer(cluster)
    two = Write((CreateOp("/a"), SetOp("/a", b"x", 0)))
    outcomes = await fenced.write_all([create("/z"), two, create("/y")])
    assert outcomes[0] == ["/z"]
    assert isinstance(outcomes[1], list)
    assert outcomes[1][0] == "/a"
    assert isinstance(outcomes[1][1], NodeStat)
    assert outcomes[1][1].version == 1
    assert outcomes[2] == ["/y"]


async def test_a_write_of_several_operations_is_whole(cluster: Cluster) -> None:
    fenced = await writer(cluster)
    (outcome,) = await fenced.write_all([Write((CreateOp("/a"), CreateOp("/a")))])
    assert isinstance(outcome, NodeExists)
    assert not cluster.exists("/a")


@pytest.mark.parametrize("applied", [True, False])
async def test_a_lost_reply_is_tried_once_more_and_the_trace_is_shown(
    cluster: Cluster, applied: bool
) -> None:
    fenced = await writer(cluster)
    cluster.tool.lose_reply(applied=applied)
    (outcome,) = await fenced.write_all([create("/a")])
    assert isinstance(outcome, NodeExists if applied else list)
    assert cluster.exists("/a")


async def test_without_a_connection_the_outcome_is_unknown(cluster: Cluster) -> None:
    fenced = await writer(cluster)
    cluster.tool.suspend()
    outcomes = await fenced.write_all([create("/a"), create("/b")])
    assert all(isinstance(outcome, ConnectionLoss) for outcome in outcomes)
    cluster.tool.resume()


async def test_the_end_of_the_session_is_the_end_of_writing(cluster: Cluster) -> None:
    fenced = await writer(cluster)
    await cluster.tool.close()
    with pytest.raises(SessionExpired):
        await fenced.write_all([create("/a")])
