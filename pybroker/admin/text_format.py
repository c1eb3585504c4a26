"""Prometheus' text format (version 0.0.4), as far as our own families need it.

prometheus-client could write them, too, but makes an object per line; for metrics with a line per
partition that costs ten times as much. No metric is defined here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pybroker.metrics import Family, quantile_s

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
QUANTILES: Final = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)

Number = int | float
Line = tuple[str, Number]
"""Labels as `labels` writes them, and the value."""


@dataclass(frozen=True, slots=True)
class Times:
    """The lines of a summary for one set of labels: the recent durations, and the count and the
    sum (in seconds) since the start."""

    labels: Mapping[str, str]
    recent: Mapping[int, int]
    count: int
    total_s: float


def escaped(text: str) -> str:
    """Escape the value of a label for use between quotes."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def labels(values: Mapping[str, str]) -> str:
    """The labels of a line, braces included; empty without labels."""
    if not values:
        return ""
    inner = ",".join(f'{name}="{escaped(value)}"' for name, value in values.items())
    return f"{{{inner}}}"


def by_label(label: str, values: Mapping[str, Number]) -> list[Line]:
    """A line for each value of a label, in their order."""
    return [(labels({label: key}), value) for key, value in sorted(values.items())]


def header(of: Family) -> str:
    """The HELP and TYPE lines of a family."""
    return f"# HELP {of.name} {of.meaning}\n# TYPE {of.name} {of.kind}\n"


def rows(name: str, lines: Iterable[Line]) -> str:
    """The lines of a family."""
    return "".join([f"{name}{where} {value}\n" for where, value in lines])


def family(of: Family, lines: Iterable[Line]) -> str:
    """The lines of a family after its header."""
    return header(of) + rows(of.name, lines)


def summary(of: Family, times: Iterable[Times], unit: float) -> str:
    """A summary of durations. `unit` is the number of shown units per second (1000 for ms).
    Without recent durations a quantile is NaN."""
    name, parts = of.name, [header(of)]
    for item in times:
        for share in QUANTILES:
            found = quantile_s(item.recent, share) * unit if item.recent else float("nan")
            where = labels({**item.labels, "quantile": str(share)})
            parts.append(f"{name}{where} {'NaN' if found != found else found}\n")
        where = labels(item.labels)
        parts.append(f"{name}_sum{where} {item.total_s * unit}\n{name}_count{where} {item.count}\n")
    return "".join(parts)
