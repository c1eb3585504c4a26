"""The metrics of consumer groups: those of kafka_exporter, and pybroker's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from pybroker.group_lag import GroupProgress, Lag, ProgressReport
from pybroker.metrics import GAUGE, Family
from pybroker.metrics_text import Line, Number, labels

_Sums = Callable[[GroupProgress], Iterable[tuple[str, int]]]
"""Returns (topic name, number) pairs, one for each partition. The numbers of a topic are added."""


class GroupRow(NamedTuple):
    """A metric family of consumer groups, and the function that returns its lines from a report."""

    family: Family
    lines: Callable[[ProgressReport], list[Line]]


def group_lines(report: ProgressReport | None) -> Iterator[tuple[Family, list[Line]]]:
    """Yield each metric family of consumer groups with its lines. If `report` is None, no family
    has lines."""
    for row in OF_GROUPS:
        yield row.family, [] if report is None else row.lines(report)


def _by(name: str, kinds: str, meaning: str) -> Family:
    return Family(name, GAUGE, tuple(kinds.split()), meaning)


def _committed(report: ProgressReport) -> list[Line]:
    return [
        (_of(group, topic, number), offset)
        for group in report.groups
        for (topic, number), offset in group.committed.items()
    ]


def _each_lag(fact: Callable[[Lag], Number | None]) -> Callable[[ProgressReport], list[Line]]:
    def lines(report: ProgressReport) -> list[Line]:
        return [
            (_of(group, topic, number), value)
            for group in report.groups
            for (topic, number), lag in group.lags.items()
            if (value := fact(lag)) is not None
        ]

    return lines


def _by_topic(numbers: _Sums) -> Callable[[ProgressReport], list[Line]]:
    def lines(report: ProgressReport) -> list[Line]:
        found: list[Line] = []
        for group in report.groups:
            topics: dict[str, int] = {}
            for topic, number in numbers(group):
                topics[topic] = topics.get(topic, 0) + number
            found += [(_of(group, topic), total) for topic, total in topics.items()]
        return found

    return lines


def _offsets(group: GroupProgress) -> Iterator[tuple[str, int]]:
    return ((key.topic, offset) for key, offset in group.committed.items())


def _records(group: GroupProgress) -> Iterator[tuple[str, int]]:
    return ((key.topic, lag.records) for key, lag in group.lags.items())


def _of(group: GroupProgress, topic: str | None = None, partition: int | None = None) -> str:
    found = {"consumergroup": group.group_id}
    if topic is not None:
        found["topic"] = topic
    if partition is not None:
        found["partition"] = str(partition)
    return labels(found)


# fmt: off
OF_GROUPS: Final = (
    GroupRow(_by("kafka_consumergroup_members", "consumergroup", "The number of members of the group. Only the group's coordinator shows the metrics of a group. These metrics are usually at most 10 s old."), lambda report: [(_of(group), group.members) for group in report.groups]),
    GroupRow(_by("kafka_consumergroup_current_offset", "consumergroup topic partition", "The group's committed offset: the offset of the next record to read."), _committed),
    GroupRow(_by("kafka_consumergroup_current_offset_sum", "consumergroup topic", "The sum of the group's committed offsets over the partitions of a topic."), _by_topic(_offsets)),
    GroupRow(_by("kafka_consumergroup_lag", "consumergroup topic partition", "The group's lag: the number of offsets from the committed offset to the high watermark. Never negative."), _each_lag(lambda lag: lag.records)),
    GroupRow(_by("kafka_consumergroup_lag_sum", "consumergroup topic", "The sum of the group's lag over the partitions of a topic."), _by_topic(_records)),
    GroupRow(_by("pybroker_group_lag_bytes", "consumergroup topic partition", "The group's lag in bytes, estimated as if all records of the log had the same size. If the groups of this broker have more than 1,000 committed offsets in all, the broker shows neither this metric nor pybroker_group_lag_seconds."), _each_lag(lambda lag: lag.bytes)),
    GroupRow(_by("pybroker_group_lag_seconds", "consumergroup topic partition", "The group's lag in seconds: the age (by timestamp) of the oldest record that the group has not consumed. 0 if the group has consumed all records."), _each_lag(lambda lag: lag.seconds)),
    GroupRow(_by("pybroker_group_lag_age_seconds", "", "The age, in seconds, of the metrics of consumer groups: the time since the broker last read the committed offsets."), lambda report: [("", round(report.age_s, 3))]),
)
# fmt: on
