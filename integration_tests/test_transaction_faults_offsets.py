"""A fault test of a transaction with thousands of offsets, which `offsets.storage=zookeeper` writes
in several multis: the coordinator of the groups is killed between two of them.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from integration_tests.apache import session_at
from integration_tests.committer import FETCH_VERSION, MOVED
from integration_tests.faults.taps import HeldWrites
from integration_tests.ranges import make_topic
from integration_tests.test_transactions import CLUSTER
from integration_tests.transactional_producer import (
    GROUP_KEY,
    TransactionalProducer,
    Unreachable,
    ask_one,
    find_coordinator,
)
from integration_tests.wire_client import Connection, ConnectionClosed
from pybroker.client.metadata import error_code
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.testing.cluster import Cluster
from pybroker.wire.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from unit_tests.patience import wait_until

pytestmark = pytest.mark.ours

TOPIC = "t"
PARTITIONS = 300
GROUPS = tuple(f"g{number}" for number in range(10))
OFFSETS = PARTITIONS * len(GROUPS)
"""The offsets of the transaction: so many that they need several multis."""
EARLIER, LATER = 5, 8
"""The offset that is committed in each partition before the transaction, and the offset that the
transaction commits."""
CONFIG = {
    **CLUSTER,
    "offsets.storage": "zookeeper",
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}
PASSING = 2
"""The number of multis of the transaction before the kill."""
Found = tuple[ErrorCode, Counter[tuple[ErrorCode, int]]]


def fetched(bootstrap: str, group: str) -> Found:
    """Fetch the stable offsets of the group. Return the error of the whole request, and a count of
    the partitions by error and offset."""
    found: list[Found] = []
    topics = [OffsetFetchRequestTopic(name=TOPIC, partition_indexes=list(range(PARTITIONS)))]
    request = OffsetFetchRequest(group_id=group, topics=topics, require_stable=True)

    def ask(connection: Connection) -> ErrorCode:
        connection.set_timeout(30.0)
        answer = connection.ask(FETCH_VERSION, request, OffsetFetchResponse)
        parts = [part for topic in answer.topics for part in topic.partitions]
        counts = Counter((error_code(part.error_code), part.committed_offset) for part in parts)
        found.append((error_code(answer.error_code), counts))
        return ErrorCode.NONE

    def has_answer() -> bool:
        with suppress(OSError, ConnectionClosed, Unreachable):
            ask_one(find_coordinator(bootstrap, group, GROUP_KEY)[1], ask)
        return bool(found)

    wait_until(has_answer, what=f"offsets of {group}")
    return found[0]


def stored(connect: str) -> Counter[int]:
    """Return a count of the offset nodes by offset."""
    found: Counter[int] = Counter()
    with session_at(connect) as client:
        for group in GROUPS:
            folder = f"/consumers/{group}/offsets/{TOPIC}"
            names = client.get_children(folder) if client.exists(folder) else []
            found.update(int(client.get(f"{folder}/{name}")[0]) for name in names)
    return found


def test_coordinator_killed_between_two_multis_of_a_transaction(tmp_path: Path) -> None:
    with Cluster(3, config=CONFIG, data=tmp_path, proxied=True) as cluster:
        make_topic(cluster.bootstrap, TOPIC, PARTITIONS)
        producer = TransactionalProducer(cluster.bootstrap, "offsets")
        wait_until(lambda: is_found(cluster.bootstrap), what="the coordinators")
        for offset in (EARLIER, LATER):
            producer.init()
            for group in GROUPS:
                keys = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
                producer.commit_offsets(group, dict.fromkeys(keys, offset))
            if offset == EARLIER:
                producer.end(is_commit=True)
                wait_until(
                    lambda: stored(cluster.zookeeper) == {EARLIER: OFFSETS},
                    what="the earlier offsets are in ZooKeeper",
                )
        victim, _ = find_coordinator(cluster.bootstrap, GROUPS[0], GROUP_KEY)
        held = HeldWrites(f"/offsets/{TOPIC}/".encode(), passing=PASSING)
        cluster.tap(victim, "zookeeper", held.make)
        producer.end(is_commit=True)
        wait_until(held.holds.is_set, what="some multis are written, and the next one is not")
        partly = stored(cluster.zookeeper)
        assert 0 < partly[LATER] < OFFSETS, partly
        for group in (GROUPS[0], GROUPS[-1]):
            wait_until(
                partial(is_unstable, cluster.bootstrap, group), what=f"unstable offsets of {group}"
            )
        cluster.kill(victim)
        cluster.heal()
        assert find_other(cluster.bootstrap, victim) != victim
        for group in GROUPS:
            wait_until(partial(is_complete, cluster.bootstrap, group), what=f"offsets of {group}")
        assert stored(cluster.zookeeper) == {LATER: OFFSETS}


def is_found(bootstrap: str) -> bool:
    with suppress(Unreachable):
        find_coordinator(bootstrap, GROUPS[0], GROUP_KEY)
        return find_coordinator(bootstrap, "offsets")[0] > 0
    return False


def find_other(bootstrap: str, victim: int) -> int:
    """Wait until another broker is the coordinator of the groups, and return its id."""
    found: list[int] = []

    def is_other() -> bool:
        with suppress(Unreachable):
            found.append(find_coordinator(bootstrap, GROUPS[0], GROUP_KEY)[0])
        return bool(found) and found[-1] != victim

    wait_until(is_other, what="another coordinator")
    return found[-1]


def is_unstable(bootstrap: str, group: str) -> bool:
    """Whether the coordinator answers that the group's offsets are unstable. It may answer that it
    is not available, because the connections to ZooKeeper break."""
    code, counts = fetched(bootstrap, group)
    assert code in {ErrorCode.NONE, *MOVED}, code
    if code is not ErrorCode.NONE:
        return False
    assert {code for code, _ in counts} == {ErrorCode.UNSTABLE_OFFSET_COMMIT}, counts
    return True


def is_complete(bootstrap: str, group: str) -> bool:
    """Whether the new coordinator returns the group's offsets. Until then it returns none."""
    code, counts = fetched(bootstrap, group)
    if code is ErrorCode.NONE and ErrorCode.NONE in {code for code, _ in counts}:
        assert counts == {(ErrorCode.NONE, LATER): PARTITIONS}, counts
        return True
    assert code in {ErrorCode.NONE, *MOVED}, code
    assert {code for code, _ in counts} <= {ErrorCode.UNSTABLE_OFFSET_COMMIT, *MOVED}, counts
    return False
