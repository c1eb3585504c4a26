"""What the metrics say of single groups: lines of kafka_exporter's families, and of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from pybroker.admin.text_format import Line, labels
from pybroker.group_lag import GroupProgress, Lag, ProgressReport

EXPORTER: Final = "kafka_consumergroup"
OWN: Final = "pybroker_group_lag"


def group_lines(report: ProgressReport | None) -> Iterator[tuple[str, list[Line]]]:
    """Each family with its lines; none where the groups are not known."""
    groups = report.groups if report is not None else ()
    yield f"{EXPORTER}_members", [(_of(group), group.members) for group in groups]
    yield from _offsets(groups)
    yield from _lags(groups)
    yield f"{OWN}_age_seconds", [] if report is None else [("", round(report.age_s, 3))]


def _offsets(groups: tuple[GroupProgress, ...]) -> Iterator[tuple[str, list[Line]]]:
    lines: list[Line] = []
    sums: list[Line] = []
    for group in groups:
        topics: dict[str, int] = {}
        for (topic, number), offset in group.committed.items():
            lines.append((_of(group, topic, number), offset))
            topics[topic] = topics.get(topic, 0) + offset
        sums += [(_of(group, topic), total) for topic, total in topics.items()]
    yield f"{EXPORTER}_current_offset", lines
    yield f"{EXPORTER}_current_offset_sum", sums


def _lags(groups: tuple[GroupProgress, ...]) -> Iterator[tuple[str, list[Line]]]:
    sums: list[Line] = []
    for group in groups:
        topics: dict[str, int] = {}
        for key, lag in group.lags.items():
            topics[key.topic] = topics.get(key.topic, 0) + lag.records
        sums += [(_of(group, topic), total) for topic, total in topics.items()]
    facts: tuple[tuple[str, Callable[[Lag], int | float | None]], ...] = (
        (f"{EXPORTER}_lag", lambda lag: lag.records),
        (f"{OWN}_bytes", lambda lag: lag.bytes),
        (f"{OWN}_seconds", lambda lag: lag.seconds),
    )
    for name, fact in facts:
        lines: list[Line] = []
        for group in groups:
            for (topic, number), lag in group.lags.items():
                value = fact(lag)
                if value is not None:
                    lines.append((_of(group, topic, number), value))
        yield name, lines
    yield f"{EXPORTER}_lag_sum", sums


def _of(group: GroupProgress, topic: str | None = None, partition: int | None = None) -> str:
    found = {"consumergroup": group.group_id}
    if topic is not None:
        found["topic"] = topic
    if partition is not None:
        found["partition"] = str(partition)
    return labels(found)
