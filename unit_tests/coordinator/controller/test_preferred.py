"""Tests of requested elections: by the node of Kafka's tools, and by ElectLeaders requests."""

from __future__ import annotations

import asyncio
import json

import pytest

from pybroker.coordinator.controller.decisions import Circumstances
from pybroker.coordinator.controller.events import Election, ElectionType
from pybroker.coordinator.controller.partitions import NO_VERSION, Partition, PartitionStatus
from pybroker.coordinator.controller.preferred import decide_preferred, is_needed
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import PartitionState, TopicPartition
from pybroker.ports import CreateOp
from unit_tests.coordinator.controller.cluster import Cluster, Member, key
from unit_tests.idle_loop import loop_turns
from unit_tests.patience import until

STATE = "/brokers/topics/orders/partitions/{}/state"
PREFERRED, UNCLEAN = ElectionType
NONE = ErrorCode.NONE


def partition(
    replicas: tuple[int, ...], leader: int, isr: tuple[int, ...], eligible: tuple[int, ...] = ()
) -> Partition:
    state = PartitionState(leader, 4, isr, controller_epoch=1, eligible=eligible)
    return Partition(key("orders-0"), replicas, PartitionStatus.ONLINE, state, 8)


@pytest.mark.parametrize(
    ("replicas", "leader", "isr", "candidates", "elected"),
    [
        ((1, 2), 2, (1, 2), (1, 2), 1),
        ((1, 2), 2, (2, 1), (1, 2), 1),
        ((1, 2), -1, (1, 2), (1, 2), 1),
        ((1, 2), 1, (1, 2), (1, 2), None),
        ((1, 2), 2, (2,), (1, 2), None),
        ((1, 2), 2, (1, 2), (2,), None),
    ],
)
def test_the_preferred_replica_leads_if_it_is_live_and_in_sync(
    replicas: tuple[int, ...],
    leader: int,
    isr: tuple[int, ...],
    candidates: tuple[int, ...],
    elected: int | None,
) -> None:
    before = partition(replicas, leader, isr, eligible=(9,))
    now = Circumstances(candidates, candidates, 7, required=len(isr) + 1)
    write = decide_preferred(before, now)
    if elected is None:
        assert write is None
    else:
        assert write is not None
        assert write.expected_version == 8
        assert write.state == PartitionState(elected, 5, isr, controller_epoch=7, eligible=(9,))


def test_a_partition_without_a_first_leader_gets_no_preferred_election() -> None:
    new = Partition(key("orders-0"), (1, 2), PartitionStatus.NEW, None, NO_VERSION)
    assert decide_preferred(new, Circumstances((1, 2), (1, 2), 7)) is None


def test_a_preferred_replica_that_was_restarted_has_to_catch_up_first() -> None:
    now = Circumstances((1, 2), (1, 2), 7, stale={1})
    assert decide_preferred(partition((1, 2), 2, (1, 2)), now) is None


def test_when_an_election_is_needed() -> None:
    assert is_needed(partition((1, 2), 2, (1, 2)), PREFERRED, (1, 2))
    assert not is_needed(partition((1, 2), 1, (1, 2)), PREFERRED, (1, 2))
    assert is_needed(partition((1, 2), -1, (1, 2)), UNCLEAN, (1, 2))
    assert is_needed(partition((1, 2), 2, (1, 2)), UNCLEAN, (1,))
    assert not is_needed(partition((1, 2), 2, (1, 2)), UNCLEAN, (1, 2))


async def churned(cluster: Cluster) -> Member:
    """Start two brokers. Broker 2 leads both partitions of `orders`. Broker 1 is the preferred
    replica of both, and in sync only in partition 0. Return broker 2, which is the controller."""
    first, second = await cluster.member(1), await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (1, 2), 1: (1, 2)})
    await cluster.received(2, "metadata orders-1 leader=1 epoch=0")
    for number, isr in ((0, [2, 1]), (1, [2])):
        path = STATE.format(number)
        state = {**cluster.json(path), "leader": 2, "leader_epoch": 5, "isr": isr}
        await cluster.write_json(path, state)
    await first.controller.stop()
    await until(lambda: second.controller.is_active)
    await until(lambda: cluster.lines(1).count("lead orders-1 leader=2 epoch=5 isr=2") > 0)
    cluster.notes.clear()
    return second


async def test_the_node_of_kafkas_tools(cluster: Cluster) -> None:
    await churned(cluster)
    asked = [{"topic": "orders", "partition": number} for number in (0, 1, 7)]
    asked.append({"topic": "nosuch", "partition": 0})
    await cluster.write_json(paths.PREFERRED_ELECTION, {"version": 1, "partitions": asked})
    await until(lambda: not cluster.exists(paths.PREFERRED_ELECTION))
    await cluster.received(1, "lead orders-0 leader=1 epoch=6 isr=2,1")
    await cluster.received(2, "lead orders-0 leader=1 epoch=6 isr=2,1")
    await cluster.received(2, "metadata orders-0 leader=1 epoch=6")
    assert cluster.stored_epoch("orders-1") == 5


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[",
        b"7",
        b"{}",
        b'{"partitions": 7}',
        b'{"partitions": [7]}',
        b'{"partitions": [{"topic": "orders"}]}',
        b'{"partitions": [{"topic": 1, "partition": 0}]}',
        b'{"partitions": [{"topic": "orders", "partition": true}]}',
        b'{"partitions": []}',
        b"[" * 100_000,
    ],
)
async def test_a_malformed_node_does_not_block_the_next_request(
    cluster: Cluster, content: bytes
) -> None:
    await churned(cluster)
    await cluster.tool.create(paths.PREFERRED_ELECTION, content)
    await until(lambda: not cluster.exists(paths.PREFERRED_ELECTION))
    assert cluster.stored_epoch("orders-0") == 5
    ignored = [entry for entry in cluster.journal if entry["what"] == "election-ignored"]
    assert [len(str(entry["reason"])) in range(10, 201) for entry in ignored] == (
        [] if content == b'{"partitions": []}' else [True]
    )
    await cluster.write_json(paths.PREFERRED_ELECTION, asking("orders-0"))
    await cluster.received(1, "lead orders-0 leader=1 epoch=6 isr=2,1")
    await until(lambda: not cluster.exists(paths.PREFERRED_ELECTION))


async def test_a_failed_election_is_in_the_journal(cluster: Cluster) -> None:
    """The journal has an entry only for partitions that exist."""
    await churned(cluster)
    for member in cluster.members:
        if member.id == 1:
            await member.kill()
    await cluster.write_json(paths.PREFERRED_ELECTION, asking("orders-0", "unknown-0"))
    await until(lambda: not cluster.exists(paths.PREFERRED_ELECTION))
    failed = [entry for entry in cluster.journal if entry["what"] == "election-failed"]
    assert [(entry["partition"], entry["reason"]) for entry in failed] == [
        ("orders-0", "PREFERRED_LEADER_NOT_AVAILABLE")
    ]


async def test_a_node_with_many_partitions_does_not_fill_the_log(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await churned(cluster)
    asked = [{"topic": "nosuch", "partition": number} for number in range(5_000)]
    await cluster.write_json(paths.PREFERRED_ELECTION, {"version": 1, "partitions": asked})
    await until(lambda: not cluster.exists(paths.PREFERRED_ELECTION))
    said = [line.getMessage() for line in caplog.records if "preferred" in line.getMessage()]
    assert "preferred elections failed partitions=5000" in said
    assert len(said) < 30


async def test_a_request_node_with_children_is_not_removed(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await churned(cluster)
    await cluster.tool.multi(
        [CreateOp(paths.PREFERRED_ELECTION), CreateOp(f"{paths.PREFERRED_ELECTION}/child")]
    )
    await until(lambda: "not removed" in caplog.text)
    await cluster.create("later", {0: (1,)})
    await cluster.received(1, "metadata later-0 leader=1 epoch=0")
    assert caplog.text.count("not removed") == 1
    await cluster.tool.delete(f"{paths.PREFERRED_ELECTION}/child")
    await cluster.tool.delete(paths.PREFERRED_ELECTION)
    await cluster.write_json(paths.PREFERRED_ELECTION, asking("orders-0"))
    await cluster.received(1, "lead orders-0 leader=1 epoch=6 isr=2,1")
    await until(lambda: not cluster.exists(paths.PREFERRED_ELECTION))


async def test_a_new_controller_finds_the_node(cluster: Cluster) -> None:
    second = await churned(cluster)
    await second.controller.stop()
    await cluster.write_json(paths.PREFERRED_ELECTION, asking("orders-0", "orders-1"))
    await cluster.member(3)
    await until(lambda: not cluster.exists(paths.PREFERRED_ELECTION))
    await cluster.received(1, "metadata orders-0 leader=1 epoch=6")


async def test_a_topic_that_is_being_deleted_gets_no_election(cluster: Cluster) -> None:
    second = await churned(cluster)
    cluster.deletion_gate.clear()
    await cluster.delete("orders")
    await cluster.received(2, "delete orders-0 epoch=-2")
    held = await second.controller.elect_leaders(PREFERRED, [key("orders-0")])
    assert held[key("orders-0")].code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert cluster.stored_epoch("orders-0") == 5


async def test_a_request_has_an_answer_for_each_partition(cluster: Cluster) -> None:
    second = await churned(cluster)
    asked = [key("orders-0"), key("orders-1"), key("nosuch-0"), key("orders-0")]
    held = await second.controller.elect_leaders(PREFERRED, asked)
    assert list(held) == asked[:3]
    assert held[asked[0]] == Election(NONE, leader=1)
    assert held[asked[1]].code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert held[asked[2]].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    again = await second.controller.elect_leaders(PREFERRED, asked[:1])
    assert again == {asked[0]: Election(ErrorCode.ELECTION_NOT_NEEDED)}


async def test_an_isr_is_read_again_before_an_election_is_refused(cluster: Cluster) -> None:
    """The leader has added the preferred replica to the ISR, and the controller has not read it
    yet."""
    second = await churned(cluster)
    path = STATE.format(1)
    await cluster.write_json(path, {**cluster.json(path), "isr": [2, 1]})
    held = await second.controller.elect_leaders(PREFERRED, [key("orders-1")])
    assert held == {key("orders-1"): Election(NONE, leader=1)}


async def test_an_isr_that_shrinks_at_the_same_time_is_respected(cluster: Cluster) -> None:
    second = await churned(cluster)
    path = STATE.format(0)
    await cluster.write_json(path, {**cluster.json(path), "isr": [2]})
    held = await second.controller.elect_leaders(PREFERRED, [key("orders-0")])
    assert held[key("orders-0")].code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    state = cluster.state("orders-0")
    assert state is not None
    assert (state.leader, state.isr) == (2, (2,))


async def test_an_unclean_election_needs_a_partition_without_leader(cluster: Cluster) -> None:
    second = await churned(cluster)
    alone = [key("orders-0"), key("orders-1")]
    held = await second.controller.elect_leaders(UNCLEAN, alone)
    assert {each.code for each in held.values()} == {ErrorCode.ELECTION_NOT_NEEDED}
    for member in list(cluster.members):
        await member.kill()
    cluster.notes.clear()
    first = await cluster.member(1)
    await cluster.received(1, "metadata orders-1 leader=-1 epoch=6")
    held = await first.controller.elect_leaders(UNCLEAN, alone)
    assert held[alone[0]].code is ErrorCode.ELECTION_NOT_NEEDED
    assert held[alone[1]] == Election(NONE, leader=1)
    await cluster.received(1, "lead orders-1 leader=1 epoch=7 isr=1")
    assert first.controller.unclean_elections == 1


async def test_only_the_controller_holds_elections(cluster: Cluster) -> None:
    await cluster.member(1)
    other = await cluster.member(2)
    with pytest.raises(BrokerError) as refused:
        await other.controller.elect_leaders(PREFERRED, [])
    assert refused.value.code is ErrorCode.NOT_CONTROLLER


async def test_an_election_request_fails_when_the_controller_is_deposed(cluster: Cluster) -> None:
    second = await churned(cluster)
    await cluster.tool.set(paths.CONTROLLER_EPOCH, b"9")
    with pytest.raises(BrokerError) as refused:
        await second.controller.elect_leaders(PREFERRED, [key("orders-0")])
    assert refused.value.code is ErrorCode.NOT_CONTROLLER
    assert cluster.stored_epoch("orders-0") == 5


async def test_an_election_request_fails_when_the_controller_stops(cluster: Cluster) -> None:
    second = await churned(cluster)
    asking_now = asyncio.ensure_future(second.controller.elect_leaders(PREFERRED, []))
    await loop_turns(1)
    await second.controller.stop()
    with pytest.raises(BrokerError) as refused:
        await asking_now
    assert refused.value.code is ErrorCode.NOT_CONTROLLER


def asking(*names: str) -> dict[str, object]:
    wanted = [TopicPartition(*key(name)) for name in names]
    rows = [{"topic": each.topic, "partition": each.partition} for each in wanted]
    content: dict[str, object] = {"version": 1, "partitions": rows}
    assert json.dumps(content)
    return content
