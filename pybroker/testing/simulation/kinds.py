"""The faults that the simulation knows, as a table: whom they befall, how long, and how badly."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


class Target(enum.Enum):
    """Whom a fault befalls, as it is written. Brokers are named by their id, or by what they are
    when the fault comes: `leader/0` and `follower/0` of partition 0, `controller`, or
    `coordinator/0` of the first group."""

    BROKER = "a broker: 1, leader/0, follower/0, controller or coordinator/0"
    PAIR = "two brokers, one direction or both: 1>2 or 1-2, of names as for a broker"
    ALL = "all brokers: all"
    ZOOKEEPER = "a member of the ZooKeeper ensemble: zk/1"
    ENSEMBLE = "the ZooKeeper ensemble: zk"


_BROKER: Final = r"(\d+|leader/\d+|follower/\d+|controller|coordinator/\d+)"
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
    """What a fault does to the records that a broker holds."""

    NONE = "none"
    UNSYNCED = "what was not synced may be gone"
    DISK = "what the disk holds may be gone or bent"


@dataclass(frozen=True, slots=True)
class Parameter:
    """`usual` is what a schedule need not say; a seed draws from `least` to `most`."""

    name: str
    usual: float
    least: float
    most: float
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """`lasts_s` is the shortest and the longest time that a seed draws; (0, 0): it is over as it
    comes."""

    name: str
    target: Target
    lasts_s: tuple[float, float]
    meaning: str
    parameters: tuple[Parameter, ...] = ()
    harm: Harm = Harm.NONE
    stops: bool = False
    """Whether the broker's process ends by it, and is started again at the end."""
    needs_groups: bool = False
    """Whether it befalls what only a coordinator of groups has."""
    needs_directories: bool = False
    """Whether it befalls brokers with more than one log directory."""

    def usual(self, name: str) -> float:
        """Raises KeyError for a parameter that the kind has not got."""
        return {each.name: each.usual for each in self.parameters}[name]


_OVER: Final = (0.0, 0.0)

KINDS: Final = (
    # processes and machines
    Kind("kill", Target.BROKER, (0.05, 5.0), "SIGKILL; started again", stops=True),
    Kind(
        *("crash", Target.BROKER, (0.5, 5.0), "killed within a write, a sync or a rename"),
        parameters=(Parameter("operations", 3, 1, 40, whole=True),),
        stops=True,
    ),
    Kind("stop", Target.BROKER, (0.5, 4.0), "stopped in order; started again", stops=True),
    Kind("pause", Target.BROKER, (0.2, 8.0), "SIGSTOP, then SIGCONT"),
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
    Kind("kill-all", Target.ALL, (0.1, 3.0), "SIGKILL to all at once", stops=True),
    Kind(
        *("wipe", Target.BROKER, (0.5, 4.0), "killed, and back with an empty disk"),
        harm=Harm.DISK,
        stops=True,
    ),
    Kind(
        *("clock", Target.BROKER, _OVER, "the wall clock jumps"),
        parameters=(Parameter("jump_s", 3600, -3600, 3600, whole=True),),
    ),
    Kind(
        *("hiccups", Target.BROKER, (1.0, 6.0), "short stops of the process, one after another"),
        parameters=(Parameter("most_s", 0.2, 0.05, 0.5), Parameter("each_s", 0.5, 0.2, 1.0)),
    ),
    # links
    Kind("cut", Target.PAIR, (0.2, 6.0), "what one sends to the other does not arrive"),
    Kind("isolate", Target.BROKER, (0.5, 7.0), "it reaches nobody, and nobody reaches it"),
    Kind("isolate-from-peers", Target.BROKER, (0.5, 7.0), "it reaches no other broker"),
    Kind("isolate-from-zookeeper", Target.BROKER, (0.5, 8.0), "it does not reach ZooKeeper"),
    Kind("isolate-from-clients", Target.BROKER, (0.5, 6.0), "it does not reach its clients"),
    Kind(
        *("slow", Target.PAIR, (1.0, 8.0), "messages take long, each another time"),
        parameters=(Parameter("usual_s", 0.05, 0.01, 0.3), Parameter("most_s", 0.5, 0.3, 2.0)),
    ),
    Kind(
        *("slow-zookeeper", Target.BROKER, (1.0, 8.0), "ZooKeeper hears late of its writes"),
        parameters=(Parameter("usual_s", 0.1, 0.01, 0.5), Parameter("most_s", 0.5, 0.3, 1.5)),
    ),
    Kind("reset", Target.BROKER, _OVER, "all connections of a broker are reset"),
    Kind(
        *("lose-answers", Target.BROKER, _OVER, "connections end after so much was received"),
        parameters=(Parameter("bytes", 200, 1, 3000, whole=True),),
    ),
    Kind("half-open", Target.BROKER, _OVER, "the other ends hear nothing of a reset"),
    Kind("double-connect", Target.BROKER, _OVER, "the next connections are accepted twice"),
    # ZooKeeper
    Kind("expire", Target.BROKER, _OVER, "the session ends"),
    Kind("zk-lose-answer", Target.BROKER, _OVER, "the connection is lost after the next write"),
    Kind("zk-lose-request", Target.BROKER, _OVER, "the connection is lost before the next write"),
    Kind("zk-expire-write", Target.BROKER, _OVER, "the session ends at the next write"),
    Kind(
        *("expire-offsets", Target.BROKER, _OVER, "the session for offsets ends"),
        needs_groups=True,
    ),
    Kind(
        *("offsets-lose-answer", Target.BROKER, _OVER, "as zk-lose-answer, in that session"),
        needs_groups=True,
    ),
    Kind(
        *("offsets-expire-write", Target.BROKER, _OVER, "as zk-expire-write, in that session"),
        needs_groups=True,
    ),
    Kind("zk-down", Target.ZOOKEEPER, (0.5, 6.0), "a member is down"),
    Kind(
        *("zk-lag", Target.ZOOKEEPER, (0.5, 5.0), "a member hears late of what is written"),
        parameters=(Parameter("most_s", 0.5, 0.05, 3.0),),
    ),
    Kind("zk-quorum", Target.ENSEMBLE, (0.5, 7.0), "there is no majority"),
    # disks
    Kind("disk-full", Target.BROKER, (0.5, 4.0), "no room is left"),
    Kind(
        *("sync-error", Target.BROKER, (0.5, 4.0), "the next sync fails; then started again"),
        harm=Harm.UNSYNCED,
    ),
    Kind(
        *("slow-disk", Target.BROKER, (1.0, 6.0), "reading and writing takes long"),
        parameters=(Parameter("most_s", 0.5, 0.05, 3.0),),
    ),
    Kind(
        *("flip", Target.BROKER, (0.5, 4.0), "stopped, one bit of its logs is bent, started"),
        parameters=(Parameter("draw", 0.5, 0.0, 1.0),),
        harm=Harm.DISK,
        stops=True,
    ),
    # log directories
    Kind(
        *("lose-directory", Target.BROKER, (0.5, 4.0), "killed; one of its directories is empty"),
        harm=Harm.DISK,
        stops=True,
        needs_directories=True,
    ),
    Kind(
        *("moves", Target.BROKER, (0.5, 8.0), "replicas are moved between its log directories"),
        parameters=(Parameter("each_s", 0.2, 0.02, 0.5),),
        needs_directories=True,
    ),
)

BY_NAME: Final[Mapping[str, Kind]] = {kind.name: kind for kind in KINDS}
