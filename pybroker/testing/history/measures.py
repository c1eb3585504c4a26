"""What a history says of availability: how long nothing was acknowledged, how long an election
took, what a producer was answered. Times are ns of the monotonic clock, durations seconds."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

from pybroker.testing.history.model import NANOSECONDS, Fault, History
from pybroker.testing.history.values import TopicPartition


def fault(history: History, what: str, number: int = 0) -> tuple[int, int]:
    """When the fault of that name began and ended; `number` counts those of one name from 0.
    Raises IndexError if there were not so many."""
    begun = [each for each in history.faults if each.what == what and each.kind == "invoke"]
    ended = [each for each in history.faults if each.what == what and each.kind == "ok"]
    return begun[number].at, ended[number].at


def faults(history: History, what: str) -> list[Fault]:
    """The beginnings of all faults of that name."""
    return [each for each in history.faults if each.what == what and each.kind == "invoke"]


def longest_pauses(history: History, begin: int, end: int) -> dict[TopicPartition, float]:
    """For each partition the longest time within which no value was acknowledged by all in-sync
    replicas."""
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
    """For each partition that `loser` led when `since` came: how long until another led. A
    partition that got no other leader is missing."""
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
    """What a producer was told of the values that it sent in that time: "ok", or the error."""
    return Counter(
        "ok" if send.outcome == "ok" else send.error or "nothing"
        for send in history.sends.values()
        if send.identity.producer == producer and begin <= send.begun <= end
    )


def acked_between(history: History, begin: int, end: int) -> Counter[TopicPartition]:
    """How many values were acknowledged by partition, of those that were sent in that time as
    well."""
    return Counter(
        send.partition
        for send in history.sends.values()
        if send.outcome == "ok" and begin <= send.begun and send.ended <= end
    )


def elections(history: History) -> int:
    """How many leader epochs there were beyond the first of each partition."""
    reigns = {(state.partition, state.epoch) for state in history.states if state.leader >= 0}
    return len(reigns) - len({partition for partition, _ in reigns})


def summary(history: History) -> str:
    """What happened, in a line."""
    outcomes = Counter(send.outcome for send in history.sends.values())
    delivered = sum(len(poll.records) for poll in history.polls)
    moments = [send.ended for send in history.sends.values() if send.ended]
    pauses = longest_pauses(history, min(moments), max(moments)) if moments else {}
    return (
        f"{len(history.sends)} values sent ({outcomes['ok']} stored, {outcomes['fail']} refused,"
        f" {outcomes['info']} unknown), {delivered} delivered, {len(history.latest)} ends told,"
        f" {elections(history)} elections, longest pause {max(pauses.values(), default=0):.1f} s"
    )
