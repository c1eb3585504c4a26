"""The table of all faults of the simulation: their targets, durations and effects on data."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


class Target(enum.Enum):
    """The target of a fault, as a schedule writes it. A role such as leader/0 means the broker that
    has the role when the fault begins. The number in a role is the index of the partition, consumer
    group or transactional id, from 0."""

    BROKER = "a broker: 1, leader/0, follower/0, controller, coordinator/0 or transactions/0"
    PAIR = "two brokers, one direction or both: 1>2 or 1-2, each named like a single broker"
    ALL = "all brokers: all"
    ZOOKEEPER = "a member of the ZooKeeper ensemble: zk/1"
    ENSEMBLE = "the ZooKeeper ensemble: zk"


_BROKER: Final = r"(\d+|controller|(?:leader|follower|coordinator|transactions)/\d+)"
_FORMS: Final[Mapping[Target, re.Pattern[str]]] = {
    Target.BROKER: re.compile(_BROKER),
    Target.PAIR: re.compile(f"{_BROKER}[->]{_BROKER}"),
    Target.ALL: re.compile("all"),
    Target.ZOOKEEPER: re.compile(r"zk/\d+"),
    Target.ENSEMBLE: re.compile("zk"),
}


def is_target(target: Target, text: str) -> bool:
    return _FORMS[target].fullmatch(text) is not None


class Harm(enum.Enum):
    """The effect of a fault on the records that a broker has stored."""

    NONE = "none"
    UNSYNCED = "unsynced data may be lost"
    DISK = "the disk's data may be lost or damaged"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a fault. A random value is between `least` and `most`. The value is `usual` if
    a schedule omits the parameter."""

    name: str
    usual: float
    least: float
    most: float
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault that a simulation can inject. `lasts_s` is the range of its random duration
    in seconds; (0, 0) means instantaneous."""

    name: str
    target: Target
    lasts_s: tuple[float, float]
    meaning: str
    parameters: tuple[Parameter, ...] = ()
    harm: Harm = Harm.NONE
    stops: bool = False
    """Whether the fault ends the broker's process. The simulation starts the process again at the
    end of the fault."""
    needs_groups: bool = False
    """Whether the fault needs a group coordinator."""
    needs_directories: bool = False
    """Whether the fault needs brokers with several log directories."""

    def usual(self, name: str) -> float:
        """Return the default value of the parameter `name`. A schedule that omits the parameter
        gets this value. Raises KeyError if this kind of fault has no such parameter."""
        return {each.name: each.usual for each in self.parameters}[name]


_OVER: Final = (0.0, 0.0)

KINDS: Final = (
    # processes and machines
    Kind("kill", Target.BROKER, (0.05, 5.0), "the process is killed (SIGKILL)", stops=True),
    Kind(
        *("crash", Target.BROKER, (0.5, 5.0), "the process is killed at a disk operation"),
        parameters=(Parameter("operations", 3, 1, 40, whole=True),),
        stops=True,
    ),
    Kind("stop", Target.BROKER, (0.5, 4.0), "the process is stopped (SIGTERM)", stops=True),
    Kind("pause", Target.BROKER, (0.2, 8.0), "the process is paused (SIGSTOP, then SIGCONT)"),
    Kind(
        *("power", Target.BROKER, (0.2, 4.0), "the machine loses power"),
        harm=Harm.UNSYNCED,
        stops=True,
    ),
    Kind(
        *("blackout", Target.ALL, (0.2, 3.0), "all machines lose power at once"),
        harm=Harm.UNSYNCED,
        stops=True,
    ),
    Kind("kill-all", Target.ALL, (0.1, 3.0), "all processes are killed at once", stops=True),
    Kind(
        *("wipe", Target.BROKER, (0.5, 4.0), "the process is killed, and its disk is emptied"),
        harm=Harm.DISK,
        stops=True,
    ),
    Kind(
        *("clock", Target.BROKER, _OVER, "the machine's wall clock jumps"),
        parameters=(Parameter("jump_s", 3600, -3600, 3600, whole=True),),
    ),
    Kind(
        *("hiccups", Target.BROKER, (1.0, 6.0), "the process is paused briefly, again and again"),
        parameters=(Parameter("most_s", 0.2, 0.05, 0.5), Parameter("each_s", 0.5, 0.2, 1.0)),
    ),
    # links
    Kind("cut", Target.PAIR, (0.2, 6.0), "no packet from one broker arrives at the other"),
    Kind("isolate", Target.BROKER, (0.5, 7.0), "no packet from or to the broker arrives"),
    Kind("isolate-from-peers", Target.BROKER, (0.5, 7.0), "the broker reaches no other broker"),
    Kind(
        "isolate-from-zookeeper", Target.BROKER, (0.5, 8.0), "the broker does not reach ZooKeeper"
    ),
    Kind(
        "isolate-from-clients", Target.BROKER, (0.5, 6.0), "the broker does not reach its clients"
    ),
    Kind(
        *("slow", Target.PAIR, (1.0, 8.0), "messages are delayed by random times"),
        parameters=(Parameter("usual_s", 0.05, 0.01, 0.3), Parameter("most_s", 0.5, 0.3, 2.0)),
    ),
    Kind(
        *("slow-zookeeper", Target.BROKER, (1.0, 8.0), "the broker's writes reach ZooKeeper late"),
        parameters=(Parameter("usual_s", 0.1, 0.01, 0.5), Parameter("most_s", 0.5, 0.3, 1.5)),
    ),
    Kind("reset", Target.BROKER, _OVER, "all connections of a broker are reset"),
    Kind(
        *("lose-answers", Target.BROKER, _OVER, "connections break after a number of bytes"),
        parameters=(Parameter("bytes", 200, 1, 3000, whole=True),),
    ),
    Kind("half-open", Target.BROKER, _OVER, "the broker's connections end without notice to peers"),
    Kind("double-connect", Target.BROKER, _OVER, "the next connections are accepted twice"),
    # ZooKeeper
    Kind("expire", Target.BROKER, _OVER, "the broker's ZooKeeper session expires"),
    Kind("zk-lose-answer", Target.BROKER, _OVER, "the connection is lost after the next write"),
    Kind("zk-lose-request", Target.BROKER, _OVER, "the connection is lost before the next write"),
    Kind("zk-expire-write", Target.BROKER, _OVER, "the session expires at the next write"),
    Kind(
        *("expire-offsets", Target.BROKER, _OVER, "the broker's session for offsets expires"),
        needs_groups=True,
    ),
    Kind(
        *("offsets-lose-answer", Target.BROKER, _OVER, "zk-lose-answer in the session for offsets"),
        needs_groups=True,
    ),
    Kind(
        *("offsets-expire-write", Target.BROKER, _OVER),
        "zk-expire-write in the session for offsets",
        needs_groups=True,
    ),
    Kind("zk-down", Target.ZOOKEEPER, (0.5, 6.0), "a ZooKeeper member is down"),
    Kind(
        *("zk-lag", Target.ZOOKEEPER, (0.5, 5.0), "a ZooKeeper member applies writes late"),
        parameters=(Parameter("most_s", 0.5, 0.05, 3.0),),
    ),
    Kind("zk-quorum", Target.ENSEMBLE, (0.5, 7.0), "the ZooKeeper ensemble has no quorum"),
    # disks
    Kind("disk-full", Target.BROKER, (0.5, 4.0), "the disk is full"),
    Kind(
        *("sync-error", Target.BROKER, (0.5, 4.0), "the next sync of the disk fails"),
        harm=Harm.UNSYNCED,
    ),
    Kind(
        *("slow-disk", Target.BROKER, (1.0, 6.0), "reads and writes are slow"),
        parameters=(Parameter("most_s", 0.5, 0.05, 3.0),),
    ),
    Kind(
        *("flip", Target.BROKER, (0.5, 4.0), "the process is stopped; a bit of a log is flipped"),
        parameters=(Parameter("draw", 0.5, 0.0, 1.0),),
        harm=Harm.DISK,
        stops=True,
    ),
    # log directories
    Kind(
        *("lose-directory", Target.BROKER, (0.5, 4.0), "killed; a log directory is emptied"),
        harm=Harm.DISK,
        stops=True,
        needs_directories=True,
    ),
    Kind(
        *("moves", Target.BROKER, (0.5, 8.0), "replicas move between log directories"),
        parameters=(Parameter("each_s", 0.2, 0.02, 0.5),),
        needs_directories=True,
    ),
)

BY_NAME: Final[Mapping[str, Kind]] = {kind.name: kind for kind in KINDS}
