"""Fault tests with silent links, in one direction or in both: between brokers, between a broker and
ZooKeeper, or both. An isolated broker refuses requests that it cannot guarantee, and follows the
other brokers' decisions after healing.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator

import confluent_kafka
import confluent_kafka.admin
import pytest
from confluent_kafka.cimpl import NewTopic

from integration_tests.faults.replicas import files_in_use, log_end
from integration_tests.faults.rig import PARTITIONS, Rig, Run
from integration_tests.faults.settings import PRODUCERS, READERS
from integration_tests.faults.tormented import LAG_S, Tormented
from pybroker.testing.history import measures
from pybroker.testing.history.model import NANOSECONDS, History
from unit_tests.patience import ATTEMPT_S, wait_until

pytestmark = pytest.mark.ours

REFUSALS = {"NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"}

SESSION_S = 20.0
"""A session timeout in ms longer than a machine stalls, so that a leader that reaches ZooKeeper
stays leader.
"""
ISR_CHANGES_MAX = 4
"""The maximum number of ISR changes of one partition while one link is silent or healed: a replica
leaves and rejoins, and once more on a busy machine.
"""

SLOW_S = 0.25
"""The delay in seconds of every piece of data while a follower catches up, longer than a read of
the ISR takes.
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tormented]:
    config = {"zookeeper.session.timeout.ms": int(SESSION_S * 1000)}
    with Tormented(tmp_path_factory.mktemp("links"), proxied=True, config=config) as started:
        yield started


@pytest.fixture
def rig(cluster: Tormented, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(cluster.fit(), tmp_path_factory.mktemp("ops"))


def led_by(run: Run, broker: int) -> list[int]:
    return [p for p, state in run.watch.all().items() if state.leader == broker]


def a_leader_without_office(run: Run) -> int:
    """Return a broker that leads a partition and is not the controller. Otherwise the controller
    would change, too.
    """
    controller = run.controller()
    return next(
        state.leader for state in run.watch.all().values() if state.leader not in (-1, controller)
    )


def answers_of_led(history: History, partitions: list[int], begin: int, end: int) -> Counter[str]:
    """Return the prober's results of the values that it sent to these partitions in that time."""
    return Counter(
        "ok" if send.outcome == "ok" else send.error
        for send in history.sends.values()
        if send.identity.producer == "prober"
        and send.partition[1] in partitions
        and begin <= send.begun <= end
    )


def test_leader_cut_from_peers(rig: Rig) -> None:
    """The leader keeps its session, so it stays leader. It must refuse writes, because it is the
    only in-sync replica.
    """
    with rig.run("leader-cut-from-peers", clients=(*PRODUCERS, "prober", *READERS)) as run:
        run.wait_for_progress(10)
        leader = a_leader_without_office(run)
        with run.fault("cut", leader):
            rig.cluster.cut(leader, *(b for b in rig.cluster.brokers if b != leader))
            for partition in led_by(run, leader):
                run.wait_for_state(
                    partition,
                    lambda s: s.isr == (leader,),
                    "the leader is the only in-sync replica",
                )
            alone = led_by(run, leader)
            with run.fault("alone", leader):
                # Producers that wait for the answers to all their requests send nothing more.
                run.wait_for_progress(
                    10, clients=["five-in-flight"], partitions={*range(PARTITIONS)} - {*alone}
                )
                run.wait_for_refusals("prober", REFUSALS)
        rig.cluster.heal()
        run.wait_for_full_isr()
        history = run.finish()
    begin, end = measures.fault(history, "alone")
    told = answers_of_led(history, alone, begin, end)
    assert told, "the prober has sent values"
    assert set(told) <= REFUSALS, told
    acked = measures.acked_between(history, begin, end)
    for partition in range(PARTITIONS):
        went_on = acked[run.topic, partition] > 0
        assert went_on == (partition not in alone), (partition, alone, acked)


def test_leader_cut_from_zookeeper(rig: Rig) -> None:
    """The leader's session expires without its knowledge, while clients and followers still reach
    it.
    """
    with rig.run("leader-cut-from-zookeeper") as run:
        run.wait_for_progress(10)
        leader = run.leader()
        with run.fault("cut", leader):
            rig.cluster.cut(leader, "zookeeper")
            run.leader(other_than=leader)
            run.wait_for_progress(10)
            run.wait(LAG_S)
        rig.cluster.heal()
        run.wait_for_full_isr()
        history = run.finish()
    begin, _ = measures.fault(history, "cut")
    assert measures.election_delay(history, begin, leader), "no other leader was elected"


def reader_of(bootstrap: str, topic: str, partition: int) -> confluent_kafka.Consumer:
    """Return a consumer that refreshes its metadata only every five minutes, or after an error."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "sent-on"})
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
    return consumer


def wait_until_read(consumer: confluent_kafka.Consumer, offset: int) -> None:
    """Wait until the consumer gets the record at that offset or a later record."""

    def read() -> bool:
        found = [message.offset() for message in consumer.consume(500, 0.1) if not message.error()]
        return any(each is not None and each >= offset for each in found)

    wait_until(read, what=f"offset {offset} is read")


def create_by(bootstrap: str, topic: str) -> None:
    """Create a topic by a client with only this broker's address, and retry until it succeeds."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    wanted = NewTopic(topic, num_partitions=1, replication_factor=2)

    def created() -> bool:
        try:
            admin.create_topics([wanted], operation_timeout=ATTEMPT_S)[topic].result()
        except confluent_kafka.KafkaException as error:
            return bool(error.args[0].code() == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS)
        return True

    wait_until(created, what=f"{topic} is made")


def test_clients_of_an_isolated_leader_find_the_new_leaders(rig: Rig) -> None:
    """Clients that read from the isolated broker, and new clients with only its address, must learn
    the new leaders. The broker receives no requests of the controller, so it asks the other brokers
    for the leaders and for the new controller. It was the controller itself.
    """
    with rig.run("clients-sent-on") as run, contextlib.ExitStack() as clients:
        run.wait_for_progress(10)
        leader = run.controller()
        address = rig.cluster.cluster.address(leader)
        readers = {p: reader_of(address, run.topic, p) for p in led_by(run, leader)}
        assert readers, "the isolated broker leads no partition"
        for reader in readers.values():
            clients.callback(reader.close)
            wait_until_read(reader, 0)
        with run.fault("cut", leader):
            rig.cluster.cut(leader, "zookeeper")
            for partition in readers:
                run.leader(partition, other_than=leader)
            run.wait_for_progress(50)
            for partition, reader in readers.items():
                end = log_end(rig.cluster.log_dir(leader), (run.topic, partition))
                newcomer = reader_of(address, run.topic, partition)
                clients.callback(newcomer.close)
                for each in (reader, newcomer):
                    wait_until_read(each, end + 10)
            create_by(address, f"{run.topic}-too")
        rig.cluster.heal()
        run.wait_for_full_isr()
        run.finish()


def test_isolate_and_heal(rig: Rig) -> None:
    """The leader is isolated together with its clients. It does not acknowledge the records that it
    appends then, and truncates them by leader epochs after healing.
    """
    clients = (*PRODUCERS, "hasty", "prober", *READERS)
    with rig.run("isolate-and-heal", clients=clients) as run:
        run.wait_for_progress(10)
        leader = run.leader()
        with run.fault("cut", leader):
            rig.cluster.cut(leader)
            run.leader(other_than=leader)
            run.wait_for_progress(10, clients=PRODUCERS)
        rig.cluster.heal()
        run.wait_for_full_isr()
        history = run.finish(stop=True)
    begin, _ = measures.fault(history, "cut")
    assert measures.election_delay(history, begin, leader), "no other leader was elected"


def isr_changes(history: History, begin: int, end: int) -> dict[int, int]:
    """Return the number of ISR changes of each partition in that time."""
    found = dict.fromkeys(range(PARTITIONS), 0)
    for partition in found:
        states = [state for state in history.states if state.partition[1] == partition]
        for before, after in itertools.pairwise(sorted(states, key=lambda s: s.version)):
            found[partition] += begin <= after.at <= end and set(before.isr) != set(after.isr)
    return found


def stood_still(history: History, begin: int, end: int) -> bool:
    """Return whether all producers were silent for longer than a follower may lag."""
    begun = sorted(s.begun for s in history.sends.values() if begin <= s.begun <= end)
    return any(after - before > LAG_S * NANOSECONDS for before, after in itertools.pairwise(begun))


def judge_isr(history: History, what: str, count: int) -> None:
    """Check that no replica leaves and joins the ISR repeatedly while no link changes. If the
    machine has stalled, all followers lag for a moment."""
    begins = [measures.fault(history, what, number)[0] for number in range(count)]
    for begin, end in itertools.pairwise([*begins, begins[-1] + 3600 * NANOSECONDS]):
        changes = isr_changes(history, begin, end)
        if stood_still(history, begin, end):
            continue
        assert max(changes.values()) <= ISR_CHANGES_MAX, changes


def test_one_way_partitions(rig: Rig) -> None:
    """All packets from one broker to another are lost, and the other direction is open. Whichever
    of the two leads, the third broker is in sync, so all partitions accept records.
    """
    pairs = list(itertools.permutations(rig.cluster.brokers, 2))
    with rig.run("one-way-partitions", clients=(*PRODUCERS, "prober", *READERS)) as run:
        run.wait_for_progress(10)
        for sender, receiver in pairs:
            with run.fault("one-way", f"{sender}->{receiver}"):
                rig.cluster.cut(sender, receiver, direction="out")
                run.wait(LAG_S)
                run.wait_for_progress(5)
            rig.cluster.heal()
            run.wait_for_full_isr()
        history = run.finish()
    judge_isr(history, "one-way", len(pairs))
    begin, end = measures.fault(history, "one-way")[0], measures.fault(history, "one-way", 5)[1]
    assert isr_changes(history, begin, end) != dict.fromkeys(range(PARTITIONS), 0), (
        "the cut had no effect"
    )
    print(f"one-way-partitions: {measures.longest_pauses(history, begin, end)}")


def test_bridge_partition(rig: Rig) -> None:
    """Two brokers cannot reach each other, and a third broker reaches both. The controller is first
    the third broker, and then one of the two.
    """
    with rig.run("bridge-partition", clients=(*PRODUCERS, "prober", *READERS)) as run:
        run.wait_for_progress(10)
        controller = run.controller()
        first, second = (broker for broker in rig.cluster.brokers if broker != controller)
        for one, other in ((first, second), (controller, first)):
            with run.fault("bridge", f"{one}-{other}"):
                rig.cluster.cut(one, other)
                led = led_by(run, one) + led_by(run, other)
                assert led
                for partition in led:
                    run.wait_for_state(
                        partition,
                        lambda s: len(s.isr) == 2,
                        "one of the two brokers has left the ISR",
                    )
                run.wait_for_progress(5)
            rig.cluster.heal()
            run.wait_for_full_isr()
        history = run.finish()
    judge_isr(history, "bridge", 2)


def epoch_start(rig: Rig, topic: str, partition: int, leader: int) -> int:
    """Return the start offset of the leader's epoch in its log."""
    found = files_in_use(rig.cluster.log_dir(leader), (topic, partition))
    return int(found["epochs"][-1][1])


def test_freeze_follower_under_load(rig: Rig) -> None:
    """The paused follower leaves the ISR because of its lag or its expired session. Records with
    acks=all wait for the follower until then, and no longer. Meanwhile a new leader epoch begins.
    The follower rejoins the ISR only with every record up to the start of this epoch, although it
    catches up slowly.
    """
    with rig.run("freeze-follower", rate=200) as run:
        run.wait_for_progress(15)
        frozen = next(b for b in rig.cluster.brokers if b != run.controller())
        followed = [p for p, state in run.watch.all().items() if state.leader != frozen]
        with run.fault("pause", frozen):
            rig.cluster.pause(frozen)
            for partition in followed:
                run.wait_for_state(
                    partition, lambda s: frozen not in s.isr, "the paused follower has left the ISR"
                )
            run.wait_for_progress(15)
        had = {p: log_end(rig.cluster.log_dir(frozen), (run.topic, p)) for p in followed}
        leader = run.leader(followed[0])
        moved = [p for p in followed if run.leader(p) == leader]
        with run.fault("kill9", leader):
            rig.cluster.kill9(leader)
        rig.cluster.start(leader)
        run.wait_for_progress(10)
        rig.cluster.cluster.delay(SLOW_S, to="brokers")
        rig.cluster.resume(frozen)
        for partition in moved:
            state = run.wait_for_state(
                partition, lambda s: frozen in s.isr, "the follower has rejoined the ISR"
            )
            begin = epoch_start(rig, run.topic, partition, state.leader)
            assert begin > had[partition], (
                "otherwise the follower could rejoin with its old records"
            )
            assert log_end(rig.cluster.log_dir(frozen), (run.topic, partition)) >= begin
        rig.cluster.heal()
        run.wait_for_full_isr()
        run.finish()
