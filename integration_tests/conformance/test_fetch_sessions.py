"""Tests of fetch sessions (KIP-227). Apache Kafka passes the same tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from integration_tests.broker import Broker
from integration_tests.wire_client import (
    FOREVER_MS,
    Connection,
    batch_of,
    create_topic,
    fetch_request,
    produce,
    wait_for_leader,
)
from pybroker.errors import ErrorCode
from pybroker.wire.messages.fetch import FetchResponse, ForgottenTopic
from unit_tests.patience import MOMENT_S

VERSIONS: Final = range(7, 13)


@pytest.fixture
def connection(broker: Broker, topic: str) -> Iterator[Connection]:
    """Return a connection to a broker with a topic of three partitions."""
    with Connection(broker.bootstrap) as opened:
        create_topic(opened, topic, partitions=3)
        wait_for_leader(opened, topic)
        yield opened


class Session:
    """A fetch session on a connection."""

    def __init__(self, connection: Connection, topic: str, version: int = 12) -> None:
        self._connection = connection
        self._topic = topic
        self._version = version
        self.id = 0
        self.epoch = 0

    def send(
        self,
        offsets: Mapping[int, int] | None = None,
        *,
        forgotten: tuple[int, ...] = (),
        epoch: int | None = None,
        max_bytes: int = 50_000_000,
        max_wait_ms: int = 0,
    ) -> int:
        """Send a Fetch with these offsets as the next request of the session."""
        request = fetch_request(
            self._topic,
            offsets or {},
            session=(self.id, self.epoch if epoch is None else epoch),
            max_bytes=max_bytes,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
        )
        if not offsets:
            request.topics = []
        if forgotten:
            request.forgotten_topics_data = [
                ForgottenTopic(topic=self._topic, partitions=list(forgotten))
            ]
        return self._connection.send(self._version, request)

    def receive(self, sent: int, *, counts: bool = True) -> FetchResponse:
        """Receive the answer. If it `counts`, the session continues with its next epoch."""
        answer = self._connection.receive(self._version, FetchResponse, sent)
        if not answer.error_code and counts:
            self.id = answer.session_id
            self.epoch += 1
        return answer

    def ask(
        self, offsets: Mapping[int, int] | None = None, *, epoch: int | None = None, **options: Any
    ) -> FetchResponse:
        """Send and receive. A request with an explicit `epoch` does not change the session's
        epoch."""
        sent = self.send(offsets, epoch=epoch, **options)
        return self.receive(sent, counts=epoch is None)


def answered(answer: FetchResponse) -> dict[int, int]:
    """Return partition -> the number of record bytes in an answer."""
    assert answer.error_code == 0
    return {
        part.partition_index: len(part.records or b"")
        for topic in answer.responses
        for part in topic.partitions
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_gets_only_new_data(connection: Connection, topic: str, version: int) -> None:
    session = Session(connection, topic, version)
    assert answered(session.ask({0: 0, 1: 0, 2: 0})) == {0: 0, 1: 0, 2: 0}
    assert session.id > 0
    first = session.id
    assert answered(session.ask()) == {}
    data = batch_of(b"a")
    produce(connection, topic, data, partition=1)
    assert answered(session.ask()) == {1: len(data)}
    assert answered(session.ask()) == {1: len(data)}
    assert answered(session.ask({1: 1})) == {}
    assert session.id == first


def test_a_wrong_session_epoch_gets_error_71_and_has_no_effect(
    connection: Connection, topic: str
) -> None:
    session = Session(connection, topic)
    session.ask({0: 0})
    session.ask()
    for epoch in (1, 3, 7, -3, 2**31 - 1):
        wrong = session.ask({1: 0}, epoch=epoch)
        assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert (wrong.session_id, wrong.responses) == (0, [])
    assert answered(session.ask({2: 0})) == {2: 0}, "a wrong request has changed the session"


def test_a_full_request_that_names_a_session_ends_it(connection: Connection, topic: str) -> None:
    session, other = Session(connection, topic), Session(connection, topic)
    session.ask({0: 0})
    other.id = session.id
    assert answered(other.ask({0: 0, 1: 0})) == {0: 0, 1: 0}
    assert other.id not in (0, session.id)
    gone = session.ask()
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    ended = other.ask({0: 0}, epoch=-1)
    assert (answered(ended), ended.session_id) == ({0: 0}, 0)
    assert other.ask().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_forgotten_partitions_are_not_read_and_a_session_of_none_ends(
    connection: Connection, topic: str
) -> None:
    session = Session(connection, topic)
    session.ask({0: 0, 1: 0})
    for partition in (0, 1):
        produce(connection, topic, batch_of(b"a"), partition=partition)
    assert list(answered(session.ask(forgotten=(0, 2)))) == [1]
    assert sorted(answered(session.ask({0: 0}))) == [0, 1]
    before = session.id
    ended = session.ask(forgotten=(0, 1, 2))
    assert (answered(ended), ended.session_id) == ({}, 0)
    session.id = before
    assert session.ask().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_an_error_is_returned_in_every_answer(connection: Connection, topic: str) -> None:
    session = Session(connection, topic)
    session.ask({0: 0, 1: 99})
    for _ in range(2):
        answer = session.ask()
        (part,) = answer.responses[0].partitions
        assert (part.partition_index, part.error_code) == (1, ErrorCode.OFFSET_OUT_OF_RANGE)
    assert list(answered(session.ask({1: 0}))) == [1], "the end of the error is told"
    assert answered(session.ask()) == {}


def test_partitions_take_turns_when_an_answer_is_full(connection: Connection, topic: str) -> None:
    data = batch_of(b"a" * 100)
    for partition in range(3):
        for _ in range(3):
            produce(connection, topic, data, partition=partition)
    session = Session(connection, topic)
    session.ask({0: 0, 1: 0, 2: 0}, max_bytes=1)
    order = []
    for _ in range(5):
        found = answered(session.ask(max_bytes=len(data)))
        order += [partition for partition, size in found.items() if size]
    assert order == [0, 1, 2, 0, 1]


def test_a_session_waits_for_each_of_its_partitions(
    broker: Broker, connection: Connection, topic: str
) -> None:
    session = Session(connection, topic)
    session.ask({0: 0, 1: 0, 2: 0})
    waiting = session.send(max_wait_ms=FOREVER_MS)
    assert connection.says_nothing_for(MOMENT_S)
    with Connection(broker.bootstrap) as writer:
        produce(writer, topic, batch_of(b"a"), partition=2)
    assert list(answered(session.receive(waiting))) == [2]


def test_a_request_that_ends_a_session_does_not_wait(connection: Connection, topic: str) -> None:
    session = Session(connection, topic)
    session.ask({0: 0})
    forgetting = session.ask(forgotten=(0,), max_wait_ms=FOREVER_MS)
    assert (answered(forgetting), forgetting.session_id) == ({}, 0)
    session = Session(connection, topic)
    session.ask({0: 0})
    closing = session.ask(epoch=-1, max_wait_ms=FOREVER_MS)
    assert (answered(closing), closing.session_id) == ({}, 0)


def test_a_session_without_partitions_ends_at_its_second_request(
    connection: Connection, topic: str
) -> None:
    session, idle = Session(connection, topic), Session(connection, topic)
    for each in (session, idle):
        assert answered(each.ask()) == {} and each.id > 0
    assert answered(session.ask({0: 0})) == {0: 0}
    assert answered(session.ask()) == {}
    unused = idle.id
    ended = idle.ask()
    assert (answered(ended), ended.session_id) == ({}, 0)
    idle.id = unused
    assert idle.ask().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_topic_that_does_not_exist_is_in_a_session_until_it_does(
    connection: Connection, topic: str
) -> None:
    later = f"{topic}-later"
    session = Session(connection, later)
    for answer in (session.ask({0: 0}), session.ask()):
        (part,) = answer.responses[0].partitions
        assert part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    create_topic(connection, later)
    wait_for_leader(connection, later)
    data = batch_of(b"a")
    produce(connection, later, data)
    assert answered(session.ask()) == {0: len(data)}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_full_answer_in_a_session_equals_one_without_a_session(
    connection: Connection, topic: str, version: int
) -> None:
    produce(connection, topic, batch_of(b"a"))
    wanted = {0: 0, 1: 0, 9: 0}
    inside = Session(connection, topic, version).ask(wanted)
    outside = Session(connection, topic, version).ask(wanted, epoch=-1)
    assert inside.session_id > 0 and outside.session_id == 0
    assert inside.responses == outside.responses


@pytest.mark.parametrize("session", [(5, 1), (5, 77), (0, 1), (-7, 2**31 - 1), (5, -(2**31))])
def test_an_unknown_session_gets_error_70_for_the_whole_answer(
    connection: Connection, topic: str, session: tuple[int, int]
) -> None:
    request = fetch_request(topic, {0: 0}, session=session)
    for version in VERSIONS:
        answer = connection.ask(version, request, FetchResponse)
        assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert (answer.session_id, answer.responses) == (0, [])
