"""The rules for replicas, leaders and controllers. Each function yields the violations in a
history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise, zip_longest
from typing import Final

from pybroker.testing.history.model import (
    UNKNOWN,
    Batch,
    History,
    Latest,
    ReplicaFiles,
    State,
    Violation,
)
from pybroker.testing.history.stale_leaders import StaleLeaders
from pybroker.testing.history.values import TopicPartition

WATERMARKS: Final = "monotone-watermarks"


def monotone_watermarks(history: History) -> Iterator[Violation]:
    """Check that the latest offsets (timestamp -1) that a client gets from ListOffsets never
    decrease, and are above the offsets of committed records. Answers of stale leaders are
    exempt."""
    stale_leaders = StaleLeaders(history)
    yield from decreased_offsets(history, stale_leaders)
    yield from below_known_offsets(history, stale_leaders)


def decreased_offsets(history: History, stale_leaders: StaleLeaders) -> Iterator[Violation]:
    """Check that the latest offsets that one client gets from ListOffsets never decrease. Answers
    of stale leaders (`stale_leaders.py`) are exempt."""
    highest: dict[tuple[str, TopicPartition], Latest] = {}
    for answer in history.latest:
        known = highest.get((answer.client, answer.partition))
        # Requests of one client may overlap. A lower offset is a violation only if it was requested
        # after the earlier answer.
        goes_back = known is not None and answer.offset < known.offset
        if known is not None and goes_back and answer.asked > known.answered:
            if stale_leaders.explain(answer):
                continue
            ops = (str(known), str(answer))
            text = f"the latest offset decreased from {known.offset}"
            yield Violation(WATERMARKS, answer.partition, answer.offset, text, ops)
        if known is None or answer.offset > known.offset:
            highest[answer.client, answer.partition] = answer


def below_known_offsets(history: History, stale_leaders: StaleLeaders) -> Iterator[Violation]:
    """Check that each latest offset from ListOffsets is above all offsets that were known as
    committed before the request. An offset is known as committed if a client has read the record,
    or if the record was acknowledged with acks=all. Answers of stale leaders are exempt."""
    known: dict[TopicPartition, list[tuple[int, int, str]]] = defaultdict(list)
    for partition, at, offset, op in history.committed():
        known[partition].append((at, offset, op))
    answers: dict[TopicPartition, list[Latest]] = defaultdict(list)
    for answer in history.latest:
        answers[answer.partition].append(answer)
    for partition, asked in answers.items():
        facts_in_time = sorted(known[partition])
        position, top, witness = 0, UNKNOWN, ""
        for answer in sorted(asked, key=lambda item: item.asked):
            while position < len(facts_in_time) and facts_in_time[position][0] < answer.asked:
                _, offset, op = facts_in_time[position]
                if offset > top:
                    top, witness = offset, op
                position += 1
            if answer.offset <= top and not stale_leaders.explain(answer):
                text = (
                    f"the answer to ListOffsets latest was {answer.offset}, but offset {top} was"
                    " known to be committed"
                )
                ops = (witness, str(answer))
                yield Violation(WATERMARKS, partition, answer.offset, text, ops)


def replicas_identical(history: History) -> Iterator[Violation]:
    """Check that the replicas of a partition are equal at the end of the run: the same producer
    states, and below the high watermark the same batches and leader epochs. All final reads of a
    partition must return the same records, too."""
    by_partition: dict[TopicPartition, list[ReplicaFiles]] = defaultdict(list)
    for files in history.files:
        by_partition[files.partition].append(files)
    for partition, replicas in by_partition.items():
        first, *others = sorted(replicas, key=lambda files: files.broker)
        for other in others:
            yield from _compare(partition, first, other)
    reads: dict[TopicPartition, str] = {}
    for read in history.finals:
        first_read = history.final()[read.partition]
        begin = max(first_read.start, read.start)
        mine = [record for record in read.records if record.offset >= begin]
        theirs = [record for record in first_read.records if record.offset >= begin]
        if mine != theirs and read.partition not in reads:
            reads[read.partition] = read.source
            place = next((a or b).offset for a, b in zip_longest(theirs, mine) if a != b)
            text = (
                f"final reads by {first_read.source} and by {read.source} differ from this offset"
                " on"
            )
            yield Violation("replicas-identical", read.partition, place, text)


def _compare(
    partition: TopicPartition, one: ReplicaFiles, other: ReplicaFiles
) -> Iterator[Violation]:
    rule, names = "replicas-identical", f"brokers {one.broker} and {other.broker}"
    start, end = max(one.start, other.start), max(one.high_watermark, other.high_watermark)
    for mine, theirs in zip_longest(_between(one, start, end), _between(other, start, end)):
        if mine != theirs:
            place = min(batch.first for batch in (mine, theirs) if batch is not None)
            ops = (f"broker {one.broker}: {mine}", f"broker {other.broker}: {theirs}")
            yield Violation(rule, partition, place, f"{names} hold different batches", ops)
            break
    mine_epochs = _epochs_within(one, start, end)
    their_epochs = _epochs_within(other, start, end)
    if mine_epochs != their_epochs:
        ops = (f"broker {one.broker}: {mine_epochs}", f"broker {other.broker}: {their_epochs}")
        yield Violation(rule, partition, UNKNOWN, f"{names} have different leader epochs", ops)
    if None not in (one.producers, other.producers) and one.producers != other.producers:
        ops = (f"broker {one.broker}: {one.producers}", f"broker {other.broker}: {other.producers}")
        yield Violation(rule, partition, UNKNOWN, f"{names} have different producer states", ops)


def _between(files: ReplicaFiles, start: int, end: int) -> list[Batch]:
    return [batch for batch in files.batches if batch.last >= start and batch.first < end]


def _epochs_within(files: ReplicaFiles, start: int, end: int) -> list[tuple[int, int]]:
    """Return (leader epoch, first offset) pairs of the batches from `start` to `end`. Epochs
    without batches are left out, because a follower learns epochs from batches."""
    used = {batch.epoch for batch in _between(files, start, end)}
    return [(epoch, max(offset, start)) for epoch, offset in files.epochs if epoch in used]


def epochs(history: History) -> Iterator[Violation]:
    """Check three rules:

    - A leader epoch has one leader, and a controller epoch one controller.
    - Only the current controller elects leaders.
    - Epochs never decrease along a log, or along the versions of a partition's state in ZooKeeper.
    """
    yield from _along_logs(history)
    holders: dict[int, int] = {}
    for term in history.controller_terms:
        holder = holders.setdefault(term.epoch, term.broker)
        if holder != term.broker:
            text = (
                f"controller epoch {term.epoch} belongs to broker {holder} and to broker"
                f" {term.broker}"
            )
            yield Violation("epochs", None, UNKNOWN, text)
    leaders: dict[tuple[TopicPartition, int], int] = {}
    by_partition: dict[TopicPartition, dict[int, tuple[int, int]]] = defaultdict(dict)
    yield from _elections_by_replaced_controllers(history)
    for state in history.states:
        by_partition[state.partition][state.version] = (state.epoch, state.controller_epoch)
        if state.leader < 0:
            continue
        holder = leaders.setdefault((state.partition, state.epoch), state.leader)
        if holder != state.leader:
            text = (
                f"leader epoch {state.epoch} belongs to broker {holder} and to broker"
                f" {state.leader}"
            )
            yield Violation("epochs", state.partition, UNKNOWN, text)
    for partition, versions in by_partition.items():
        for before, after in pairwise(sorted(versions)):
            (epoch, controller), (next_epoch, next_controller) = versions[before], versions[after]
            if next_epoch < epoch or next_controller < controller:
                text = (
                    f"epochs (leader, controller) fall from {epoch}, {controller} in version"
                    f" {before} to {next_epoch}, {next_controller} in version {after}"
                )
                yield Violation("epochs", partition, UNKNOWN, text)


def _elections_by_replaced_controllers(history: History) -> Iterator[Violation]:
    """Yield a violation for each election by a replaced controller. A partition state without a
    leader is exempt, because a leader that resigns may write this state."""
    known: dict[TopicPartition, int] = {}
    for state in history.states:
        before = known.get(state.partition, UNKNOWN)
        known[state.partition] = state.epoch
        is_chosen = state.epoch > before and state.leader != UNKNOWN
        if is_chosen and UNKNOWN != state.current_controller_epoch > state.controller_epoch:
            text = (
                f"leader epoch {state.epoch} was made by the controller of epoch"
                f" {state.controller_epoch}, after {state.current_controller_epoch} had begun"
            )
            yield Violation("epochs", state.partition, UNKNOWN, text)


def _along_logs(history: History) -> Iterator[Violation]:
    for read in history.finals:
        rows = [(record.offset, record.epoch) for record in read.records if record.epoch != UNKNOWN]
        yield from _falling(read.partition, rows, f"final read by {read.source}")
    for files in history.files:
        # Batches below the log start are no longer part of the log.
        kept = [batch for batch in files.batches if batch.last >= files.start]
        rows = [(batch.first, batch.epoch) for batch in kept]
        yield from _falling(files.partition, rows, f"files of broker {files.broker}")


def _falling(
    partition: TopicPartition, rows: list[tuple[int, int]], source: str
) -> Iterator[Violation]:
    for (_, before), (offset, after) in pairwise(rows):
        if after < before:
            text = f"leader epoch {after} comes after leader epoch {before}"
            yield Violation("epochs", partition, offset, text, (source,))
            return


def clean_elections(history: History) -> Iterator[Violation]:
    """Check that each leader is in the ISR. Check that each new leader was in the ISR or an
    eligible leader replica (KIP-966) before its election, unless a loss receipt notes that records
    may be lost."""
    admitted = {(loss.partition, loss.at) for loss in history.losses}
    versions: dict[TopicPartition, dict[int, State]] = defaultdict(dict)
    for state in history.states:
        versions[state.partition][state.version] = state
        if state.leader >= 0 and state.leader not in state.isr:
            text = f"the leader {state.leader} is not among the in-sync replicas {state.isr}"
            yield Violation("clean-elections", state.partition, UNKNOWN, text)
    for partition, known in versions.items():
        for version, state in known.items():
            before = known.get(version - 1)
            if before is None or state.leader in (-1, before.leader):
                continue
            if (partition, state.at) in admitted:
                continue
            if state.leader not in before.isr + before.eligible:
                text = (
                    f"version {version} makes {state.leader} the leader, version {version - 1}"
                    f" has {before.isr} in sync and {before.eligible} eligible"
                )
                yield Violation("clean-elections", partition, UNKNOWN, text)
