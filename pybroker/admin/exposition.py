"""The page `/metrics`. The broker serves clients between two slices of the page. All values of a
partition are from the same moment."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.exposition import generate_latest

from pybroker import __version__
from pybroker.admin import families
from pybroker.admin.families import OF_LOGS, OF_PARTITIONS, ROWS, PartitionFact, Sight
from pybroker.admin.group_rows import group_lines
from pybroker.admin.loop_watch import LoopWatch
from pybroker.admin.partition_rows import AT_A_TIME, LogRow, PartitionRow, Picture, look
from pybroker.admin.readiness import conditions
from pybroker.admin.view import BrokerView, Rooms
from pybroker.group_lag import ProgressReport
from pybroker.metrics import (
    Family,
    FetcherCounters,
    Metrics,
    TimeMeter,
    TopicCounters,
    families_of,
)
from pybroker.metrics_text import (
    Line,
    Times,
    by_label,
    family,
    header,
    labels,
    rows,
    summary,
)
from pybroker.model import NO_LEADER
from pybroker.wire.api import ApiKey

_MS: Final = 1000.0


def api_label(key: ApiKey) -> str:
    """Return the name of an API in the labels of Kafka's metrics, such as InitProducerId."""
    return "".join(word.capitalize() for word in key.name.split("_"))


def meters(rooms: Rooms) -> Iterator[tuple[str, TimeMeter]]:
    """Yield a unique name and the meter of each metric that counts durations."""
    for attribute in families_of(Metrics):
        meter = getattr(rooms.metrics, attribute)
        if isinstance(meter, TimeMeter):
            yield attribute, meter
    for key in ApiKey:
        if rooms.metrics.requests[key].count:
            yield f"request {key}", rooms.metrics.requests[key].times


class MetricsPage:
    """Renders the page `/metrics` once."""

    def __init__(self, view: BrokerView, watch: LoopWatch) -> None:
        self._view = view
        self._watch = watch
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the parts of the page in order. Must run on the event loop."""
        yield generate_latest(self._registry)
        yield (await self._of_process()).encode()
        rooms = self._view.rooms
        if rooms is None:
            return
        yield self._of_requests(rooms).encode()
        counted = rooms.metrics
        for table in (counted, counted.fetch_sessions, counted.groups, counted.cleaner):
            yield self._counted(table).encode()
        yield (self._counted(rooms.session) + _of_fetchers(rooms.metrics.fetchers)).encode()
        sight = Sight(
            rooms, await look(rooms), rooms.groups(), rooms.transactions(), await rooms.free_bytes()
        )
        yield "".join(family(row.family, row.lines(sight)) for row in ROWS).encode()
        picture = sight.picture
        async for chunk in _many(_of_topics(rooms, picture)):
            yield chunk
        async for chunk in _many(_of_partitions(rooms, picture)):
            yield chunk
        async for chunk in _many(_of_progress(await rooms.progress())):
            yield chunk

    async def _of_process(self) -> str:
        rooms = self._view.rooms
        about = {"version": __version__, "python": platform.python_version()}
        about["broker_id"] = "" if rooms is None else str(rooms.broker_id)
        about["cluster_id"] = "" if rooms is None else rooms.cluster_id
        ready = [
            (labels({"condition": each.name}), int(each.holds))
            for each in await conditions(self._view)
        ]
        return (
            family(families.BUILD_INFO, [(labels(about), 1)])
            + family(families.READY, ready)
            + family(families.BROKER_STATE, [("", self._view.phase.value)])
            + family(families.IDLE, [("", round(self._watch.idle_share(), 4))])
            + self._times(families.LOOP_LAG, "lag", self._watch.lag, unit=1.0)
        )

    def _of_requests(self, rooms: Rooms) -> str:
        counted, times = [], []
        for key in ApiKey:
            meter = rooms.metrics.requests[key]
            if not meter.count:
                continue
            of_request = {"request": api_label(key)}
            counted.append((labels(of_request), meter.count))
            mean_s = meter.times.total_s / meter.times.count if meter.times.count else 0.0
            recent = self._watch.recent(f"request {key}", meter.times)
            times.append(Times(of_request, recent, meter.count, mean_s * meter.count))
        shown = family(families.REQUESTS, counted)
        return shown + summary(families.REQUEST_TIMES, times, _MS)

    def _counted(self, table: object) -> str:
        """Return the lines of all metrics in `table`, an object whose fields are counters."""
        parts = []
        for attribute, of in families_of(type(table)).items():
            value = getattr(table, attribute)
            if isinstance(value, TimeMeter):
                parts.append(self._times(of, attribute, value))
            elif isinstance(value, dict):
                parts.append(family(of, by_label(of.labels[0], value)))
            else:
                parts.append(family(of, [("", value)]))
        return "".join(parts)

    def _times(self, of: Family, meter_name: str, meter: TimeMeter, unit: float = _MS) -> str:
        recent = self._watch.recent(meter_name, meter)
        return summary(of, [Times({}, recent, meter.count, meter.total_s)], unit)


def _of_fetchers(fetchers: Mapping[int, FetcherCounters]) -> str:
    parts = []
    for attribute, of in families_of(FetcherCounters).items():
        values = {str(leader): getattr(each, attribute) for leader, each in fetchers.items()}
        parts.append(family(of, by_label(of.labels[0], values)))
    return "".join(parts)


_Many = Iterable[tuple[Family, int, Callable[[int, int], list[Line]]]]
"""Metric families with many lines: the family, the number of its lines, and a function. The
function gets two indexes, and returns the lines from the first index on and before the second."""


async def _many(shown: _Many) -> AsyncIterator[bytes]:
    for of, count, lines in shown:
        yield header(of).encode()
        for start in range(0, count, AT_A_TIME):
            yield rows(of.name, lines(start, start + AT_A_TIME)).encode()
            await asyncio.sleep(0)


def _of_topics(rooms: Rooms, picture: Picture) -> _Many:
    total = rooms.metrics.all_topics()
    counters = [(labels({"topic": name}), each) for name, each in rooms.metrics.topics.items()]
    counters.insert(0, ("", total))
    for attribute, of in families_of(TopicCounters).items():

        def lines(start: int, end: int, attribute: str = attribute) -> list[Line]:
            return [(where, getattr(each, attribute)) for where, each in counters[start:end]]

        yield of, len(counters), lines
    topics = picture.topics if rooms.controller.is_active else []
    yield (
        families.TOPIC_PARTITIONS,
        len(topics),
        lambda start, end: [(topic.labels, topic.partitions) for topic in topics[start:end]],
    )


_Logs = Sequence[tuple[str, LogRow]]


def _of_partitions(rooms: Rooms, picture: Picture) -> _Many:
    here = [(row.labels, row.log) for row in picture.partitions if row.log is not None]
    led = [(labels, log) for labels, log in here if log.leads]
    for of, value, of_leaders in OF_LOGS:
        logs = led if of_leaders else here

        def of_log(
            start: int, end: int, logs: _Logs = logs, value: Callable[[LogRow], int] = value
        ) -> list[Line]:
            return [(labels, value(log)) for labels, log in logs[start:end]]

        yield of, len(logs), of_log
    shown = [row for row in picture.partitions if _is_shown_here(rooms, row)]
    for fact in OF_PARTITIONS:

        def of_row(start: int, end: int, fact: PartitionFact = fact) -> list[Line]:
            return [(row.labels, fact.value(row)) for row in shown[start:end]]

        yield fact.family, len(shown), of_row


def _of_progress(report: ProgressReport | None) -> _Many:
    for of, found in group_lines(report):

        def lines(start: int, end: int, found: list[Line] = found) -> list[Line]:
            return found[start:end]

        yield of, len(found), lines


def _is_shown_here(rooms: Rooms, row: PartitionRow) -> bool:
    """Return True on the partition's leader, or on the controller if there is no leader: a sum over
    all brokers must count each partition once."""
    if row.log is not None and row.log.leads:
        return True
    return row.leader == NO_LEADER and rooms.controller.is_active
