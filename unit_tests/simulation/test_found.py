"""Tests of bugs of the broker that the simulation has found, as small scenarios. The seed of a
bug would not show it any more after the next change of the code. docs/reliability.rst lists the
bugs."""

from __future__ import annotations

import pytest

from pybroker.client import Admin
from pybroker.coordinator.zookeeper.schemas import decode_state
from pybroker.model import is_orphaned
from pybroker.replication.authority import Authority
from pybroker.testing.simulation import ZOOKEEPER, Simulation
from pybroker.testing.simulation.broker import SimBroker
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.links import Delay
from pybroker.testing.simulation.operator import repair
from pybroker.testing.simulation.view import is_healthy, stored_states
from unit_tests.simulation.scenarios import (
    PARTITION,
    begin_with_empty_disks,
    begins_anew,
    create,
    produce,
    read_all,
    read_on,
)


@pytest.mark.parametrize("seed", (0, 7, 8))
def test_a_leader_whose_whole_log_is_gone_after_a_power_loss_is_not_elected(seed: int) -> None:
    """A power loss may remove the whole directory of a new partition, which was not synced. The
    broker did not know that the log had existed, and led with an empty log.
    """
    with Simulation(seed) as simulation:
        simulation.run(create, simulation.bootstrap)
        assert simulation.run(produce, simulation.bootstrap, 20) == list(range(20))
        leader = simulation.leader("orders", 0)
        simulation.lose_power(leader)
        others = sorted(simulation.cluster.brokers.keys() - {leader})
        for broker in others:
            simulation.kill(broker)
        simulation.start_broker(leader)
        simulation.pass_time(6)
        for broker in others:
            simulation.start_broker(broker)
        simulation.mend()
        values = simulation.run(read_all, simulation.bootstrap, 20)
    assert values == [b"%d" % number for number in range(20)]


def test_a_broker_detects_in_time_that_its_zookeeper_member_lost_the_leader() -> None:
    """The member answered the broker's reads, which the broker took as proof that its session was
    alive.
    """
    with Simulation(1) as simulation:
        zookeeper = simulation.cluster.zookeeper
        zookeeper.sync_limit_s = 60
        broker, client = next(
            (each, client)
            for each in simulation.cluster.brokers.values()
            if (client := zookeeper.client(each.machine.name)) is not None
            and client.member != zookeeper.leader
        )
        session, member = client.session_id, client.member
        assert member is not None
        others = [name for name in zookeeper.members if name != member]
        simulation.cut(member, others)
        simulation.cut(broker.id, others)
        simulation.wait(lambda: session not in zookeeper.session_ids())
        assert client.session_id == session, "the broker cannot know that its session has expired"
        assert broker.app is not None
        assert broker.app.lease.level is Authority.COMMITTED


async def elect(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        assert set((await admin.elect_leaders(partitions=[PARTITION])).values()) == {None}


def in_sync(simulation: Simulation) -> list[list[int]]:
    """Return the stored ISR, followed by the ISR in the memory of each running leader."""
    path = "/brokers/topics/orders/partitions/0/state"
    found = simulation.cluster.zookeeper.node(path)
    views = [] if found is None else [sorted(decode_state(path, found[0]).isr)]
    for broker in simulation.cluster.brokers.values():
        app = broker.app
        partition = None if app is None else app.replicas.partitions.get(PARTITION)
        if partition is not None and partition.is_leader and partition.state is not None:
            views.append(sorted(partition.state.isr))
    return views


@pytest.mark.parametrize("seed", (0, 2))
def test_a_follower_that_left_the_isr_rejoins_it(seed: int) -> None:
    """The leader had added the follower to the ISR twice within seconds, and the controller read
    that change late. When the follower restarted, it was not in the stored ISR, so that the
    controller sent no request to the leader, which kept the follower out of the ISR.
    """
    with Simulation(seed, config={"log.flush.interval.messages": 1}) as simulation:
        simulation.run(create, simulation.bootstrap)
        assert simulation.run(produce, simulation.bootstrap, 20) == list(range(20))
        leader = simulation.leader("orders", 0)
        follower = min(simulation.cluster.brokers.keys() - {leader})
        for _ in range(2):
            simulation.kill(follower)
            simulation.start_broker(follower)
            simulation.wait(lambda: len(in_sync(simulation)[0]) < 3)
            simulation.wait(lambda: in_sync(simulation) == [[1, 2, 3]] * 2)
        simulation.pass_time(0.3)
        simulation.lose_power(follower)
        simulation.start_broker(follower)
        simulation.wait(lambda: in_sync(simulation)[0] != [1, 2, 3])
        simulation.wait(lambda: in_sync(simulation) == [[1, 2, 3]] * 2, seconds=30)


def test_a_consumer_with_high_latency_finds_its_start_offset() -> None:
    """The consumer waited one millisecond for the answer, which is long enough only on the same
    machine.
    """
    with Simulation(1) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 20)
        simulation.cluster.links.usual = Delay(least_s=0.04)
        assert len(simulation.run(read_all, simulation.bootstrap, 20)) == 20


@pytest.mark.parametrize("seed", (0, 1, 2))
def test_a_starting_broker_ignores_requests_for_its_previous_process(seed: int) -> None:
    """The controller's request was meant for the broker's previous process, which had died. The
    broker resigned in ZooKeeper because of its power loss, but then led with the remaining records.
    """
    seen: list[bytes | None] = []
    with Simulation(seed) as simulation:
        simulation.run(create, simulation.bootstrap)
        first = simulation.leader("orders", 0)
        simulation.stop(first)
        simulation.run(produce, simulation.bootstrap, 20)
        simulation.start_broker(first)
        reader = simulation.start(read_on, simulation.bootstrap, seen)
        simulation.wait(lambda: len(seen) == 20 and is_healthy(simulation.cluster))
        simulation.pass_time(4)
        simulation.lose_power(first)
        simulation.wait(lambda: stored_states(simulation.cluster)[PARTITION].leader == first)
        simulation.start_broker(first)
        simulation.mend()
        simulation.run(produce, simulation.bootstrap, 5)
        simulation.wait(lambda: len(seen) == 25 or not reader.is_running)
        assert reader.error is None


@pytest.mark.parametrize("seed", range(4))
def test_a_restarted_broker_waits_for_the_expiry_of_its_earlier_session(seed: int) -> None:
    """The broker ended its start after one session timeout, but ZooKeeper expires sessions at its
    ticks only, which is later.
    """
    with Simulation(seed) as simulation:
        simulation.pass_time(seed / 2)
        simulation.lose_power(2)
        simulation.start_broker(2)
        simulation.mend()


@pytest.mark.parametrize("seed", range(3))
def test_a_leader_epoch_increased_by_a_flipped_bit_wins_no_election(seed: int) -> None:
    """No checksum covers the leader epoch of a batch. After a power loss of all brokers the damaged
    log counted as the latest, although it was shorter, and the other brokers truncated acknowledged
    records. If another broker led, the damaged broker fetched with an epoch that no leader knows,
    and never got in sync. Now the broker treats the epoch as damage: its log may have more records
    after it than other logs, and only the operator can accept the loss of these records.
    """
    with Simulation(seed, config={"log.flush.interval.messages": 1}) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 10)
        early = simulation.leader("orders", 0) % 3 + 1
        simulation.kill(early)
        simulation.run(produce, simulation.bootstrap, 10)
        path = f"/broker-{early}/data/orders-0/00000000000000000000.log"
        simulation.cluster.brokers[early].disk.flip(path, 8 * (9 * 69 + 12))
        for broker in {1, 2, 3} - {early}:
            simulation.lose_power(broker)
        simulation.mend()
        simulation.pass_time(10)
        repair(simulation.cluster)
        simulation.wait(lambda: is_healthy(simulation.cluster))
        values = simulation.run(read_all, simulation.bootstrap, 20)
    assert values == [b"%d" % (number % 10) for number in range(20)]


@pytest.mark.parametrize("seed", range(3))
def test_a_flipped_bit_in_the_last_batch_of_a_killed_broker_loses_nothing(seed: int) -> None:
    """The broker took the batch for an interrupted write, which a kill cannot cause. The broker was
    still in sync and restarted first, led without the batch, and the other brokers truncated the
    batch.
    """
    with Simulation(seed) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 10)
        simulation.wait(lambda: is_healthy(simulation.cluster))
        first = simulation.leader("orders", 0)
        for broker in (1, 2, 3):
            simulation.kill(broker)
        path = f"/broker-{first}/data/orders-0/00000000000000000000.log"
        simulation.cluster.brokers[first].disk.flip(path, 8 * (9 * 69 + 66))
        simulation.start_broker(first)
        simulation.pass_time(5)
        simulation.mend()
        simulation.wait(lambda: is_healthy(simulation.cluster))
        assert len(simulation.run(read_all, simulation.bootstrap, 10)) == 10


@pytest.mark.parametrize("seed", range(3))
def test_an_incomplete_copy_reports_its_log_end_if_no_replica_counts(seed: int) -> None:
    """The damaged log of a follower had been renamed, and the leader and the other follower lost
    power before the follower's copy was complete. The partition then waited forever for the log end
    of the copy, which could not be opened.
    """
    with Simulation(seed, config={"log.flush.interval.messages": 1}) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 20)
        simulation.wait(lambda: is_healthy(simulation.cluster))
        leader = simulation.leader("orders", 0)
        damaged = simulation.cluster.brokers[leader % 3 + 1]
        other = (leader + 1) % 3 + 1
        simulation.kill(damaged.id)
        path = f"/broker-{damaged.id}/data/orders-0/00000000000000000000.log"
        damaged.disk.flip(path, 8 * (10 * 69 + 66))
        simulation.start_broker(damaged.id)
        simulation.wait(lambda: begins_anew(damaged))
        for broker in (leader, other):
            simulation.lose_power(broker)
        simulation.mend()
        simulation.wait(lambda: is_healthy(simulation.cluster))
        values = simulation.run(read_all, simulation.bootstrap, 20)
    assert values == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("seed", range(3))
def test_a_returning_broker_need_not_report_its_log_end_again(seed: int) -> None:
    """When the last broker reported its log end, another broker that had reported before was
    between two sessions, and the controller waited for this broker. When it registered again, the
    controller did not evaluate the reports again.
    """
    with Simulation(seed, config={"log.flush.interval.messages": 1}) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 20)
        zookeeper = simulation.cluster.zookeeper
        for broker in (1, 2, 3):
            simulation.lose_power(broker)
        for broker in (1, 2, 3):
            simulation.start_broker(broker)
        simulation.wait(lambda: is_orphaned(stored_states(simulation.cluster)[PARTITION]))
        simulation.kill(3)
        simulation.wait(lambda: zookeeper.node(claim_of(2)) is not None)
        simulation.pass_time(1)
        simulation.cut(2, [ZOOKEEPER])
        simulation.wait(lambda: zookeeper.node("/brokers/ids/2") is None)
        simulation.start_broker(3)
        simulation.wait(lambda: all(zookeeper.node(claim_of(each)) for each in (1, 2, 3)))
        simulation.pass_time(2)
        simulation.mend()
        simulation.wait(lambda: is_healthy(simulation.cluster))
        assert len(simulation.run(read_all, simulation.bootstrap, 20)) == 20


def claim_of(broker: int) -> str:
    return f"/pybroker/suspects/orders/0/{broker}"


@pytest.mark.parametrize("seed", range(2))
def test_a_broker_starts_with_a_flipped_length_below_the_recovery_point(seed: int) -> None:
    """The batch was below the recovery point, where batches are not verified. The rebuild of the
    segment's indexes failed at this batch, and the broker ended at every start.
    """
    config = {"log.segment.bytes": 1024}
    with Simulation(seed, config=config) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 40)
        simulation.wait(lambda: is_healthy(simulation.cluster))
        bent = simulation.leader("orders", 0)
        simulation.pass_time(90)
        simulation.kill(bent)
        path = f"/broker-{bent}/data/orders-0/00000000000000000000.log"
        simulation.cluster.brokers[bent].disk.flip(path, 8 * (8 + 3))
        simulation.mend()
        simulation.wait(lambda: is_healthy(simulation.cluster))
        assert len(simulation.run(read_all, simulation.bootstrap, 40)) == 40


@pytest.mark.parametrize("place", (6, 8, 9))
def test_a_flipped_length_in_the_last_batch_of_a_killed_broker_loses_nothing(place: int) -> None:
    """No checksum covers the length of a batch. The batch seemed to be incomplete; its broker was
    still in sync and restarted first, led without the batch, and reused its offset. A checksum does
    not cover the base offset either, so that the record moved to another offset.
    """
    with Simulation(place) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 10)
        simulation.wait(lambda: is_healthy(simulation.cluster))
        first = simulation.leader("orders", 0)
        for broker in (1, 2, 3):
            simulation.kill(broker)
        path = f"/broker-{first}/data/orders-0/00000000000000000000.log"
        simulation.cluster.brokers[first].disk.flip(path, 8 * (9 * 69 + place))
        simulation.start_broker(first)
        simulation.pass_time(5)
        simulation.mend()
        simulation.wait(lambda: is_healthy(simulation.cluster))
        assert simulation.run(produce, simulation.bootstrap, 1) == [10]
        assert len(simulation.run(read_all, simulation.bootstrap, 11)) == 11


@pytest.mark.parametrize("seed", (0, 2, 3))
def test_a_follower_that_left_the_isr_early_in_an_epoch_rejoins_it(seed: int) -> None:
    """The follower's session survived the power loss, so that the follower was in sync when the new
    leader epoch began. It left the ISR before the new leader had received its role, and the
    controller, which read that state for another reason, sent it to no broker.
    """
    with Simulation(seed, config={"log.flush.interval.messages": 1}) as simulation:
        simulation.run(create, simulation.bootstrap)
        assert simulation.run(produce, simulation.bootstrap, 20) == list(range(20))
        preferred = simulation.leader("orders", 0)
        simulation.stop(preferred)
        simulation.start_broker(preferred)
        simulation.wait(lambda: in_sync(simulation) == [[1, 2, 3]] * 2)
        leader = simulation.leader("orders", 0)
        simulation.pass_time(3)  # so that nothing is left to be told
        (follower,) = {1, 2, 3} - {leader, preferred}
        simulation.lose_power(follower)
        simulation.run(elect, simulation.bootstrap)
        simulation.start_broker(follower)
        simulation.wait(lambda: in_sync(simulation)[0] != [1, 2, 3])
        app = simulation.cluster.brokers[leader].app
        assert app is not None
        app.replicas.leadership_yield.on_change()
        simulation.wait(lambda: in_sync(simulation) == [[1, 2, 3]] * 2, seconds=30)


@pytest.mark.parametrize("byte", (5, 6, 7))
def test_a_flipped_base_offset_of_the_last_batch_moves_no_record(byte: int) -> None:
    """No checksum covers the base offset. No later batch contradicts the wrong offset, but the gap
    before it does. The damaged log was the longest, and the other brokers copied the batch to the
    wrong offset.
    """
    with Simulation(1) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 10)
        simulation.wait(lambda: is_healthy(simulation.cluster))
        bent = simulation.leader("orders", 0)
        for broker in (1, 2, 3):
            simulation.kill(broker)
        path = f"/broker-{bent}/data/orders-0/00000000000000000000.log"
        simulation.cluster.brokers[bent].disk.flip(path, 8 * (9 * 69 + byte) + 2)
        simulation.start_broker(bent)
        simulation.pass_time(5)
        simulation.mend()
        simulation.wait(lambda: is_healthy(simulation.cluster))
        assert simulation.run(produce, simulation.bootstrap, 5) == list(range(10, 15))
        values = simulation.run(read_all, simulation.bootstrap, 15)
    assert values == [b"%d" % (number % 10) for number in range(15)]


def begun_anew(simulation: Simulation, leader: int) -> tuple[SimBroker, SimBroker]:
    """Give all brokers except one an incomplete copy that they cannot complete. Return these
    brokers.
    """
    brokers = simulation.cluster.brokers
    one, other = (brokers[(leader + step) % 3 + 1] for step in (0, 1))
    for copy in (one, other):
        simulation.kill(copy.id)
        path = f"/broker-{copy.id}/data/orders-0/00000000000000000000.log"
        copy.disk.flip(path, 8 * (10 * 69 + 66))
        simulation.start_broker(copy.id)
        simulation.wait(lambda copy=copy: begins_anew(copy))  # type: ignore[misc]
        simulation.cut(leader, [copy.id])
    return one, other


@pytest.mark.parametrize("seed", range(3))
def test_an_uncleanly_elected_copy_yields_to_a_replica_with_more_records(seed: int) -> None:
    """No other replica was available. The copy refused to lead because it was incomplete, and then
    the controller stopped. The next controller saw the copy as the only in-sync replica, whatever
    records the other replicas had.
    """
    config = {"unclean.leader.election.enable": True}
    with Simulation(seed, config=config) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 20)
        simulation.wait(lambda: is_healthy(simulation.cluster))
        leader = simulation.leader("orders", 0)
        one, other = begun_anew(simulation, leader)
        simulation.kill(other.id)
        simulation.kill(leader)
        states = stored_states
        simulation.wait(lambda: states(simulation.cluster)[PARTITION].isr == (one.id,))
        simulation.pass_time(3)
        simulation.kill(one.id)
        simulation.mend()
        simulation.wait(lambda: is_healthy(simulation.cluster))
        values = simulation.run(read_all, simulation.bootstrap, 20)
    assert values == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("seed", range(3))
def test_one_of_two_incomplete_copies_leads_if_unclean_election_is_allowed(seed: int) -> None:
    """Each copy refused to lead, and was elected again after the other copy had refused,
    forever.
    """
    config = {"unclean.leader.election.enable": True}
    with Simulation(seed, config=config) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 20)
        simulation.wait(lambda: is_healthy(simulation.cluster))
        leader = simulation.leader("orders", 0)
        begun_anew(simulation, leader)
        simulation.kill(leader)
        simulation.wait(lambda: simulation.leader("orders", 0) != leader)
        simulation.run(produce, simulation.bootstrap, 5)
        simulation.mend()
        simulation.wait(lambda: is_healthy(simulation.cluster))


@pytest.mark.parametrize("seed", range(3))
def test_incomplete_copies_that_alone_count_resign_one_after_another(seed: int) -> None:
    """Two disks were lost, and the operator accepted the losses after copies had begun, which then
    counted as in sync. Each copy refused to lead and the other copy was elected, many times a
    second, although the broker with all records was available.
    """
    config = {"min.insync.replicas": 3, "log.flush.interval.messages": 1}
    with Simulation(seed, config=config) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 20)
        leader = simulation.leader("orders", 0)
        brokers = simulation.cluster.brokers
        others = [broker for broker in brokers.values() if broker.id != leader]
        begin_with_empty_disks(simulation, leader, others)
        simulation.lose_power(leader)
        simulation.mend()
        for broker in others:  # so that the controller hears of the lost disks
            simulation.kill(broker.id)
            simulation.start_broker(broker.id)
            simulation.pass_time(3)
        simulation.pass_time(10)
        assert stored_states(simulation.cluster)[PARTITION].leader_epoch < 20
        repair(simulation.cluster)
        simulation.wait(lambda: is_healthy(simulation.cluster))
        values = simulation.run(read_all, simulation.bootstrap, 20)
    assert values == [b"%d" % number for number in range(20)]


def test_offset_gaps_of_a_compacted_log_are_not_damage_after_a_restart() -> None:
    """Only the topic's configuration tells whether offset gaps are allowed."""
    with Simulation(1) as simulation:
        simulation.run(create, simulation.bootstrap, {"cleanup.policy": "compact"})
        simulation.run(produce, simulation.bootstrap, 10, b"key")
        broker = simulation.cluster.brokers[simulation.leader("orders", 0)]
        simulation.kill(broker.id)
        path, disk = f"/broker-{broker.id}/data/orders-0/{0:020}.log", DiskView(broker.disk)
        data = disk.read(path)
        size = len(data) // 10
        disk.replace(path, data[: 8 * size] + data[9 * size :])
        simulation.start_broker(broker.id)
        simulation.mend()
        assert disk.read(path) == data[: 8 * size] + data[9 * size :], (
            "the broker must not copy the log anew"
        )


@pytest.mark.parametrize("seed", range(2))
def test_a_leader_resigns_when_a_follower_fetches_a_damaged_batch(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The follower without the batch refuses it and fetches again, so that the leader verifies the
    batch and reports the damage. Before the fix the follower logged an error.
    """
    config = {"pybroker.log.scrub.io.max.bytes.per.second": 0}
    with Simulation(seed, config=config) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 10)
        simulation.wait(lambda: is_healthy(simulation.cluster))
        bent = simulation.leader("orders", 0)
        follower = min({1, 2, 3} - {bent})
        simulation.kill(follower)
        simulation.run(produce, simulation.bootstrap, 20)
        path = f"/broker-{bent}/data/orders-0/00000000000000000000.log"
        simulation.cluster.brokers[bent].disk.flip(path, 8 * (15 * 69 + 66))
        simulation.start_broker(follower)
        simulation.wait(lambda: simulation.leader("orders", 0) != bent)
        simulation.mend()
        simulation.wait(lambda: is_healthy(simulation.cluster))
        assert len(simulation.run(read_all, simulation.bootstrap, 30)) == 30
    rotten = [each for each in caplog.records if "error=CORRUPT_MESSAGE" in each.getMessage()]
    assert {each.levelname for each in rotten} == {"WARNING"}
