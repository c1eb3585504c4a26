"""Sequences of faults that hit one broker at almost the same time, which independent random faults
rarely do. The seed draws the targets, times and parameters."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Final

from pybroker.testing.simulation.schedule import FaultEvent, Options

SHARE: Final = 0.12
"""The share of seeds with a fault sequence in addition to their other faults."""
_DIGITS: Final = 3
_LOST: Final = ("wipe", "power", "kill")
_INTERRUPTED: Final = 0.5
"""Of the seeds with several log directories, the share in which moves of replicas are slow and
interrupted."""
_INTERRUPTIONS: Final = ("kill", "kill", "crash", "power", "stop", "expire", "expire", "sync-error")
_ENDS_OF_SESSION: Final = ("expire", "expire", "zk-expire-write", "expire-offsets")


def with_sequence(seed: str, options: Options) -> tuple[Options, tuple[FaultEvent, ...]]:
    """Return the options and faults of the seed's fault sequence. Most seeds have no sequence. If
    the sequence needs consumer groups, add them to the options."""
    rng = random.Random(f"{seed}/plot")
    if rng.random() >= SHARE:
        return options, ()
    needs_groups, sequence = rng.choice(_SEQUENCES)
    if needs_groups:
        groups = max(options.groups, 1)
        options = dataclasses.replace(options, groups=groups, members=4, records_per_s=20.0)
    told = (event for event in sequence(rng, options) if event.at <= options.faults_s)
    return options, tuple(told)


def with_loss(seed: str, options: Options) -> tuple[Options, tuple[FaultEvent, ...]]:
    """Return faults that make an unclean election lose records, and options with enough time for
    these faults. Return no faults if the options allow no unclean election."""
    if not options.lossy:
        return options, ()
    told = tuple(_left_behind(random.Random(f"{seed}/loss"), options))
    faults_s = max(event.until for event in told)
    return dataclasses.replace(options, faults_s=max(options.faults_s, faults_s)), told


def with_interrupted_moves(seed: str, options: Options) -> tuple[FaultEvent, ...]:
    """Return faults that interrupt moves between log directories. Return none for a random half of
    the seeds, and none if brokers have one log directory."""
    rng = random.Random(f"{seed}/moves")
    if options.log_dirs == 1 or rng.random() >= _INTERRUPTED:
        return ()
    told = (event for event in _interrupted(rng, options) if event.at <= options.faults_s)
    return tuple(told)


def _interrupted(rng: random.Random, options: Options) -> Iterator[FaultEvent]:
    """Yield faults that interrupt the replica moves of one broker, whose disk is slow. In each
    round, this broker, or sometimes a partition's leader, is first cut off from the other brokers.
    The broker that was cut off then gets one to three faults."""
    partition = rng.randrange(options.partitions)
    victim = str(rng.randint(1, options.brokers))
    slow = (("most_s", rng.uniform(0.05, 1.0)),)
    often = (("each_s", rng.uniform(0.1, 1.5)),)
    yield _fault(0.0, "slow-disk", victim, lasts_s=options.faults_s, parameters=slow)
    yield _fault(0.1, "moves", victim, lasts_s=options.faults_s, parameters=often)
    at = rng.uniform(0.5, 2.0)
    while at < options.faults_s:
        whom = rng.choice((victim, victim, f"leader/{partition}"))
        alone_s = rng.uniform(0.0, 0.5)
        yield _fault(at, "isolate-from-peers", whom, lasts_s=alone_s)
        for _ in range(rng.choice((1, 1, 2, 2, 3))):
            kind = rng.choice(_INTERRUPTIONS)
            lasts_s = 0.0 if kind == "expire" else rng.uniform(0.02, 0.5)
            within = (("operations", rng.randint(1, 60)),) if kind == "crash" else ()
            yield _fault(at + alone_s, kind, whom, lasts_s=lasts_s, parameters=within)
            alone_s += rng.uniform(0.05, 1.0)
        at += alone_s + rng.uniform(0.5, 2.0)


def _left_behind(rng: random.Random, options: Options) -> Iterator[FaultEvent]:
    """Yield kills of all brokers. Each kill comes after the previously killed broker has left the
    ISR. The broker killed first lacks the most records, and restarts first."""
    first, *others = rng.sample(range(1, options.brokers + 1), options.brokers)
    step_s = max(options.session_s, options.lag_s)
    times = [rng.uniform(0.0, 2.0)]
    for _ in others:
        times.append(times[-1] + step_s * rng.uniform(1.1, 1.8))
    back_at = times[-1] + rng.uniform(0.05, 0.5)
    elected_at = back_at + options.session_s * rng.uniform(1.2, 2.0)
    yield _fault(times[0], "kill", str(first), lasts_s=back_at - times[0])
    for at, broker in zip(times[1:], others, strict=True):
        until = elected_at + rng.uniform(0.5, 2.0)
        yield _fault(at, "kill", str(broker), lasts_s=until - at)


def _replaced_unawares(rng: random.Random, options: Options) -> Iterator[FaultEvent]:
    """Yield faults that end the ZooKeeper session of a broker with a slow link to ZooKeeper. A
    write of the broker may arrive after another broker has become controller, coordinator or
    leader."""
    victim = f"coordinator/{rng.randrange(options.groups)}" if options.groups else "controller"
    victim = rng.choice((victim, victim, f"leader/{rng.randrange(options.partitions)}"))
    at = rng.uniform(0, options.faults_s / 4)
    while at < options.faults_s:
        slow = (("usual_s", rng.uniform(0.2, 0.5)), ("most_s", rng.uniform(0.5, 1.5)))
        yield _fault(at, "slow-zookeeper", victim, lasts_s=rng.uniform(1.0, 2.5), parameters=slow)
        ends_at = at + rng.uniform(0.05, 0.5)
        if rng.random() < 0.8:  # its clients then look for the new coordinator or leader
            yield _fault(ends_at - 0.005, "reset", victim)
        kinds = _ENDS_OF_SESSION if options.groups else _ENDS_OF_SESSION[:-1]
        yield _fault(ends_at, rng.choice(kinds), victim)
        at += rng.uniform(1.5, 2.5)


def _begins_anew(rng: random.Random, options: Options) -> Iterator[FaultEvent]:
    """Yield faults that isolate a follower, and end its process at about the time when the leader
    adds the follower to the ISR again."""
    partition = rng.randrange(options.partitions)
    follower = str(rng.randint(1, options.brokers))
    away_s = options.lag_s * rng.uniform(1.5, 3.0)
    at = rng.uniform(0, max(options.faults_s - away_s - 1.0, 0.1))
    yield _fault(at, "isolate-from-peers", follower, lasts_s=away_s)
    back_at = at + away_s
    slow = (("usual_s", rng.uniform(0.1, 0.5)), ("most_s", rng.uniform(0.5, 1.5)))
    leader = f"leader/{partition}"
    yield _fault(back_at - 0.2, "slow-zookeeper", leader, lasts_s=3.5, parameters=slow)
    lost_at = back_at + rng.uniform(0.05, 0.8)
    yield _fault(lost_at, rng.choice(_LOST), follower, lasts_s=rng.uniform(0.05, 0.5))
    yield _fault(lost_at, "cut", f"{leader}-{follower}", lasts_s=rng.uniform(0.5, 3.5))


_SEQUENCES: Final[
    tuple[tuple[bool, Callable[[random.Random, Options], Iterator[FaultEvent]]], ...]
] = (
    (True, _replaced_unawares),
    (True, _replaced_unawares),
    (False, _replaced_unawares),
    (False, _begins_anew),
    (False, _begins_anew),
)
"""For each fault sequence: whether it needs consumer groups, and the function that yields its
faults."""


def _fault(
    at: float,
    kind: str,
    target: str,
    *,
    lasts_s: float = 0.0,
    parameters: tuple[tuple[str, float], ...] = (),
) -> FaultEvent:
    begin = round(at, _DIGITS)
    rounded = tuple((name, round(value, _DIGITS)) for name, value in parameters)
    return FaultEvent(begin, kind, target, max(begin, round(at + lasts_s, _DIGITS)), rounded)
