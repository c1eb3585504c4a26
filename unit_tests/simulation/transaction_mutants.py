"""The replacements of the mutants that remove a rule of transactions (see `mutants.py`)."""

from __future__ import annotations

from functools import wraps
from typing import Any

from pybroker.client.transactions.manager import TransactionManager
from pybroker.coordinator.offsets.nodes import commit_change
from pybroker.coordinator.offsets.transaction_writes import TransactionWrites
from pybroker.coordinator.offsets.zookeeper_store import ZookeeperOffsets
from pybroker.coordinator.transactions.coordinator import TransactionCoordinator
from pybroker.coordinator.transactions.states import PREPARED
from pybroker.errors import ErrorCode
from pybroker.storage.producer_state import EXEMPT


def markers_at_append(append: Any) -> Any:
    """Send the markers of a transaction when its outcome is appended, before it is committed."""

    @wraps(append)
    def changed(self: TransactionCoordinator, transaction: Any, **given: Any) -> Any:
        future = append(self, transaction, **given)
        if transaction.state in PREPARED:
            vars(self).setdefault("early", []).append(transaction)
            self._complete(self._entries[transaction.transactional_id], transaction)
        return future

    return changed


def no_markers_again(committed: Any) -> Any:
    """Send no second markers when the outcome is committed. The transaction may be complete by
    then."""

    def changed(self: TransactionCoordinator, entry: Any, transaction: Any) -> None:
        if not any(each is transaction for each in vars(self).get("early", ())):
            committed(self, entry, transaction)
        elif entry.transaction is transaction:
            entry.is_pending, entry.committed = False, transaction

    return changed


def any_epoch(_fault_of: Any) -> Any:
    """Accept the requests of all earlier producers of the transactional id."""

    def changed(transaction: Any, producer: Any) -> ErrorCode:
        if transaction is None or transaction.producer.producer_id != producer.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return ErrorCode.NONE

    return changed


def stable_at_high_watermark(_last_stable_offset: Any) -> Any:
    return lambda self: self.high_watermark


def offsets_at_once(commit_in_transaction: Any) -> Any:
    """Write the offsets of an open transaction to ZooKeeper."""

    async def changed(self: ZookeeperOffsets, group_id: str, producer: Any, offsets: Any) -> Any:
        codes = await commit_in_transaction(self, group_id, producer, offsets)
        await self.writes.write(
            [commit_change(group_id, key, each, 0) for key, each in offsets.items()]
        )
        return codes

    return changed


def applied_before_written(run: Any) -> Any:
    """Store the applied marker before the offsets of the transactions up to it."""

    async def changed(self: TransactionWrites) -> None:
        if self._waiting:
            await self._applied.put(self._waiting[-1].marker_offset)
        await run(self)

    return changed


def nothing_to_verify(_begin: Any) -> Any:
    return lambda self, partition, producer, sequence, now_ms: EXEMPT


def prepared_is_complete(loaded: Any) -> Any:
    """Send no markers for the prepared transactions that a new coordinator has loaded."""

    async def changed(self: TransactionCoordinator) -> None:
        vars(self)["_complete"] = lambda entry, transaction: None
        await loaded(self)
        del vars(self)["_complete"]

    return changed


def commit_at_once(commit: Any) -> Any:
    """Commit without waiting for the deliveries of the transaction's records."""

    async def changed(self: TransactionManager, _deliver: Any, deadline: Any) -> None:
        async def nothing() -> None:
            pass

        await commit(self, nothing, deadline)

    return changed
