"""Tests of fetch sessions: the requests of a session, and when a new session begins."""

from __future__ import annotations

from pybroker.client.fetch_session import FetchSession, SessionRequest
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchResponse,
    PartitionData,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
INT_MAX = 2**31 - 1


def session() -> FetchSession[int]:
    return FetchSession(
        lambda partition, offset: FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=1
        )
    )


def answer(*keys: TopicPartition, session_id: int = 7, error: int = 0) -> FetchResponse:
    return FetchResponse(
        error_code=error,
        session_id=session_id,
        responses=[
            FetchableTopicResponse(
                topic=key.topic,
                partitions=[
                    PartitionData(partition_index=key.partition, error_code=0, high_watermark=0)
                ],
            )
            for key in keys
        ],
    )


def said(request: SessionRequest) -> tuple[tuple[int, int], list[object], list[object]]:
    """Return the session id, the epoch, the requested partitions and the forgotten partitions of a
    request."""
    return (
        (request.session_id, request.session_epoch),
        [
            (topic.topic, part.partition, part.fetch_offset)
            for topic in request.topics
            for part in topic.partitions
        ],
        [(topic.topic, part) for topic in request.forgotten for part in topic.partitions],
    )


def begun(*keys: TopicPartition) -> FetchSession[int]:
    """Return a session that has these partitions at offset 0."""
    one = session()
    one.next(dict.fromkeys(keys, 0))
    assert one.handle(answer(*keys))
    return one


def test_the_first_request_names_everything_in_its_order() -> None:
    assert said(session().next({B0: 3, A1: 2, A0: 1})) == (
        (0, 0),
        [("b", 0, 3), ("a", 1, 2), ("a", 0, 1)],
        [],
    )


def test_then_only_changes_travel() -> None:
    one = begun(A0, A1)
    assert one.session_id == 7
    assert said(one.next({A0: 0, A1: 0})) == ((7, 1), [], [])
    assert one.handle(answer())
    assert said(one.next({A0: 0, A1: 5})) == ((7, 2), [("a", 1, 5)], [])
    assert one.handle(answer(A0))
    assert said(one.next({A1: 5, B0: 0})) == ((7, 3), [("b", 0, 0)], [("a", 0)])
    assert one.handle(answer(B0))
    assert said(one.next({A1: 5, B0: 0})) == ((7, 4), [], [])


def test_a_partition_that_comes_back_is_named_again() -> None:
    one = begun(A0, A1)
    one.next({A0: 0})
    one.handle(answer())
    assert said(one.next({A0: 0, A1: 0})) == ((7, 2), [("a", 1, 0)], [])


def test_without_a_session_everything_is_asked_again_and_again() -> None:
    one = session()
    for _ in range(2):
        assert said(one.next({A0: 1})) == ((0, 0), [("a", 0, 1)], [])
        assert one.handle(answer(A0, session_id=0))


def test_a_broker_that_ends_the_session_with_an_answer_is_believed_the_answer() -> None:
    one = begun(A0)
    one.next({A0: 0})
    assert one.handle(answer(A0, session_id=0))
    assert said(one.next({A0: 4})) == ((0, 0), [("a", 0, 4)], [])


def test_a_session_that_is_not_known_there_begins_anew() -> None:
    one = begun(A0)
    one.next({A0: 0})
    error = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert not one.handle(answer(session_id=0, error=error))
    assert said(one.next({A0: 0})) == ((0, 0), [("a", 0, 0)], [])


def test_after_another_error_the_old_session_is_named_to_end_it() -> None:
    for error in (ErrorCode.INVALID_FETCH_SESSION_EPOCH, ErrorCode.UNKNOWN_SERVER_ERROR):
        one = begun(A0)
        one.next({A0: 0})
        assert not one.handle(answer(session_id=0, error=error))
        assert said(one.next({A0: 0})) == ((7, 0), [("a", 0, 0)], [])


def test_a_request_whose_answer_never_came_begins_anew() -> None:
    one = begun(A0)
    one.next({A0: 1})
    one.failed()
    assert said(one.next({A0: 1})) == ((7, 0), [("a", 0, 1)], [])
    assert one.handle(answer(A0, session_id=8))
    assert said(one.next({A0: 1})) == ((8, 1), [], [])


def test_an_answer_about_other_partitions_than_asked_is_not_believed() -> None:
    for keys in ((A0,), (A0, A1, B0), ()):
        one = session()
        one.next({A0: 0, A1: 0})
        assert not one.handle(answer(*keys))
        assert said(one.next({A0: 0}))[0] == (0, 0)
    one = begun(A0)
    one.next({A0: 0})
    assert not one.handle(answer(B0))
    assert said(one.next({A0: 0}))[0] == (7, 0)


def test_epochs_start_again_at_one_when_they_are_used_up() -> None:
    one = begun(A0)
    one._epoch = INT_MAX
    assert said(one.next({A0: 0}))[0] == (7, INT_MAX)
    one.handle(answer())
    assert said(one.next({A0: 0}))[0] == (7, 1)


def test_closing_names_the_session_once() -> None:
    one = begun(A0)
    request = one.closing()
    assert request is not None
    assert said(request) == ((7, -1), [], [])
    assert one.closing() is None
    assert session().closing() is None
