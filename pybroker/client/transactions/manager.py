"""The transactions of one producer: their state, and the requests to their coordinator. One lock
orders all requests, so that EndTxn never overtakes a request that adds partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NoReturn, TypeVar

from pybroker.client.backoff import Deadline
from pybroker.client.cluster import Cluster
from pybroker.client.coordinator_link import (
    GROUP_KEY,
    TRANSACTION_KEY,
    VERSION_MAX,
    CoordinatorLink,
)
from pybroker.client.errors import (
    AbortableTransactionError,
    ClientError,
    ResponseError,
    TransactionConflict,
    TransactionError,
)
from pybroker.client.group_values import GroupMetadata, OffsetAndMetadata
from pybroker.client.identity import ProducerIdentity
from pybroker.client.metadata import error_code
from pybroker.client.options import ProducerOptions
from pybroker.client.transactions import requests
from pybroker.client.transactions.failures import Failures, advice
from pybroker.client.transactions.states import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    COMMIT_OFFSETS,
    END,
    INIT,
    LEGAL_MOVES,
    Reaction,
    State,
    decide,
)
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitResponse,
)
from pybroker.wire.schema import Message

log = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT", bound=Message)
Wait = Callable[[], Awaitable[None]]

CONCURRENT_PAUSE_S: Final = 0.02
"""The pause after CONCURRENT_TRANSACTIONS, as in the Java client: the markers of the previous
transaction need a few milliseconds."""
REQUEST_S_MIN: Final = 0.001


class TransactionManager:
    """The transactions of a producer with `transactional_id`."""

    def __init__(
        self,
        options: ProducerOptions,
        cluster: Cluster,
        transactional_id: str,
        wake: Callable[[], None],
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._id = transactional_id
        self._wake = wake
        self._failures = Failures(transactional_id, options)
        self.identity = ProducerIdentity(cluster)
        self.state = State.STARTING
        self.error: TransactionError | None = None
        """The error of the states ABORTABLE and FAILED."""
        self.number = 0
        """The number of transactions that were begun."""
        self.pending: set[TopicPartition] = set()
        """The partitions to add to the transaction before the sender may write to them."""
        self._added: set[TopicPartition] = set()
        self._groups: set[str] = set()
        self._begun = False
        """Whether a request was sent that may have begun the transaction on the coordinator."""
        self._confirmed = False
        """Whether a request that begins the transaction on the coordinator has succeeded."""
        self._needs_epoch = False
        self._id_lost = False
        """Whether the coordinator does not know the producer id, so that EndTxn is refused."""
        self._commit_sent = False
        self._in_doubt = False
        """Whether a request to end the transaction got no answer, and may have been processed."""
        self._link = CoordinatorLink(cluster, transactional_id, TRANSACTION_KEY)
        self._group_links: dict[str, CoordinatorLink] = {}
        self._calls = asyncio.Lock()

    # For the sender

    @property
    def doomed(self) -> bool:
        """Whether the transaction has failed or is being aborted. The sender must then send no more
        batches of the transaction."""
        return self.state in (State.ABORTABLE, State.ABORTING, State.FAILED)

    def may_send(self, partition: TopicPartition) -> bool:
        """Return whether the partition is already in the transaction: only then may its batches be
        sent. If it is not, add it to `pending`."""
        if partition in self._added:
            return True
        self.pending.add(partition)
        return False

    def batch_failed(self, error: BaseException | str, *, sent: bool) -> None:
        """Record that a batch of the transaction has failed. `sent`: a request with the batch may
        still arrive at the broker, so the next transaction needs a new epoch."""
        self._needs_epoch |= sent
        if self.state not in (State.OPEN, State.COMMITTING):
            return
        code = error.code if isinstance(error, ResponseError) else None
        if code is ErrorCode.PRODUCER_FENCED:
            self._become(State.FAILED, self._failures.fenced(code))
        elif code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            self._become(State.FAILED, self._failures.fatal(str(error)))
        else:
            self._become(
                State.ABORTABLE, self._failures.abortable(f"a record was not delivered: {error}")
            )

    async def add_pending(self) -> None:
        """Add the pending partitions to the transaction in one request. A failure changes the state
        and is not raised."""
        async with self._calls:
            chosen = frozenset(self.pending)
            if not chosen or self.doomed:
                return
            self._begun = True
            try:
                await self._ask(
                    self._link,
                    ApiKey.ADD_PARTITIONS_TO_TXN,
                    lambda: requests.add_partitions(self._id, self.identity, chosen),
                    AddPartitionsToTxnResponse,
                    requests.added_codes,
                    ADD_PARTITIONS,
                    version_max=requests.ADD_PARTITIONS_VERSION,
                )
            except ClientError as error:
                log.debug("partitions not added transactional_id=%s reason=%s", self._id, error)
                return
            self._confirmed = True
            self._added |= chosen
            self.pending -= chosen

    # For the producer

    async def start(self, deadline: Deadline) -> None:
        """Get the producer id and the next epoch by InitProducerId. This request fences earlier
        producers with the same transactional id, and ends their open transaction. Raises
        TransactionError, DeadlinePassed."""
        async with self._calls:
            await self._new_epoch(deadline)
            self._become(State.READY)

    def begin(self) -> None:
        """Begin a transaction, without a request. Raises TransactionError, TransactionConflict."""
        self._require("begin_transaction", State.READY)
        self.number += 1
        self._become(State.OPEN)

    def check_open(self, call: str, number: int | None = None) -> int:
        """Return the number of the open transaction. Raises TransactionConflict if no transaction
        is open, or if the open transaction's number is not `number`. Raises TransactionError if the
        transaction or the producer has failed."""
        self._require(call, State.OPEN)
        if number is not None and number != self.number:
            raise TransactionConflict(f"{call}: the transaction ended before the call was finished")
        return self.number

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: GroupMetadata,
        deadline: Deadline,
    ) -> None:
        """Commit offsets of a group as part of the transaction. After a failure the transaction can
        only be aborted. Raises TransactionError, TransactionConflict, DeadlinePassed."""
        number = self.check_open("send_offsets")
        try:
            async with self._calls:
                self.check_open("send_offsets", number)
                await self._send_offsets(offsets, group, deadline)
        except BaseException as error:
            if self.state in (State.OPEN, State.COMMITTING) and self.number == number:
                self._needs_epoch = True  # a late request must not join the next transaction
                text = f"the offsets of group {group.group_id} were not added: {error!r}"
                self._become(State.ABORTABLE, self._failures.abortable(text))
            raise

    async def commit(self, deliver: Wait, deadline: Deadline) -> None:
        """Wait until `deliver` has delivered all records, then commit. Raises the errors of
        `Producer.commit_transaction`."""
        if self.state is not State.COMMITTING:
            self._require("commit_transaction", State.OPEN)
            self._become(State.COMMITTING)
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                await deliver()
                await self._calls.acquire()
        except TimeoutError:
            raise self._failures.undelivered() from None
        try:
            if self.state is not State.COMMITTING:
                self._require("commit_transaction", State.COMMITTING)
            if self._begun:
                self._commit_sent = True
                await self._end(deadline, committed=True)
            self._finish()
        finally:
            self._calls.release()

    async def abort(self, drain: Wait, deadline: Deadline) -> None:
        """Fail all unsent records, wait with `drain` for the records in flight, and abort. Raises
        the errors of `Producer.abort_transaction`."""
        if self.state is not State.ABORTING:
            if self._commit_sent and self.state is State.COMMITTING:
                raise TransactionConflict(
                    "abort_transaction: the coordinator has not confirmed a commit that was "
                    "sent; call commit_transaction again to learn the outcome"
                )
            self._require("abort_transaction", State.OPEN, State.ABORTABLE, State.COMMITTING)
            self._become(State.ABORTING)
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                await drain()
                await self._calls.acquire()
        except TimeoutError:
            raise self._failures.late(self.state, "the records in flight got no response") from None
        try:
            self._require("abort_transaction", State.ABORTING)
            if self._begun and not self._id_lost:
                await self._end(deadline, committed=False)
            self._begun = False
            if self._needs_epoch:
                await self._new_epoch(deadline)
            self._finish()
        finally:
            self._calls.release()

    @property
    def can_abort(self) -> bool:
        """Whether there is a transaction that can be aborted. If a commit request was sent and its
        outcome is unknown, the transaction cannot be aborted."""
        unsure = self.state is State.COMMITTING and not self._commit_sent
        return unsure or self.state in (State.OPEN, State.ABORTABLE, State.ABORTING)

    # Requests

    async def _send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: GroupMetadata,
        deadline: Deadline,
    ) -> None:
        if group.group_id not in self._groups:
            self._begun = True
            await self._ask(
                self._link,
                ApiKey.ADD_OFFSETS_TO_TXN,
                lambda: AddOffsetsToTxnRequest(
                    transactional_id=self._id,
                    producer_id=self.identity.producer_id,
                    producer_epoch=self.identity.producer_epoch,
                    group_id=group.group_id,
                ),
                AddOffsetsToTxnResponse,
                _code_of,
                ADD_OFFSETS,
                deadline=deadline,
            )
            self._confirmed = True
            self._groups.add(group.group_id)
        link = self._group_links.get(group.group_id)
        if link is None:
            link = CoordinatorLink(self._cluster, group.group_id, GROUP_KEY)
            self._group_links[group.group_id] = link
        await self._ask(
            link,
            ApiKey.TXN_OFFSET_COMMIT,
            lambda: requests.commit_offsets(self._id, self.identity, group, offsets),
            TxnOffsetCommitResponse,
            requests.committed_codes,
            COMMIT_OFFSETS,
            deadline=deadline,
        )

    async def _end(self, deadline: Deadline, *, committed: bool) -> None:
        """Send EndTxn to commit or abort. An abort also succeeds if the coordinator has no open
        transaction of the producer, or does not know the producer id."""
        table = END
        if not committed:
            unknown = (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.UNKNOWN_PRODUCER_ID)
            table = {**END, **dict.fromkeys(unknown, Reaction.DONE)}
            if not self._confirmed:
                table[ErrorCode.INVALID_TXN_STATE] = Reaction.DONE
        code = await self._ask(
            self._link,
            ApiKey.END_TXN,
            lambda: EndTxnRequest(
                transactional_id=self._id,
                producer_id=self.identity.producer_id,
                producer_epoch=self.identity.producer_epoch,
                committed=committed,
            ),
            EndTxnResponse,
            _code_of,
            table,
            deadline=deadline,
        )
        # A late request could still begin a transaction in this epoch.
        self._needs_epoch |= code is not ErrorCode.NONE

    async def _new_epoch(self, deadline: Deadline) -> None:
        answer: list[InitProducerIdResponse] = []

        def codes(response: InitProducerIdResponse) -> list[ErrorCode]:
            answer[:] = [response]
            return [error_code(response.error_code)]

        await self._ask(
            self._link,
            ApiKey.INIT_PRODUCER_ID,
            lambda: InitProducerIdRequest(
                transactional_id=self._id,
                transaction_timeout_ms=self._options.transaction_timeout_ms,
                producer_id=self.identity.producer_id,
                producer_epoch=self.identity.producer_epoch,
            ),
            InitProducerIdResponse,
            codes,
            INIT,
            deadline=deadline,
        )
        self.identity.producer_id = answer[0].producer_id
        self.identity.producer_epoch = answer[0].producer_epoch
        log.info(
            "producer id obtained transactional_id=%s producer_id=%d epoch=%d",
            self._id, self.identity.producer_id, self.identity.producer_epoch,
        )  # fmt: skip

    async def _ask(
        self,
        link: CoordinatorLink,
        key: ApiKey,
        build: Callable[[], Message],
        answer: type[AnswerT],
        codes: Callable[[AnswerT], Iterable[ErrorCode]],
        table: Mapping[ErrorCode, Reaction],
        *,
        deadline: Deadline | None = None,
        version_max: int = VERSION_MAX,
    ) -> ErrorCode:
        """Send a request, again and again, until the response's error code means success in
        `table`. Return the code. Raises TransactionError for an error that is not retried. With
        a deadline, retries until then, and raises DeadlinePassed. Without a deadline, retries
        until the transaction has failed or is being aborted, and raises the error of the latest
        attempt."""
        failures, in_doubt = 0, False
        while True:
            limit_s = self._options.request_timeout_ms / 1_000
            if deadline is not None:
                limit_s = max(min(limit_s, deadline.remaining_s()), REQUEST_S_MIN)
            problem: ClientError
            pause_s = self._cluster.pause_s(failures + 1)
            try:
                response = await link.send(
                    key, lambda _: build(), answer, timeout_s=limit_s, version_max=version_max
                )
            except ClientError as error:
                if not error.retriable:
                    self._refuse(Reaction.FATAL, key, error)
                in_doubt |= not error.definite
                problem = error
            else:
                reaction, code = decide(table, codes(response))
                if reaction is Reaction.DONE:
                    return code
                problem = ResponseError(code)
                if reaction not in (Reaction.AGAIN, Reaction.FIND):
                    self._refuse(reaction, key, problem)
                if reaction is Reaction.FIND:
                    link.lost(code.name)
                    # The coordinator may have stored the end of the transaction before.
                    in_doubt |= key is ApiKey.END_TXN
                if code is ErrorCode.CONCURRENT_TRANSACTIONS:
                    pause_s = min(pause_s, CONCURRENT_PAUSE_S)
            self._in_doubt |= in_doubt and key is ApiKey.END_TXN
            failures += 1
            if deadline is None:
                if self.doomed:
                    raise problem
            elif deadline.remaining_s() <= pause_s:
                text = f"{key.name} was not answered"
                raise self._failures.late(
                    self.state, text, problem, definite=not in_doubt
                ) from problem
            await asyncio.sleep(pause_s)

    # States

    def _become(self, state: State, error: TransactionError | None = None) -> None:
        assert state in LEGAL_MOVES[self.state], f"{self.state.name} to {state.name}"
        log.debug("transaction state=%s transactional_id=%s", state.name, self._id)
        self.state = state
        if error is not None:
            self.error = error
            log.warning("transaction failed state=%s reason=%s", state.name, error)
        self._wake()

    def _finish(self) -> None:
        self.error = None
        self.pending.clear()
        self._added.clear()
        self._groups.clear()
        self._begun = self._confirmed = self._commit_sent = False
        self._needs_epoch = self._id_lost = self._in_doubt = False
        self._become(State.READY)

    def _require(self, call: str, *states: State) -> None:
        if self.state in states:
            return
        if self.state in (State.ABORTABLE, State.FAILED) and self.error is not None:
            raise self.error.again()
        wanted = " or ".join(f'"{state.value}"' for state in states)
        raise TransactionConflict(f"{call}: {self.state.value}; the call needs: {wanted}")

    def _refuse(self, reaction: Reaction, key: ApiKey, problem: ClientError) -> NoReturn:
        """Change the state as the reaction demands, and raise the TransactionError for
        `problem`."""
        code = problem.code if isinstance(problem, ResponseError) else None
        # An abort cannot follow a commit that may have been processed.
        definite = not (self._commit_sent and self._in_doubt)
        error: TransactionError
        if reaction is Reaction.FENCED and code is not None:
            error = self._failures.fenced(code, definite=definite)
        elif reaction in (Reaction.ABORT, Reaction.NEW_EPOCH) and definite:
            self._needs_epoch |= reaction is Reaction.NEW_EPOCH
            self._id_lost |= code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
            self._commit_sent = False
            error = self._failures.abortable(f"{key.name} failed: {problem}{advice(code)}")
        else:
            error = self._failures.fatal(f"{key.name} failed: {problem}", definite=definite)
        if not isinstance(error, AbortableTransactionError):
            if self.state is not State.FAILED:
                self._become(State.FAILED, error)
        elif self.state in (State.OPEN, State.COMMITTING):
            self._become(State.ABORTABLE, error)
        raise error from problem


def _code_of(response: AddOffsetsToTxnResponse | EndTxnResponse) -> list[ErrorCode]:
    return [error_code(response.error_code)]
