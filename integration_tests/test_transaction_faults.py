"""Fault tests of transactions in every state: the coordinator, a leader or the client is killed, or
the coordinator loses its session. Each transaction then ends as it was decided, and a
read_committed consumer reads the committed records once.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest

from integration_tests.apache import end_session
from integration_tests.process import ChildProcess
from integration_tests.test_transactions import CLUSTER, finish, read
from integration_tests.transaction_states import COMPLETE, OUTCOME, STATES, AllStates
from integration_tests.transactional_producer import (
    TransactionalProducer,
    find_coordinator,
)
from integration_tests.wire_client import Connection, create
from pybroker.coordinator.transactions.states import TransactionState
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.testing.cluster import Cluster
from pybroker.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
)
from unit_tests.patience import wait_until

pytestmark = pytest.mark.ours

STATE_PARTITION = TopicPartition("__transaction_state", 0)
FENCED = {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster in which one broker coordinates all transactional ids."""
    config = {**CLUSTER, "transaction.state.log.num.partitions": 1}
    with Cluster(3, config=config, data=tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """Return the cluster with all brokers, also after a failed test."""
    shared_cluster.mend()
    return shared_cluster


class Scene:
    """A cluster, two topics, and a producer in each transaction state. The *gate* is the broker
    with the only replica of the second topic. From `reach` to `recover` it is paused or dead.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.data, self.gate_topic = f"data-{name}", f"gate-{name}"
        wait_until(self._has_coordinator, what="a coordinator")
        first = self.coordinator(cluster.bootstrap)
        other, self.gate = (each for each in cluster.ids if each != first)
        self.bootstrap = ",".join(map(cluster.address, (first, other)))
        self.states = AllStates(self.bootstrap, name, self.data, self.gate_topic)
        with Connection(cluster.address(cluster.controller())) as connection:
            for topic, replicas, in_sync in (
                (self.data, [[first, other, self.gate], [other, self.gate, first]], "2"),
                (self.gate_topic, [[self.gate]], "1"),
            ):
                assignments = [
                    CreatableReplicaAssignment(partition_index=number, broker_ids=ids)
                    for number, ids in enumerate(replicas)
                ]
                wanted = CreatableTopic(
                    name=topic,
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=assignments,
                    configs=[CreatableTopicConfig(name="min.insync.replicas", value=in_sync)],
                )
                assert create(connection, wanted).error_code == ErrorCode.NONE
        for topic in (self.data, self.gate_topic):
            cluster.wait_until_in_sync(topic)

    def _has_coordinator(self) -> bool:
        try:
            return self.coordinator(self.cluster.bootstrap) > 0
        except AssertionError:
            return False

    def coordinator(self, bootstrap: str = "") -> int:
        return find_coordinator(bootstrap or self.bootstrap, "any")[0]

    def reach(self, client: ChildProcess | None = None) -> None:
        """Bring a producer into each state. With `client` the producers run in that process."""
        if client is None:
            self.states.open()
        else:
            client.ask("open", "^done")
        self.cluster.pause(self.gate)
        if client is None:
            self.states.decide()
        else:
            client.ask("decide", "^done")

    def recover(self) -> None:
        """Start all brokers, and wait until each prepared transaction is complete, with the outcome
        that was decided."""
        if self.gate in self.cluster.running:
            self.cluster.resume(self.gate)
        for broker in set(self.cluster.ids) - set(self.cluster.running):
            self.cluster.restart(broker)
        for state, is_commit in OUTCOME.items():
            self.states.wait_for(state, COMPLETE[is_commit])

    def continue_all(self) -> None:
        """Let the producers continue. Check that each gets the answer that belongs to its state.
        Each transactional id then commits one more transaction."""
        for state, producer in self.states.producers.items():
            values = self.states.values(state, "second")
            if state is TransactionState.PREPARE_EPOCH_FENCE:
                self.check_fenced(state, producer)
                producer = TransactionalProducer(self.bootstrap, producer.transactional_id)
                producer.init()
            elif state in OUTCOME:
                is_commit = OUTCOME[state]
                producer.end(is_commit=is_commit)
                wrong = producer.refusal(partial(producer.try_end, is_commit=not is_commit))
                assert wrong is ErrorCode.INVALID_TXN_STATE, (state, wrong)
            producer.transact(values)

    def check_fenced(self, state: TransactionState, producer: TransactionalProducer) -> None:
        """Check that the producer can neither write nor end a transaction."""
        partition = self.states.partitions[0]
        value = f"{state.value} fenced".encode()
        assert producer.refusal(lambda: producer.try_put(partition, value)) in FENCED
        assert producer.refusal(lambda: producer.try_add([partition])) in FENCED
        assert producer.refusal(lambda: producer.try_end(is_commit=True)) in FENCED

    def check_read(self, first_turns: set[TransactionState]) -> None:
        """Check that the first transactions of exactly these producers are committed, and that the
        second transaction of each producer is committed. No record may be in the log twice."""
        committed = {
            *(
                self.states.values(state, "first")[TopicPartition(self.data, 0)]
                for state in first_turns
            ),
            *(
                self.states.values(state, "second")[TopicPartition(self.data, 0)]
                for state in STATES
            ),
        }
        written = committed | {
            f"{state.value} first".encode()
            for state in STATES
            if state is not TransactionState.EMPTY
        }
        for topic, partitions in ((self.data, 2), (self.gate_topic, 1)):
            finish(self.cluster.bootstrap, topic, partitions)
            for isolation, values in (("read_committed", committed), ("read_uncommitted", written)):
                found = read(self.cluster.bootstrap, topic, partitions, isolation)
                for number in range(partitions):
                    assert Counter(found[number]) == Counter(values), (topic, number, isolation)


COMMITTED = {state for state, is_commit in OUTCOME.items() if is_commit}


def finish_and_check(scene: Scene) -> None:
    """Start the dead brokers, let the producers continue, and check the outcomes of all
    transactions. A transaction that was open is committed by its producer."""
    scene.recover()
    scene.continue_all()
    scene.check_read(COMMITTED | {TransactionState.ONGOING})


def test_coordinator_killed_in_each_state(cluster: Cluster) -> None:
    scene = Scene(cluster, "coordinator")
    scene.reach()
    victim = scene.coordinator()
    assert victim != scene.gate
    scene.cluster.kill(victim)
    assert cluster.leader(*STATE_PARTITION, other_than=victim) != scene.gate
    scene.states.check()
    finish_and_check(scene)


def test_leader_of_written_partitions_killed_in_each_state(cluster: Cluster) -> None:
    """The killed leader has written its markers already. The next leader has copied them."""
    scene = Scene(cluster, "leader")
    scene.reach()
    cluster.kill(cluster.leader(scene.data, 1))
    finish_and_check(scene)


def test_leader_that_lacks_markers_killed_in_each_state(cluster: Cluster) -> None:
    """The paused leader is killed. The coordinator repeats the markers until the leader's next
    process writes them."""
    scene = Scene(cluster, "gate")
    scene.reach()
    cluster.kill(scene.gate)
    finish_and_check(scene)


def test_client_killed_in_each_state(cluster: Cluster) -> None:
    """The next producer with the transactional id aborts the open transaction."""
    scene = Scene(cluster, "client")
    module = "integration_tests.transaction_states"
    words = [scene.bootstrap, "client", scene.data, scene.gate_topic]
    client = ChildProcess([sys.executable, "-m", module, *words], interactive=True)
    with closing(client):
        scene.reach(client)
        client.kill9()
    scene.recover()
    for state in STATES:
        later = TransactionalProducer(scene.bootstrap, scene.states.id_of(state))
        later.init()
        later.transact(scene.states.values(state, "second"))
    scene.check_read(COMMITTED)


def test_session_of_coordinator_ends_in_each_state(cluster: Cluster) -> None:
    """The coordinator's process continues, but another broker may become the coordinator. The
    markers of the earlier coordinator must not contradict those of the later one."""
    scene = Scene(cluster, "session")
    scene.reach()
    before = cluster.partition(*STATE_PARTITION)
    assert before is not None
    file = cluster.log_dir(scene.coordinator()) / "zookeeper.session"
    end_session(cluster.zookeeper, json.loads(file.read_text())["sessions"][-1])

    def has_next_epoch() -> bool:
        now = cluster.partition(*STATE_PARTITION)
        return now is not None and now.leader_epoch > before.leader_epoch

    wait_until(has_next_epoch, what="the partition of the coordinator has another leader epoch")
    finish_and_check(scene)
