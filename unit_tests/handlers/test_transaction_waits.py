"""Tests of EndTxn and AddPartitionsToTxn while the change of the transaction is not stored yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pybroker.deferred import Deferred
from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.context import Request
from pybroker.handlers.transactions import handle_add_partitions_to_txn, handle_end_txn
from pybroker.wire.api import ApiKey
from pybroker.wire.headers import RequestHeader
from pybroker.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
)

Stored = Deferred[None] | Awaitable[None] | None


def end_in(change: Callable[[], Stored], version: int = 3) -> Any:
    services: Any = SimpleNamespace(
        transactions=SimpleNamespace(end=lambda *_, is_commit: change())
    )
    request = Request(RequestHeader(ApiKey.END_TXN, version, 0, None), "", "")
    return handle_end_txn(services, request, EndTxnRequest(transactional_id="p", committed=True))


def test_stored_end_is_answered_at_once() -> None:
    assert end_in(lambda: None) == EndTxnResponse()


def test_end_is_answered_when_it_is_stored() -> None:
    stored: Deferred[None] = Deferred(lambda: None)
    response = end_in(lambda: stored)
    answered: list[object] = []
    response.add_done_callback(lambda done: answered.append(done.result()))
    assert answered == []
    stored.set_result(None)
    assert answered == [EndTxnResponse()]


def test_end_that_is_not_stored_is_answered_with_the_error_of_the_version() -> None:
    for version, code in ((1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)):
        stored: Deferred[None] = Deferred(lambda: None)
        response = end_in(lambda stored=stored: stored, version)  # type: ignore[misc]
        stored.set_exception(BrokerError(ErrorCode.PRODUCER_FENCED))
        assert response.result() == EndTxnResponse(error_code=code)


def test_other_exception_of_an_end_fails_the_request() -> None:
    stored: Deferred[None] = Deferred(lambda: None)
    response = end_in(lambda: stored)
    stored.set_exception(ValueError("a fault of the test"))
    with pytest.raises(ValueError, match="a fault of the test"):
        response.result()


def test_cancelled_request_ends_the_wait() -> None:
    stored: Deferred[None] = Deferred(lambda: None)
    response = end_in(lambda: stored)
    response.cancel()
    assert stored.cancelled()
    with pytest.raises(asyncio.CancelledError):
        response.result()


async def test_many_partitions_are_added_together() -> None:
    asked: list[frozenset[object]] = []

    def add(_: str, __: object, partitions: frozenset[object]) -> None:
        asked.append(partitions)

    services: Any = SimpleNamespace(
        transactions=SimpleNamespace(add_partitions=add),
        metadata=SimpleNamespace(exists=lambda _: True),
    )
    request = Request(RequestHeader(ApiKey.ADD_PARTITIONS_TO_TXN, 3, 0, None), "", "")
    topic = AddPartitionsToTxnTopic(name="t", partitions=list(range(1_000)))
    message = AddPartitionsToTxnRequest(transactional_id="p", topics=[topic])
    response: Any = handle_add_partitions_to_txn(services, request, message)
    answer = await response
    assert [len(each) for each in asked] == [1_000]
    assert [row.error_code for row in answer.results[0].results] == [0] * 1_000
