"""The rules for consumer groups. Each function yields the violations in a history.

Offsets are checked only for topics that were never recreated and lost no records. A commit without
an answer may have succeeded, or may succeed later.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from pybroker.testing.history.model import (
    UNKNOWN,
    Commit,
    Committed,
    FinalRead,
    History,
    Holding,
    Violation,
)
from pybroker.testing.history.values import TopicPartition

OWNER: Final = "one-owner"
PROCESSED: Final = "committed-is-processed"
NEVER_FALLS: Final = "committed-never-falls"
ASKED: Final = "committed-was-asked"
STALE: Final = "stale-member-commits-nothing"
COVERED: Final = "groups-process-all"

Place = tuple[str, TopicPartition]
"""A group, and a partition that it reads."""


class _KnownCommit(NamedTuple):
    """A committed offset that a client learned from `op`: an OffsetFetch, or a successful
    OffsetCommit. `op` was sent at the time `begun` and answered at the time `since`."""

    since: int
    begun: int
    offset: int
    op: str


def one_owner(history: History) -> Iterator[Violation]:
    """Check that a partition has at most one owner in each generation of a group, and that a member
    processes only records of its assigned partitions."""
    owners: dict[tuple[str, int, TopicPartition], Holding] = {}
    held: dict[tuple[str, str], list[Holding]] = defaultdict(list)
    for holding in history.groups.holdings:
        held[holding.group, holding.client].append(holding)
        for partition in holding.partitions:
            key = (holding.group, holding.generation, partition)
            first = owners.setdefault(key, holding)
            if first.member != holding.member:
                text = f"{first.member} and {holding.member} own the partition in one generation"
                yield Violation(OWNER, partition, UNKNOWN, text, (str(first), str(holding)))
    for each in history.groups.processed:
        rows = held[each.group, each.client]
        # The order of events at the same time is unknown.
        begin = bisect_left(rows, each.at, key=lambda holding: holding.at) - 1
        end = bisect_right(rows, each.at, key=lambda holding: holding.at)
        current = rows[max(begin, 0) : end]
        if not any(each.partition in holding.partitions for holding in current):
            text = f"{each.client} of {each.group} processed a partition that is not assigned to it"
            ops = (*map(str, current), str(each))
            yield Violation(OWNER, each.partition, each.offset, text, ops)


def committed_is_processed(history: History) -> Iterator[Violation]:
    """Check that a group has processed every record below an offset before a member commits the
    offset."""
    final = _final(history)
    done = _first_processed(history)
    for place, known in _known(history).items():
        if place[1] not in final or place[0] in history.groups.transactional:
            continue
        offsets = sorted(record.offset for record in final[place[1]].records)
        times = [done[place].get(offset, math.inf) for offset in offsets]
        latest = [*accumulate(times, max)]
        for each in known:
            below = bisect_left(offsets, each.offset)
            if below and latest[below - 1] > each.since:
                skipped = next(i for i in range(below) if times[i] > each.since)
                text = (
                    f"group {place[0]} committed {each.offset} without having processed this offset"
                )
                yield Violation(PROCESSED, place[1], offsets[skipped], text, (each.op,))


def committed_never_falls(history: History) -> Iterator[Violation]:
    """Check that once a client knows that an offset is committed, no later OffsetFetch returns a
    lower offset. Exceptions:

    - A commit of the lower offset arrived late.
    - A replaced coordinator answered, unaware of the end of its ZooKeeper session.
    """
    commits, known = _commits(history), _known(history)
    for place, answers in _answers(history).items():
        rows = known.get(place, [])
        highest = [*accumulate((each.offset for each in rows), max)]
        for answer in answers:
            count = bisect_right(rows, answer.asked, key=lambda each: each.since)
            if not count or answer.offset >= highest[count - 1]:
                continue
            late = [each for each in commits[place] if each.offset == answer.offset]
            for before in rows[:count]:
                if (
                    before.offset > answer.offset
                    and not any(_may_be_applied_after(history, commit, before) for commit in late)
                    and not _may_come_from_replaced(history, answer, before)
                ):
                    text = (
                        f"group {place[0]} had committed {before.offset}, and the answer is lower"
                    )
                    ops = (before.op, str(answer), *map(str, late))
                    yield Violation(NEVER_FALLS, place[1], answer.offset, text, ops)
                    break


def _may_be_applied_after(history: History, commit: Commit, known_commit: _KnownCommit) -> bool:
    """Return whether the coordinator may have applied `commit` after `known_commit`, which has a
    higher offset."""
    ended = commit.ended or math.inf
    if commit.begun >= known_commit.since:
        return False  # no member commits less than it knows to be committed
    if commit.outcome == "ok":
        return ended > known_commit.begun
    number = history.groups.coordinated_by[commit.group]
    terms = [each.at for each in history.groups.coordinator_terms if each.partition == number]
    place = bisect_right(terms, known_commit.begun)
    return not place or ended >= terms[place - 1]


def _may_come_from_replaced(
    history: History, answer: Committed, known_commit: _KnownCommit
) -> bool:
    """Return whether a replaced coordinator may have given `answer`, which lacks `known_commit`.
    All must hold:

    - A fault ended the replaced coordinator's ZooKeeper session early (`EarlyEnd`).
    - The new coordinator began after this fault, and before a client learned of `known_commit`.
    - The request for `answer` was sent before the replaced coordinator learned of the session's
      end.
    """
    number = history.groups.coordinated_by[answer.group]
    terms = [each for each in history.groups.coordinator_terms if each.partition == number]
    return any(
        old.broker == early.broker != new.broker
        and early.begin <= new.at <= known_commit.since
        and answer.asked <= early.end
        for old, new in pairwise(terms)
        for early in history.early_ends
    )


def committed_was_asked(history: History) -> Iterator[Violation]:
    """Check that each offset in an answer to OffsetFetch is one that a member had tried to
    commit."""
    commits = _commits(history)
    for place, answers in _answers(history).items():
        first: dict[int, int] = {}
        for commit in commits[place]:
            first.setdefault(commit.offset, commit.begun)
        for answer in answers:
            if answer.offset != UNKNOWN and first.get(answer.offset, math.inf) > answer.answered:
                text = f"no member of {place[0]} had committed this offset"
                yield Violation(ASKED, place[1], answer.offset, text, (str(answer),))


def stale_member_commits_nothing(history: History) -> Iterator[Violation]:
    """Check that an old generation commits nothing: a commit must fail if any member of the group
    had joined a later generation before the commit was sent."""
    highest: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for holding in history.groups.holdings:
        rows = highest[holding.group]
        generation = max(holding.generation, rows[-1][1]) if rows else holding.generation
        rows.append((holding.at, generation))
    for commit in history.groups.commits:
        rows = highest[commit.group]
        count = bisect_left(rows, commit.begun, key=lambda row: row[0])
        if commit.outcome == "ok" and count and rows[count - 1][1] > commit.generation:
            text = (
                f"the commit succeeded when group {commit.group} was in generation"
                f" {rows[count - 1][1]} already"
            )
            yield Violation(STALE, commit.partition, commit.offset, text, (str(commit),))


def groups_process_all(history: History) -> Iterator[Violation]:
    """Check that each group has processed every acknowledged record that still exists at the end of
    the run."""
    if history.calm is None:
        return
    done = _first_processed(history)
    acknowledged = {
        send.value
        for send in history.sends.values()
        if send.outcome == "ok" and (facts := history.facts(send.identity)) and facts.acks == -1
    }
    for group, topics in history.groups.topics.items():
        for partition, read in _final(history).items():
            if partition[0] not in topics:
                continue
            for record in read.records:
                if record.value in acknowledged and record.offset not in done[group, partition]:
                    text = f"no member of {group} has processed {record.value}"
                    yield Violation(COVERED, partition, record.offset, text)


# ---- facts of the history


def is_judged(history: History, partition: TopicPartition) -> bool:
    lives = [life for life in history.lives if life.topic == partition[0]]
    return (
        len(lives) <= 1
        and not any(life.doomed for life in lives)
        and not any(loss.partition == partition for loss in history.losses)
    )


def _judged(history: History) -> set[TopicPartition]:
    groups = history.groups
    named = {each.partition for each in groups.answers}
    named |= {each.partition for each in groups.commits}
    return {each for each in named if is_judged(history, each)}


def _final(history: History) -> dict[TopicPartition, FinalRead]:
    found = history.final()
    return {key: read for key, read in found.items() if is_judged(history, key)}


def _first_processed(history: History) -> dict[Place, dict[int, int]]:
    """Return the time when a member first processed each record, by (group, partition) and then by
    offset."""
    found: dict[Place, dict[int, int]] = defaultdict(dict)
    for each in history.groups.processed:
        found[each.group, each.partition].setdefault(each.offset, each.at)
    return found


def _commits(history: History) -> dict[Place, list[Commit]]:
    judged = _judged(history)
    found: dict[Place, list[Commit]] = defaultdict(list)
    for commit in history.groups.commits:
        if commit.partition in judged:
            found[commit.group, commit.partition].append(commit)
    return found


def _answers(history: History) -> dict[Place, list[Committed]]:
    judged = _judged(history)
    found: dict[Place, list[Committed]] = defaultdict(list)
    for answer in history.groups.answers:
        if answer.partition in judged:
            found[answer.group, answer.partition].append(answer)
    return found


def _known(history: History) -> dict[Place, list[_KnownCommit]]:
    """Return, by group and partition, the offsets known to be committed. Each list is in the order
    of the times when clients learned of the commits."""
    found: dict[Place, list[_KnownCommit]] = defaultdict(list)
    for place, commits in _commits(history).items():
        for commit in commits:
            if commit.outcome == "ok":
                known = _KnownCommit(commit.ended, commit.begun, commit.offset, str(commit))
                found[place].append(known)
    for place, answers in _answers(history).items():
        for answer in answers:
            if answer.offset != UNKNOWN:
                known = _KnownCommit(answer.answered, answer.asked, answer.offset, str(answer))
                found[place].append(known)
    for rows in found.values():
        rows.sort()
    return found
