"""The page `/metrics`: every family of `families.py`, and what prometheus-client knows of the
process.

The page is made in slices of about a millisecond; between two of them clients are served. What is
said of one partition belongs to one moment.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.exposition import generate_latest

from pybroker import __version__
from pybroker.admin.group_rows import group_lines
from pybroker.admin.loop_watch import LoopWatch
from pybroker.admin.partition_rows import AT_A_TIME, LogRow, PartitionRow, Picture, look
from pybroker.admin.readiness import conditions
from pybroker.admin.text_format import (
    Line,
    Number,
    Times,
    family,
    header,
    labels,
    rows,
    single,
    summary,
)
from pybroker.admin.view import BrokerView, Rooms
from pybroker.group_lag import ProgressReport
from pybroker.metrics import TimeMeter
from pybroker.model import NO_LEADER
from pybroker.wire.api import ApiKey

_MS: Final = 1000.0
_ELECTIONS: Final = "kafka_controller_controllerstats_leaderelectionrateandtimems"
_STATES: Final = ("preparingrebalance", "completingrebalance", "stable", "empty")
_TRAFFIC: Final[Mapping[str, str]] = {
    "messages_in": "messagesin",
    "bytes_in": "bytesin",
    "bytes_out": "bytesout",
    "produce_requests": "totalproducerequests",
    "failed_produce_requests": "failedproducerequests",
    "fetch_requests": "totalfetchrequests",
    "failed_fetch_requests": "failedfetchrequests",
}
"""Counter of a topic -> the word in the family's name."""


def api_label(key: ApiKey) -> str:
    """An API as Kafka's metrics name it, such as Produce or InitProducerId."""
    return "".join(word.capitalize() for word in key.name.split("_"))


def meters(rooms: Rooms) -> Iterator[tuple[str, TimeMeter]]:
    """The meters whose recent durations are shown, by name."""
    yield "syncs", rooms.metrics.syncs
    yield "coordination", rooms.metrics.coordination
    yield "elections", rooms.metrics.elections
    for key in ApiKey:
        if rooms.metrics.requests[key].count:
            yield f"request {key}", rooms.metrics.requests[key].times


class MetricsPage:
    """Makes the page, as often as it is asked for."""

    def __init__(self, view: BrokerView, watch: LoopWatch) -> None:
        self._view = view
        self._watch = watch
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The page, piece by piece. To be read on the event loop."""
        yield generate_latest(self._registry)
        yield (await self._of_process()).encode()
        rooms = self._view.rooms
        if rooms is None:
            return
        yield self._of_requests(rooms).encode()
        yield _of_connections(rooms).encode()
        picture = await look(rooms)
        yield (_of_replicas(rooms, picture) + _of_fetchers(rooms)).encode()
        yield _of_health(rooms, await rooms.free_bytes()).encode()
        yield (_of_controller(rooms, picture) + _of_groups(rooms)).encode()
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
        idle = "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent"
        return (
            family("pybroker_build_info", [(labels(about), 1)])
            + family("pybroker_ready", ready)
            + single("kafka_server_kafkaserver_brokerstate", self._view.phase.value)
            + single(idle, round(self._watch.idle_share(), 4))
            + self._times("pybroker_event_loop_lag_seconds", "lag", self._watch.lag, unit=1.0)
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
        metrics, latency = rooms.metrics, "zookeeperrequestlatencyms"
        replicas = rooms.replicas
        waiting = {
            "Fetch": len(replicas.fetches) + len(replicas.replica_fetches),
            "Produce": len(replicas.produces),
        }
        return (
            family("kafka_network_requestmetrics_requests_total", counted)
            + summary("kafka_network_requestmetrics_totaltimems", times, _MS)
            + family(
                "kafka_server_delayedoperationpurgatory_purgatorysize",
                [
                    (labels({"delayedOperation": name}), watched)
                    for name, watched in waiting.items()
                ],
            )
            + self._times("kafka_log_logflushstats_logflushrateandtimems", "syncs", metrics.syncs)
            + self._times(
                f"kafka_server_zookeeperclientmetrics_{latency}",
                "coordination",
                metrics.coordination,
            )
            + self._times(_ELECTIONS, "elections", metrics.elections)
        )

    def _times(self, name: str, meter_name: str, meter: TimeMeter, unit: float = _MS) -> str:
        recent = self._watch.recent(meter_name, meter)
        return summary(name, [Times({}, recent, meter.count, meter.total_s)], unit)


def _of_connections(rooms: Rooms) -> str:
    session, metrics = rooms.session, rooms.metrics

    def each(label: str, values: Mapping[str, Number]) -> list[Line]:
        return [(labels({label: key}), value) for key, value in sorted(values.items())]

    listener = "kafka_server_sessionexpirelistener"
    return (
        family("pybroker_connections", each("listener", rooms.connections()))
        + family("pybroker_connections_accepted_total", each("listener", metrics.accepted))
        + family("pybroker_connections_closed_total", each("reason", metrics.closed))
        + single("pybroker_unsent_bytes", rooms.unsent_bytes())
        + single("pybroker_zookeeper_connected", int(session.is_alive))
        + single(f"{listener}_zookeeperexpires_total", session.expired)
        + single(f"{listener}_zookeeperdisconnects_total", session.disconnected)
    )


def _of_replicas(rooms: Rooms, picture: Picture) -> str:
    led = [(row, row.log) for row in picture.partitions if row.log is not None and row.log.leads]
    unserved = sum(row.belongs_here and row.log is None for row in picture.partitions)
    values = {
        "underreplicatedpartitions": sum(row.isr < row.replicas for row, _ in led),
        "underminisrpartitioncount": sum(row.isr < log.min_isr for row, log in led),
        "atminisrpartitioncount": sum(row.isr == log.min_isr for row, log in led),
        "leadercount": len(led),
        "partitioncount": len(rooms.replicas.partitions),
        "offlinereplicacount": unserved,
        "isrshrinks_total": rooms.metrics.isr_shrinks,
        "isrexpands_total": rooms.metrics.isr_expands,
        "failedisrupdates_total": rooms.metrics.isr_update_failures,
    }
    sessions = rooms.metrics.fetch_sessions
    cache = "kafka_server_fetchsessioncache"
    return (
        "".join(
            single(f"kafka_server_replicamanager_{word}", value) for word, value in values.items()
        )
        + single(
            "kafka_server_brokertopicmetrics_replicationbytesout_total",
            rooms.metrics.replication_bytes_out,
        )
        + single(f"{cache}_numincrementalfetchsessions", sessions.sessions)
        + single(f"{cache}_numincrementalfetchpartitionscached", sessions.partitions)
        + single(f"{cache}_incrementalfetchsessionevictions_total", sessions.evictions)
        + single(
            "kafka_log_logmanager_offlinelogdirectorycount", len(rooms.logs.failed_directories)
        )
    )


def _of_health(rooms: Rooms, free_bytes: Mapping[str, int]) -> str:
    """Replicas that count for less than others, and the room that is left for all."""
    known = rooms.metadata.exists
    return (
        single("pybroker_damaged_replicas", sum(map(known, rooms.damaged())))
        + single("pybroker_suspect_replicas", sum(map(known, rooms.suspects())))
        + single("pybroker_incomplete_replicas", sum(map(known, rooms.logs.incomplete.waiting)))
        + single("pybroker_full_log_directories", len(rooms.full_directories()))
        + family(
            "pybroker_log_directory_free_bytes",
            [(labels({"logDirectory": path}), free) for path, free in sorted(free_bytes.items())],
        )
    )


def _of_fetchers(rooms: Rooms) -> str:
    """How this broker follows others."""
    copies, fetchers = rooms.replicas.copies.values(), rooms.metrics.fetchers
    manager, stats = "kafka_server_replicafetchermanager", "kafka_server_fetcherstats"

    def each(values: Mapping[int, Number]) -> list[Line]:
        return [(labels({"broker": str(key)}), value) for key, value in sorted(values.items())]

    return (
        single(
            "kafka_server_brokertopicmetrics_replicationbytesin_total",
            sum(counters.bytes for counters in fetchers.values()),
        )
        + single(f"{manager}_maxlag", max((copy.lag for copy in copies), default=0))
        + single(f"{manager}_failedpartitionscount", sum(copy.failures > 0 for copy in copies))
        + family(
            f"{stats}_requests_total", each({key: one.requests for key, one in fetchers.items()})
        )
        + family(f"{stats}_bytes_total", each({key: one.bytes for key, one in fetchers.items()}))
    )


def _of_controller(rooms: Rooms, picture: Picture) -> str:
    """Kafka's controller metrics are 0 at the brokers that are not the controller."""
    active = rooms.controller.is_active
    partitions = picture.partitions
    values = {
        "activecontrollercount": 1,
        "offlinepartitionscount": sum(row.leader == NO_LEADER for row in partitions),
        "preferredreplicaimbalancecount": sum(row.leader != row.preferred for row in partitions),
        "globaltopiccount": len(picture.topics),
        "globalpartitioncount": len(partitions),
        "activebrokercount": len(rooms.metadata.brokers),
    }
    unclean = "kafka_controller_controllerstats_uncleanleaderelections_total"
    brokers: list[Line] = [("", len(rooms.metadata.brokers))] if active else []
    return (
        "".join(
            single(f"kafka_controller_kafkacontroller_{word}", value if active else 0)
            for word, value in values.items()
        )
        + single(unclean, rooms.controller.unclean_elections)
        + family("kafka_brokers", brokers)
    )


def _of_groups(rooms: Rooms) -> str:
    manager = "kafka_coordinator_group_groupmetadatamanager_numgroups"
    coordinator = "kafka_server_group_coordinator_metrics"
    numbers = rooms.groups()
    return (
        single(manager, sum(numbers.by_state.values()))
        + "".join(single(f"{manager}{word}", numbers.by_state.get(word, 0)) for word in _STATES)
        + single(
            f"{coordinator}_group_completed_rebalance_count",
            rooms.metrics.groups.completed_rebalances,
        )
        + single(f"{coordinator}_partition_load_time_max", numbers.longest_load_s * _MS)
        + single(f"{coordinator}_partition_load_time_avg", numbers.mean_load_s * _MS)
        + single("pybroker_group_coordinator_partitions", numbers.partitions)
        + single("pybroker_group_coordinator_partitions_loading", numbers.loading)
    )


_Many = Iterable[tuple[str, int, Callable[[int, int], list[Line]]]]
"""Families with many lines: name, how many there are, and what gives those from one to another."""


async def _many(families: _Many) -> AsyncIterator[bytes]:
    for name, count, lines in families:
        yield header(name).encode()
        for start in range(0, count, AT_A_TIME):
            yield rows(name, lines(start, start + AT_A_TIME)).encode()
            await asyncio.sleep(0)


def _of_topics(rooms: Rooms, picture: Picture) -> _Many:
    total = rooms.metrics.all_topics()
    counters = [(labels({"topic": name}), each) for name, each in rooms.metrics.topics.items()]
    counters.insert(0, ("", total))
    for attribute, word in _TRAFFIC.items():

        def lines(start: int, end: int, attribute: str = attribute) -> list[Line]:
            return [(where, getattr(each, attribute)) for where, each in counters[start:end]]

        yield f"kafka_server_brokertopicmetrics_{word}_total", len(counters), lines
    topics = picture.topics if rooms.controller.is_active else []
    yield (
        "kafka_topic_partitions",
        len(topics),
        lambda start, end: [(topic.labels, topic.partitions) for topic in topics[start:end]],
    )


_Logs = Sequence[tuple[str, LogRow]]


def _of_partitions(rooms: Rooms, picture: Picture) -> _Many:
    here = [(row.labels, row.log) for row in picture.partitions if row.log is not None]
    led = [(labels, log) for labels, log in here if log.leads]
    for name, place, values in (
        ("kafka_log_log_size", 0, here),
        ("kafka_log_log_logstartoffset", 1, here),
        ("kafka_log_log_logendoffset", 2, here),
        ("kafka_topic_partition_current_offset", 3, led),
        ("kafka_topic_partition_oldest_offset", 1, led),
    ):

        def of_log(start: int, end: int, values: _Logs = values, place: int = place) -> list[Line]:
            return [(labels, log[place]) for labels, log in values[start:end]]

        yield name, len(values), of_log
    told = [row for row in picture.partitions if _is_told_here(rooms, row)]
    facts: Mapping[str, Callable[[PartitionRow], int]] = {
        "in_sync_replica": lambda row: row.isr,
        "leader": lambda row: row.leader,
        "leader_is_preferred": lambda row: int(row.leader == row.preferred),
        "replicas": lambda row: row.replicas,
        "under_replicated_partition": lambda row: int(row.isr < row.replicas),
    }
    for word, fact in facts.items():

        def of_row(start: int, end: int, fact: Callable[[PartitionRow], int] = fact) -> list[Line]:
            return [(row.labels, fact(row)) for row in told[start:end]]

        yield f"kafka_topic_partition_{word}", len(told), of_row


def _of_progress(report: ProgressReport | None) -> _Many:
    for name, found in group_lines(report):

        def lines(start: int, end: int, found: list[Line] = found) -> list[Line]:
            return found[start:end]

        yield name, len(found), lines


def _is_told_here(rooms: Rooms, row: PartitionRow) -> bool:
    """One broker tells of each partition, so that sums over brokers are right: its leader, or the
    controller where there is none."""
    if row.log is not None and row.log.leads:
        return True
    return row.leader == NO_LEADER and rooms.controller.is_active
