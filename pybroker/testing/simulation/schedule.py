"""The schedule of a simulation run: the options of the cluster and the times of the faults.

The other random choices of a run depend only on the seed. So removing a fault from the schedule
does not change the random streams.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pybroker.errors import PybrokerError
from pybroker.testing.simulation.kinds import BY_NAME, Harm, Kind, Target, is_target

TITLE: Final = "# a schedule of pybroker's simulation, form 1"


class ScheduleError(PybrokerError):
    """A schedule cannot be parsed or cannot be run. The message gives the reason."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a simulated cluster and its load. Times are in virtual seconds."""

    brokers: int = 3
    zookeepers: int = 3
    partitions: int = 2
    min_isr: int = 2
    log_dirs: int = 1
    """The number of log directories of each broker."""
    flush: int = 0
    """1: flush.messages=1, so every acknowledged record is on disk. 0: brokers do not sync
    appends.
    """
    lossy: int = 0
    """0: unclean elections are forbidden. 1: the controller may elect uncleanly. 2: only an admin
    client may. With 1 and 2 losses are checked against the loss receipts.
    """
    segment_bytes: int = 65_536
    retention_bytes: int = 0
    """The size in bytes above which logs delete their oldest segments; 0: never."""
    retention_ms: int = 0
    """The age in ms after which segments are deleted; 0: never."""
    session_s: float = 3.0
    lag_s: float = 2.0
    fetch_wait_ms: int = 500
    """How long a fetch by a follower or consumer waits for data at most, in ms."""
    fetch_bytes: int = 65_536
    """The maximum number of bytes that a fetch returns of one partition."""
    producers: int = 2
    """The number of producers. The first is idempotent, the second is not, the third uses acks=1,
    and the fourth acks=0.
    """
    records_per_s: float = 10.0
    """The number of records that each producer sends in a second."""
    batch_bytes: int = 16_384
    linger_ms: int = 5
    readers: int = 1
    askers: int = 1
    """The number of clients that request log end offsets."""
    crash_mean_s: float = 0.0
    """The mean time until a client is killed; 0: clients are not killed."""
    churn_mean_s: float = 0.0
    """The mean time between two changes of topics, such as a creation; 0: no changes."""
    election_mean_s: float = 0.0
    """The mean time between two elections of preferred leaders; 0: no elections."""
    groups: int = 0
    """The number of consumer groups. Each group reads all topics of the load."""
    members: int = 3
    """The number of members in each group."""
    late_commits: int = 0
    """1: members also send commits twice, and commits of their earlier generations."""
    writers: int = 0
    """The number of transactional ids whose producers write to all topics."""
    loops: int = 0
    """The number of transactional ids whose producers write a record for each record of the first
    topic, and commit the offsets of these records in the same transaction."""
    api_transactions: int = 0
    """1: the clients with transactional ids use `pybroker.client.Producer`. 0: they send each
    request themselves."""
    offsets_in_log: int = 0
    """1: committed offsets are stored in __consumer_offsets. 0: in ZooKeeper."""
    compacted: int = 0
    """The number of producers that write keyed records to a compacted topic: the first is
    idempotent, the second is not, the third is transactional. 0: there is no such topic."""
    also_deletes: int = 0
    """1: cleanup.policy=compact,delete of the compacted topic. 0: compact."""
    delete_retention_ms: int = 0
    """delete.retention.ms of the compacted topic."""
    faults_s: float = 10.0
    """The time in seconds during which faults begin."""
    planted: str = ""
    """The name of the bug that is put into the broker's code; "" for none."""


def fits(kind: Kind, options: Options) -> bool:
    """Return whether a run with these options may have this kind of fault. A power loss of all
    machines needs `options.flush` 1, because only synced records survive."""
    if kind.needs_groups and not (options.groups or options.loops):
        return False
    if kind.needs_directories and options.log_dirs == 1:
        return False
    return kind.harm is not Harm.UNSYNCED or kind.target is not Target.ALL or bool(options.flush)


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """One fault: `kind` affects `target` from `at` to `until`, in seconds since the faults began.
    For instantaneous faults `until` equals `at`. See `kinds.py`."""

    at: float
    kind: str
    target: str
    until: float
    parameters: tuple[tuple[str, float], ...] = ()

    def parameter(self, name: str) -> float:
        """Return the value of the parameter `name`. If `parameters` has no such parameter, return
        the usual value for this kind of fault."""
        return dict(self.parameters).get(name, BY_NAME[self.kind].usual(name))

    def __str__(self) -> str:
        words = [_number(self.at), self.kind, self.target]
        if self.until != self.at:
            words.append(f"until={_number(self.until)}")
        words += [f"{name}={_number(value)}" for name, value in self.parameters]
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The options and faults of one simulation run. `events` are ordered by time."""

    seed: str
    options: Options = field(default_factory=Options)
    events: tuple[FaultEvent, ...] = ()

    def with_events(self, events: Iterable[FaultEvent]) -> Schedule:
        ordered = tuple(sorted(events, key=lambda event: event.at))
        return dataclasses.replace(self, events=ordered)

    def with_options(self, **changes: float | str) -> Schedule:
        options = dataclasses.replace(self.options, **changes)  # type: ignore[arg-type]
        return dataclasses.replace(self, options=options)

    def __str__(self) -> str:
        """Return the schedule as text for `parse`, without options that have their default
        values."""
        lines = [TITLE, f"seed {self.seed}"]
        usual = Options()
        for each in dataclasses.fields(Options):
            value = getattr(self.options, each.name)
            if value != getattr(usual, each.name):
                shown = value if isinstance(value, str) else _number(value)
                lines.append(f"option {each.name} {shown}")
        return "\n".join([*lines, *map(str, self.events)]) + "\n"


def parse(text: str) -> Schedule:
    """Return the schedule that the text describes. Empty lines and text after a # are ignored.
    Raises ScheduleError."""
    seed = ""
    options: dict[str, float | str] = {}
    events = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        try:
            if not words:
                continue
            if words[0] == "seed":
                (seed,) = words[1:]
            elif words[0] == "option":
                name, value = words[1:]
                options[name] = _option(name, value)
            else:
                events.append(_event(words))
        except (ValueError, ScheduleError) as error:
            raise ScheduleError(f"line {number}, {line.strip()!r}: {error}") from error
    if not seed:
        raise ScheduleError("the line with the seed is missing; add a line such as: seed 17")
    return Schedule(seed, Options(**options)).with_events(events)  # type: ignore[arg-type]


_OPTION_TYPES: Final[Mapping[str, type]] = {
    each.name: type(each.default) for each in dataclasses.fields(Options)
}


def _option(name: str, value: str) -> float | str:
    if name not in _OPTION_TYPES:
        raise ScheduleError(f"unknown option {name}; options are {', '.join(_OPTION_TYPES)}")
    made: float | str = _OPTION_TYPES[name](value)
    return made


def _event(words: list[str]) -> FaultEvent:
    if len(words) < 3:
        raise ScheduleError("expected: seconds, kind, target, then name=value")
    at, name, target, *rest = words
    kind = BY_NAME.get(name)
    if kind is None:
        raise ScheduleError(f"unknown fault {name}; faults are {', '.join(BY_NAME)}")
    if not is_target(kind.target, target):
        raise ScheduleError(f"target of {name}: expected {kind.target.value}; got {target!r}")
    given: dict[str, float] = {}
    for word in rest:
        parameter, _, value = word.partition("=")
        given[parameter] = float(value)
    until = given.pop("until", float(at))
    _check(kind, given, float(at), until)
    return FaultEvent(float(at), name, target, until, tuple(given.items()))


def _check(kind: Kind, given: Mapping[str, float], at: float, until: float) -> None:
    unknown = given.keys() - {each.name for each in kind.parameters}
    if unknown:
        known = ", ".join(each.name for each in kind.parameters) or "none"
        names = ", ".join(sorted(unknown))
        raise ScheduleError(f"{kind.name} has no parameter {names}; its parameters: {known}")
    if not 0 <= at <= until:
        raise ScheduleError(f"the fault lasts from {at} to {until}, expected 0 <= begin <= end")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
