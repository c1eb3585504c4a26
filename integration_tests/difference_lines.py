"""Conversions of a tool's printed lines, for the rows of `integration_tests.differences`. They
remove or replace what Apache's tools and ours may print differently."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

Lines = list[str]


def without(pattern: str) -> Callable[[Lines], Lines]:
    """Return a function that removes the lines with a match."""
    return lambda lines: [line for line in lines if not re.search(pattern, line)]


def replaced(pattern: str, text: str) -> Callable[[Lines], Lines]:
    """Return a function that replaces each match by `text`, which may refer to groups like \1."""
    return lambda lines: [re.sub(pattern, text, line) for line in lines]


def without_events(lines: Lines) -> Lines:
    """Return the lines without the ZooKeeper shell's events of its own connection, and without the
    blank lines and the heading around the events.
    """
    return [
        line
        for line in lines
        if line not in ("", "WATCHER::") and not re.match(r"WatchedEvent .* type:None ", line)
    ]


def with_sorted_partitions(lines: Lines) -> Lines:
    """Return the lines of the election tools with sorted lists of partitions."""

    def ordered(found: re.Match[str]) -> str:
        return ", ".join(sorted(re.split(", ?", found[0])))

    return [re.sub(r"[^ ,()]+-[0-9]+(, ?[^ ,()]+-[0-9]+)+", ordered, line) for line in lines]


def with_sorted_transaction_partitions(lines: Lines) -> Lines:
    """Return the lines of dump-log with a sorted list of the partitions of each transaction."""

    def ordered(found: re.Match[str]) -> str:
        return f"partitions=[{','.join(sorted(found[1].split(',')))}]"

    return [re.sub(r"partitions=\[([^]]*)\]", ordered, line) for line in lines]


def until_metrics(lines: Lines) -> Lines:
    """Return the lines before the table of metrics."""
    ends = [number for number, line in enumerate(lines) if line.startswith("Metric Name")]
    return lines[: ends[0]] if ends else lines


def with_split_tables(lines: Lines) -> Lines:
    """Return the lines of consumer-groups with each row on its own line: Apache 3.9 prints the rows
    in the line of the headings.
    """
    found = []
    for line in lines:
        for head, row in (_RESET_TABLE, _DELETED_TABLE):
            if match := head.match(line):
                found.append(match[0])
                found.extend(row.findall(line[match.end() :]))
                break
        else:
            found.append(line)
    return found


_RESET_TABLE: Final = (
    re.compile(r"GROUP +TOPIC +PARTITION +NEW-OFFSET {5}"),
    re.compile(r"\S+ +\S+ +\d+ +\d+ *"),
)
_DELETED_TABLE: Final = (
    re.compile(r"TOPIC +PARTITION +STATUS {9}"),
    re.compile(r"\S+ +(?:\d+|Not Provided) +(?:Error: :\S*Exception: [^.]*\.|Successful {5})"),
)


def with_lag_from_zero(lines: Lines) -> Lines:
    """Return the lines of consumer-groups with each negative LAG replaced by 0, in the same
    width.
    """
    return [re.sub(r"(?<= )-\d+(?= )", lambda found: "0".ljust(len(found[0])), x) for x in lines]
