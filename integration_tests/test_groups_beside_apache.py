"""Tests that send the same valid and invalid member requests to Apache Kafka and to our broker: the
answers are equal, and the groups are equal after each request.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from integration_tests.apache import ApacheKafka
from integration_tests.broker import Broker, PybrokerProcess
from integration_tests.conftest import or_skip
from integration_tests.wire_client import Connection, create_topic, newest, wait_for_leader
from pybroker.errors import ErrorCode
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.group_admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from pybroker.wire.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from pybroker.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from pybroker.wire.schema import Message
from unit_tests.patience import wait_until

pytestmark = pytest.mark.ours

SEEDS: Final = 4
STEPS: Final = 120
LOOKS: Final = 3
SESSION_MS: Final = 1_800_000
"""The maximum session timeout, because sessions would expire at different times at the two
brokers.
"""
TOPIC: Final = "load"
OVERRIDES: Final = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
}
INSTANCES: Final = {"a": None, "b": None, "c": "s", "d": "s"}
"""Client -> its instance id. c and d are the same static member, started twice."""
PROTOCOLS: Final = (("range", "sticky"), ("range", "sticky"), ("range", "sticky"), ("sticky",))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Broker]]:
    """Yield Apache's broker and ours."""
    folder = tmp_path_factory.mktemp("both")
    (folder / "apache").mkdir()
    with contextlib.ExitStack() as stack:
        apache = or_skip(lambda: ApacheKafka(folder / "apache", overrides=OVERRIDES, heap_mib=512))
        ours = PybrokerProcess(folder / "ours", overrides=OVERRIDES)
        for broker in (apache, ours):
            stack.callback(broker.close)
            broker.start()
            with Connection(broker.bootstrap) as connection:
                create_topic(connection, TOPIC)
                wait_for_leader(connection, TOPIC)
                wait_until(lambda: _coordinates(connection), what="there is a coordinator")
        yield apache, ours


def _coordinates(connection: Connection) -> bool:
    """Return whether the coordinator is known and has loaded its groups."""
    if connection.ask(2, FindCoordinatorRequest(key="g"), FindCoordinatorResponse).error_code:
        return False
    described = connection.ask(5, DescribeGroupsRequest(groups=["g"]), DescribeGroupsResponse)
    return described.groups[0].error_code == 0


class Id(str):
    """A member id in an answer."""

    __slots__ = ()


@dataclass(slots=True)
class Client:
    """The state of a client, derived from the answers of one of the two brokers."""

    connection: Connection
    member_id: str = ""
    generation: int = -1
    leads: bool = False
    members: list[str] = field(default_factory=list)
    parked: tuple[int, type[Message], int] | None = None
    """(version, response, correlation id) of a pending request."""


class Side:
    """One broker and its group. Member ids are shown as `a#1`: the first id that client a got."""

    def __init__(self, broker: Broker, group: str) -> None:
        self._stack = contextlib.ExitStack()
        self._bootstrap = broker.bootstrap
        self._group = group
        self.control = self._connect("control")
        # Apache shows the client id of a static member's first join.
        self.clients = {name: Client(self._connect(INSTANCES[name] or name)) for name in INSTANCES}
        self._labels: dict[str, str] = {"": ""}
        self._counts: dict[str, int] = {}
        self.said: list[tuple[object, ...]] = []

    def _connect(self, client_id: str) -> Connection:
        return self._stack.enter_context(Connection(self._bootstrap, client_id))

    def close(self) -> None:
        self._stack.close()

    def label(self, member_id: str, client: str = "?") -> str:
        if member_id not in self._labels:
            if client == "?":
                return member_id
            self._counts[client] = self._counts.get(client, 0) + 1
            self._labels[member_id] = f"{client}#{self._counts[client]}"
        return self._labels[member_id]

    def member_id(self, label: str) -> str:
        return next((each for each, known in self._labels.items() if known == label), label)

    # requests

    def begin(self, name: str, version: int, request: Message, response: type[Message]) -> None:
        client = self.clients[name]
        client.parked = (version, response, client.connection.send(version, request))

    def ask(self, version: int, request: Message, response: type[Any]) -> Any:
        return self.control.ask(version, request, response)

    def collect(self) -> None:
        """Receive all answers that have arrived."""
        for name, client in self.clients.items():
            if client.parked is None or client.connection.says_nothing_for(0.001):
                continue
            (version, response, number), client.parked = client.parked, None
            answer = client.connection.receive(version, response, number)
            if isinstance(answer, JoinGroupResponse):
                self.said.append(self._joined(name, client, version, answer))
            else:
                assert isinstance(answer, SyncGroupResponse)
                given = bytes(answer.assignment)
                protocol = (answer.protocol_type, answer.protocol_name)
                self.said.append((name, "synced", answer.error_code, given, protocol))

    def _joined(
        self, name: str, client: Client, version: int, answer: JoinGroupResponse
    ) -> tuple[object, ...]:
        label = self.label(answer.member_id, name)
        if answer.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            client.member_id = answer.member_id
        elif answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            client.member_id = ""
        if answer.error_code == 0:
            client.generation = answer.generation_id
            client.leads = answer.leader == answer.member_id
            client.members = [each.member_id for each in answer.members]
        members = [
            (Id(each.member_id), each.group_instance_id or "", bytes(each.metadata))
            for each in answer.members
        ]
        return (
            *(name, "joined", version, answer.error_code, answer.generation_id, label),
            *(answer.protocol_type, answer.protocol_name, Id(answer.leader), members),
            answer.skip_assignment,
        )

    def view(self) -> tuple[object, ...]:
        """Return the answers, and the state of the group."""
        return sorted((self._named(each) for each in self.said), key=repr), self._describe()

    def _named(self, said: object) -> object:
        """Replace member ids by labels. An id may occur before its label is known."""
        if isinstance(said, Id):
            return self._labels.get(said, "untold")
        if isinstance(said, tuple):
            return tuple(map(self._named, said))
        if isinstance(said, list):
            return sorted(map(self._named, said), key=repr)
        return said

    def _describe(self) -> tuple[object, ...]:
        request = DescribeGroupsRequest(groups=[self._group])
        (found,) = self.ask(5, request, DescribeGroupsResponse).groups
        members = sorted(
            (
                *(self._labels.get(each.member_id, "untold"), each.group_instance_id or ""),
                each.client_id,
                *(each.client_host, bytes(each.member_metadata), bytes(each.member_assignment)),
            )
            for each in found.members
        )
        state = (found.error_code, found.group_state, found.protocol_type, found.protocol_data)
        return (*state, members)


Move = Callable[[Side], None]


class Play:
    """A generator of random requests, drawn from the state of the first broker's group, which
    equals the other's.
    """

    def __init__(self, rng: random.Random, group: str, side: Side) -> None:
        self._rng = rng
        self._group = group
        self._side = side

    def draw(self) -> tuple[str, Move] | None:
        """Return the name of a request and a function that sends it; None if that client has a
        pending request.
        """
        name = self._rng.choice(list(INSTANCES))
        client = self._side.clients[name]
        kinds = ("join", "sync", "heartbeat", "leave", "commit", "simple", "delete", "list")
        kind = self._rng.choices(kinds, (30, 30, 10, 3, 6, 2, 1, 2))[0]
        if client.parked is not None and kind in ("join", "sync"):
            return None
        move: Move = getattr(self, f"_{kind}")(name, client)
        return f"{kind} {name}", move

    def _join(self, name: str, client: Client) -> Move:
        instance = INSTANCES[name]
        version = self._rng.randrange(5 if instance else 0, newest(ApiKey.JOIN_GROUP) + 1)
        label = self._side.label(client.member_id)
        if self._rng.random() < 0.05:
            label = self._rng.choice(("", "bogus"))
        kind = "connect" if self._rng.random() < 0.03 else "consumer"
        session_ms = 1 if self._rng.random() < 0.03 else SESSION_MS
        metadata = self._rng.choice((b"", b"", b"more"))
        names = self._rng.choice(PROTOCOLS)

        def move(side: Side) -> None:
            request = JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=SESSION_MS,
                member_id=side.member_id(label),
                group_instance_id=instance,
                protocol_type=kind,
                protocols=[JoinGroupRequestProtocol(name=n, metadata=metadata) for n in names],
            )
            side.begin(name, version, request, JoinGroupResponse)

        return move

    def _sync(self, name: str, client: Client) -> Move:
        instance = INSTANCES[name]
        version = self._rng.randrange(3 if instance else 0, 6)
        label = self._side.label(client.member_id)
        generation = self._some_generation(client)
        everybody = sorted(map(self._side.label, client.members))
        members = everybody if client.leads or self._rng.random() < 0.1 else []
        given = {each: self._rng.randbytes(2) for each in members if self._rng.random() < 0.9}
        protocol = "sticky" if self._rng.random() < 0.1 else "range"

        def move(side: Side) -> None:
            request = SyncGroupRequest(
                group_id=self._group,
                generation_id=generation,
                member_id=side.member_id(label),
                group_instance_id=instance,
                protocol_type="consumer" if version >= 5 else None,
                protocol_name=protocol if version >= 5 else None,
                assignments=[
                    SyncGroupRequestAssignment(member_id=side.member_id(to), assignment=what)
                    for to, what in given.items()
                ],
            )
            side.begin(name, version, request, SyncGroupResponse)

        return move

    def _heartbeat(self, name: str, client: Client) -> Move:
        version = self._rng.randrange(3 if INSTANCES[name] else 0, 5)
        label = self._some_label(client)
        generation = self._some_generation(client)

        def move(side: Side) -> None:
            request = HeartbeatRequest(
                group_id=self._group,
                generation_id=generation,
                member_id=side.member_id(label),
                group_instance_id=INSTANCES[name],
            )
            side.said.append((side.ask(version, request, HeartbeatResponse).error_code,))

        return move

    def _leave(self, name: str, client: Client) -> Move:
        """Let a client leave. Only a client without a pending request leaves, because Apache never
        answers the pending request of a removed member. A leader stays while there are several
        other members, because Apache chooses the next leader at random. A member id without a join
        is kept, because our broker drops a group that never had a member together with its last id.
        """
        stays = client.parked is not None or len(client.members) > 2 or client.generation < 0
        label = "bogus" if stays else self._some_label(client)
        instance = INSTANCES[name]
        version = self._rng.randrange(3 if instance else 0, 5)

        def move(side: Side) -> None:
            member_id = side.member_id(label)
            request = LeaveGroupRequest(group_id=self._group, member_id=member_id)
            if version >= 3:
                identity = MemberIdentity(member_id=member_id, group_instance_id=instance)
                request = LeaveGroupRequest(group_id=self._group, members=[identity])
            answer = side.ask(version, request, LeaveGroupResponse)
            codes = [(side.label(m.member_id), m.error_code) for m in answer.members]
            side.said.append((answer.error_code, codes))

        return move

    def _commit(self, name: str, client: Client) -> Move:
        instance = INSTANCES[name]
        version = self._rng.randrange(7 if instance else 1, 9)
        label, generation = self._some_label(client), self._some_generation(client)
        return self._commits(version, label, instance, generation)

    def _simple(self, name: str, client: Client) -> Move:
        return self._commits(7, "", None, self._rng.choice((-1, -1, 1)))

    def _commits(self, version: int, label: str, instance: str | None, generation: int) -> Move:
        def move(side: Side) -> None:
            row = OffsetCommitRequestPartition(
                partition_index=0, committed_offset=1, committed_metadata=""
            )
            request = OffsetCommitRequest(
                group_id=self._group,
                generation_id=generation,
                member_id=side.member_id(label),
                group_instance_id=instance,
                topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[row])],
            )
            answer = side.ask(version, request, OffsetCommitResponse)
            side.said.append((answer.topics[0].partitions[0].error_code,))

        return move

    def _delete(self, name: str, client: Client) -> Move:
        def move(side: Side) -> None:
            request = DeleteGroupsRequest(groups_names=[self._group])
            answer = side.ask(2, request, DeleteGroupsResponse)
            side.said.append((answer.results[0].error_code,))

        return move

    def _list(self, name: str, client: Client) -> Move:
        def move(side: Side) -> None:
            answer = side.ask(4, ListGroupsRequest(), ListGroupsResponse)
            rows = [
                (row.protocol_type, row.group_state)
                for row in answer.groups
                if row.group_id == self._group
            ]
            side.said.append((answer.error_code, rows))

        return move

    def _some_label(self, client: Client) -> str:
        label = self._side.label(client.member_id)
        return self._rng.choice(("", "bogus")) if self._rng.random() < 0.1 else label

    def _some_generation(self, client: Client) -> int:
        return client.generation + (self._rng.random() < 0.07)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_members_get_the_answers_of_apache(seed: int, both: tuple[Broker, Broker]) -> None:
    rng = random.Random(seed)
    group = f"g{seed}"
    sides = [Side(broker, group) for broker in both]
    play = Play(rng, group, sides[0])
    moves: list[str] = []
    with contextlib.ExitStack() as stack:
        for side in sides:
            stack.callback(side.close)
        while len(moves) < STEPS:
            drawn = play.draw()
            if drawn is None:
                continue
            word, move = drawn
            moves.append(word)
            for side in sides:
                move(side)
            settle(sides, moves)


def settle(sides: list[Side], moves: list[str]) -> None:
    """Wait until both brokers have had equal answers and groups for a while, because nothing shows
    that a pending request has arrived.
    """
    views: list[object] = []
    times = 0

    def same() -> bool:
        nonlocal times
        views.clear()
        for side in sides:
            side.collect()
            views.append(side.view())
        times = times + 1 if views[0] == views[1] else 0
        return times == LOOKS

    try:
        wait_until(same, what="the same")
    except AssertionError as error:
        text = "\n".join(map(str, views))
        raise AssertionError(f"after {moves}:\n{text}") from error
    for side in sides:
        side.said.clear()


def test_group_operations_get_the_answers_of_apache(both: tuple[Broker, Broker]) -> None:
    request = DescribeGroupsRequest(groups=["g"], include_authorized_operations=True)
    found = []
    for broker in both:
        with Connection(broker.bootstrap) as connection:
            answer = connection.ask(5, request, DescribeGroupsResponse)
            found.append(answer.groups[0].authorized_operations)
    assert found[0] == found[1]
