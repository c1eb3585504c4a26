"""Tests of clients that send invalid group requests to a real broker: each client gets the right
error code, ZooKeeper has the right nodes, the memory stays bounded, and a well-behaved group is not
affected.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Iterator
from typing import Any, Final

import psutil
import pytest

from integration_tests.apache import session_at
from integration_tests.committer import Committer, commit_request, only_code
from integration_tests.fuzzing.attack import unhandled_in
from integration_tests.group_requests import (
    TOPIC,
    commit,
    deleted,
    fetch,
    fetched,
    heartbeat,
    join,
    join_request,
    leave,
    sample,
    stable,
    sync,
)
from integration_tests.wire_client import (
    Connection,
    ConnectionClosed,
    create_topic,
    frame_of,
    newest,
)
from pybroker.coordinator.zookeeper.paths import decode_name
from pybroker.errors import ErrorCode
from pybroker.testing.cluster import Cluster
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.group_admin import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from pybroker.wire.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    JoinGroupRequestProtocol,
)
from pybroker.wire.messages.offsets import (
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from unit_tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.ours

RSS_BYTES_MAX: Final = 600 << 20
ROOM_BYTES: Final = 256 << 20
STRANGE: Final = ("a/b", "..", ".", "%2E%2E", " ", "\0", "\n\x1b[2J", "äöü", "𝄞", "x" * 249)
TOO_LONG: Final = ("x" * 300, "ü" * 100, "\0" * 84, "")
"""Group ids whose node name in ZooKeeper would be empty or longer than 249 characters."""
CONFIG: Final = {
    "offsets.topic.num.partitions": 3,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.retention.check.interval.ms": 500,
    # A broker that has not heard from ZooKeeper for two thirds of it accepts no commits.
    "zookeeper.session.timeout.ms": 30_000,
}
GONE: Final = (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)
"""The valid error codes for the deletion of a group without members and offsets, which the broker
may have removed already.
"""
PASSING: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""The error codes of a coordinator after it, or its ZooKeeper, has stalled. A client retries after
them.
"""
MEMBER_APIS: Final = (
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.OFFSET_DELETE,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.DELETE_GROUPS,
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1, config=CONFIG) as started:
        with Connection(started.bootstrap) as connection:
            create_topic(connection, TOPIC, partitions=2)
        with contextlib.closing(Committer(started.bootstrap, "anybody", TOPIC)) as client:
            client.commit({0: 0})
        yield started


@pytest.fixture
def connection(cluster: Cluster) -> Iterator[Connection]:
    with Connection(cluster.bootstrap) as opened:
        yield opened


@pytest.fixture(autouse=True)
def well_behaved(cluster: Cluster) -> Iterator[None]:
    """Run a member of another group that heartbeats and commits meanwhile. Check that the hostile
    clients do not affect it, and that the broker logs no unexpected error.
    """
    with Bystander(cluster) as bystander:
        yield
    assert bystander.error is None
    assert cluster.running == [1]
    assert unhandled_in(cluster.log_text(1)) == set()


class Bystander:
    """A well-behaved member that must stay in the same generation."""

    def __init__(self, cluster: Cluster) -> None:
        self._bootstrap = cluster.bootstrap
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._behaves = threading.Event()
        self.error: BaseException | None = None

    def __enter__(self) -> Bystander:
        """Start the member, and return after its first commit, from which on its group has a
        node.
        """
        self._thread.start()
        wait_until(lambda: self._behaves.is_set() or self.error, what="a well-behaved member")
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with Connection(self._bootstrap) as connection:
                self._behave(connection)
        except BaseException as error:  # reported to the test's thread, which can fail the test
            self.error = error

    def _behave(self, connection: Connection) -> None:
        connection.set_timeout(PATIENCE_S)
        me = stable(connection, "well-behaved")
        done = 0
        while not self._end.wait(0.02):
            beat = heartbeat(connection, "well-behaved", me.member_id, me.generation_id)
            assert beat in (ErrorCode.NONE, *PASSING)
            wanted = commit_request("well-behaved", TOPIC, {0: done + 1})
            wanted.generation_id, wanted.member_id = me.generation_id, me.member_id
            code = only_code(connection.ask(8, wanted, OffsetCommitResponse))
            assert code in (ErrorCode.NONE, *PASSING)
            if code is ErrorCode.NONE:
                done += 1
                assert fetched(connection, "well-behaved") == done
                self._behaves.set()
        assert leave(connection, "well-behaved", me.member_id) == [ErrorCode.NONE]


def groups_in_zookeeper(cluster: Cluster) -> set[str]:
    with session_at(cluster.zookeeper) as session:
        return {decode_name(name) for name in session.get_children("/consumers")}


# unknown members


def test_requests_of_an_unknown_member_are_refused(connection: Connection) -> None:
    """The requests name an existing group, or an unknown group."""
    me = stable(connection, "mine")
    for group in ("mine", "never"):
        assert join(connection, group, "ghost").error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert sync(connection, group, "ghost", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert heartbeat(connection, group, "ghost", 1) == ErrorCode.UNKNOWN_MEMBER_ID
        assert leave(connection, group, "ghost") == [ErrorCode.UNKNOWN_MEMBER_ID]
        assert leave(connection, group, "", "ghost") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert commit(connection, "mine") == ErrorCode.UNKNOWN_MEMBER_ID
    ghost: dict[str, Any] = {"member_id": "ghost", "generation": 1}
    assert commit(connection, "mine", **ghost) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(connection, "never", **ghost) == ErrorCode.ILLEGAL_GENERATION
    assert fetched(connection, "mine") == fetched(connection, "never") == -1
    assert heartbeat(connection, "mine", me.member_id, me.generation_id) == 0
    assert leave(connection, "mine", me.member_id) == [0]


@pytest.mark.parametrize("generation", [0, 2, -1, -(2**31), 2**31 - 1])
def test_requests_of_another_generation_are_refused(
    connection: Connection, generation: int
) -> None:
    me = stable(connection, "stale").member_id
    wrong = ErrorCode.ILLEGAL_GENERATION
    assert sync(connection, "stale", me, generation).error_code == wrong
    assert heartbeat(connection, "stale", me, generation) == wrong
    assert commit(connection, "stale", member_id=me, generation=generation) == wrong
    assert fetched(connection, "stale") == -1
    assert leave(connection, "stale", me) == [0]
    assert deleted(connection, "stale") in GONE


def test_a_static_member_that_was_replaced_is_fenced(connection: Connection) -> None:
    first = stable(connection, "static", version=9, group_instance_id="i")
    second = join(connection, "static", version=9, group_instance_id="i")
    assert second.error_code == 0 and second.member_id != first.member_id
    old, fenced = first.member_id, ErrorCode.FENCED_INSTANCE_ID
    generation = second.generation_id
    again = join(connection, "static", old, version=9, group_instance_id="i")
    assert again.error_code == fenced
    synced = sync(connection, "static", old, generation, group_instance_id="i")
    assert synced.error_code == fenced
    assert heartbeat(connection, "static", old, generation, "i") == fenced
    said: dict[str, Any] = {"member_id": old, "generation": generation}
    assert commit(connection, "static", instance="i", **said) == fenced
    assert commit(connection, "static", **said) == ErrorCode.UNKNOWN_MEMBER_ID
    assert leave(connection, "static", old, "i") == [fenced]
    assert fetched(connection, "static") == -1
    assert heartbeat(connection, "static", second.member_id, generation, "i") == 0
    assert leave(connection, "static", "", "i") == [0]
    assert deleted(connection, "static") in GONE


def test_members_of_another_protocol_are_refused(connection: Connection) -> None:
    other = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    me = stable(connection, "kind").member_id
    unknown = [JoinGroupRequestProtocol(name="of-nobody-else", metadata=b"")]
    wrongs: list[dict[str, Any]] = [{"protocol_type": ""}, {"protocols": []}]
    for wrong in wrongs:
        assert join(connection, "kind-of-nobody", **wrong).error_code == other, wrong
    for wrong in (*wrongs, {"protocol_type": "connect"}, {"protocols": unknown}):
        assert join(connection, "kind", **wrong).error_code == other, wrong
    lies: list[dict[str, Any]] = [
        {"protocol_type": "connect"},
        {"protocol_name": "x"},
        {"protocol_name": None},
    ]
    for words in lies:
        assert sync(connection, "kind", me, 1, **words).error_code == other, words
    many = [JoinGroupRequestProtocol(name=f"p{number}") for number in range(65)]
    large = [JoinGroupRequestProtocol(name="range", metadata=bytes((1 << 20) + 1))]
    for protocols in (many, large):
        assert join(connection, "kind", protocols=protocols).error_code == ErrorCode.INVALID_REQUEST
    for session_ms in (-1, 0, 1, 1_800_001, 2**31 - 1):
        refused = join(connection, "kind", session_timeout_ms=session_ms)
        assert refused.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert heartbeat(connection, "kind", me, 1) == 0
    assert leave(connection, "kind", me) == [0]
    assert deleted(connection, "kind") in GONE


# names and sizes


def test_strange_group_ids_are_groups_with_nodes_of_their_own(
    cluster: Cluster, connection: Connection
) -> None:
    before = groups_in_zookeeper(cluster)
    for group in STRANGE:
        me = stable(connection, group)
        said: dict[str, Any] = {"member_id": me.member_id, "generation": me.generation_id}
        assert commit(connection, group, **said) == 0
        assert fetched(connection, group) == 7
        described = connection.ask(
            5, DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse
        ).groups[0]
        assert (described.group_id, described.group_state) == (group, "Stable")
    assert groups_in_zookeeper(cluster) - before == set(STRANGE)
    for group in STRANGE:
        assert deleted(connection, group) == ErrorCode.NON_EMPTY_GROUP
        described = connection.ask(
            5, DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse
        ).groups[0]
        assert leave(connection, group, described.members[0].member_id) == [0]
        assert deleted(connection, group) == 0
    wait_until(lambda: groups_in_zookeeper(cluster) <= before, what="the groups' nodes are gone")


@pytest.mark.parametrize("group", TOO_LONG, ids=["300", "encoded-600", "encoded-252", "empty"])
def test_group_ids_without_a_valid_node_name_are_refused(
    cluster: Cluster, connection: Connection, group: str
) -> None:
    before = groups_in_zookeeper(cluster)
    refused = ErrorCode.INVALID_GROUP_ID
    assert join(connection, group).error_code == refused
    assert join(connection, group, version=9).error_code == refused
    assert sync(connection, group, "m", 1).error_code == refused
    assert heartbeat(connection, group, "m", 1) == refused
    assert leave(connection, group, "m") == [refused]
    assert commit(connection, group) == refused
    assert fetch(connection, group).error_code == refused
    assert deleted(connection, group) == refused
    for version in (0, 1):  # 0 goes to the nodes without a coordinator
        request = commit_request(group, TOPIC, {0: 7})
        answer = connection.ask(version, request, OffsetCommitResponse)
        assert only_code(answer) is refused
    topics = [
        OffsetDeleteRequestTopic(
            name=TOPIC, partitions=[OffsetDeleteRequestPartition(partition_index=0)]
        )
    ]
    request_ = OffsetDeleteRequest(group_id=group, topics=topics)
    assert connection.ask(0, request_, OffsetDeleteResponse).error_code == refused
    described = connection.ask(
        5, DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse
    ).groups[0]
    assert described.error_code == refused
    found = connection.ask(3, FindCoordinatorRequest(key=group), FindCoordinatorResponse)
    assert found.error_code == 0, "any text has a partition"
    assert groups_in_zookeeper(cluster) <= before


def test_invalid_offset_commits_are_refused(cluster: Cluster, connection: Connection) -> None:
    group = "picky"
    before = groups_in_zookeeper(cluster)
    assert commit(connection, group, metadata="x" * 4097) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    for topic, partition in ((TOPIC, -1), (TOPIC, 2**31 - 1), ("none", 0), ("", 0), ("../x", 0)):
        code = commit(connection, group, topic=topic, partition=partition)
        assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, (topic, partition)
    assert groups_in_zookeeper(cluster) <= before
    for text in (None, "", "x" * 4096, "𝄞" * 4096, "\0", "\n"):
        assert commit(connection, group, metadata=text) == 0
        found = fetch(connection, group).topics[0].partitions[0]
        assert (found.committed_offset, found.metadata) == (7, text or "")
    assert deleted(connection, group) == 0
    assert groups_in_zookeeper(cluster) <= before


# floods


def test_a_flood_of_joins_without_member_ids(cluster: Cluster, connection: Connection) -> None:
    """The clients get member ids and do not join again, all in one group, or each in its own
    group.
    """
    given = set()
    for number in range(6_000):
        group = "flooded" if number % 2 else f"flooded-{number}".ljust(249, "x")
        answer = join(connection, group, version=newest(ApiKey.JOIN_GROUP))
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        given.add(answer.member_id)
    assert len(given) == 6_000
    assert rss_bytes(cluster) < RSS_BYTES_MAX
    assert not [each for each in groups_in_zookeeper(cluster) if each.startswith("flooded")]


def test_a_flood_of_members_that_disconnect_at_once(cluster: Cluster) -> None:
    """Two thousand clients join one group and disconnect before their answer. They are members
    until their sessions expire, which DescribeGroups shows.
    """
    for _ in range(2_000):
        with Connection(cluster.bootstrap) as one:
            one.send(3, join_request("crowd", session_timeout_ms=6_000))
    with Connection(cluster.bootstrap) as asker:

        def members() -> int:
            request = DescribeGroupsRequest(groups=["crowd"])
            answer = asker.ask(5, request, DescribeGroupsResponse)
            return len(answer.groups[0].members)

        wait_until(lambda: members() > 1_000, what="the clients are members")
        wait_until(lambda: members() == 0, what="their sessions are over")
    assert rss_bytes(cluster) < RSS_BYTES_MAX


def test_members_with_much_metadata(cluster: Cluster, connection: Connection) -> None:
    """Each member sends a mebibyte of metadata to its own group, with a timeout of half an hour. At
    some number of members the broker accepts no more, and small requests of other clients get a
    retriable error.
    """
    protocols = [JoinGroupRequestProtocol(name="range", metadata=bytes(1 << 20))]
    talkers: list[tuple[str, str]] = []
    code = 0
    while len(talkers) < 2 * ROOM_BYTES >> 20:
        with Connection(cluster.bootstrap) as one:
            group = f"talkers-{len(talkers)}"
            answer = join(one, group, protocols=protocols)
        code = answer.error_code
        if code == ErrorCode.NONE:
            talkers.append((group, answer.member_id))
        elif "memory limit reached" in cluster.log_text(1):
            break
        else:
            assert code in PASSING
    assert code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert 200 < len(talkers) <= ROOM_BYTES >> 20
    assert rss_bytes(cluster) < RSS_BYTES_MAX
    for group, member_id in talkers:
        assert leave(connection, group, member_id) == [0]
    wait_until(
        lambda: join(connection, "after").error_code == ErrorCode.NONE,
        what="there is room again",
    )
    wait_until(
        lambda: not any(each.startswith("talkers") for each in groups_in_zookeeper(cluster)),
        what="their nodes go with the groups",
    )


def rss_bytes(cluster: Cluster) -> int:
    return int(psutil.Process(cluster.pid(1)).memory_info().rss)


# bytes


VERSIONS: Final = {
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.OFFSET_FETCH: 7,
}


@pytest.mark.parametrize("key", MEMBER_APIS, ids=lambda key: key.name.lower())
def test_truncated_requests_and_invalid_utf_8_are_refused(cluster: Cluster, key: ApiKey) -> None:
    """A request is cut anywhere in its body, or has a byte that is invalid UTF-8. The broker closes
    the connection, and the request has no effect.
    """
    version = VERSIONS.get(key, newest(key))
    before = groups_in_zookeeper(cluster)
    whole = frame_of(version, sample(key))
    garbled = whole.replace(b"bytes", b"b\xff\xfe\0s", 1)
    assert garbled != whole
    head = whole.index(b"wire-test") + len(b"wire-test")
    broken = [whole[:end] for end in range(head, len(whole) - 1)]
    for frame in (*broken, garbled):
        with Connection(cluster.bootstrap) as one:
            one.send_frame(frame)
            with contextlib.suppress(ConnectionClosed):
                answer = one.receive_frame()
                pytest.fail(f"{bytes(frame)!r} was answered {bytes(answer)!r}")
    with Connection(cluster.bootstrap) as one:  # a frame that is never completed
        one.send_bytes(struct.pack(">i", len(whole)) + whole[:-1])
        one.end_sending()
        assert one.is_closed_by_broker()
    assert groups_in_zookeeper(cluster) <= before
