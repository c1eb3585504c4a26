"""What the simulation has found in the broker, as small stories of their own: seeds change their
meaning when anything about a run does. docs/reliability.rst has the list."""

from __future__ import annotations

import pytest

from pybroker.broker.standing import Level
from pybroker.client import Admin
from pybroker.coordinator.zookeeper.schemas import decode_state
from pybroker.model import is_orphaned
from pybroker.testing.simulation import ZOOKEEPER, Simulation
from pybroker.testing.simulation.broker import SimBroker
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.links import Delay
from pybroker.testing.simulation.operator import repair
from pybroker.testing.simulation.view import is_whole, stored_states
from unit_tests.simulation.stories import (
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
    """Nothing of a young partition is synced, so its directory may be gone without a trace; then
    nothing told that the log had been there, and its empty successor led."""
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


def test_a_broker_beside_a_member_of_zookeeper_that_lost_its_leader_learns_in_time() -> None:
    """The member answered its reads, which it took for signs that its session lived."""
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
        assert client.session_id == session, "it cannot know"
        assert broker.app is not None
        assert broker.app.standing.level is Level.COMMITTED


async def elect(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        assert set((await admin.elect_leaders(partitions=[PARTITION])).values()) == {None}


def in_sync(simulation: Simulation) -> list[list[int]]:
    """The ISR as it is stored, and as each leader that runs has it."""
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
def test_a_follower_that_stepped_aside_is_taken_back(seed: int) -> None:
    """Its leader had let it in twice within seconds, of which the controller hears late: when the
    broker came back the stored ISR lacked it, so that nobody told the leader, which was content."""
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


def test_a_consumer_far_away_finds_where_to_begin() -> None:
    """It gave the answer one millisecond, which is enough on one machine only."""
    with Simulation(1) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 20)
        simulation.cluster.links.usual = Delay(least_s=0.04)
        assert len(simulation.run(read_all, simulation.bootstrap, 20)) == 20


@pytest.mark.parametrize("seed", (0, 1, 2))
def test_a_broker_that_starts_obeys_nothing_that_was_meant_for_its_predecessor(seed: int) -> None:
    """It led with what the power loss had left, though it had given that up in ZooKeeper, as the
    controller asked its dead predecessor to."""
    seen: list[bytes | None] = []
    with Simulation(seed) as simulation:
        simulation.run(create, simulation.bootstrap)
        first = simulation.leader("orders", 0)
        simulation.stop(first)
        simulation.run(produce, simulation.bootstrap, 20)
        simulation.start_broker(first)
        reader = simulation.start(read_on, simulation.bootstrap, seen)
        simulation.wait(lambda: len(seen) == 20 and is_whole(simulation.cluster))
        simulation.pass_time(4)
        simulation.lose_power(first)
        simulation.wait(lambda: stored_states(simulation.cluster)[PARTITION].leader == first)
        simulation.start_broker(first)
        simulation.mend()
        simulation.run(produce, simulation.bootstrap, 5)
        simulation.wait(lambda: len(seen) == 25 or not reader.is_running)
        assert reader.error is None


@pytest.mark.parametrize("seed", range(4))
def test_a_machine_that_is_back_soon_outlasts_its_earlier_session(seed: int) -> None:
    """It gave up after one session timeout, while ZooKeeper ends sessions at its ticks only."""
    with Simulation(seed) as simulation:
        simulation.pass_time(seed / 2)
        simulation.lose_power(2)
        simulation.start_broker(2)
        simulation.mend()


@pytest.mark.parametrize("seed", range(3))
def test_a_leader_epoch_that_a_bit_made_large_wins_no_election(seed: int) -> None:
    """No checksum covers the epoch of a batch. After a power loss of all, that log counted as the
    latest, though it ended earlier, and the others cut what was acknowledged. Where another led, it
    asked with that epoch, which no leader knows, and was never in sync again. Now it is damage:
    what lies behind it may be more than the others have, and is for the operator to give up."""
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
        simulation.wait(lambda: is_whole(simulation.cluster))
        values = simulation.run(read_all, simulation.bootstrap, 20)
    assert values == [b"%d" % (number % 10) for number in range(20)]


@pytest.mark.parametrize("seed", range(3))
def test_a_bit_that_flips_in_the_last_batch_of_who_was_killed_costs_nothing(seed: int) -> None:
    """The batch was taken for a write that was cut off, which being killed cannot make of it; its
    broker, still in sync and back first, led without it, and the others cut theirs."""
    with Simulation(seed) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 10)
        simulation.wait(lambda: is_whole(simulation.cluster))
        first = simulation.leader("orders", 0)
        for broker in (1, 2, 3):
            simulation.kill(broker)
        path = f"/broker-{first}/data/orders-0/00000000000000000000.log"
        simulation.cluster.brokers[first].disk.flip(path, 8 * (9 * 69 + 66))
        simulation.start_broker(first)
        simulation.pass_time(5)
        simulation.mend()
        simulation.wait(lambda: is_whole(simulation.cluster))
        assert len(simulation.run(read_all, simulation.bootstrap, 10)) == 10


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_that_was_not_complete_says_what_it_has_when_nobody_counts(seed: int) -> None:
    """Its damaged log had been set aside, and its leader lost power before all was copied. So did
    the other; then the partition waited for ever for what the copy, which could not be opened, had
    to say."""
    with Simulation(seed, config={"log.flush.interval.messages": 1}) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 20)
        simulation.wait(lambda: is_whole(simulation.cluster))
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
        simulation.wait(lambda: is_whole(simulation.cluster))
        values = simulation.run(read_all, simulation.bootstrap, 20)
    assert values == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("seed", range(3))
def test_who_has_said_what_it_has_and_is_back_need_not_say_it_again(seed: int) -> None:
    """When the last one answered, another that had done so was between two sessions, and all were
    told to wait for it. When it was there again, nobody counted once more."""
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
        simulation.wait(lambda: is_whole(simulation.cluster))
        assert len(simulation.run(read_all, simulation.bootstrap, 20)) == 20


def claim_of(broker: int) -> str:
    return f"/pybroker/suspects/orders/0/{broker}"


@pytest.mark.parametrize("seed", range(2))
def test_a_bit_of_a_length_far_back_in_the_log_lets_a_broker_start(seed: int) -> None:
    """The batch lay below the recovery point, where nothing is checked; who wrote the indexes of
    that segment came upon it, and the broker ended, whenever it was started."""
    config = {"log.segment.bytes": 1024}
    with Simulation(seed, config=config) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 40)
        simulation.wait(lambda: is_whole(simulation.cluster))
        bent = simulation.leader("orders", 0)
        simulation.pass_time(90)
        simulation.kill(bent)
        path = f"/broker-{bent}/data/orders-0/00000000000000000000.log"
        simulation.cluster.brokers[bent].disk.flip(path, 8 * (8 + 3))
        simulation.mend()
        simulation.wait(lambda: is_whole(simulation.cluster))
        assert len(simulation.run(read_all, simulation.bootstrap, 40)) == 40


@pytest.mark.parametrize("place", (6, 8, 9))
def test_a_length_that_flips_in_the_last_batch_of_who_was_killed_costs_nothing(place: int) -> None:
    """No checksum covers it: the batch seemed to be cut off, its broker, still in sync and back
    first, led without it, and gave its offset away again. Nor does one cover the offset, by which
    the record moved."""
    with Simulation(place) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 10)
        simulation.wait(lambda: is_whole(simulation.cluster))
        first = simulation.leader("orders", 0)
        for broker in (1, 2, 3):
            simulation.kill(broker)
        path = f"/broker-{first}/data/orders-0/00000000000000000000.log"
        simulation.cluster.brokers[first].disk.flip(path, 8 * (9 * 69 + place))
        simulation.start_broker(first)
        simulation.pass_time(5)
        simulation.mend()
        simulation.wait(lambda: is_whole(simulation.cluster))
        assert simulation.run(produce, simulation.bootstrap, 1) == [10]
        assert len(simulation.run(read_all, simulation.bootstrap, 11)) == 11


@pytest.mark.parametrize("seed", (0, 2, 3))
def test_who_stepped_aside_right_after_an_epoch_began_is_taken_back(seed: int) -> None:
    """Its session outlived the power loss, so that the new leader's epoch began with it in sync.
    It left before that leader had ever heard of it, and the controller, which read of that for
    another reason, told nobody."""
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
        app.replicas.reluctance.on_change()
        simulation.wait(lambda: in_sync(simulation) == [[1, 2, 3]] * 2, seconds=30)


@pytest.mark.parametrize("byte", (5, 6, 7))
def test_a_bit_of_the_offset_of_the_very_last_batch_moves_no_record(byte: int) -> None:
    """No checksum covers the offset. Nothing behind that batch says that it is wrong, but the gap
    before it does. Its log was the longest, and the others copied it to its wrong place."""
    with Simulation(1) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 10)
        simulation.wait(lambda: is_whole(simulation.cluster))
        bent = simulation.leader("orders", 0)
        for broker in (1, 2, 3):
            simulation.kill(broker)
        path = f"/broker-{bent}/data/orders-0/00000000000000000000.log"
        simulation.cluster.brokers[bent].disk.flip(path, 8 * (9 * 69 + byte) + 2)
        simulation.start_broker(bent)
        simulation.pass_time(5)
        simulation.mend()
        simulation.wait(lambda: is_whole(simulation.cluster))
        assert simulation.run(produce, simulation.bootstrap, 5) == list(range(10, 15))
        values = simulation.run(read_all, simulation.bootstrap, 15)
    assert values == [b"%d" % (number % 10) for number in range(15)]


def begun_anew(simulation: Simulation, leader: int) -> tuple[SimBroker, SimBroker]:
    """The others, each with a copy that it has begun and cannot complete."""
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
def test_a_copy_that_was_chosen_uncleanly_makes_way_for_who_has_more(seed: int) -> None:
    """Nobody else was there. It refused, as it was not complete, and its controller ended; the next
    one knew it for the only one in sync, however much the others had."""
    config = {"unclean.leader.election.enable": True}
    with Simulation(seed, config=config) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 20)
        simulation.wait(lambda: is_whole(simulation.cluster))
        leader = simulation.leader("orders", 0)
        one, other = begun_anew(simulation, leader)
        simulation.kill(other.id)
        simulation.kill(leader)
        states = stored_states
        simulation.wait(lambda: states(simulation.cluster)[PARTITION].isr == (one.id,))
        simulation.pass_time(3)
        simulation.kill(one.id)
        simulation.mend()
        simulation.wait(lambda: is_whole(simulation.cluster))
        values = simulation.run(read_all, simulation.bootstrap, 20)
    assert values == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("seed", range(3))
def test_of_two_copies_that_are_not_complete_one_leads_where_that_is_allowed(seed: int) -> None:
    """Each refused, and was chosen again when the other had, for ever."""
    config = {"unclean.leader.election.enable": True}
    with Simulation(seed, config=config) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 20)
        simulation.wait(lambda: is_whole(simulation.cluster))
        leader = simulation.leader("orders", 0)
        begun_anew(simulation, leader)
        simulation.kill(leader)
        simulation.wait(lambda: simulation.leader("orders", 0) != leader)
        simulation.run(produce, simulation.bootstrap, 5)
        simulation.mend()
        simulation.wait(lambda: is_whole(simulation.cluster))


@pytest.mark.parametrize("seed", range(3))
def test_copies_that_are_all_that_count_leave_one_after_the_other(seed: int) -> None:
    """Two disks were lost, and given up after copies had begun in their places, which counted for
    them. Each refused to lead, and the other was chosen, for ever, many times a second, before and
    after, though who had all was there."""
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
        simulation.wait(lambda: is_whole(simulation.cluster))
        values = simulation.run(read_all, simulation.bootstrap, 20)
    assert values == [b"%d" % number for number in range(20)]


def test_gaps_of_a_compacted_log_are_no_damage_when_a_broker_comes_back() -> None:
    """Whether there may be any is known from its topic's configuration alone."""
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
        assert disk.read(path) == data[: 8 * size] + data[9 * size :], "else it was copied anew"


@pytest.mark.parametrize("seed", range(2))
def test_a_leader_that_is_asked_for_a_rotten_batch_makes_way(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The follower that lacks it refuses it and asks again, so that the leader looks itself and
    tells of it. The follower called it an error before that."""
    config = {"pybroker.log.scrub.io.max.bytes.per.second": 0}
    with Simulation(seed, config=config) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 10)
        simulation.wait(lambda: is_whole(simulation.cluster))
        bent = simulation.leader("orders", 0)
        follower = min({1, 2, 3} - {bent})
        simulation.kill(follower)
        simulation.run(produce, simulation.bootstrap, 20)
        path = f"/broker-{bent}/data/orders-0/00000000000000000000.log"
        simulation.cluster.brokers[bent].disk.flip(path, 8 * (15 * 69 + 66))
        simulation.start_broker(follower)
        simulation.wait(lambda: simulation.leader("orders", 0) != bent)
        simulation.mend()
        simulation.wait(lambda: is_whole(simulation.cluster))
        assert len(simulation.run(read_all, simulation.bootstrap, 30)) == 30
    rotten = [each for each in caplog.records if "error=CORRUPT_MESSAGE" in each.getMessage()]
    assert {each.levelname for each in rotten} == {"WARNING"}
