"""Transactional producers, one for each state of the table in `docs/transactions.rst`.

    python -m integration_tests.transaction_states BOOTSTRAP PREFIX DATA GATE

runs them in a process of their own. Its commands are `open` and `decide`; each answers `done`.

Each transaction has records in partitions 0 and 1 of the topic DATA, and in the topic GATE. The
only replica of GATE is paused between `open` and `decide`, so the decided transactions wait for its
marker: they stay prepared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from integration_tests.transactional_producer import (
    RETRIED,
    TransactionalProducer,
    Unreachable,
    described,
)
from integration_tests.wire_client import ConnectionClosed
from pybroker.coordinator.transactions.states import TransactionState
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from unit_tests.patience import wait_until

STATES: Final = tuple(each for each in TransactionState if each is not TransactionState.DEAD)
"""All states in which DescribeTransactions may show a transactional id. A dead id is removed."""
SHOWN: Final = {TransactionState.PREPARE_EPOCH_FENCE: TransactionState.PREPARE_ABORT}
"""State -> the state that is stored instead."""
OUTCOME: Final[Mapping[TransactionState, bool]] = {
    TransactionState.PREPARE_COMMIT: True,
    TransactionState.PREPARE_ABORT: False,
    TransactionState.COMPLETE_COMMIT: True,
    TransactionState.COMPLETE_ABORT: False,
    TransactionState.PREPARE_EPOCH_FENCE: False,
}
"""State -> whether the decided transaction is committed. It is not decided in other states."""
COMPLETE: Final = {
    True: TransactionState.COMPLETE_COMMIT,
    False: TransactionState.COMPLETE_ABORT,
}
"""Whether a transaction is committed -> the state in which it ends."""


class AllStates:
    """One producer for each state. `bootstrap`: the brokers that are not paused."""

    def __init__(self, bootstrap: str, prefix: str, data: str, gate: str) -> None:
        self._bootstrap = bootstrap
        self._prefix = prefix
        self.partitions = [
            TopicPartition(data, 0),
            TopicPartition(data, 1),
            TopicPartition(gate, 0),
        ]
        self.producers = {
            state: TransactionalProducer(bootstrap, self.id_of(state)) for state in STATES
        }

    def id_of(self, state: TransactionState) -> str:
        return f"{self._prefix}-{state.value}"

    def values(self, state: TransactionState, turn: str) -> dict[TopicPartition, bytes]:
        """Return the record of each partition in a transaction of that producer."""
        return dict.fromkeys(self.partitions, f"{state.value} {turn}".encode())

    def open(self) -> None:
        """Begin the transactions, and complete those whose state is complete."""
        for state, producer in self.producers.items():
            producer.init()
            if state is not TransactionState.EMPTY:
                producer.add(self.partitions)
                producer.put(self.values(state, "first"))
            if state in COMPLETE.values():
                producer.end(is_commit=OUTCOME[state])
        for complete in COMPLETE.values():
            self.wait_for(complete, complete)

    def decide(self) -> None:
        """Bring the other producers into their states, while the replica of GATE is paused."""
        for state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT):
            self._prepare(state, partial(self.producers[state].try_end, is_commit=OUTCOME[state]))
        fenced = TransactionState.PREPARE_EPOCH_FENCE
        later = TransactionalProducer(self._bootstrap, self.id_of(fenced))
        self._prepare(fenced, later.try_init)
        self.check()

    def check(self) -> None:
        """Wait until the coordinator shows each producer in its state."""
        for state in STATES:
            self.wait_for(state, SHOWN.get(state, state))

    def _prepare(self, state: TransactionState, attempt: Callable[[], ErrorCode]) -> None:
        """Repeat the attempt until the outcome is stored. A repetition gets
        CONCURRENT_TRANSACTIONS until GATE has its marker, if the first answer was lost."""
        transactional_id, shown = self.id_of(state), SHOWN.get(state, state)

        def is_prepared() -> bool:
            with suppress(OSError, ConnectionClosed, Unreachable):
                code = attempt()
                assert code in {ErrorCode.NONE, *RETRIED}, (state, code)
            return bool(
                described(self._bootstrap, transactional_id).transaction_state == shown.value
            )

        wait_until(is_prepared, what=f"{transactional_id} is {shown.value}")

    def wait_for(self, state: TransactionState, shown: TransactionState) -> None:
        """Wait until the coordinator shows that state of a producer."""
        wait_until(
            lambda: described(self._bootstrap, self.id_of(state)).transaction_state == shown.value,
            what=f"{self.id_of(state)} is {shown.value}",
        )


def main() -> None:
    states = AllStates(*sys.argv[1:])
    for line in sys.stdin:
        {"open": states.open, "decide": states.decide}[line.strip()]()
        print("done", flush=True)


if __name__ == "__main__":
    main()
