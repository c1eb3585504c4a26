"""The rules for transactions. Each function yields the violations in a history.

The rules ignore topics that were recreated or that lost records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from pybroker.testing.history import client_rules, cluster_rules
from pybroker.testing.history.group_rules import is_judged
from pybroker.testing.history.model import (
    UNKNOWN,
    History,
    Latest,
    Send,
    Transaction,
    Violation,
)
from pybroker.testing.history.stale_leaders import StaleLeaders
from pybroker.testing.history.values import TopicPartition

ATOMIC: Final = "transactions-atomic"
READS: Final = "committed-reads"
STABLE: Final = "stable-offset"
OUTPUT: Final = "offsets-match-output"
FENCED: Final = "fenced-writes-nothing"

_READ_RULES: Final[tuple[Callable[[History], Iterator[Violation]], ...]] = (
    client_rules.acked_present,
    client_rules.no_phantom,
    client_rules.one_value_per_offset,
    client_rules.consumer_order,
    client_rules.read_implies_durable,
)


def atomic(history: History) -> Iterator[Violation]:
    """Check that read_committed consumers find all records of a transaction, or none of them, at
    the end of the run."""
    for transaction, visible, hidden in _visible_and_hidden(history):
        if visible and hidden:
            text = f"of {len(visible) + len(hidden)} records {len(visible)} can be read"
            ops = (str(transaction), str(visible[0]), str(hidden[0]))
            yield Violation(ATOMIC, hidden[0].partition, hidden[0].offset, text, ops)


def committed_reads(history: History) -> Iterator[Violation]:
    """Check that read_committed consumers get each committed record in order, no aborted record,
    and no record before its producer asked to commit."""
    view = _committed_view(history)
    if view is None:
        return
    for rule in _READ_RULES:
        for found in rule(view):
            yield replace(found, rule=READS, text=f"{found.rule}: {found.text}")
    by_value = _by_value(history)
    for poll in view.polls:
        for record in poll.records:
            found_in = by_value.get(record.value)
            if found_in is not None and found_in.commit_asked > poll.at:
                text = f"{record.value} was read before its producer asked to commit"
                ops = (str(found_in), str(poll))
                yield Violation(READS, poll.partition, record.offset, text, ops)


def stable_offset(history: History) -> Iterator[Violation]:
    """Check the last stable offsets that ListOffsets returned:

    - The offsets that one client gets never decrease.
    - Each is above all records that read_committed consumers got before the request.
    - Until the producer of a committed transaction asked to commit, no offset is above a record of
      the transaction.

    If retention deletes records, only the second rule holds. The last stable offset rises when
    retention deletes the records of an open transaction (as in Kafka,
    `UnifiedLog.maybeIncrementFirstUnstableOffset`). It may fall again when another broker becomes
    the leader.
    """
    view = _committed_view(history)
    if view is None:
        return
    read = replace(view, sends={})
    stale_leaders = StaleLeaders(read)
    for found in cluster_rules.below_known_offsets(read, stale_leaders):
        yield replace(found, rule=STABLE)
    if history.expires:
        return
    for found in cluster_rules.decreased_offsets(read, stale_leaders):
        yield replace(found, rule=STABLE)
    answers: dict[TopicPartition, list[Latest]] = defaultdict(list)
    for answer in view.latest:
        answers[answer.partition].append(answer)
    for transaction in history.transactions.all:
        # Only a committed transaction was certainly open until its producer asked to commit. Any
        # other transaction may have been aborted earlier, by its timeout or by the next producer.
        if transaction.outcome != "ok":
            continue
        for send in _stored(history, transaction):
            for answer in answers[send.partition]:
                is_open = send.ended <= answer.asked and answer.answered < transaction.commit_asked
                if is_open and answer.offset > send.offset:
                    text = "the last stable offset is above a record of an open transaction"
                    ops = (str(transaction), str(send), str(answer))
                    yield Violation(STABLE, send.partition, answer.offset, text, ops)
                    break


def offsets_match_output(history: History) -> Iterator[Violation]:
    """Check the clients that consume and produce in one transaction. Each input record below the
    group's committed offset must have exactly one output record, each later input record none."""
    view = _committed_view(history)
    if view is None:
        return
    inputs = view.final()
    made: dict[tuple[str, TopicPartition], dict[int, list[str]]] = defaultdict(dict)
    for transaction, visible, _ in _visible_and_hidden(history):
        for send in visible:
            source = transaction.inputs.get(send.value)
            if source is not None:
                partition, offset = source
                made[transaction.group, partition].setdefault(offset, []).append(str(send))
    for (group, partition), committed in history.transactions.final_offsets.items():
        if partition not in inputs or not is_judged(history, partition):
            continue
        outputs = made[group, partition]
        for offset, sends in outputs.items():
            if len(sends) > 1:
                text = f"group {group} wrote {len(sends)} output records for this record"
                yield Violation(OUTPUT, partition, offset, text, tuple(sends))
            if offset >= committed:
                text = f"group {group} wrote output for this record, but committed {committed}"
                yield Violation(OUTPUT, partition, offset, text, tuple(sends))
        if history.expires:
            continue
        for record in inputs[partition].records:
            if record.offset < committed and record.offset not in outputs:
                text = f"group {group} committed {committed}, but wrote no output for this record"
                yield Violation(OUTPUT, partition, record.offset, text)


def fenced_writes_nothing(history: History) -> Iterator[Violation]:
    """Check that a producer stores no record and commits no transaction after a later producer with
    the same transactional id got a higher epoch."""
    stored: dict[TopicPartition, set[str]] = {
        partition: {record.value for record in read.records}
        for partition, read in history.final().items()
    }
    for transaction in history.transactions.all:
        fences = [
            start
            for start in history.transactions.starts
            if start.transactional_id == transaction.transactional_id
            and start.producer_id == transaction.producer_id
            and start.epoch > transaction.epoch
        ]
        if not fences:
            continue
        first = min(fences, key=lambda start: start.at)
        for value in transaction.values:
            send = history.sends[value]
            if send.begun <= first.at or not is_judged(history, send.partition):
                continue
            if send.outcome == "ok" or value in stored.get(send.partition, ()):
                text = f"a producer wrote after {first.client} got epoch {first.epoch}"
                ops = (str(transaction), str(send))
                yield Violation(FENCED, send.partition, send.offset, text, ops)
        if transaction.outcome == "ok" and transaction.commit_asked > first.at:
            text = f"a producer committed after {first.client} got epoch {first.epoch}"
            yield Violation(FENCED, None, UNKNOWN, text, (str(transaction),))


# ---- facts of the history


def _committed_view(history: History) -> History | None:
    """Return the history as read_committed consumers see it, or None if the run has no such
    consumers."""
    reads = history.transactions.reads
    if reads is None:
        return None
    judged = {each for each in _partitions(reads) if is_judged(history, each)}
    by_value = _by_value(history)
    return replace(
        history,
        sends={
            value: _as_committed(send, by_value.get(value))
            for value, send in history.sends.items()
            if send.partition in judged
        },
        polls=[each for each in reads.polls if each.partition in judged],
        assignments=[each for each in reads.assignments if each.partition in judged],
        lost_positions=[each for each in reads.lost_positions if each.partition in judged],
        latest=[each for each in reads.latest if each.partition in judged],
        finals=[each for each in reads.finals if each.partition in judged],
    )


def _partitions(reads: History) -> Iterator[TopicPartition]:
    yield from (each.partition for each in reads.polls)
    yield from (each.partition for each in reads.assignments)
    yield from (each.partition for each in reads.latest)
    yield from (each.partition for each in reads.finals)
    for lost in reads.lost_positions:
        if lost.partition is not None:
            yield lost.partition


def _as_committed(send: Send, transaction: Transaction | None) -> Send:
    """Return the send with the outcome of its transaction: "fail" for aborted, "info" for unknown,
    otherwise unchanged."""
    if transaction is None:
        return send
    if transaction.is_aborted:
        return replace(send, outcome="fail", error=str(transaction))
    return send if transaction.outcome == "ok" else replace(send, outcome="info")


def _by_value(history: History) -> dict[str, Transaction]:
    return {value: each for each in history.transactions.all for value in each.values}


def _stored(history: History, transaction: Transaction) -> Iterator[Send]:
    for value in transaction.values:
        send = history.sends[value]
        if send.outcome == "ok" and send.offset != UNKNOWN and is_judged(history, send.partition):
            yield send


def _visible_and_hidden(history: History) -> Iterator[tuple[Transaction, list[Send], list[Send]]]:
    """Yield (transaction, visible sends, hidden sends). In the final reads, read_committed
    consumers find the records of visible sends. Hidden sends were acknowledged, but their records
    are missing, although retention has not deleted them."""
    reads = history.transactions.reads
    if reads is None:
        return
    finals = reads.final()
    values: dict[TopicPartition, set[str]] = {
        key: {record.value for record in read.records} for key, read in finals.items()
    }
    for transaction in history.transactions.all:
        visible, hidden = [], []
        for value in transaction.values:
            send = history.sends[value]
            read = finals.get(send.partition)
            if read is None or not is_judged(history, send.partition):
                continue
            if value in values[send.partition]:
                visible.append(send)
            elif send.outcome == "ok" and send.offset >= read.start:
                hidden.append(send)
        yield transaction, visible, hidden
