"""Tests of orphaned partitions: after a power loss of every in-sync replica, no replica leads
until all have returned."""

from __future__ import annotations

import dataclasses
import uuid

import pytest

from pybroker.coordinator.controller import suspects
from pybroker.coordinator.controller.decisions import Circumstances
from pybroker.coordinator.controller.partitions import Partition, PartitionStatus, Reason
from pybroker.coordinator.controller.suspects import decide_longest
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.coordinator.zookeeper.log_end_reports import (
    LogEndReport,
    decode_log_end,
    encode_log_end,
    read_log_end,
    write_log_end,
)
from pybroker.coordinator.zookeeper.loss_receipts import POWER_LOSS, decode_receipts
from pybroker.coordinator.zookeeper.registry import ensure, read_incarnation
from pybroker.errors import NoNode
from pybroker.model import NO_LEADER, PartitionState
from pybroker.ports import Coord
from unit_tests.coordinator.controller.cluster import Cluster, key
from unit_tests.patience import until

KEY = key("orders-0")
ORPHANED = PartitionState(NO_LEADER, 5, (), 1)
NOW = Circumstances(hosts=(1, 2, 3), candidates=(1, 2, 3), controller_epoch=7)


def partition(state: PartitionState = ORPHANED) -> Partition:
    return Partition(KEY, (1, 2, 3), PartitionStatus.OFFLINE, state, 4)


def reports(*ends: tuple[int, int, int], leader_epoch: int = 5) -> dict[int, LogEndReport]:
    """Return replica -> report, for each (replica, epoch, end)."""
    return {who: LogEndReport(who, epoch, end, leader_epoch, 10 + who) for who, epoch, end in ends}


@pytest.mark.parametrize(
    ("ends", "isr"),
    [
        (((1, 4, 10), (2, 4, 12), (3, 4, 11)), (2,)),
        (((1, 4, 10), (2, 3, 90), (3, 4, 9)), (1,)),
        (((1, 4, 10), (2, 4, 10), (3, 4, 10)), (1, 2, 3)),
        (((1, 3, 10), (2, 4, 10), (3, 4, 10)), (2, 3)),
        (((1, -1, 0), (2, -1, 0), (3, 0, 1)), (3,)),
        (((1, 4, 10), (2, 6, 4), (3, 4, 12)), (3,)),
    ],
)
def test_the_longest_log_leads(
    ends: tuple[tuple[int, int, int], ...], isr: tuple[int, ...]
) -> None:
    """All replicas with the longest log are in sync, since an ISR of one replica could be lost."""
    write = decide_longest(partition(), reports(*ends), NOW)
    assert write is not None
    assert write.state == PartitionState(isr[0], 6, isr, 7)
    assert write.incarnations == tuple((replica, 10 + replica) for replica in isr)
    assert (write.reason, write.unclean, write.expected_version) == (Reason.POWER_LOSS, True, 4)


ALL = reports((1, 4, 10), (2, 4, 12), (3, 4, 11))


@pytest.mark.parametrize(
    ("state", "known", "hosts"),
    [
        (ORPHANED, reports((1, 4, 10), (2, 4, 12)), (1, 2, 3)),
        (ORPHANED, ALL, (1, 3)),
        (ORPHANED, reports((1, 6, 10), (2, 7, 12), (3, 6, 11)), (1, 2, 3)),
        (ORPHANED, {**ALL, **reports((1, 4, 10), leader_epoch=4)}, (1, 2, 3)),
        (dataclasses.replace(ORPHANED, isr=(3,)), ALL, (1, 2, 3)),
        (dataclasses.replace(ORPHANED, eligible=(3,)), ALL, (1, 2, 3)),
        (dataclasses.replace(ORPHANED, leader=3, isr=(3,)), ALL, (1, 2, 3)),
    ],
)
def test_no_replica_leads_before_all_have_returned_and_reported(
    state: PartitionState, known: dict[int, LogEndReport], hosts: tuple[int, ...]
) -> None:
    now = dataclasses.replace(NOW, hosts=hosts, candidates=hosts)
    assert decide_longest(partition(state), known, now) is None


def test_a_log_end_report_is_decoded_as_it_was_encoded() -> None:
    report = LogEndReport(3, 4, 1 << 40, 5, 8)
    assert decode_log_end("/", encode_log_end(report)) == report


async def test_log_end_reports_in_zookeeper(cluster: Cluster) -> None:
    coord = cluster.tool
    await cluster.create("orders", {0: (3,)})
    topic_id = cluster.topic_id("orders")
    assert await read_log_end(coord, KEY, 3) is None
    for end in (7, 8):
        await write_log_end(coord, KEY, topic_id, LogEndReport(3, 4, end, 5, 1))
    with pytest.raises(NoNode):
        await write_log_end(coord, KEY, uuid.UUID(int=7), LogEndReport(3, 4, 9, 5, 1))
    assert await read_log_end(coord, KEY, 3) == LogEndReport(3, 4, 8, 5, 1)
    await coord.set(paths.suspect(KEY, 3), b"garbage")
    assert await read_log_end(coord, KEY, 3) is None


async def report(cluster: Cluster, replica: int, end: int) -> None:
    """Write the report, as the broker does after the power loss."""
    await ensure(cluster.tool, paths.incarnation(replica))
    incarnation = await read_incarnation(cluster.tool, replica)
    found = LogEndReport(replica, 0, end, 1, incarnation)
    await write_log_end(cluster.tool, KEY, cluster.topic_id("orders"), found)


async def notify(cluster: Cluster) -> None:
    """Wait until the controller has read the present reports."""
    notice = schemas.encode_partitions([KEY])
    await cluster.tool.create(paths.ISR_CHANGE_PREFIX, notice, sequence=True)
    await until(
        lambda: not any(p.startswith(paths.ISR_CHANGE_PREFIX) for p in cluster.tree.paths())
    )


async def orphan(cluster: Cluster) -> None:
    """Make orders-0, on the brokers 2 and 3, an orphaned partition."""
    for broker_id in (1, 2, 3):
        await cluster.member(broker_id)
    await until(lambda: "brokers 1,2,3" in cluster.lines(3))
    await cluster.create("orders", {0: (2, 3)})
    await cluster.received(3, "metadata orders-0 leader=2 epoch=0")
    path = paths.partition_state(KEY)
    orphaned = {**cluster.json(path), "leader": -1, "leader_epoch": 1, "isr": []}
    await cluster.write_json(path, orphaned)


def leader_of(cluster: Cluster) -> int | None:
    state = cluster.state("orders-0")
    return None if state is None else state.leader


async def test_a_report_of_an_earlier_incarnation_does_not_count(cluster: Cluster) -> None:
    """In the new incarnation the broker's disk may have been replaced."""
    await orphan(cluster)
    await report(cluster, 3, 6)
    await cluster.tool.set(paths.incarnation(3), b"")
    await report(cluster, 2, 5)
    await notify(cluster)
    assert leader_of(cluster) == NO_LEADER
    await report(cluster, 3, 0)
    await notify(cluster)
    await cluster.received(2, "lead orders-0 leader=2 epoch=2 isr=2")


async def test_a_broker_that_begins_a_new_incarnation_during_the_election_does_not_lead(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller has read the broker's report, but not the broker's new incarnation."""
    await orphan(cluster)
    await report(cluster, 3, 6)
    await report(cluster, 2, 5)

    async def read_before_it_is_raised(coord: Coord, broker_id: int) -> int:
        known = await read_incarnation(coord, broker_id)
        if broker_id == 3:
            await cluster.tool.set(paths.incarnation(3), b"")
        return known

    with monkeypatch.context() as patched:
        patched.setattr(suspects, "read_incarnation", read_before_it_is_raised)
        await notify(cluster)
    assert leader_of(cluster) == NO_LEADER
    await report(cluster, 3, 4)
    await notify(cluster)
    await cluster.received(2, "lead orders-0 leader=2 epoch=2 isr=2")


async def test_the_controller_elects_when_the_last_report_is_written(cluster: Cluster) -> None:
    await orphan(cluster)
    for replica, end in ((2, 5), (3, 6)):
        state = cluster.state("orders-0")
        assert state is not None and state.leader == NO_LEADER
        await report(cluster, replica, end)
        await notify(cluster)
    await cluster.received(2, "lead orders-0 leader=3 epoch=2 isr=3")
    node = cluster.tree.node(paths.loss(KEY))
    assert node is not None
    (receipt,) = decode_receipts("/", node[0])
    assert (receipt.reason, receipt.leader, receipt.leader_epoch) == (POWER_LOSS, 3, 2)
    await cluster.delete("orders")
    await until(lambda: not cluster.exists(paths.topic("orders")))
    assert not cluster.exists(paths.suspects("orders"))


async def test_a_new_controller_uses_earlier_reports(cluster: Cluster) -> None:
    first = await cluster.member(1)
    await cluster.create("orders", {0: (2, 3)})
    for broker_id in (2, 3):
        await cluster.member(broker_id)
    await cluster.received(3, "metadata orders-0 leader=2 epoch=0")
    path = paths.partition_state(KEY)
    orphaned = {**cluster.json(path), "leader": -1, "leader_epoch": 1, "isr": []}
    await cluster.write_json(path, orphaned)
    for replica, end in ((2, 5), (3, 6)):
        await report(cluster, replica, end)
    await first.kill()
    await cluster.received(2, "lead orders-0 leader=3 epoch=2 isr=3")


@pytest.mark.parametrize("applied", (False, True))
@pytest.mark.parametrize("position", range(10))
async def test_the_longest_log_is_elected_after_any_lost_reply(
    cluster: Cluster, position: int, applied: bool
) -> None:
    first = await cluster.member(1)
    for broker_id in (2, 3):
        await cluster.member(broker_id)
    await until(lambda: "brokers 1,2,3" in cluster.lines(3))
    await cluster.create("orders", {0: (2, 3)})
    await cluster.received(3, "metadata orders-0 leader=2 epoch=0")
    path = paths.partition_state(KEY)
    orphaned = {**cluster.json(path), "leader": -1, "leader_epoch": 1, "isr": []}
    await cluster.write_json(path, orphaned)
    for replica, end in ((2, 5), (3, 6)):
        await report(cluster, replica, end)
    first.lose_request(position, applied=applied)
    notice = schemas.encode_partitions([KEY])
    await cluster.tool.create(paths.ISR_CHANGE_PREFIX, notice, sequence=True)
    await cluster.received(2, "lead orders-0 leader=3 epoch=2 isr=3")
