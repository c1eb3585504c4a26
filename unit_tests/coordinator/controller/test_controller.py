"""The controller end to end, on the in-memory service: what it stores and what it tells brokers."""

from __future__ import annotations

from unit_tests.coordinator.controller.cluster import Cluster


async def test_a_new_topic_gets_state_nodes_and_the_broker_is_told(cluster: Cluster) -> None:
    member = await cluster.member(1)
    assert member.controller.is_active
    await cluster.create("orders", {0: (1,), 1: (1,)})
    await cluster.told(1, "metadata orders-1 leader=1 epoch=0")
    state = cluster.state("orders-0")
    assert state is not None
    assert (state.leader, state.isr, state.leader_epoch) == (1, (1,), 0)
    assert state.controller_epoch == member.controller.epoch == 1
    assert cluster.lines(1) == [
        "brokers 1",
        "lead orders-0 leader=1 epoch=0 isr=1 new",
        "lead orders-1 leader=1 epoch=0 isr=1 new",
        "brokers 1",
        "metadata orders-0 leader=1 epoch=0",
        "metadata orders-1 leader=1 epoch=0",
    ]
