"""Measures of availability: pauses without acknowledgements, durations of elections, outcomes of a
producer's sends. Times are in ns of the monotonic clock; durations are in seconds."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

from pybroker.testing.history.model import NANOSECONDS, Fault, History
from pybroker.testing.history.values import TopicPartition


def fault(history: History, what: str, number: int = 0) -> tuple[int, int]:
    """Return the start and the end (ns) of the fault named `what`. If several faults have this
    name, `number` is the index of the fault. Raises IndexError."""
    begun = [each for each in history.faults if each.what == what and each.kind == "invoke"]
    ended = [each for each in history.faults if each.what == what and each.kind == "ok"]
    return begun[number].at, ended[number].at


def faults(history: History, what: str) -> list[Fault]:
    """Return the faults named `what` in the order of time, without the events that end a fault."""
    return [each for each in history.faults if each.what == what and each.kind == "invoke"]


def longest_pauses(history: History, begin: int, end: int) -> dict[TopicPartition, float]:
    """Return each partition's longest pause, in seconds, between successive acknowledgements with
    acks=all from `begin` to `end` (ns). `begin` and `end` count as acknowledgements."""
    moments: dict[TopicPartition, list[int]] = defaultdict(lambda: [begin, end])
    for partition in {send.partition for send in history.sends.values()}:
        moments[partition].sort()
    for send in history.sends.values():
        facts = history.facts(send.identity)
        waits_for_all = facts is not None and facts.acks == -1
        if waits_for_all and send.outcome == "ok" and begin <= send.ended <= end:
            moments[send.partition].append(send.ended)
    return {
        partition: max(after - before for before, after in pairwise(sorted(found))) / NANOSECONDS
        for partition, found in moments.items()
    }


def election_delay(history: History, since: int, loser: int) -> dict[TopicPartition, float]:
    """Return, for each partition that `loser` led at the time `since` (ns), the seconds until
    another broker led the partition. Partitions that got no other leader are omitted."""
    led: dict[TopicPartition, int] = {}
    found: dict[TopicPartition, float] = {}
    for state in sorted(history.states, key=lambda state: state.at):
        written = state.at if state.written is None else state.written
        if written <= since:
            led[state.partition] = state.leader
        elif led.get(state.partition) == loser and state.leader not in (loser, -1):
            found.setdefault(state.partition, (written - since) / NANOSECONDS)
    return found


def answers(history: History, producer: str, begin: int, end: int) -> Counter[str]:
    """Return the number of values that a producer sent between `begin` and `end`, by outcome ("ok"
    or the error)."""
    return Counter(
        "ok" if send.outcome == "ok" else send.error or "nothing"
        for send in history.sends.values()
        if send.identity.producer == producer and begin <= send.begun <= end
    )


def acked_between(history: History, begin: int, end: int) -> Counter[TopicPartition]:
    """Return, by partition, the number of values both sent and acknowledged between `begin` and
    `end`."""
    return Counter(
        send.partition
        for send in history.sends.values()
        if send.outcome == "ok" and begin <= send.begun and send.ended <= end
    )


def elections(history: History) -> int:
    """Return the number of leader elections, not counting the first election of each partition."""
    leaderships = {(state.partition, state.epoch) for state in history.states if state.leader >= 0}
    return len(leaderships) - len({partition for partition, _ in leaderships})


def summary(history: History) -> str:
    """Return one line with the number of values sent, values delivered, ListOffsets answers and
    elections, and with the longest pause without an acknowledgement."""
    outcomes = Counter(send.outcome for send in history.sends.values())
    delivered = sum(len(poll.records) for poll in history.polls)
    moments = [send.ended for send in history.sends.values() if send.ended]
    pauses = longest_pauses(history, min(moments), max(moments)) if moments else {}
    return (
        f"{len(history.sends)} values sent ({outcomes['ok']} stored, {outcomes['fail']} refused,"
        f" {outcomes['info']} unknown), {delivered} delivered, {len(history.latest)} log ends"
        f" returned, {elections(history)} elections,"
        f" longest pause {max(pauses.values(), default=0):.1f} s"
    )
