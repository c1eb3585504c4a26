"""Tests of ISR changes by leaders: the controller sends the new ISR to all brokers as metadata."""

from __future__ import annotations

from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.model import UpdateMetadata
from unit_tests.coordinator.controller.cluster import Cluster, key
from unit_tests.patience import until


async def orders(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (2, 1), 1: (2, 1)})
    await cluster.received(1, "metadata orders-1 leader=2 epoch=0")
    cluster.notes.clear()


async def shrink(cluster: Cluster, name: str) -> None:
    """Remove broker 1 from the ISR, as the leader does."""
    path = paths.partition_state(key(name))
    await cluster.write_json(path, {**cluster.json(path), "isr": [2]})


async def notify(cluster: Cluster, *names: str) -> None:
    data = schemas.encode_partitions([key(name) for name in names])
    await cluster.tool.create(paths.ISR_CHANGE_PREFIX, data, sequence=True)


def notices(cluster: Cluster) -> list[str]:
    return [path for path in cluster.tree.paths() if path.startswith(paths.ISR_CHANGE_PREFIX)]


def received_isr(cluster: Cluster, broker_id: int, name: str) -> tuple[int, ...] | None:
    found = None
    for note in cluster.notes:
        if note.broker_id == broker_id and isinstance(note.command, UpdateMetadata):
            for item in note.command.partitions:
                if item.topic_partition == key(name):
                    found = item.state.isr
    return found


async def test_an_isr_notice_sends_metadata_and_no_roles(cluster: Cluster) -> None:
    await orders(cluster)
    await shrink(cluster, "orders-0")
    await notify(cluster, "orders-0", "orders-1", "unknown-7")
    await until(
        lambda: received_isr(cluster, 1, "orders-0") == received_isr(cluster, 2, "orders-0") == (2,)
    )
    await until(lambda: not notices(cluster))
    assert not [line for line in cluster.lines() if line.startswith("lead")]
    assert received_isr(cluster, 1, "orders-1") is None


async def test_the_next_election_uses_the_isr_of_the_notice(cluster: Cluster) -> None:
    await orders(cluster)
    await shrink(cluster, "orders-0")
    await notify(cluster, "orders-0")
    await until(lambda: not notices(cluster))
    second = next(member for member in cluster.members if member.id == 2)
    await second.kill()
    await cluster.received(1, "metadata orders-0 leader=-1 epoch=1")
    await cluster.received(1, "metadata orders-1 leader=1 epoch=1")


async def test_damaged_notices_are_removed(cluster: Cluster) -> None:
    await orders(cluster)
    await shrink(cluster, "orders-1")
    await cluster.tool.create(paths.ISR_CHANGE_PREFIX, b"?", sequence=True)
    await notify(cluster, "orders-1")
    await until(lambda: not notices(cluster))
    await until(lambda: received_isr(cluster, 1, "orders-1") == (2,))


async def test_a_new_controller_removes_the_notices_that_it_finds(cluster: Cluster) -> None:
    await notify(cluster, "orders-0")
    await orders(cluster)
    assert not notices(cluster)


async def test_a_lost_reply_loses_no_notice(cluster: Cluster) -> None:
    for position in range(5):
        for applied in (True, False):
            tried = Cluster()
            await tried.prepare()
            await orders(tried)
            await shrink(tried, "orders-0")
            tried.members[0].lose_request(position, applied=applied)
            await notify(tried, "orders-0")
            await until(lambda: not notices(tried))  # noqa: B023
            await until(lambda: received_isr(tried, 1, "orders-0") == (2,))  # noqa: B023
            await tried.close()
