"""The metrics that are read when `/metrics` is requested. `pybroker/metrics.py` has those that
count events.

Names and units are those of Kafka's JMX exporter and of kafka_exporter. The prefix `pybroker_`
marks a metric that both lack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Final, NamedTuple

from pybroker.admin.group_rows import OF_GROUPS
from pybroker.admin.partition_rows import LogRow, PartitionRow, Picture
from pybroker.admin.view import GroupNumbers, Rooms, SessionWatch, TransactionNumbers
from pybroker.metrics import (
    COUNTER,
    GAUGE,
    SUMMARY,
    CleanerCounters,
    Family,
    FetcherCounters,
    FetchSessionCounters,
    GroupCounters,
    Metrics,
    TopicCounters,
    families_of,
)
from pybroker.metrics_text import Line, Number, by_label
from pybroker.model import NO_LEADER, TopicPartition
from pybroker.replication.followed_partition import FollowedPartition
from pybroker.storage.replica_health import Health

_CONTROLLER: Final = "kafka_controller_kafkacontroller"


@dataclass(frozen=True)
class Sight:
    """The state of a broker at one moment. The functions of the metrics (see `Row`) read their
    values from this state."""

    rooms: Rooms
    picture: Picture
    groups: GroupNumbers
    transactions: TransactionNumbers
    free_bytes: Mapping[str, int]

    @cached_property
    def led(self) -> list[tuple[PartitionRow, LogRow]]:
        """The partitions that this broker leads, each with the values of its log."""
        rows = self.picture.partitions
        return [(row, row.log) for row in rows if row.log is not None and row.log.leads]

    @cached_property
    def copies(self) -> list[FollowedPartition]:
        """The partitions that this broker follows."""
        return list(self.rooms.replicas.copies.values())


class Row(NamedTuple):
    """A metric family, and the function that returns its lines."""

    family: Family
    lines: Callable[[Sight], list[Line]]


class PartitionFact(NamedTuple):
    """A metric family with one line for each partition, and the function that returns a partition's
    value."""

    family: Family
    value: Callable[[PartitionRow], int]


class LogFact(NamedTuple):
    """A metric family with one line for each log of this broker. With `of_leaders`, only the logs
    of partitions that this broker leads have a line."""

    family: Family
    value: Callable[[LogRow], int]
    of_leaders: bool = False


def _gauge(name: str, meaning: str, value: Callable[[Sight], Number]) -> Row:
    return Row(Family(name, GAUGE, (), meaning), lambda at: [("", value(at))])


def _counter(name: str, meaning: str, value: Callable[[Sight], Number]) -> Row:
    return Row(Family(name, COUNTER, (), meaning), lambda at: [("", value(at))])


def _gauges(
    label: str, name: str, meaning: str, values: Callable[[Sight], Mapping[str, Number]]
) -> Row:
    family = Family(name, GAUGE, (label,), meaning)
    return Row(family, lambda at: by_label(label, values(at)))


def _of_controller(word: str, meaning: str, value: Callable[[Sight], Number]) -> Row:
    """Return the row of a gauge about the controller. As in Kafka, its value is 0 on every broker
    that is not the controller."""

    def shown(at: Sight) -> Number:
        return value(at) if at.rooms.controller.is_active else 0

    return _gauge(f"{_CONTROLLER}_{word}", meaning, shown)


def _partition(name: str, meaning: str) -> Family:
    return Family(name, GAUGE, ("topic", "partition"), meaning)


def _purgatories(at: Sight) -> Mapping[str, Number]:
    replicas = at.rooms.replicas
    fetches = len(replicas.fetches) + len(replicas.replica_fetches)
    return {"Fetch": fetches, "Produce": len(replicas.produces)}


def _known(at: Sight, partitions: Iterable[TopicPartition]) -> int:
    return sum(map(at.rooms.metadata.exists, partitions))


# fmt: off
# values that `exposition.py` computes
BUILD_INFO: Final = Family("pybroker_build_info", GAUGE, ("version", "python", "broker_id", "cluster_id"), "Always 1. The labels have the versions of pybroker and Python, the broker id and the cluster id.")
READY: Final = Family("pybroker_ready", GAUGE, ("condition",), "One line for each condition of readiness (/readyz): 1 if the condition is true, else 0.")
BROKER_STATE: Final = Family("kafka_server_kafkaserver_brokerstate", GAUGE, (), "The phase of the broker: 1 starting, 2 recovering its logs, 3 running, 7 stopping.")
IDLE: Final = Family("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", GAUGE, (), "How idle the event loop's thread was in the last minute: the share (0 to 1) of time without use of the processor. This thread handles all requests. Below 0.3 the broker is near its limit.")
LOOP_LAG: Final = Family("pybroker_event_loop_lag_seconds", SUMMARY, (), "The delay of the event loop in seconds. The broker sets a timer five times a second, and measures how late the timer fires.")
REQUESTS: Final = Family("kafka_network_requestmetrics_requests_total", COUNTER, ("request",), "Requests to this broker, by API.")
REQUEST_TIMES: Final = Family("kafka_network_requestmetrics_totaltimems", SUMMARY, ("request",), "The time from a request to its response, by API, in ms. It includes the wait for data or replicas. Of the Produce and Fetch requests that need no wait, the broker measures only one in sixteen. So the quantiles and _sum are estimates for Produce and Fetch.")
TOPIC_PARTITIONS: Final = Family("kafka_topic_partitions", GAUGE, ("topic",), "Partitions of the topic. Only the controller shows this metric.")

ROWS: Final = (
    # the broker
    _gauge("kafka_server_replicamanager_underreplicatedpartitions", "Partitions that this broker leads and that have a replica out of sync.", lambda at: sum(row.isr < row.replicas for row, _ in at.led)),
    _gauge("kafka_server_replicamanager_underminisrpartitioncount", "Partitions that this broker leads and that have fewer in-sync replicas than min.insync.replicas.", lambda at: sum(row.isr < log.min_isr for row, log in at.led)),
    _gauge("kafka_server_replicamanager_atminisrpartitioncount", "Partitions that this broker leads and that have exactly min.insync.replicas in-sync replicas.", lambda at: sum(row.isr == log.min_isr for row, log in at.led)),
    _gauge("kafka_server_replicamanager_leadercount", "Partitions that this broker leads.", lambda at: len(at.led)),
    _gauge("kafka_server_replicamanager_partitioncount", "Replicas of this broker whose logs are open.", lambda at: len(at.rooms.replicas.partitions)),
    _gauge("kafka_server_replicamanager_offlinereplicacount", "Replicas assigned to this broker that it cannot serve, because their logs are not open or their log directory has failed.", lambda at: sum(row.belongs_here and row.log is None for row in at.picture.partitions)),
    _gauge("kafka_server_replicafetchermanager_maxlag", "The largest number of offsets by which a follower on this broker is behind its leader's high watermark.", lambda at: max((copy.lag for copy in at.copies), default=0)),
    _gauge("kafka_server_replicafetchermanager_failedpartitionscount", "Partitions that this broker follows and whose last fetch failed.", lambda at: sum(copy.failures > 0 for copy in at.copies)),
    _counter("kafka_server_brokertopicmetrics_replicationbytesin_total", "Bytes of record batches that this broker has fetched from leaders. The topic metrics do not include these bytes.", lambda at: sum(each.bytes for each in at.rooms.metrics.fetchers.values())),
    _gauge("kafka_log_logmanager_offlinelogdirectorycount", "Log directories of this broker that have failed.", lambda at: len(at.rooms.logs.failed_directories)),
    _gauges("delayedOperation", "kafka_server_delayedoperationpurgatory_purgatorysize", "Requests that wait in purgatory. Fetch requests wait for data. Produce requests with acks=all wait until their records are below the high watermark.", _purgatories),
    _gauge("kafka_server_replicamanager_partitionswithlatetransactionscount", "Partitions that this broker leads and in which an open transaction has held back the last stable offset for longer than transaction.max.timeout.ms.", lambda at: sum(log.held_back_ms > at.rooms.layers().current.transaction_max_timeout_ms for _, log in at.led)),
    # the controller
    _of_controller("activecontrollercount", "1 if this broker is the controller, else 0.", lambda at: 1),
    _of_controller("offlinepartitionscount", "Partitions without a leader. For every metric whose name begins with kafka_controller_kafkacontroller, a broker that is not the controller shows 0.", lambda at: sum(row.leader == NO_LEADER for row in at.picture.partitions)),
    _of_controller("preferredreplicaimbalancecount", "Partitions whose leader is not their preferred (first) replica.", lambda at: sum(row.leader != row.preferred for row in at.picture.partitions)),
    _of_controller("globaltopiccount", "Topics in the cluster.", lambda at: len(at.picture.topics)),
    _of_controller("globalpartitioncount", "Partitions in the cluster.", lambda at: len(at.picture.partitions)),
    _of_controller("activebrokercount", "Brokers that are registered.", lambda at: len(at.rooms.metadata.brokers)),
    _counter("kafka_controller_controllerstats_uncleanleaderelections_total", "Unclean elections: the new leader was neither an in-sync replica nor an eligible replica (see the glossary). Such an election may lose records.", lambda at: at.rooms.controller.unclean_elections),
    Row(Family("kafka_brokers", GAUGE, (), "Brokers that are registered. Only the controller shows this metric."), lambda at: [("", len(at.rooms.metadata.brokers))] if at.rooms.controller.is_active else []),
    # the groups that this broker coordinates
    _gauge("kafka_coordinator_group_groupmetadatamanager_numgroups", "Consumer groups that this broker coordinates, in any state.", lambda at: sum(at.groups.by_state.values())),
    _gauge("kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance", "Consumer groups in state PreparingRebalance: they wait for their members to join.", lambda at: at.groups.by_state.get("preparingrebalance", 0)),
    _gauge("kafka_coordinator_group_groupmetadatamanager_numgroupscompletingrebalance", "Consumer groups in state CompletingRebalance: they wait for the assignment of the group's leader.", lambda at: at.groups.by_state.get("completingrebalance", 0)),
    _gauge("kafka_coordinator_group_groupmetadatamanager_numgroupsstable", "Consumer groups in state Stable: their members have their assignments.", lambda at: at.groups.by_state.get("stable", 0)),
    _gauge("kafka_coordinator_group_groupmetadatamanager_numgroupsempty", "Consumer groups in state Empty: they have no members.", lambda at: at.groups.by_state.get("empty", 0)),
    _gauge("kafka_server_group_coordinator_metrics_partition_load_time_max", "The longest load time of a partition of __consumer_offsets since the broker's start, in ms.", lambda at: at.groups.longest_load_s * 1000),
    _gauge("kafka_server_group_coordinator_metrics_partition_load_time_avg", "The mean load time of a partition of __consumer_offsets since the broker's start, in ms.", lambda at: at.groups.mean_load_s * 1000),
    _gauge("pybroker_group_coordinator_partitions", "Partitions of __consumer_offsets that this broker coordinates.", lambda at: at.groups.partitions),
    _gauge("pybroker_group_coordinator_partitions_loading", "Partitions of __consumer_offsets that are being loaded. Their groups have no coordinator yet.", lambda at: at.groups.loading),
    # the transactional ids that this broker coordinates
    _gauge("kafka_coordinator_transaction_transactionmarkerchannelmanager_unknowndestinationqueuesize", "Transaction markers that wait until their partition has a leader.", lambda at: at.transactions.markers_without_leader),
    _gauge("kafka_coordinator_transaction_transactionmarkerchannelmanager_logappendretryqueuesize", "Transactions that have all their markers, but whose completion could not be written to __transaction_state yet.", lambda at: at.transactions.completions_to_append),
    _gauge("kafka_server_transaction_coordinator_metrics_partition_load_time_max", "The longest load time of a partition of __transaction_state since the broker's start, in ms.", lambda at: at.transactions.longest_load_s * 1000),
    _gauge("kafka_server_transaction_coordinator_metrics_partition_load_time_avg", "The mean load time of a partition of __transaction_state since the broker's start, in ms.", lambda at: at.transactions.mean_load_s * 1000),
    _gauge("pybroker_transaction_coordinator_partitions", "Partitions of __transaction_state that this broker coordinates.", lambda at: at.transactions.partitions),
    _gauge("pybroker_transaction_coordinator_partitions_loading", "Partitions of __transaction_state that are being loaded. Their transactional ids have no coordinator yet.", lambda at: at.transactions.loading),
    _gauge("pybroker_transactional_ids", "Transactional ids that this broker coordinates, in any state.", lambda at: at.transactions.ids),
    _gauge("pybroker_transaction_markers_waiting", "Transaction markers of this coordinator that are not written yet.", lambda at: at.transactions.waiting_markers),
    # metrics that Kafka does not have
    _gauge("pybroker_damaged_replicas", "Replicas of this broker whose log has a corrupt range, including replicas that the broker still serves. A replica is counted until its damaged log is replaced, deleted or lost.", lambda at: _known(at, at.rooms.logs.health.damage)),
    _gauge("pybroker_suspect_replicas", "Replicas of this broker that may have lost records in a power loss. A replica is counted until it is in the ISR again, or until it is counted as damaged.", lambda at: _known(at, at.rooms.logs.health.having(Health.SUSPECT))),
    _gauge("pybroker_incomplete_replicas", "Replicas of this broker whose log is being copied again from its beginning. Until the copy is complete, such a replica must not lead.", lambda at: _known(at, at.rooms.logs.health.having(Health.COPYING, Health.RESIGNED, Health.DAMAGED_COPY))),
    _gauge("pybroker_full_log_directories", "Log directories of this broker that accept no writes because the disk is full.", lambda at: len(at.rooms.full_directories())),
    _gauges("logDirectory", "pybroker_log_directory_free_bytes", "Free bytes in the file system of each log directory that has not failed.", lambda at: at.free_bytes),
    _gauges("listener", "pybroker_connections", "Open connections, by listener.", lambda at: at.rooms.connections()),
    _gauge("pybroker_unsent_bytes", "Bytes of responses that wait in the broker because clients read too slowly.", lambda at: at.rooms.unsent_bytes()),
    _gauge("pybroker_zookeeper_connected", "1 while this broker is connected to ZooKeeper and its session is alive, else 0.", lambda at: int(at.rooms.session.is_alive)),
)

OF_LOGS: Final = (
    LogFact(_partition("kafka_log_log_size", "The size in bytes of the partition's log on this broker."), lambda log: log.size_bytes),
    LogFact(_partition("kafka_log_log_logstartoffset", "The first offset that a reader of the partition's log on this broker may ask for."), lambda log: log.start),
    LogFact(_partition("kafka_log_log_logendoffset", "The offset that the next record in the partition's log on this broker gets."), lambda log: log.end),
    # kafka_exporter's names: each partition by its leader, the cluster by the controller
    LogFact(_partition("kafka_topic_partition_current_offset", "The partition's high watermark."), lambda log: log.high_watermark, of_leaders=True),
    LogFact(_partition("kafka_cluster_partition_laststableoffsetlag", "The number of offsets from the last stable offset to the high watermark. Consumers with read_committed cannot read the records at these offsets yet, because a transaction is open. Only the partition's leader shows this metric."), lambda log: log.high_watermark - log.last_stable, of_leaders=True),
    LogFact(_partition("kafka_topic_partition_oldest_offset", "The first offset that a reader of the partition may ask for."), lambda log: log.start, of_leaders=True),
)

OF_PARTITIONS: Final = (
    PartitionFact(_partition("kafka_topic_partition_in_sync_replica", "The number of in-sync replicas of the partition."), lambda row: row.isr),
    PartitionFact(_partition("kafka_topic_partition_leader", "The broker id of the partition's leader. If the partition has no leader, the controller shows this metric with the value -1."), lambda row: row.leader),
    PartitionFact(_partition("kafka_topic_partition_leader_is_preferred", "1 if the preferred (first) replica of the partition leads, else 0."), lambda row: int(row.leader == row.preferred)),
    PartitionFact(_partition("kafka_topic_partition_replicas", "The number of replicas of the partition."), lambda row: row.replicas),
    PartitionFact(_partition("kafka_topic_partition_under_replicated_partition", "1 if the partition has a replica out of sync, else 0."), lambda row: int(row.isr < row.replicas)),
)
# fmt: on

COUNTED: Final = (
    Metrics,
    CleanerCounters,
    FetcherCounters,
    FetchSessionCounters,
    GroupCounters,
    SessionWatch,
)
"""The classes whose fields are metrics, except TopicCounters, whose metrics have a value per topic.
"""

FAMILIES: Final[Mapping[str, Family]] = {
    family.name: family
    for family in (
        *(BUILD_INFO, READY, BROKER_STATE, IDLE, LOOP_LAG, REQUESTS, REQUEST_TIMES),
        *(row.family for row in ROWS),
        *chain.from_iterable(families_of(table).values() for table in COUNTED),
        *families_of(TopicCounters).values(),
        TOPIC_PARTITIONS,
        *(fact.family for fact in OF_LOGS),
        *(fact.family for fact in OF_PARTITIONS),
        *(row.family for row in OF_GROUPS),
    )
}
"""All metric families of the page, by name."""
