"""Tests of group coordinators: every client's request finds the coordinator, another broker takes
over if the coordinator dies or is paused, and no other broker writes for the group.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import kazoo.client  # type: ignore[import-untyped]
import pytest

from integration_tests.apache import session_at
from integration_tests.wire_client import Connection
from pybroker.coordinator.runtime.partitioning import partition_of
from pybroker.errors import ErrorCode
from pybroker.testing.cluster import Cluster
from pybroker.wire.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
)
from pybroker.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from unit_tests.patience import wait_until

TOPIC: Final = "__consumer_offsets"
GROUPS: Final = ["", "g", "group-1", "äöü", "𝄞", "a/b", ".."]
PARTITIONS: Final = 5
SESSION_S: Final = 3.0
"""The session timeout of a `Cluster`."""


def found(bootstrap: str, group: str) -> FindCoordinatorResponse:
    with Connection(bootstrap) as connection:
        return connection.ask(3, FindCoordinatorRequest(key=group), FindCoordinatorResponse)


def coordinator_of(bootstrap: str, group: str) -> FindCoordinatorResponse:
    """Repeat FindCoordinator until the group has a coordinator. Return its id."""
    answers: list[FindCoordinatorResponse] = []

    def is_known() -> bool:
        answers.append(found(bootstrap, group))
        return answers[-1].error_code == ErrorCode.NONE

    wait_until(is_known, what=f"a coordinator of {group!r}")
    return answers[-1]


def described(bootstrap: str, topic: str = TOPIC) -> MetadataResponseTopic:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    with Connection(bootstrap) as connection:
        (answer,) = connection.ask(8, request, MetadataResponse).topics
    return answer


# a cluster of ours


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Yield a cluster. The parameter of the fixture has further options of the brokers."""
    with Cluster(data=tmp_path / "cluster", config=getattr(request, "param", None)) as cluster:
        yield cluster


undisturbed = pytest.mark.parametrize(
    "cluster", [{"zookeeper.session.timeout.ms": 30_000}], indirect=True, ids=["undisturbed"]
)
"""A session timeout in ms so long that no session expires because the machine stalls. No test waits
for it.
"""


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[kazoo.client.KazooClient]:
    with session_at(cluster.zookeeper) as session:
        yield session


def fence(nodes: kazoo.client.KazooClient, partition: int) -> tuple[int, int]:
    """Return (id of the broker in the coordinator's fence node, version of the node); (-1, -1)
    without a fence.
    """
    path = f"/pybroker/coordinators/{partition}"
    if nodes.exists(path) is None:
        return -1, -1
    data, stat = nodes.get(path)
    return json.loads(data)["broker"], stat.version


def fenced_by_another(nodes: kazoo.client.KazooClient, partition: int, than: int) -> int:
    """Wait until another broker has the fence. Return the version of its node."""
    wait_until(
        lambda: fence(nodes, partition)[0] not in (-1, than),
        what=f"a coordinator other than {than} of partition {partition}",
    )
    return fence(nodes, partition)[1]


def heartbeat(connection: Connection, group: str) -> int:
    """Send the heartbeat of an unknown member. Return the error code: only the coordinator answers
    UNKNOWN_MEMBER_ID.
    """
    request = HeartbeatRequest(group_id=group, generation_id=1, member_id="nobody")
    return connection.ask(0, request, HeartbeatResponse).error_code


def heartbeat_code(bootstrap: str, group: str) -> int:
    with Connection(bootstrap) as connection:
        return heartbeat(connection, group)


@undisturbed
@pytest.mark.ours
def test_concurrent_requests_create_one_offsets_topic(
    cluster: Cluster, nodes: kazoo.client.KazooClient
) -> None:
    with ThreadPoolExecutor(12) as threads:
        asked = [
            threads.submit(coordinator_of, cluster.address(broker), group)
            for group in GROUPS
            for broker in cluster.ids
        ]
        told: dict[str, set[int]] = {}
        for number, each in enumerate(asked):
            told.setdefault(GROUPS[number // len(cluster.ids)], set()).add(each.result().node_id)
    for group, brokers in told.items():
        state = cluster.partition(TOPIC, partition_of(group, PARTITIONS))
        assert state is not None and brokers == {state.leader}, group
    topic = described(cluster.bootstrap.split(",")[0])
    assert [len(each.replica_nodes) for each in topic.partitions] == [3] * PARTITIONS
    config = json.loads(nodes.get(f"/config/topics/{TOPIC}")[0])["config"]
    assert config == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": config["segment.bytes"],
    }


@pytest.mark.ours
def test_another_broker_takes_over_when_the_coordinator_is_killed(
    cluster: Cluster, nodes: kazoo.client.KazooClient
) -> None:
    group = "g"
    first = coordinator_of(cluster.address(1), group).node_id
    partition = partition_of(group, PARTITIONS)
    cluster.wait_until_in_sync(TOPIC)
    wait_until(lambda: fence(nodes, partition)[0] == first, what="the first fence")
    before = fence(nodes, partition)[1]
    cluster.kill(first)
    after = fenced_by_another(nodes, partition, first)
    assert after == before + 1
    survivor = next(each for each in cluster.ids if each != first)
    told: list[int] = []

    def tells_of_another() -> bool:
        told.append(found(cluster.address(survivor), group).node_id)
        return told[-1] not in (-1, first)

    wait_until(tells_of_another, what="another coordinator told to clients")
    second = told[-1]
    wait_until(
        lambda: heartbeat_code(cluster.address(second), group) == ErrorCode.UNKNOWN_MEMBER_ID,
        what="the coordinator loaded",
    )
    others = [each for each in cluster.ids if each not in (first, second)]
    assert heartbeat_code(cluster.address(others[0]), group) == ErrorCode.NOT_COORDINATOR


@pytest.mark.ours
def test_a_resumed_old_coordinator_does_not_coordinate(
    cluster: Cluster, nodes: kazoo.client.KazooClient
) -> None:
    group = "g"
    first = coordinator_of(cluster.address(1), group).node_id
    partition = partition_of(group, PARTITIONS)
    cluster.wait_until_in_sync(TOPIC)
    with Connection(cluster.address(first)) as connection:
        wait_until(
            lambda: heartbeat(connection, group) == ErrorCode.UNKNOWN_MEMBER_ID,
            what="the broker coordinates the group",
        )
        cluster.pause(first)
        paused = time.monotonic()
        after = fenced_by_another(nodes, partition, first)
        # ZooKeeper counts from the last ping. Only a broker that was paused for longer than the
        # session timeout knows at once that it may have been replaced.
        wait_until(
            lambda: time.monotonic() - paused > SESSION_S,
            what="the pause is longer than the session timeout",
        )
        cluster.resume(first)
        assert heartbeat(connection, group) == ErrorCode.NOT_COORDINATOR
    cluster.wait_until_in_sync(TOPIC)
    assert heartbeat_code(cluster.address(first), group) == ErrorCode.NOT_COORDINATOR
    assert fence(nodes, partition)[1] == after


@undisturbed
@pytest.mark.ours
def test_a_follower_that_dies_does_not_disturb_the_coordinator(
    cluster: Cluster, nodes: kazoo.client.KazooClient
) -> None:
    group = "g"
    first = coordinator_of(cluster.address(1), group).node_id
    partition = partition_of(group, PARTITIONS)
    cluster.wait_until_in_sync(TOPIC)
    wait_until(lambda: fence(nodes, partition)[0] == first, what="the fence")
    before = fence(nodes, partition)
    state = cluster.partition(TOPIC, partition)
    assert state is not None
    follower = next(each for each in cluster.ids if each != first)

    def has_left() -> bool:
        now = cluster.partition(TOPIC, partition)
        return now is not None and follower not in now.isr and now.leader == first

    with Connection(cluster.address(first)) as connection:
        wait_until(
            lambda: heartbeat(connection, group) == ErrorCode.UNKNOWN_MEMBER_ID,
            what="the broker coordinates the group",
        )
        cluster.kill(follower)
        heard: set[int] = set()

        def heard_until_left() -> bool:
            heard.add(heartbeat(connection, group))
            return has_left()

        wait_until(heard_until_left, what=f"broker {follower} out of sync")
        for _ in range(20):
            heard.add(heartbeat(connection, group))
        assert heard == {ErrorCode.UNKNOWN_MEMBER_ID}
    assert fence(nodes, partition) == before
