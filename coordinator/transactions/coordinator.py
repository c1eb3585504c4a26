"""The coordinator of the transactional ids of one shard.

Answers and markers wait until the in-sync replicas have the state, because a marker must never
contradict the state that the next coordinator loads. Until then, further requests of the current
producer get CONCURRENT_TRANSACTIONS. The states CompleteCommit and CompleteAbort take effect when
they are appended: if such a state's record is lost, the next coordinator writes the markers again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from pybroker.applog.rate_limit import LogLimit
from pybroker.background import BackgroundTask, Work
from pybroker.coordinator.runtime.refusals import not_coordinator
from pybroker.coordinator.runtime.shard import ShardContext, StoredMarker, StoredRecord
from pybroker.coordinator.transactions import decisions, records
from pybroker.coordinator.transactions.commits import Commits
from pybroker.coordinator.transactions.decisions import Fence, Init
from pybroker.coordinator.transactions.dependencies import TransactionDependencies
from pybroker.coordinator.transactions.entry import PARTITION_BYTES, Entry, size_of
from pybroker.coordinator.transactions.markers import Completion
from pybroker.coordinator.transactions.states import IDLE, PREPARED, TransactionState
from pybroker.coordinator.transactions.transaction import ProducerIdAndEpoch, Transaction
from pybroker.deferred import Deferred
from pybroker.due_queue import DueQueue
from pybroker.errors import BrokerError, ErrorCode, MalformedInput
from pybroker.model import TopicPartition, TransactionMarker
from pybroker.ports import KeyValue

log = logging.getLogger(__name__)

TOMBSTONES_BYTES_MAX: Final = 16_384
"""The maximum number of bytes of keys in one batch of tombstones, as in Kafka."""
PER_TURN: Final = 100
"""The number of timed-out transactions after which the coordinator yields to the event loop."""
COMPLETE_AGAIN_S: Final = 1.0
"""The pause (s) before the coordinator tries again to append a complete state."""
BEGIN_WAIT_S: Final = 0.1
"""How long (s) a request that adds partitions waits for the end of the previous transaction. The
value is the default of add.partitions.to.txn.retry.backoff.max.ms in Kafka 4. Kafka 3 instead
refuses the request at once, and its clients repeat it after 20 ms. The previous transaction usually
ends within some milliseconds."""
_OTHER_PRODUCER_ERRORS: Final = (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED)
"""The errors for a producer that is not the current producer of its transactional id."""


class TransactionCoordinator:
    """The coordinator of the transactional ids in one partition of `__transaction_state`. A method
    that handles a client's request raises BrokerError with the error code for the client."""

    def __init__(self, context: ShardContext, dependencies: TransactionDependencies) -> None:
        self.context = context
        self._dependencies = dependencies
        self._config = dependencies.config
        self._entries: dict[str, Entry] = {}
        self._commits = Commits(context)
        self._time_outs = DueQueue[str]()
        """The transactional ids with an open transaction, by its deadline."""
        self._expirations = DueQueue[str]()
        """All transactional ids, by the time at which they can expire."""
        self._sweeps = [
            BackgroundTask(f"transaction-{name} {context.partition}")
            for name in ("time-outs", "expiry")
        ]
        self._log_limit = LogLimit(context.clock)
        self.completions_to_append = 0
        """The number of transactions whose markers are all written, but whose final state
        (CompleteCommit or CompleteAbort) could not be appended yet. The coordinator tries again
        after a pause."""
        self._appended: tuple[bytes, Transaction] | None = None
        """The value of the last append, and its state: `replay` need not decode this value."""
        self._has_ended = False

    # called by the runtime

    def replay(self, record: StoredRecord) -> None:
        """Apply the state of one transactional id. A record that cannot be decoded is logged and
        skipped."""
        if record.key is None:
            return
        if self._appended is not None and record.value is self._appended[0]:
            self._apply(self._appended[1])
            return
        try:
            transactional_id = records.decode_key(record.key)
            if transactional_id is None:
                return
            if record.value is None:
                self._entries.pop(transactional_id, None)
                return
            transaction = records.decode_value(transactional_id, record.value)
        except MalformedInput as error:
            log.error(
                "transaction record ignored partition=%d offset=%d reason=%s",
                self.context.partition,
                record.offset,
                error,
            )
            return
        self._apply(transaction)

    def _apply(self, transaction: Transaction) -> None:
        entry = self._entries.get(transaction.transactional_id)
        if entry is None:
            self._entries[transaction.transactional_id] = Entry(transaction)
        else:
            entry.transaction = transaction

    def replay_marker(self, marker: StoredMarker) -> None:
        """Do nothing: producers' transactions do not include `__transaction_state`."""

    async def loaded(self) -> None:
        """Wait until no earlier coordinator of the partition can act as the partition's leader.
        Then complete the prepared transactions in the background, and start the timers."""
        await self.context.followed()
        for entry in self._entries.values():
            self._committed(entry, entry.transaction)
        config, (time_outs, expiry) = self._config, self._sweeps
        abort_ms = config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        remove_ms = config.transaction_remove_expired_transaction_cleanup_interval_ms
        self._every(abort_ms / 1000, time_outs, self._abort_timed_out)
        self._every(remove_ms / 1000, expiry, self._remove_expired)

    def ended(self) -> None:
        self._has_ended = True
        self._commits.end()
        for sweep in self._sweeps:
            sweep.cancel()
        for entry in self._entries.values():
            if entry.completion is not None:
                entry.completion.cancel()
            entry.wake()
        self._entries.clear()

    # called by producers

    async def init_producer_id(self, transactional_id: str, call: Init) -> ProducerIdAndEpoch:
        """Decide on the producer's id and epoch, wait until they are stored, and return them."""
        limit_ms = self._config.transaction_max_timeout_ms
        if not 0 < call.timeout_ms <= limit_ms:
            raise BrokerError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"the request has a transaction timeout of {call.timeout_ms} ms, expected "
                f"1 to {limit_ms} ms (transaction.max.timeout.ms)",
            )
        new_id = None
        entry = self._entries.get(transactional_id)
        self._check_not_pending(entry)
        if decisions.needs_producer_id(_state_of(entry), call):
            new_id = await self._dependencies.new_producer_id()
            self._check_not_ended()
            entry = self._entries.get(transactional_id)
            self._check_not_pending(entry)
        if entry is None:
            self._dependencies.take_memory_for_new(size_of(transactional_id, 0))
        decision = decisions.init_producer_id(
            transactional_id,
            _state_of(entry),
            None if entry is None else entry.previous,
            call,
            new_id,
            self.context.clock.wall_ms(),
        )
        if isinstance(decision, ErrorCode):
            raise BrokerError(decision)
        previous = None if isinstance(decision, Fence) else decision.previous
        stored = self._append_in_time(decision.transaction, previous=previous)
        if stored is not None:
            await stored
        if isinstance(decision, Fence):
            raise BrokerError(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                "the earlier producer's open transaction is being aborted; retry",
            )
        log.debug("producer initialized transaction=%s", decision.transaction)
        return decision.transaction.producer

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: frozenset[TopicPartition],
    ) -> Awaitable[None] | None:
        """Add the partitions to the producer's transaction. Return None if they are stored, else an
        awaitable that waits until they are. The awaitable first waits, at most BEGIN_WAIT_S, for
        the end of the previous transaction."""

        def decide() -> tuple[Entry | None, Transaction | ErrorCode]:
            entry = self._entries.get(transactional_id)
            now_ms = self.context.clock.wall_ms()
            return entry, decisions.add_partitions(_state_of(entry), producer, partitions, now_ms)

        async def add_later() -> None:
            entry, decided = decide()
            if decided is ErrorCode.CONCURRENT_TRANSACTIONS and entry is not None:
                await entry.completed(self.context, BEGIN_WAIT_S)
                self._check_not_ended()
                entry, decided = decide()
            if decided is ErrorCode.NONE:
                # Nothing is appended, so no commit proves that this broker is the coordinator.
                await self.context.confirm_current()
            stored = self._carry_out(entry, decided)
            if stored is not None:
                await stored

        entry, decided = decide()
        if decided in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE):
            return add_later()
        return self._carry_out(entry, decided)

    def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, is_commit: bool
    ) -> Deferred[None] | None:
        """Commit or abort the producer's transaction. Return None if the in-sync replicas have the
        decision, else a Deferred that waits for them. The markers are written later."""
        entry = self._entries.get(transactional_id)
        decided = decisions.end(
            _state_of(entry), producer, self.context.clock.wall_ms(), is_commit=is_commit
        )
        return self._carry_out(entry, decided)

    def verify(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Return the error code for each partition: NONE if the partition is in the producer's open
        transaction, otherwise an error. Every partition gets CONCURRENT_TRANSACTIONS while the
        record of PrepareCommit or PrepareAbort is not replicated. The caller first makes sure that
        this broker is still the coordinator (`ShardContext.confirm_current` or
        `is_certainly_current`)."""
        entry = self._entries.get(transactional_id)
        if entry is not None and entry.is_pending and entry.transaction.state in PREPARED:
            return dict.fromkeys(partitions, ErrorCode.CONCURRENT_TRANSACTIONS)
        return decisions.verify(None if entry is None else entry.committed, producer, partitions)

    # called by operators

    def describe(self, transactional_id: str) -> Transaction | None:
        """Return the state of a transactional id; None if unknown. While markers are being written,
        the `partitions` of the state are those whose marker is not confirmed yet."""
        entry = self._entries.get(transactional_id)
        return None if entry is None else entry.shown()

    def transactions(self) -> Iterator[Transaction]:
        """Return the state of every transactional id of this shard, as `describe` returns it. An id
        is left out while the in-sync replicas do not have its first record."""
        shown = [entry.shown() for entry in self._entries.values()]
        return (transaction for transaction in shown if transaction is not None)

    def count(self) -> int:
        """Return the number of transactional ids."""
        return len(self._entries)

    def size(self) -> int:
        """Return the approximate memory of the transactional ids, in bytes."""
        return sum(entry.size() for entry in self._entries.values())

    # steps

    def _carry_out(
        self, entry: Entry | None, decided: Transaction | ErrorCode
    ) -> Deferred[None] | None:
        """Raise a decided error code that is in `_OTHER_PRODUCER_ERRORS`. Otherwise raise
        CONCURRENT_TRANSACTIONS while the last state is not replicated. Otherwise append a
        decided state as `_append_in_time` does, return None for NONE, or raise another decided
        error code."""
        if decided in _OTHER_PRODUCER_ERRORS:
            raise BrokerError(decided)
        self._check_not_pending(entry)
        if isinstance(decided, ErrorCode):
            if decided is not ErrorCode.NONE:
                raise BrokerError(decided)
            return None
        assert entry is not None
        added = len(decided.partitions) - len(entry.transaction.partitions)
        if added > 0:
            self._dependencies.take_memory(added * PARTITION_BYTES)
        return self._append_in_time(decided, previous=entry.previous)

    def _append_in_time(
        self, transaction: Transaction, *, previous: ProducerIdAndEpoch | None
    ) -> Deferred[None] | None:
        """Append the state as `_append` does. After the transaction's timeout the Deferred fails
        with BrokerError COORDINATOR_NOT_AVAILABLE, but the in-sync replicas may still get the
        record."""
        stored = self._append(transaction)
        self._entries[transaction.transactional_id].previous = previous
        if stored is not None:
            error = BrokerError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                "the followers have not replicated the state of the transactional id"
                f" {transaction.transactional_id} within {transaction.timeout_ms} ms; retry",
            )
            timer = asyncio.get_running_loop().call_later(
                transaction.timeout_ms / 1000, stored.set_exception, error
            )
            stored.add_done_callback(lambda _: timer.cancel())
        return stored

    def _append(
        self, transaction: Transaction, *, is_awaited: bool = True
    ) -> Deferred[None] | None:
        """Append the record of `transaction`. Return a Deferred that waits until the in-sync
        replicas have the record; None if they have it already. With `is_awaited` False, return
        None, and treat the record as committed at once. Raises BrokerError."""
        value = records.encode_value(transaction)
        self._appended = value, transaction
        record = KeyValue(records.encode_key(transaction.transactional_id), value)
        offset = self.context.append([record], is_awaited=is_awaited)
        entry = self._entries[transaction.transactional_id]
        if not is_awaited:
            self._committed(entry, transaction)
            return None
        entry.is_pending = True
        return self._commits.add(offset, partial(self._committed, entry, transaction))

    def _committed(self, entry: Entry, transaction: Transaction) -> None:
        """Make `transaction` the committed state of `entry`. For Ongoing, set the deadline of the
        transaction. For PrepareCommit and PrepareAbort, send the markers. For any other state, set
        the expiry of the transactional id."""
        entry.is_pending = False
        entry.committed = transaction
        if transaction.state is TransactionState.ONGOING:
            self._time_outs.put(transaction.transactional_id, transaction.deadline_ms)
        elif transaction.state in PREPARED:
            self._complete(entry, transaction)
        else:
            self._put_expiration(transaction)
        if transaction.state not in PREPARED:
            entry.wake()

    def _complete(self, entry: Entry, transaction: Transaction) -> None:
        """Begin to complete a prepared transaction: send its markers."""
        marker = TransactionMarker(
            transaction.producer.producer_id,
            transaction.producer.epoch,
            transaction.state is TransactionState.PREPARE_COMMIT,
            self.context.leader_epoch,
        )
        entry.completion = Completion(
            marker, transaction.partitions, partial(self._markers_written, entry, transaction)
        )
        self._dependencies.send(entry.completion)

    def _markers_written(self, entry: Entry, transaction: Transaction) -> None:
        """After the markers are written, append the CompleteCommit or CompleteAbort record. Repeat
        a failed append after a pause. No request awaits the record. If the record is lost, the next
        coordinator writes the markers again."""
        if self._has_ended:
            return
        completed = transaction.completed(self.context.clock.wall_ms())
        try:
            self._append(completed, is_awaited=False)
        except BrokerError as error:
            self._note("completion", error)
            if not self._has_ended:
                self.completions_to_append += 1
                again = partial(self._complete_again, entry, transaction)
                self.context.call_later(COMPLETE_AGAIN_S, again)
            return
        entry.completion = None

    def _complete_again(self, entry: Entry, transaction: Transaction) -> None:
        self.completions_to_append -= 1
        self._markers_written(entry, transaction)

    def _check_not_pending(self, entry: Entry | None) -> None:
        if entry is not None and entry.is_pending:
            raise BrokerError(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                "the followers have not replicated the previous state of the transactional id yet;"
                " retry",
            )

    def _check_not_ended(self) -> None:
        if self._has_ended:
            raise not_coordinator("this broker does not coordinate the transactional id any more")

    def _note(self, what: str, error: BrokerError) -> None:
        left_out = self._log_limit.allow(what)
        if left_out is not None:
            log.warning(
                "transaction state not stored of=%s partition=%d error=%s lines_left_out=%d",
                what,
                self.context.partition,
                error,
                left_out,
            )

    # time

    def _every(self, interval_s: float, task: BackgroundTask, work: Callable[[], Work]) -> None:
        """Start `work` in the task at this interval, unless the task still runs."""

        def again() -> None:
            task.start(work)
            self.context.call_later(interval_s, again)

        self.context.call_later(interval_s, again)

    async def _abort_timed_out(self) -> None:
        now_ms = self.context.clock.wall_ms()
        for count, transactional_id in enumerate(self._time_outs.take_due(now_ms), 1):
            entry = self._entries.get(transactional_id)
            if entry is None or entry.committed is None:
                continue
            if entry.is_pending:
                self._time_outs.put(transactional_id, now_ms + 1)
                continue
            aborted = decisions.time_out(entry.committed, now_ms)
            if aborted is not None:
                self._abort(entry, aborted, now_ms)
            elif entry.committed.state is TransactionState.ONGOING:
                self._time_outs.put(transactional_id, entry.committed.deadline_ms)
            if count % PER_TURN == 0:
                await asyncio.sleep(0)

    def _abort(self, entry: Entry, aborted: Transaction, now_ms: int) -> None:
        try:
            self._append(aborted)
        except BrokerError as error:
            self._note("time-out", error)
            self._time_outs.put(aborted.transactional_id, now_ms + 1)
            return
        entry.previous = None
        left_out = self._log_limit.allow("aborted")
        if left_out is not None:
            log.info(
                "transaction timed out producer_id=%d producer_epoch=%d timeout_ms=%d"
                " lines_left_out=%d",
                aborted.producer.producer_id,
                aborted.producer.epoch,
                aborted.timeout_ms,
                left_out,
            )

    async def _remove_expired(self) -> None:
        """Append tombstones for expired transactional ids."""
        now_ms = self.context.clock.wall_ms()
        expiration_ms = self._config.transactional_id_expiration_ms
        batch: list[str] = []
        size = 0
        for transactional_id in self._expirations.take_due(now_ms):
            entry = self._entries.get(transactional_id)
            if entry is None or entry.committed is None or entry.committed.state not in IDLE:
                continue
            if entry.is_pending:
                self._expirations.put(transactional_id, now_ms + 1)
            elif not decisions.is_expired(entry.committed, now_ms, expiration_ms):
                self._put_expiration(entry.committed)
            else:
                batch.append(transactional_id)
                size += len(transactional_id)
            if size >= TOMBSTONES_BYTES_MAX:
                self._append_tombstones(batch, now_ms)
                batch, size = [], 0
                await asyncio.sleep(0)
        self._append_tombstones(batch, now_ms)

    def _append_tombstones(self, batch: Sequence[str], now_ms: int) -> None:
        if not batch:
            return
        try:
            tombstones = [KeyValue(records.encode_key(each), None) for each in batch]
            self.context.append(tombstones, is_awaited=False)
        except BrokerError as error:
            self._note("expiry", error)
            for each in batch:
                self._expirations.put(each, now_ms + 1)
            return
        log.info(
            "transactional ids expired partition=%d count=%d", self.context.partition, len(batch)
        )

    def _put_expiration(self, transaction: Transaction) -> None:
        due_ms = transaction.updated_ms + self._config.transactional_id_expiration_ms
        self._expirations.put(transaction.transactional_id, due_ms)


def _state_of(entry: Entry | None) -> Transaction | None:
    return None if entry is None else entry.committed
