"""The lookup of an assignor by a name in `partition.assignment.strategy`. An assignor has two
names: its name in JoinGroup requests, and the name of Kafka's Java class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pybroker.client.assignors.base import Assignor
from pybroker.client.assignors.ranges import RangeAssignor
from pybroker.client.assignors.roundrobin import RoundRobinAssignor
from pybroker.client.assignors.sticky import CooperativeStickyAssignor, StickyAssignor

_MAKERS: Final[Mapping[str, Callable[[], Assignor]]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
ASSIGNOR_NAMES: Final = tuple(_MAKERS)
_JAVA_PACKAGE: Final = "org.apache.kafka.clients.consumer."
_JAVA_NAMES: Final[Mapping[str, str]] = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}


def assignor_name(text: str) -> str:
    """Return the assignor's name in JoinGroup requests. `text` is this name, or the name of Kafka's
    Java class. Raises ValueError for any other text."""
    plain = text.strip()
    name = _JAVA_NAMES.get(plain.removeprefix(_JAVA_PACKAGE), plain)
    if name not in _MAKERS:
        raise ValueError(f"must be one of {', '.join(ASSIGNOR_NAMES)}, not {text!r}")
    return name


def make_assignor(name: str) -> Assignor:
    """Return a new assignor. `name` is its name in JoinGroup requests, or the name of Kafka's Java
    class. Raises ValueError for any other name."""
    return _MAKERS[assignor_name(name)]()
