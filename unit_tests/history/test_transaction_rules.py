"""Tests of the rules for transactions. If a history violates one rule, only this rule reports it.
If it violates none, no rule reports it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pybroker.testing.history.checker import check, report
from pybroker.testing.history.model import (
    Assignment,
    FinalRead,
    History,
    Latest,
    Poll,
    ProducerFacts,
    ProducerStart,
    Record,
    Send,
    Transaction,
)
from pybroker.testing.history.transaction_rules import ATOMIC, FENCED, OUTPUT, READS, STABLE
from pybroker.testing.history.values import Identity, make_value

Story = Callable[["TransactionScript"], None]
INPUT = ("in", 0)
FIRST = ("out", 0)
SECOND = ("out", 1)


class TransactionScript:
    """A history of the transactional id `id`. Each step takes one second. `finish` adds the final
    reads that belong to the outcomes of the transactions."""

    def __init__(self) -> None:
        self.history = History()
        self.reads = History()
        self.history.transactions.reads = self.reads
        self.history.producers["p", 1] = ProducerFacts(-1, True, True)
        self._now = 0
        self._ends = {INPUT: 0, FIRST: 0, SECOND: 0}
        self._stored: dict[tuple[str, int], list[Record]] = {key: [] for key in self._ends}
        self.hidden: set[str] = set()
        """The values that the final reads with read_committed lack."""

    def now(self) -> int:
        self._now += 1_000_000_000
        return self._now

    def begin(self, epoch: int = 0, group: str = "") -> Transaction:
        transaction = Transaction("id", f"p/{epoch}", 1, epoch, self.now(), group)
        self.history.transactions.all.append(transaction)
        return transaction

    def start(self, epoch: int) -> None:
        self.history.transactions.starts.append(
            ProducerStart("id", f"p/{epoch}", 1, epoch, self.now())
        )

    def send(self, partition: tuple[str, int], transaction: Transaction | None = None) -> Send:
        """Write a value, in the transaction if one is given."""
        identity = Identity("p", 1, len(self.history.sends))
        send = Send(identity, partition, make_value(identity, partition), self.now())
        send.outcome, send.offset, send.ended = "ok", self._ends[partition], self.now()
        self._ends[partition] += 1
        self.history.sends[send.value] = send
        self._stored[partition].append(Record(send.offset, send.value, 0))
        if transaction is not None:
            transaction.values.append(send.value)
            self.hidden.add(send.value)
        return send

    def commit(self, transaction: Transaction) -> None:
        transaction.commit_asked = self.now()
        transaction.outcome, transaction.ended = "ok", self.now()
        self._ends = {key: end + 1 for key, end in self._ends.items()}  # the marker
        self.hidden.difference_update(transaction.values)

    def abort(self, transaction: Transaction) -> None:
        transaction.outcome, transaction.ended = "fail", self.now()
        self._ends = {key: end + 1 for key, end in self._ends.items()}

    def read(self, *sends: Send) -> None:
        """Let a read_committed consumer read these values of one partition, from the first one
        on."""
        key, offset = sends[0].partition, sends[0].offset
        records = tuple(Record(each.offset, each.value, 0) for each in sends)
        self.reads.assignments.append(Assignment("reader", key, self.now(), offset))
        self.reads.polls.append(Poll("reader", key, self.now(), records))

    def stable(self, partition: tuple[str, int], offset: int) -> None:
        asked = self.now()
        self.reads.latest.append(Latest("asker", partition, asked, self.now(), offset))

    def transform(self, transaction: Transaction, *sources: Send) -> None:
        """Write a record for each source, and commit the offset after the last one."""
        for source in sources:
            made = self.send(FIRST, transaction)
            transaction.inputs[made.value] = (source.partition, source.offset)
        transaction.offsets[INPUT] = sources[-1].offset + 1

    def finish(self) -> History:
        for key, records in self._stored.items():
            visible = tuple(each for each in records if each.value not in self.hidden)
            self.history.finals.append(FinalRead(key, "reader", 0, tuple(records)))
            self.reads.finals.append(FinalRead(key, "reader", 0, visible))
        return self.history


# ---- what must not be


def commits_in_one_partition_and_aborts_in_the_other(script: TransactionScript) -> None:
    transaction = script.begin()
    script.send(FIRST, transaction)
    lost = script.send(SECOND, transaction)
    script.commit(transaction)
    transaction.outcome = "info"  # the answer is lost, so either outcome is allowed
    script.hidden.add(lost.value)


def loses_a_committed_transaction(script: TransactionScript) -> None:
    transaction = script.begin()
    script.send(FIRST, transaction)
    script.commit(transaction)
    script.hidden.update(transaction.values)


def shows_an_aborted_transaction(script: TransactionScript) -> None:
    transaction = script.begin()
    script.send(FIRST, transaction)
    script.abort(transaction)
    script.hidden.clear()


def shows_a_transaction_without_a_request_to_commit(script: TransactionScript) -> None:
    script.send(FIRST, script.begin())
    script.hidden.clear()


def delivers_a_record_before_its_commit(script: TransactionScript) -> None:
    transaction = script.begin()
    script.read(script.send(FIRST, transaction))
    script.commit(transaction)


def delivers_an_aborted_record_and_forgets_it(script: TransactionScript) -> None:
    transaction = script.begin()
    script.read(script.send(FIRST, transaction))
    script.abort(transaction)


def skips_a_committed_record(script: TransactionScript) -> None:
    transaction = script.begin()
    first, _, last = [script.send(FIRST, transaction) for _ in range(3)]
    script.commit(transaction)
    script.read(first, last)


def moves_the_last_stable_offset_back(script: TransactionScript) -> None:
    script.send(FIRST)
    script.stable(FIRST, 1)
    script.stable(FIRST, 0)


def moves_the_last_stable_offset_below_a_record_that_was_read(script: TransactionScript) -> None:
    script.history.expires = True
    script.read(script.send(FIRST))
    script.stable(FIRST, 0)


def passes_an_open_transaction(script: TransactionScript) -> None:
    transaction = script.begin()
    script.send(FIRST, transaction)
    script.stable(FIRST, 1)
    script.commit(transaction)


def transforms_a_record_twice(script: TransactionScript) -> None:
    source = script.send(INPUT)
    for _ in range(2):
        transaction = script.begin(group="g")
        script.transform(transaction, source)
        script.commit(transaction)
    script.history.transactions.final_offsets["g", INPUT] = 1


def loses_the_offsets_of_a_committed_transaction(script: TransactionScript) -> None:
    source = script.send(INPUT)
    transaction = script.begin(group="g")
    script.transform(transaction, source)
    script.commit(transaction)
    script.history.transactions.final_offsets["g", INPUT] = -1


def keeps_the_offsets_of_an_aborted_transaction(script: TransactionScript) -> None:
    source = script.send(INPUT)
    transaction = script.begin(group="g")
    script.transform(transaction, source)
    script.abort(transaction)
    script.history.transactions.final_offsets["g", INPUT] = 1


def stores_a_record_of_a_fenced_producer(script: TransactionScript) -> None:
    script.start(0)
    transaction = script.begin(0)
    script.start(1)
    script.send(FIRST, transaction)


def commits_for_a_fenced_producer(script: TransactionScript) -> None:
    script.start(0)
    transaction = script.begin(0)
    script.send(FIRST, transaction)
    script.start(1)
    script.commit(transaction)


BAD: dict[str, tuple[str, Story]] = {
    story.__name__: (rule, story)
    for rule, story in (
        (ATOMIC, commits_in_one_partition_and_aborts_in_the_other),
        (READS, loses_a_committed_transaction),
        (READS, shows_an_aborted_transaction),
        (READS, shows_a_transaction_without_a_request_to_commit),
        (READS, delivers_a_record_before_its_commit),
        (READS, delivers_an_aborted_record_and_forgets_it),
        (READS, skips_a_committed_record),
        (STABLE, moves_the_last_stable_offset_back),
        (STABLE, moves_the_last_stable_offset_below_a_record_that_was_read),
        (STABLE, passes_an_open_transaction),
        (OUTPUT, transforms_a_record_twice),
        (OUTPUT, loses_the_offsets_of_a_committed_transaction),
        (OUTPUT, keeps_the_offsets_of_an_aborted_transaction),
        (FENCED, stores_a_record_of_a_fenced_producer),
        (FENCED, commits_for_a_fenced_producer),
    )
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_violates_its_rule_alone(name: str) -> None:
    rule, story = BAD[name]
    script = TransactionScript()
    story(script)
    found = check(script.finish())
    assert {violation.rule for violation in found} == {rule}, report(found)


# ---- what may be


def deletes_the_first_record_of_an_open_transaction_on_one_replica(
    script: TransactionScript,
) -> None:
    script.history.expires = True
    transaction = script.begin()
    script.send(FIRST, transaction)
    script.stable(FIRST, 1)
    script.stable(FIRST, 0)
    script.abort(transaction)


def deletes_all_records_of_an_open_transaction(script: TransactionScript) -> None:
    script.history.expires = True
    transaction = script.begin()
    script.send(FIRST, transaction)
    script.stable(FIRST, 1)
    script.commit(transaction)


def ends_a_transaction_in_each_way(script: TransactionScript) -> None:
    script.start(0)
    committed = script.begin()
    one, other = script.send(FIRST, committed), script.send(SECOND, committed)
    script.stable(FIRST, 0)
    script.commit(committed)
    aborted = script.begin()
    script.send(FIRST, aborted)
    script.abort(aborted)
    last = script.send(FIRST)
    script.stable(FIRST, last.offset + 1)
    script.read(one, last)
    script.read(other)
    script.send(SECOND, script.begin())


def hides_a_transaction_whose_commit_has_no_answer(script: TransactionScript) -> None:
    transaction = script.begin()
    script.send(FIRST, transaction)
    script.send(SECOND, transaction)
    script.commit(transaction)
    transaction.outcome = "info"
    script.hidden.update(transaction.values)


def transforms_each_record_once(script: TransactionScript) -> None:
    sources = [script.send(INPUT) for _ in range(2)]
    failed = script.begin(0, "g")
    script.transform(failed, *sources)
    script.start(1)
    transaction = script.begin(1, "g")
    script.transform(transaction, *sources)
    script.commit(transaction)
    script.history.transactions.final_offsets["g", INPUT] = 2


GOOD: tuple[Story, ...] = (
    ends_a_transaction_in_each_way,
    deletes_the_first_record_of_an_open_transaction_on_one_replica,
    deletes_all_records_of_an_open_transaction,
    hides_a_transaction_whose_commit_has_no_answer,
    transforms_each_record_once,
)


@pytest.mark.parametrize("story", GOOD, ids=lambda story: story.__name__)
def test_a_good_history_violates_no_rule(story: Story) -> None:
    script = TransactionScript()
    story(script)
    found = check(script.finish())
    assert not found, report(found)
