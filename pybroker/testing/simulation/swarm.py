"""Generates the schedule of a simulation seed: options, and random faults.

Each seed picks only a few kinds of faults (swarm testing), because one fault may undo the state
that another fault needs.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Final

from pybroker.testing.simulation.fault_sequences import (
    with_interrupted_moves,
    with_loss,
    with_sequence,
)
from pybroker.testing.simulation.kinds import KINDS, Kind, Target
from pybroker.testing.simulation.schedule import FaultEvent, Options, Schedule, fits

_KINDS_MOST: Final = 6
_EVENTS_PER_KIND: Final = (1, 1, 2, 2, 3, 5)
_DIGITS: Final = 3
_BURST: Final = 0.3
"""The share of faults that begin at the time of an earlier fault or shortly after, because many
bugs need two faults at once.
"""
_BURST_S: Final = 0.5

_OPTIONS: Final[tuple[tuple[str, tuple[float, ...]], ...]] = (
    ("partitions", (1, 1, 2, 2, 3)),
    ("min_isr", (2, 2, 2, 2, 2, 1)),
    ("flush", (0, 0, 1)),
    ("lossy", (0,) * 28 + (1, 2)),
    ("segment_bytes", (65_536, 65_536, 16_384, 4_096)),
    ("session_s", (3.0, 3.0, 1.5, 6.0)),
    ("lag_s", (2.0, 2.0, 1.0, 4.0)),
    ("fetch_wait_ms", (500, 500, 500, 100)),
    ("fetch_bytes", (65_536, 65_536, 4_096, 512)),
    ("producers", (2, 2, 1, 3, 4)),
    ("records_per_s", (6.0, 6.0, 3.0, 20.0)),
    ("batch_bytes", (16_384, 16_384, 256)),
    ("linger_ms", (5, 0, 30)),
    ("readers", (1, 1, 2, 0)),
    ("crash_mean_s", (0.0, 0.0, 4.0)),
    ("churn_mean_s", (0.0, 0.0, 2.0)),
    ("election_mean_s", (0.0, 0.0, 2.0)),
    ("retention_bytes", (0, 0, 0, 0, 0, 2_048)),
    ("retention_ms", (0, 0, 0, 0, 0, 3_000)),
)
_GROUPS: Final = 0.25
"""The share of seeds with consumer groups. It is small because heartbeats and commits make runs
slow.
"""
_GROUP_OPTIONS: Final[tuple[tuple[str, tuple[float, ...]], ...]] = (
    ("groups", (1, 1, 2)),
    ("members", (2, 3, 3, 4)),
    ("offsets_in_log", (0, 0, 1)),
)
_TRANSACTIONS: Final = 0.15
"""The share of seeds with transactions. It is small because transactions make runs slow. Seeds
that allow unclean elections have no transactions, because these elections may lose the state of
transactions."""
_TRANSACTION_OPTIONS: Final[tuple[tuple[str, tuple[float, ...]], ...]] = (
    ("writers", (1, 1, 2)),
    ("loops", (1, 1, 0)),
    ("offsets_in_log", (0, 0, 1)),
    ("api_transactions", (0, 1)),
)
_COMPACTION: Final = 0.12
"""The share of seeds with a compacted topic. It is small because its clients make runs slow."""
_COMPACTION_OPTIONS: Final[tuple[tuple[str, tuple[float, ...]], ...]] = (
    ("compacted", (1, 2, 3, 3)),
    ("also_deletes", (0, 0, 1)),
    ("delete_retention_ms", (0, 500, 3_000, 600_000)),
)
_LATE_COMMITS: Final = 0.5
"""The share of seeds with groups in which commits arrive late and twice."""
_TIMES_COORDINATOR: Final = 4
"""The weight of each kind of coordinator when `_random_broker` draws a target."""
_DIRECTORIES: Final = 0.2
"""The share of seeds whose brokers have two log directories, between which replicas move."""
_MOVES: Final = "moves"
_SEGMENT_BYTES_TO_GO: Final = 1_024
"""The segment size of runs with retention. It is so small that segments are deleted within a
run.
"""


def generate(seed: str) -> Schedule:
    """Return the schedule of the seed. The same seed always gives the same schedule."""
    options, told = with_sequence(seed, _options(seed))
    options, losing = with_loss(seed, options)
    moving = with_interrupted_moves(seed, options)
    picked = _picked(seed, [kind for kind in KINDS if fits(kind, options)])
    times: list[float] = []
    events: list[FaultEvent] = []
    for kind in picked:
        rng = random.Random(f"{seed}/faults/{kind.name}")
        for _ in range(rng.choice(_EVENTS_PER_KIND)):
            at = _time(rng, options, times)
            times.append(at)
            events.append(_event(kind, at, rng, options))
    if options.groups and random.Random(f"{seed}/late commits").random() < _LATE_COMMITS:
        options = dataclasses.replace(options, late_commits=1)
    return Schedule(seed, options).with_events([*events, *told, *losing, *moving])


def _options(seed: str) -> Options:
    rng = random.Random(f"{seed}/options")
    drawn = {name: rng.choice(values) for name, values in _OPTIONS}
    if drawn["retention_bytes"] or drawn["retention_ms"]:
        drawn["segment_bytes"] = _SEGMENT_BYTES_TO_GO
    # A separate random stream, so that everything else in the schedule stays the same.
    rng = random.Random(f"{seed}/groups")
    if rng.random() < _GROUPS:
        drawn |= {name: rng.choice(values) for name, values in _GROUP_OPTIONS}
    rng = random.Random(f"{seed}/transactions")
    if rng.random() < _TRANSACTIONS and not drawn["lossy"]:
        drawn |= {name: rng.choice(values) for name, values in _TRANSACTION_OPTIONS}
    rng = random.Random(f"{seed}/compaction")
    if rng.random() < _COMPACTION and not drawn["lossy"]:
        drawn |= {name: rng.choice(values) for name, values in _COMPACTION_OPTIONS}
    if random.Random(f"{seed}/directories").random() < _DIRECTORIES:
        drawn["log_dirs"] = 2
    return Options(**drawn)  # type: ignore[arg-type]


def _picked(seed: str, kinds: list[Kind]) -> Iterator[Kind]:
    """Yield a few random kinds of faults from `kinds`. The kind that moves replicas between log
    directories is always included, if `kinds` has it."""
    rng = random.Random(f"{seed}/kinds")
    drawn = [kind for kind in kinds if kind.name != _MOVES]
    count = min(rng.randint(1, _KINDS_MOST), len(drawn))
    names = {_MOVES, *(kind.name for kind in rng.sample(drawn, count))}
    return (kind for kind in kinds if kind.name in names)


def _time(rng: random.Random, options: Options, times: list[float]) -> float:
    if times and rng.random() < _BURST:
        at = rng.choice(times) + rng.random() * _BURST_S
    else:
        at = rng.random() * options.faults_s
    return round(min(at, options.faults_s), _DIGITS)


def _event(kind: Kind, at: float, rng: random.Random, options: Options) -> FaultEvent:
    least, most = kind.lasts_s
    # Mostly short: the transitions are harder than the state during a long fault.
    lasts_s = least + (most - least) * rng.random() ** 2
    parameters = tuple(
        (each.name, round(rng.uniform(each.least, each.most), 0 if each.whole else _DIGITS))
        for each in kind.parameters
    )
    until = max(at, round(at + lasts_s, _DIGITS))
    return FaultEvent(at, kind.name, _TARGETS[kind.target](rng, options), until, parameters)


def _random_broker(rng: random.Random, options: Options) -> str:
    """Return a random broker as the target of a fault. Leaders, controllers and coordinators are
    more likely."""
    partition = rng.randrange(options.partitions)
    choice = [
        f"leader/{partition}",
        f"leader/{partition}",
        f"follower/{partition}",
        "controller",
        str(rng.randint(1, options.brokers)),
        str(rng.randint(1, options.brokers)),
    ]
    groups, ids = options.groups + options.loops, options.writers + options.loops
    if groups:
        choice += [f"coordinator/{rng.randrange(groups)}"] * _TIMES_COORDINATOR
    if ids:
        choice += [f"transactions/{rng.randrange(ids)}"] * _TIMES_COORDINATOR
    return rng.choice(choice)


def _pair(rng: random.Random, options: Options) -> str:
    one, other = rng.sample(range(1, options.brokers + 1), 2)
    partition = rng.randrange(options.partitions)
    names = rng.choice([(str(one), str(other)), (f"leader/{partition}", f"follower/{partition}")])
    if rng.random() < 0.5:
        names = names[::-1]
    return rng.choice("->").join(names)


_TARGETS: Final[dict[Target, Callable[[random.Random, Options], str]]] = {
    Target.BROKER: _random_broker,
    Target.PAIR: _pair,
    Target.ALL: lambda rng, options: "all",
    Target.ZOOKEEPER: lambda rng, options: f"zk/{rng.randint(1, options.zookeepers)}",
    Target.ENSEMBLE: lambda rng, options: "zk",
}
