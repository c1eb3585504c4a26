"""The metrics by name: what each is, and what it means. Names and units are those that the
dashboards for Kafka's JMX exporter and for kafka_exporter ask for; what neither has begins with
`pybroker_`.

The list is the only one: nothing is written that is not in it, and the documents show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
SUMMARY: Final = "summary"


class Family(NamedTuple):
    """A name with its kind, its labels and a sentence."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


_ROWS: Final = (
    # what a broker is and does
    ("kafka_server_kafkaserver_brokerstate", GAUGE, "", "Where the broker is in its life: 1 starting, 2 recovering its logs, 3 running, 7 stopping."),
    ("kafka_server_replicamanager_underreplicatedpartitions", GAUGE, "", "Partitions led here with fewer replicas in sync than they have."),
    ("kafka_server_replicamanager_underminisrpartitioncount", GAUGE, "", "Partitions led here with fewer replicas in sync than min.insync.replicas."),
    ("kafka_server_replicamanager_atminisrpartitioncount", GAUGE, "", "Partitions led here with exactly min.insync.replicas in sync."),
    ("kafka_server_replicamanager_leadercount", GAUGE, "", "Partitions led here."),
    ("kafka_server_replicamanager_partitioncount", GAUGE, "", "Replicas that are open here."),
    ("kafka_server_replicamanager_offlinereplicacount", GAUGE, "", "Replicas that belong here and are not served: not opened, or their directory has failed."),
    ("kafka_server_replicamanager_isrshrinks_total", COUNTER, "", "Replicas that fell out of sync."),
    ("kafka_server_replicamanager_isrexpands_total", COUNTER, "", "Replicas that came back in sync."),
    ("kafka_server_replicamanager_failedisrupdates_total", COUNTER, "", "Changes of in-sync replicas that were not stored as proposed."),
    ("kafka_server_replicafetchermanager_maxlag", GAUGE, "", "How many offsets the replica that is furthest behind lacks of its leader's high watermark."),
    ("kafka_server_replicafetchermanager_failedpartitionscount", GAUGE, "", "Partitions that are to be copied from their leaders and cannot be at the moment."),
    ("kafka_server_fetcherstats_requests_total", COUNTER, "broker", "Fetches from each broker that leads."),
    ("kafka_server_fetcherstats_bytes_total", COUNTER, "broker", "Bytes of record batches that were copied from each."),
    ("kafka_server_fetchsessioncache_numincrementalfetchsessions", GAUGE, "", "Fetch sessions that are remembered, of consumers and followers."),
    ("kafka_server_fetchsessioncache_numincrementalfetchpartitionscached", GAUGE, "", "Partitions in all fetch sessions together."),
    ("kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total", COUNTER, "", "Fetch sessions that had to make room for others."),
    ("kafka_log_logmanager_offlinelogdirectorycount", GAUGE, "", "Log directories that have failed."),
    ("kafka_log_logflushstats_logflushrateandtimems", SUMMARY, "", "Times of making a log's file durable, in ms."),
    # the controller
    ("kafka_controller_kafkacontroller_activecontrollercount", GAUGE, "", "1 if this broker is the controller, else 0."),
    ("kafka_controller_kafkacontroller_offlinepartitionscount", GAUGE, "", "Partitions without a leader; 0 where this broker is not the controller, as in the next four."),
    ("kafka_controller_kafkacontroller_preferredreplicaimbalancecount", GAUGE, "", "Partitions that another than their first replica leads."),
    ("kafka_controller_kafkacontroller_globaltopiccount", GAUGE, "", "Topics of the cluster."),
    ("kafka_controller_kafkacontroller_globalpartitioncount", GAUGE, "", "Partitions of the cluster."),
    ("kafka_controller_kafkacontroller_activebrokercount", GAUGE, "", "Brokers that are registered."),
    ("kafka_controller_controllerstats_uncleanleaderelections_total", COUNTER, "", "Leaders chosen outside the in-sync replicas: records may be lost."),
    ("kafka_controller_controllerstats_leaderelectionrateandtimems", SUMMARY, "", "Times in which the controller found leaders after brokers had come or gone, in ms, until all was stored."),
    # the groups that this broker coordinates
    ("kafka_coordinator_group_groupmetadatamanager_numgroups", GAUGE, "", "Consumer groups that have members, or had some."),
    ("kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance", GAUGE, "", "Those that wait for their members to join."),
    ("kafka_coordinator_group_groupmetadatamanager_numgroupscompletingrebalance", GAUGE, "", "Those that wait for their leader's assignment."),
    ("kafka_coordinator_group_groupmetadatamanager_numgroupsstable", GAUGE, "", "Those whose members have their assignments."),
    ("kafka_coordinator_group_groupmetadatamanager_numgroupsempty", GAUGE, "", "Those without members."),
    ("kafka_server_group_coordinator_metrics_group_completed_rebalance_count", GAUGE, "", "Generations since the start whose leader handed over an assignment."),
    ("kafka_server_group_coordinator_metrics_partition_load_time_max", GAUGE, "", "The longest time since the start in which a partition of __consumer_offsets was loaded, in ms."),
    ("kafka_server_group_coordinator_metrics_partition_load_time_avg", GAUGE, "", "The mean of those times, in ms."),
    ("pybroker_group_coordinator_partitions", GAUGE, "", "Partitions of __consumer_offsets that are coordinated here."),
    ("pybroker_group_coordinator_partitions_loading", GAUGE, "", "Those that are being loaded: their groups have no coordinator yet."),
    # traffic; without a label the sum over all topics
    ("kafka_server_brokertopicmetrics_messagesin_total", COUNTER, "topic", "Records that producers wrote; without a topic, as in all of these, the sum over all topics."),
    ("kafka_server_brokertopicmetrics_bytesin_total", COUNTER, "topic", "Bytes of record batches that producers wrote, as they came."),
    ("kafka_server_brokertopicmetrics_bytesout_total", COUNTER, "topic", "Bytes of record batches that were sent to readers."),
    ("kafka_server_brokertopicmetrics_replicationbytesin_total", COUNTER, "", "Bytes of record batches that were copied from leaders; those are not in the others."),
    ("kafka_server_brokertopicmetrics_replicationbytesout_total", COUNTER, "", "Bytes of record batches that were sent to followers; those are not in the others."),
    ("kafka_server_brokertopicmetrics_totalproducerequests_total", COUNTER, "topic", "Writes to a partition, taken or not."),
    ("kafka_server_brokertopicmetrics_failedproducerequests_total", COUNTER, "topic", "Writes to a partition that were refused."),
    ("kafka_server_brokertopicmetrics_totalfetchrequests_total", COUNTER, "topic", "Reads of a partition that were answered."),
    ("kafka_server_brokertopicmetrics_failedfetchrequests_total", COUNTER, "topic", "Reads of a partition that failed."),
    # requests
    ("kafka_network_requestmetrics_requests_total", COUNTER, "request", "Requests by API."),
    ("kafka_network_requestmetrics_totaltimems", SUMMARY, "request", "Time from a request to its answer by API, in ms, including waiting for data or replicas. The quantiles are those of the last minute."),
    ("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", GAUGE, "", "The share of the last minute, 0 to 1, in which the event loop's thread used no CPU. There are no handler threads here; below 0.3 the broker is near its limit, as in Kafka."),
    ("kafka_server_delayedoperationpurgatory_purgatorysize", GAUGE, "delayedOperation", "Partitions that waiting requests watch: Fetch for data, Produce for replicas."),
    ("kafka_server_sessionexpirelistener_zookeeperexpires_total", COUNTER, "", "Sessions with ZooKeeper that expired."),
    ("kafka_server_sessionexpirelistener_zookeeperdisconnects_total", COUNTER, "", "Connections with ZooKeeper that were lost."),
    ("kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms", SUMMARY, "", "Times of requests to ZooKeeper that were answered, in ms."),
    # logs of the partitions that are here
    ("kafka_log_log_size", GAUGE, "topic partition", "Bytes of the log."),
    ("kafka_log_log_logstartoffset", GAUGE, "topic partition", "The first offset that can be read."),
    ("kafka_log_log_logendoffset", GAUGE, "topic partition", "The offset that the next record gets."),
    # kafka_exporter's names: each partition by its leader, the cluster by the controller
    ("kafka_brokers", GAUGE, "", "Brokers that are registered; told by the controller only."),
    ("kafka_topic_partitions", GAUGE, "topic", "Partitions of the topic; told by the controller only."),
    ("kafka_topic_partition_current_offset", GAUGE, "topic partition", "The high watermark; told, as all of these, by the partition's leader only."),
    ("kafka_topic_partition_oldest_offset", GAUGE, "topic partition", "The first offset that can be read."),
    ("kafka_topic_partition_in_sync_replica", GAUGE, "topic partition", "How many replicas are in sync."),
    ("kafka_topic_partition_leader", GAUGE, "topic partition", "The leader's broker id; -1 without one (told by the controller)."),
    ("kafka_topic_partition_leader_is_preferred", GAUGE, "topic partition", "1 if the first replica leads."),
    ("kafka_topic_partition_replicas", GAUGE, "topic partition", "How many replicas the partition has."),
    ("kafka_topic_partition_under_replicated_partition", GAUGE, "topic partition", "1 if fewer are in sync."),
    # kafka_exporter's names: the groups that this broker coordinates
    ("kafka_consumergroup_members", GAUGE, "consumergroup", "Members of the group; told, as all of these, by the group's coordinator only, and at most 10 s old."),
    ("kafka_consumergroup_current_offset", GAUGE, "consumergroup topic partition", "What the group has committed: the offset of the next record that it reads."),
    ("kafka_consumergroup_current_offset_sum", GAUGE, "consumergroup topic", "The sum of these over the partitions of a topic."),
    ("kafka_consumergroup_lag", GAUGE, "consumergroup topic partition", "Offsets from what is committed to the high watermark, which is read after it; never negative."),
    ("kafka_consumergroup_lag_sum", GAUGE, "consumergroup topic", "The sum of these over the partitions of a topic."),
    ("pybroker_group_lag_bytes", GAUGE, "consumergroup topic partition", "The lag in bytes of the log, estimated as if all its offsets were of the same size. This and the next are left out where groups have committed offsets of more than 1,000 partitions here."),
    ("pybroker_group_lag_seconds", GAUGE, "consumergroup topic partition", "The age of the oldest record that the group has not consumed, by its timestamp; 0 if it has consumed all."),
    ("pybroker_group_lag_age_seconds", GAUGE, "", "How long ago the offsets of groups were read."),
    # what only this broker has
    ("pybroker_build_info", GAUGE, "version python broker_id cluster_id", "Always 1; the labels say what runs."),
    ("pybroker_ready", GAUGE, "condition", "1 for each condition of /readyz that holds, else 0."),
    ("pybroker_damaged_replicas", GAUGE, "", "Replicas with a hole in their log, including those in use because no other replica has more."),
    ("pybroker_suspect_replicas", GAUGE, "", "Replicas that may lack records since the machine went down; each counts until it is in sync again."),
    ("pybroker_incomplete_replicas", GAUGE, "", "Replicas that are copied anew; none may lead before its copy is complete."),
    ("pybroker_full_log_directories", GAUGE, "", "Log directories that refused a write because the disk was full, and take no writes yet."),
    ("pybroker_log_directory_free_bytes", GAUGE, "logDirectory", "Free bytes in the file system of each log directory in use."),
    ("pybroker_event_loop_lag_seconds", SUMMARY, "", "How late the event loop was for a timer, asked five times a second."),
    ("pybroker_connections", GAUGE, "listener", "Open connections."),
    ("pybroker_connections_accepted_total", COUNTER, "listener", "Connections that were accepted."),
    ("pybroker_connections_closed_total", COUNTER, "reason", "Connections that ended, by who or what ended them: peer, idle, slow, limit, malformed, refused, fault, shutdown."),
    ("pybroker_unsent_bytes", GAUGE, "", "Bytes of answers that wait for clients which read slowly."),
    ("pybroker_zookeeper_connected", GAUGE, "", "1 while the session with ZooKeeper is alive and connected."),
)  # fmt: skip

FAMILIES: Final[Mapping[str, Family]] = {
    name: Family(name, kind, tuple(labels.split()), meaning)
    for name, kind, labels, meaning in _ROWS
}
"""Name -> family, in the order of the page."""
