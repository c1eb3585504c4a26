"""Asks transaction coordinators, on behalf of a leader, whether partitions are in a transaction
(KIP-890). Each other broker gets one request at a time. Questions that arrive meanwhile share the
next request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from pybroker.background import TaskOwner
from pybroker.client.connection import Connection
from pybroker.client.metadata import error_code
from pybroker.errors import BrokerError, ErrorCode, PybrokerError
from pybroker.model import Endpoint, TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

VERSION: Final = 4
"""The first version with many transactions and VerifyOnly. Only brokers use it."""
_TRANSACTIONS_MAX: Final = 1_000
"""The maximum number of transactions in one request, because the coordinator does nothing else
while it decodes a request."""

Errors = Mapping[TopicPartition, ErrorCode]

_AS_PRODUCE_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ErrorCode.INVALID_TXN_STATE,
}
"""The coordinator's code -> the code that a producer expects, as in Kafka."""


class Channel(Protocol):
    """A channel to one broker."""

    async def ask(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        """Send the request. Raises PybrokerError or OSError."""

    async def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Question:
    """Asks the coordinator whether the producer's ongoing transaction contains `partitions`.
    `answer` is set to the coordinator's error codes."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Collection[TopicPartition]
    answer: asyncio.Future[Errors] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


Verify = Callable[[str, int, int, Collection[TopicPartition]], Awaitable[Errors]]
"""Returns the code of each partition, from the coordinator on this broker. The arguments are those
of `TransactionVerifier.verify`. Raises BrokerError."""

VerifyAtOnce = Callable[[str, int, int, Collection[TopicPartition]], Errors | None]
"""Returns the same without a wait, or None if that is not possible, for example if the coordinator
is on another broker. Raises BrokerError."""


class Verifier:
    """A `TransactionVerifier` for local and remote coordinators. `find` returns the broker id of a
    transactional id's coordinator, or raises BrokerError. `verify_here` and `verify_here_at_once`
    ask the coordinator on this broker."""

    def __init__(
        self,
        find: Callable[[str], Awaitable[int]],
        channel_to: Callable[[int], Channel],
        broker_id: int,
        verify_here: Verify,
        verify_here_at_once: VerifyAtOnce,
    ) -> None:
        self._find = find
        self._channel_to = channel_to
        self._broker_id = broker_id
        self._verify_here = verify_here
        self._verify_here_at_once = verify_here_at_once
        self._channels: dict[int, Channel] = {}
        self._waiting: dict[int, list[_Question]] = {}
        """Broker id -> the questions for its next request. For each broker with an entry, a task
        sends the questions."""
        self._tasks = TaskOwner()

    async def stop(self) -> None:
        """Cancel the requests in flight. The `verify` calls that wait for a response of another
        broker raise BrokerError NETWORK_EXCEPTION. Idempotent."""
        await self._tasks.close()
        for channel in self._channels.values():
            await channel.close()

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
    ) -> Errors:
        broker_id = await self._find(transactional_id)
        if broker_id == self._broker_id:
            try:
                found = await self._verify_here(
                    transactional_id, producer_id, producer_epoch, partitions
                )
            except BrokerError as error:
                raise BrokerError(_as_produce_error(error.code), error.detail) from error
            return _not_confirmed(partitions, found)
        question = _Question(transactional_id, producer_id, producer_epoch, partitions)
        waiting = self._waiting.get(broker_id)
        if waiting is None:
            self._waiting[broker_id] = [question]
            self._tasks.start(self._ask_in_turn(broker_id), f"verify at broker {broker_id}")
        else:
            waiting.append(question)
        return await question.answer

    def verify_at_once(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
    ) -> Errors | None:
        try:
            found = self._verify_here_at_once(
                transactional_id, producer_id, producer_epoch, partitions
            )
        except BrokerError as error:
            raise BrokerError(_as_produce_error(error.code), error.detail) from error
        return None if found is None else _not_confirmed(partitions, found)

    def _channel(self, broker_id: int) -> Channel:
        found = self._channels.get(broker_id)
        if found is None:
            found = self._channels[broker_id] = self._channel_to(broker_id)
        return found

    async def _ask_in_turn(self, broker_id: int) -> None:
        """Send the waiting questions for one broker until no question waits. Only one request is in
        flight at a time."""
        asked: list[_Question] = []
        try:
            while self._waiting[broker_id]:
                asked, self._waiting[broker_id] = _portion(self._waiting[broker_id])
                answers: dict[str, Errors] = {}
                error = None
                try:
                    answers = _answers(await self._channel(broker_id).ask(_request(asked)))
                except (PybrokerError, OSError) as raised:
                    error = _as_broker_error(raised, broker_id)
                for question in asked:
                    _settle(question, answers, error)
        finally:
            stopped = BrokerError(
                ErrorCode.NETWORK_EXCEPTION,
                f"the request to the coordinator, broker {broker_id}, was cancelled",
            )
            for question in [*asked, *self._waiting.pop(broker_id)]:
                _settle(question, {}, stopped)


def _as_broker_error(error: PybrokerError | OSError, broker_id: int) -> BrokerError:
    if isinstance(error, BrokerError):
        return error
    text = f"the coordinator, broker {broker_id}, does not answer: {error}"
    return BrokerError(ErrorCode.NETWORK_EXCEPTION, text)


def _portion(waiting: list[_Question]) -> tuple[list[_Question], list[_Question]]:
    """Split the waiting questions into those for the next request and the others. A request has
    each transactional id at most once."""
    first: dict[str, _Question] = {}
    left = []
    for question in waiting:
        if len(first) < _TRANSACTIONS_MAX and question.transactional_id not in first:
            first[question.transactional_id] = question
        elif not question.answer.done():
            left.append(question)
    return list(first.values()), left


def _request(questions: Iterable[_Question]) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                verify_only=True,
                topics=_by_topic(each.partitions),
            )
            for each in questions
        ]
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> list[AddPartitionsToTxnTopic]:
    found: dict[str, list[int]] = {}
    for key in partitions:
        found.setdefault(key.topic, []).append(key.partition)
    return [AddPartitionsToTxnTopic(name=name, partitions=rows) for name, rows in found.items()]


def _answers(response: AddPartitionsToTxnResponse) -> dict[str, Errors]:
    """Return transactional id -> partition -> error code. Raise BrokerError if the response has an
    error code for the whole request."""
    if response.error_code:
        code = error_code(response.error_code)
        raise BrokerError(_as_produce_error(code))
    found: dict[str, Errors] = {}
    for transaction in response.transactions:
        found[transaction.transactional_id] = {
            TopicPartition(topic.name, row.partition_index): error_code(row.error_code)
            for topic in transaction.topics
            for row in topic.results
        }
    return found


def _not_confirmed(partitions: Iterable[TopicPartition], codes: Errors) -> Errors:
    """Return partition -> error code in the Produce response, for the partitions that the
    coordinator has not confirmed. A partition without a code in `codes` gets INVALID_TXN_STATE."""
    found = {}
    for key in partitions:
        code = codes.get(key, ErrorCode.INVALID_TXN_STATE)
        if code is not ErrorCode.NONE:
            found[key] = _as_produce_error(code)
    return found


def _as_produce_error(code: ErrorCode) -> ErrorCode:
    return _AS_PRODUCE_ERRORS.get(code, code)


def _settle(question: _Question, answers: Mapping[str, Errors], error: BrokerError | None) -> None:
    """Answer a question with `error` if it is not None, otherwise with the question's codes in
    `answers`. Do nothing if the question has an answer or was cancelled."""
    if question.answer.done():
        return
    if error is not None:
        question.answer.set_exception(error)
        return
    codes = answers.get(question.transactional_id, {})
    question.answer.set_result(_not_confirmed(question.partitions, codes))


class RemoteCoordinator:
    """Sends requests to another broker's inter-broker listener on one connection. It connects at
    the first request, and again after every failure."""

    def __init__(
        self, find: Callable[[], Endpoint | None], *, client_id: str, timeout_s: float
    ) -> None:
        self._find = find
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._connection: Connection | None = None

    async def ask(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        connection = await self._connected()
        try:
            return await connection.send(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                request,
                AddPartitionsToTxnResponse,
                timeout_s=self._timeout_s,
                version=VERSION,
            )
        except asyncio.CancelledError:
            await self.close()
            raise

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close(flush=False)

    async def _connected(self) -> Connection:
        connection = self._connection
        if connection is not None and connection.usable:
            return connection
        await self.close()
        endpoint = self._find()
        if endpoint is None:
            raise BrokerError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                "the transaction coordinator has no known inter-broker endpoint: check that the"
                " coordinator's broker runs",
            )
        self._connection = await Connection.open(
            endpoint.host, endpoint.port, client_id=self._client_id, timeout_s=self._timeout_s
        )
        return self._connection
