"""The rules for compacted topics. They check every replica's files and every reader's records. A
record whose send got no answer may be stored, and may replace an acknowledged record of its key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from pybroker.testing.history.keyed import KeyedRead, KeyedRecord, KeyedSend
from pybroker.testing.history.model import NANOSECONDS, UNKNOWN, History, State, Violation
from pybroker.testing.history.values import TopicPartition

LATEST: Final = "compaction-keeps-latest"
SURVIVORS: Final = "compaction-keeps-offsets"
TOMBSTONES: Final = "tombstone-kept"
SAME: Final = "compacted-replicas-agree"
_TRANSACTION_MAX: Final = 10 * NANOSECONDS
"""The longest time in ns from a record to the marker that ends its transaction: the transaction
timeout, and the time until the coordinator aborts an expired transaction."""

_ByKey = Mapping[tuple[TopicPartition, str], Sequence[KeyedSend]]


def latest_kept(history: History) -> Iterator[Violation]:
    """Check that every read finds the last acknowledged record of each key, or a later record of
    the key. If the last acknowledged record is a tombstone, the read is also allowed to find
    nothing. A record before the tombstone is allowed only if the replica that was read possibly
    missed the tombstone."""
    sends = _by_key(history)
    for read in _reads_without_loss(history):
        found = _last(read.records)
        for (partition, key), asked in sends.items():
            last = _last_acknowledged(asked, read) if partition == read.partition else None
            if last is None:
                continue
            seen = found.get(key)
            if seen is not None and seen.offset >= last.offset:
                continue
            if last.value is None and (seen is None or not _had_tombstone(history, read, last)):
                continue
            if any(_may_replace(each, last, read) for each in asked):
                continue
            text = (
                f"the last acknowledged record of key {key} is {last.value}, but was found: {seen}"
            )
            yield Violation(LATEST, partition, last.offset, text, (str(last), str(read)))


def survivors_unchanged(history: History) -> Iterator[Violation]:
    """Check that the offsets in each read ascend. Each record read must have been sent with its
    key, must not be aborted, and must have its acknowledged offset."""
    values = {each.value: each for each in history.keyed.sends if each.value is not None}
    sends = _by_key(history)
    for read in _reads_without_loss(history):
        for before, after in pairwise(read.records):
            if before.offset >= after.offset:
                text = f"the record comes after the record at offset {before.offset}"
                yield Violation(SURVIVORS, read.partition, after.offset, text, (str(read),))
        for record in read.records:
            if record.value is None:
                of_key = sends.get((read.partition, record.key), ())
                possible = [each for each in of_key if each.value is None]
            else:
                possible = [values[record.value]] if record.value in values else []
            found = [
                _fault(record, send)
                for send in possible
                if send.outcome != "fail" or _had_marker(history, read, send)
            ]
            if possible and (not found or "" in found):
                continue
            text = found[0] if found else f"{record} was never sent"
            yield Violation(SURVIVORS, read.partition, record.offset, text, (str(read),))


def tombstones_kept(history: History) -> Iterator[Violation]:
    """Check that a replica keeps a tombstone for delete.retention.ms after the tombstone was sent,
    unless a later record has the same key."""
    for read in _reads_without_loss(history):
        found = _last(read.records)
        for (partition, key), asked in _by_key(history).items():
            last = _last_acknowledged(asked, read) if partition == read.partition else None
            if last is None or last.value is not None or key in found:
                continue
            if read.ended - last.begun >= history.keyed.delete_retention:
                continue
            if any(_may_replace(each, last, read) for each in asked):
                continue
            text = f"the tombstone of key {key} is not there any more"
            yield Violation(TOMBSTONES, partition, last.offset, text, (str(last), str(read)))


def replicas_agree(history: History) -> Iterator[Violation]:
    """Check that all reads at the end of the run find the same last value of each key that was
    never deleted."""
    finals = [read for read in _reads_without_loss(history) if read.is_final]
    deleted = set[str]()
    if any(read.ended >= history.keyed.delete_retention for read in finals):
        # A replica that was behind may have missed tombstones, so that it keeps the values.
        deleted = {each.key for each in history.keyed.sends if each.value is None}
    start = max((read.start for read in finals), default=0)
    for one, other in pairwise(finals):
        left, right = (
            {(each.key, each.offset, each.value) for each in _last(read.records).values()
             if each.value is not None and each.offset >= start and each.key not in deleted}
            for read in (one, other)
        )  # fmt: skip
        for key, offset, value in sorted(left ^ right, key=lambda each: each[1])[:1]:
            text = f"only one of two replicas has the last value {value} of key {key}"
            yield Violation(SAME, one.partition, offset, text, (str(one), str(other)))


def _reads_without_loss(history: History) -> Iterator[KeyedRead]:
    lost = {loss.partition for loss in history.losses}
    return (read for read in history.keyed.reads if read.partition not in lost)


def _by_key(history: History) -> _ByKey:
    found: dict[tuple[TopicPartition, str], list[KeyedSend]] = defaultdict(list)
    for send in history.keyed.sends:
        found[send.partition, send.key].append(send)
    return found


def _last(records: Sequence[KeyedRecord]) -> dict[str, KeyedRecord]:
    return {record.key: record for record in records}


def _last_acknowledged(sends: Sequence[KeyedSend], read: KeyedRead) -> KeyedSend | None:
    """Return the send with the highest offset among those acknowledged before the read; None if
    there is none, or if that offset is outside the read's range."""
    known = [
        each
        for each in sends
        if each.outcome == "ok" and each.offset != UNKNOWN and each.ended <= read.begun
    ]
    last = max(known, key=lambda each: each.offset, default=None)
    return last if last is not None and read.start <= last.offset < read.end else None


def _may_replace(candidate: KeyedSend, last: KeyedSend, read: KeyedRead) -> bool:
    """Return whether `candidate` can explain why `read` lacks `last`, the key's last acknowledged
    record. Both must hold: `candidate` can have a higher offset than `last`, and `read` can lack
    `candidate` too. A read can lack a record at or above `read.end`, or a tombstone that compaction
    has removed."""
    if candidate is last or candidate.outcome == "fail" or candidate.begun > read.ended:
        return False
    if candidate.offset != UNKNOWN and candidate.offset < last.offset and not candidate.may_repeat:
        return False
    if candidate.offset == UNKNOWN or candidate.outcome == "info":
        return candidate.value is None or not read.is_final
    return candidate.offset >= read.end or (
        candidate.value is None and candidate.offset > last.offset
    )


def _had_marker(history: History, read: KeyedRead, aborted: KeyedSend) -> bool:
    """Return whether the replica that was read certainly had the abort marker for `aborted`. A
    replica lacks the marker if compaction removed the marker from the leader's log before the
    replica copied it."""
    ended = aborted.begun + _TRANSACTION_MAX
    if read.ended < history.keyed.delete_retention:
        return True
    return _had_tombstone(history, read, replace(aborted, ended=ended))


def _had_tombstone(history: History, read: KeyedRead, tombstone: KeyedSend) -> bool:
    """Return whether the tombstone was certainly on every replica that the read may have used. A
    read by a client may have used any replica. The result is True if all these conditions hold:

    - The disk of the replica's broker lost no data.
    - The replica was in the ISR when the tombstone was committed.
    - Either the read began after all producers had stopped, or the read took less than
      delete.retention.ms and the partition had only one leader during the read and shortly before
      it.
    """
    begun, ended = tombstone.begun, tombstone.ended + history.stale
    replicas = {read.broker} if read.broker != UNKNOWN else _replicas(history, read.partition)
    if replicas & history.keyed.doubted:
        return False
    if not all(
        replicas <= {*state.isr} for state in _states(history, read.partition, begun, ended)
    ):
        return False
    if read.is_final:
        return True
    leaders = {
        state.leader
        for state in _states(history, read.partition, read.begun - history.stale, read.ended)
    }
    return read.ended - read.begun < history.keyed.delete_retention and len(leaders) == 1


def _replicas(history: History, partition: TopicPartition) -> set[int]:
    return {
        replica
        for life in history.lives
        if life.topic == partition[0]
        for replica in life.replicas.get(partition[1], ())
    }


def _states(history: History, partition: TopicPartition, begin: int, end: int) -> list[State]:
    states = [each for each in history.states if each.partition == partition and each.at <= end]
    first = max((n for n, each in enumerate(states) if each.at <= begin), default=0)
    return states[first:]


def _fault(record: KeyedRecord, send: KeyedSend) -> str:
    """Return why `record` cannot be the record of `send`; empty if it can."""
    if send.key != record.key:
        return f"value {record.value} was never sent with key {record.key}"
    if send.outcome == "fail":
        return f"{record} was not committed: {send}"
    if (
        record.value is not None
        and send.offset not in (UNKNOWN, record.offset)
        and not send.may_repeat
    ):
        return f"value {record.value} had the offset {send.offset}"
    return ""
