"""Converts metrics to Prometheus' text format (version 0.0.4). The library prometheus-client would
take ten times as long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pybroker.metrics import Family, TimeMeter, bucket_end_s, quantile_s

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
QUANTILES: Final = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
LIMITS_S: Final = tuple(2.0**exponent for exponent in range(-10, 6))
"""The limits of the buckets of a histogram, from a millisecond to 32 s. They are ends of buckets of
a TimeMeter, so its durations can be counted up to each limit."""

Number = int | float
Line = tuple[str, Number]
"""One line of a metric family: the labels, in the format of the function `labels`, and the value. A
histogram has `_bucket`, `_sum` or `_count` before the labels."""


@dataclass(frozen=True, slots=True)
class Times:
    """A summary of durations for one set of labels: the number of recent durations in each bucket
    (`recent`), and the number and sum (s) of all durations."""

    labels: Mapping[str, str]
    recent: Mapping[int, int]
    count: int
    total_s: float


def escaped(text: str) -> str:
    """Return the value of a label, escaped as the text format requires between quotes."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def labels(values: Mapping[str, str]) -> str:
    """Return labels and their values as text in braces. Return an empty string if `values` is
    empty."""
    if not values:
        return ""
    inner = ",".join(f'{name}="{escaped(value)}"' for name, value in values.items())
    return f"{{{inner}}}"


def by_label(label: str, values: Mapping[str, Number]) -> list[Line]:
    """Return a line for each item of `values`, sorted by key. Each key is a value of the label
    `label`."""
    return [(labels({label: key}), value) for key, value in sorted(values.items())]


def header(of: Family) -> str:
    """Return the HELP line and the TYPE line of a metric family."""
    return f"# HELP {of.name} {of.meaning}\n# TYPE {of.name} {of.kind}\n"


def rows(name: str, lines: Iterable[Line]) -> str:
    """Return the lines of the metric family `name` as text. The HELP and TYPE lines are not
    included."""
    return "".join([f"{name}{where} {value}\n" for where, value in lines])


def family(of: Family, lines: Iterable[Line]) -> str:
    """Return a metric family as text: the HELP line, the TYPE line, and `lines`."""
    return header(of) + rows(of.name, lines)


def histogram_lines(where: Mapping[str, str], meter: TimeMeter) -> list[Line]:
    """Return the lines of a histogram, in seconds, for one set of labels."""
    ends = [(bucket_end_s(bucket), number) for bucket, number in meter.buckets.items()]
    lines: list[Line] = [
        (
            f"_bucket{labels({**where, 'le': str(limit)})}",
            sum(number for end, number in ends if end <= limit),
        )
        for limit in LIMITS_S
    ]
    lines.append((f"_bucket{labels({**where, 'le': '+Inf'})}", meter.count))
    lines.append((f"_sum{labels(where)}", meter.total_s))
    lines.append((f"_count{labels(where)}", meter.count))
    return lines


def summary(of: Family, times: Iterable[Times], unit: float) -> str:
    """Return a metric family of durations as text (quantiles are NaN without recent durations).
    `unit` converts seconds to the unit that is shown (1000 for ms)."""
    name, parts = of.name, [header(of)]
    for item in times:
        for share in QUANTILES:
            found = quantile_s(item.recent, share) * unit if item.recent else float("nan")
            where = labels({**item.labels, "quantile": str(share)})
            parts.append(f"{name}{where} {'NaN' if found != found else found}\n")
        where = labels(item.labels)
        parts.append(f"{name}_sum{where} {item.total_s * unit}\n{name}_count{where} {item.count}\n")
    return "".join(parts)
