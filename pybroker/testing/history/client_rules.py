"""The rules for producers and consumers. Each function yields the violations in a history. A
produce request without an answer may have succeeded."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from pybroker.testing.history.model import UNKNOWN, History, Poll, Send, Violation
from pybroker.testing.history.values import TopicPartition, has_no_era, is_past, read_value


class Sighting(NamedTuple):
    """A record that was read. `seen` is a text that names the read: the poll of a consumer, or the
    read at the end of the run."""

    partition: TopicPartition
    offset: int
    value: str
    seen: str


def sightings(history: History) -> Iterator[Sighting]:
    """Yield every record that was read by a consumer or at the end of the run."""
    for poll in history.polls:
        for record in poll.records:
            yield Sighting(poll.partition, record.offset, record.value, str(poll))
    for final in history.finals:
        seen = f"final read by {final.source}"
        for record in final.records:
            yield Sighting(final.partition, record.offset, record.value, seen)


def _acknowledged(history: History) -> Iterator[Send]:
    for send in history.sends.values():
        facts = history.facts(send.identity)
        if send.outcome == "ok" and facts is not None and facts.acks == -1:
            yield send


def acked_present(history: History) -> Iterator[Violation]:
    """Check that the read at the end of the run finds each record that was acknowledged with
    acks=all, at its acknowledged offset."""
    final = history.final()
    content = {key: dict(r[:2] for r in read.records) for key, read in final.items()}
    values = {key: set(found.values()) for key, found in content.items()}
    for send in _acknowledged(history):
        read = final.get(send.partition)
        if is_past(send.partition):
            continue
        if read is None:
            text = f"value {send.value} was acknowledged, but the partition has no final read"
            yield Violation("acked-present", send.partition, send.offset, text, (str(send),))
        elif send.offset == UNKNOWN:
            if send.value not in values[send.partition] and read.start == 0:
                text = f"value {send.value} was acknowledged, but the final read does not have it"
                yield Violation("acked-present", send.partition, UNKNOWN, text, (str(send),))
        elif send.offset >= read.start:
            found = content[send.partition].get(send.offset)
            if found != send.value:
                text = (
                    f"value {send.value} was acknowledged, but the final read has"
                    f" {found or 'nothing'} at this offset"
                )
                yield Violation("acked-present", send.partition, send.offset, text, (str(send),))


def no_phantom(history: History) -> Iterator[Violation]:
    """Check that each record that was read is intact and was sent, and that its send is not known
    to have failed."""
    judged: set[tuple[TopicPartition, int, str]] = set()
    for seen in sightings(history):
        if seen[:3] in judged:
            continue
        judged.add(seen[:3])
        send = history.sends.get(seen.value)
        ops: tuple[str, ...] = (seen.seen,)
        try:
            read_value(seen.value, seen.partition)
        except ValueError as error:
            text = f"{seen.value!r}: {error}"
        else:
            if send is None:
                text = f"value {seen.value} was read, but never sent"
            elif send.outcome == "fail":
                text, ops = (
                    f"value {seen.value} was read, although its send certainly failed",
                    (str(send), seen.seen),
                )
            else:
                continue
        yield Violation("no-phantom", seen.partition, seen.offset, text, ops)


def one_value_per_offset(history: History) -> Iterator[Violation]:
    """Check that all reads and acknowledgements of one offset name the same value."""
    first: dict[tuple[TopicPartition, int], tuple[str, str]] = {}
    told: set[tuple[TopicPartition, int]] = set()

    def judge(partition: TopicPartition, offset: int, value: str, op: str) -> Iterator[Violation]:
        place = (partition, offset)
        known, known_op = first.setdefault(place, (value, op))
        if known != value and place not in told:
            told.add(place)
            text = f"values {known} and {value} at the same offset"
            yield Violation("one-value-per-offset", partition, offset, text, (known_op, op))

    for send in _acknowledged(history):
        if send.offset != UNKNOWN:
            yield from judge(send.partition, send.offset, send.value, str(send))
    for seen in sightings(history):
        yield from judge(*seen)


def offsets_of_values(history: History) -> dict[TopicPartition, dict[str, list[int]]]:
    """Return, by partition and value, the ascending offsets at which the read at the end of the run
    found the value."""
    found: dict[TopicPartition, dict[str, list[int]]] = {}
    for partition, read in history.final().items():
        places: dict[str, list[int]] = defaultdict(list)
        for record in sorted(read.records):
            places[record.value].append(record.offset)
        found[partition] = places
    return found


def duplicates(history: History) -> Iterator[Violation]:
    """Check that each record of an idempotent producer is stored once. With
    `ProducerFacts.starts_anew`, a record may be stored once in each producer epoch. A record sent
    while its topic was recreated is exempt."""
    for partition, places in offsets_of_values(history).items():
        for value, offsets in places.items():
            send = history.sends.get(value)
            if len(offsets) == 1 or send is None or has_no_era(send.partition):
                continue
            facts = history.facts(send.identity)
            if facts is not None and facts.idempotent:
                if facts.starts_anew and _in_different_epochs(history, partition, offsets):
                    continue
                text = f"value {value} of an idempotent producer is stored at offsets {offsets}"
                yield Violation("duplicates", partition, offsets[1], text, (str(send),))


def _in_different_epochs(history: History, partition: TopicPartition, offsets: list[int]) -> bool:
    stored = next((files for files in history.files if files.partition == partition), None)
    if stored is None:
        return False
    writers = [
        batch.producer
        for offset in offsets
        for batch in stored.batches
        if batch.first <= offset <= batch.last and batch.producer
    ]
    return len(writers) == len(offsets) == len(set(writers))


def producer_order(history: History) -> Iterator[Violation]:
    """Check that the records of a producer with `keeps_order` are stored in the order of sending.
    Without idempotence only acknowledged records are checked: a record reported as failed may still
    be stored later."""
    for partition, places in offsets_of_values(history).items():
        by_producer: dict[tuple[str, int], list[tuple[int, int, Send]]] = defaultdict(list)
        for value, offsets in places.items():
            send = history.sends.get(value)
            facts = None if send is None else history.facts(send.identity)
            if send is None or facts is None or not facts.keeps_order:
                continue
            if send.partition != partition:
                continue  # sent to an earlier topic of that name
            if facts.idempotent or send.outcome == "ok":
                key = send.identity[:2]
                first = offsets[0]
                if history.expires and not facts.idempotent and send.offset != UNKNOWN:
                    first = min(first, send.offset)
                by_producer[key].append((first, send.identity.counter, send))
        for row in by_producer.values():
            row.sort(key=lambda item: item[0])
            for (_, before, earlier), (offset, after, later) in pairwise(row):
                if after < before:
                    text = (
                        f"value {later.value} is stored after {earlier.value}, but was sent"
                        " before it"
                    )
                    ops = (str(earlier), str(later))
                    yield Violation("producer-order", partition, offset, text, ops)


def consumer_order(history: History) -> Iterator[Violation]:
    """Check that a consumer gets ascending offsets and misses no record. Check also that the log
    still has the consumer's position, unless retention has deleted the records there."""
    rule = "consumer-order"
    final = history.final()
    for lost in history.lost_positions:
        read = None if lost.partition is None else final.get(lost.partition)
        if read is not None and lost.offset < read.start:
            continue
        is_unknown = read is None or (lost.partition is not None and is_past(lost.partition))
        if history.expires and lost.partition is not None and is_unknown:
            continue  # log start unknown: the topic was deleted, or has no final read
        text = f"the position of consumer {lost.client} does not exist any more: {lost.error}"
        yield Violation(rule, lost.partition, lost.offset, text)
    offsets = {key: sorted(record.offset for record in read.records) for key, read in final.items()}
    steps: list[tuple[int, str, TopicPartition, int, Poll | None]] = [
        (item.at, item.client, item.partition, item.offset, None) for item in history.assignments
    ]
    steps += [(poll.at, poll.client, poll.partition, UNKNOWN, poll) for poll in history.polls]
    steps.sort(key=lambda step: step[0])
    expected: dict[tuple[str, TopicPartition], tuple[int, str]] = {}
    for _, client, partition, begin, poll in steps:
        if poll is None:
            expected[client, partition] = (begin, "its assignment")
            continue
        position, before = expected.get((client, partition), (UNKNOWN, "its beginning"))
        existing = offsets.get(partition, [])
        for record in poll.records:
            ops = (before, str(poll))
            if record.offset < position:
                text = f"consumer {client} got this offset, but its position was {position}"
                yield Violation(rule, partition, record.offset, text, ops)
            elif position != UNKNOWN:
                left_out = bisect.bisect_left(existing, position)
                if left_out < len(existing) and existing[left_out] < record.offset:
                    text = f"consumer {client} skipped this offset, and got offset {record.offset}"
                    yield Violation(rule, partition, existing[left_out], text, ops)
            position, before = record.offset + 1, str(poll)
        expected[client, partition] = (position, before)


def read_implies_durable(history: History) -> Iterator[Violation]:
    """Check that the read at the end of the run finds every record that a consumer got, even if the
    producer of the record got no acknowledgement."""
    final = history.final()
    content = {key: dict(r[:2] for r in read.records) for key, read in final.items()}
    told: set[tuple[TopicPartition, int]] = set()
    for poll in history.polls:
        read = final.get(poll.partition)
        for record in poll.records if read is not None else ():
            place = (poll.partition, record.offset)
            found = content[poll.partition].get(record.offset)
            if (
                found == record.value
                or place in told
                or record.offset < final[poll.partition].start
            ):
                continue
            told.add(place)
            text = (
                f"a consumer got value {record.value}, but the final read has {found or 'nothing'}"
                " at this offset"
            )
            yield Violation(
                "read-implies-durable", poll.partition, record.offset, text, (str(poll),)
            )
