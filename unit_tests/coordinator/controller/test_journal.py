"""Tests that every decision is in the journal, with its reason, the states before and after, and
the event that caused it."""

from __future__ import annotations

from unit_tests.coordinator.controller.cluster import Cluster
from unit_tests.patience import until


async def test_the_journal_has_every_state_of_a_partition(cluster: Cluster) -> None:
    first = await cluster.member(1)
    second = await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (2, 1)})
    await cluster.received(1, "metadata orders-0 leader=2 epoch=0")
    await second.kill()
    await cluster.received(1, "metadata orders-0 leader=1 epoch=1")
    await cluster.delete("orders")
    await until(lambda: not cluster.exists("/brokers/topics/orders"))
    await until(lambda: cluster.journal[-1].get("done") is True)
    await first.controller.stop()
    assert [(entry["event"], entry["what"]) for entry in cluster.journal] == [
        ("elected", "elected"),
        ("BrokersChanged", "brokers"),
        ("TopicsChanged", "state"),
        ("BrokersChanged", "brokers"),
        ("BrokersChanged", "state"),
        ("DeletionRequested", "deletion"),
        ("ReplicasDeleted", "deletion"),
        ("steps-down", "steps-down"),
    ]
    assert {entry["controller_epoch"] for entry in cluster.journal} == {1}
    assert cluster.journal[3] | {"lost": [2], "started": []} == cluster.journal[3]
    opened = {
        "leader": 2,
        "leader_epoch": 0,
        "isr": [2, 1],
        "eligible": [],
        "controller_epoch": 1,
        "version": 0,
    }
    after = opened | {"leader": 1, "leader_epoch": 1, "isr": [1], "version": 1}
    assert cluster.journal[4] == {
        "time": "2023-11-14T22:13:20.000Z",
        "controller": 1,
        "controller_epoch": 1,
        "event": "BrokersChanged",
        "what": "state",
        "partition": "orders-0",
        "reason": "leader-lost",
        "from": opened,
        "to": after,
        "replicas": [2, 1],
    }
    assert cluster.journal[2]["from"] is None
    assert cluster.journal[2]["to"] == opened
