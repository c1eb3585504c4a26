"""The table of the broker's options (`server.properties`), as in Kafka 3.9 in ZooKeeper mode. An
option with `effective=False` is accepted with a warning, and has no effect."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from pybroker.config.declaration import (
    UpdateMode,
    boolean,
    double,
    integer,
    listing,
    long,
    short,
    string,
)
from pybroker.config.kafka_versions import VERSION, VERSION_SHAPE
from pybroker.config.listeners import PROTOCOLS

INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1
COMPACTION: Final = "compact"
DELETION: Final = "delete"
CLEANUP_POLICIES: Final = (COMPACTION, DELETION)
COMPRESSION_TYPES: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")

_CLUSTER: Final = UpdateMode.CLUSTER_WIDE
_PROTOCOL_MAP: Final = ",".join(f"{protocol}:{protocol}" for protocol in PROTOCOLS)


@dataclass(frozen=True, slots=True)
class BrokerOptionTable:
    """The values of all options of one broker; each field also declares its option."""

    # fmt: off
    broker_id: int = integer("broker.id", -1, "The id of this broker in the cluster; -1 lets ZooKeeper generate one.")
    broker_id_generation_enable: bool = boolean("broker.id.generation.enable", True, "Whether ZooKeeper generates an id for a broker whose broker.id is -1.")
    reserved_broker_max_id: int = integer("reserved.broker.max.id", 1000, "The highest broker id that may be configured; generated ids begin above it.", minimum=0)
    broker_rack: str | None = string("broker.rack", None, "The rack of the broker. The replicas of a new partition are placed on brokers of different racks if possible.")
    listeners: str = string("listeners", "PLAINTEXT://:9092", "The addresses to listen on, NAME://HOST:PORT, separated by commas; no host means all interfaces.")
    advertised_listeners: str | None = string("advertised.listeners", None, "The addresses to which clients connect, NAME://HOST:PORT, separated by commas. If the option is not set, the broker advertises the addresses of the option listeners.", update=UpdateMode.PER_BROKER)
    listener_security_protocol_map: str = string("listener.security.protocol.map", _PROTOCOL_MAP, "The security protocol of each listener name, NAME:PROTOCOL, separated by commas.")
    inter_broker_listener_name: str | None = string("inter.broker.listener.name", None, "The name of the listener to which other brokers connect. If the option is not set, the broker uses the name in security.inter.broker.protocol.")
    security_inter_broker_protocol: str = string("security.inter.broker.protocol", "PLAINTEXT", "The security protocol between brokers. If inter.broker.listener.name is not set, brokers use the listener with the name of this protocol.", choices=PROTOCOLS)

    zookeeper_connect: str | None = string("zookeeper.connect", None, "The ZooKeeper ensemble, HOST:PORT,HOST:PORT/chroot. If this option is not set, the broker starts its own embedded ZooKeeper.")
    zookeeper_session_timeout_ms: int = integer("zookeeper.session.timeout.ms", 18_000, "The timeout of the broker's ZooKeeper session. After this time without a heartbeat from the broker, ZooKeeper removes the broker's registration.", minimum=1)
    zookeeper_connection_timeout_ms: int | None = integer("zookeeper.connection.timeout.ms", None, "How long the start of the broker waits for an answer of ZooKeeper. If this option is not set, the start waits for zookeeper.session.timeout.ms.", minimum=1)

    log_dir: str = string("log.dir", "/tmp/kafka-logs", "The directory of the partitions' logs, if log.dirs is not set.")
    log_dirs: str | None = string("log.dirs", None, "The directories of the partitions' logs, separated by commas.")
    num_partitions: int = integer("num.partitions", 1, "The number of partitions of a topic that is created without a number of partitions.", minimum=1)
    default_replication_factor: int = integer("default.replication.factor", 1, "The replication factor of a topic that is created without a replication factor.", minimum=1, maximum=32_767)
    auto_create_topics_enable: bool = boolean("auto.create.topics.enable", True, "Whether a client's Metadata request creates missing topics.")
    delete_topic_enable: bool = boolean("delete.topic.enable", True, "Whether topics may be deleted.")
    min_insync_replicas: int = integer("min.insync.replicas", 1, "The minimum number of in-sync replicas. If a partition has fewer, a write with acks=all is rejected.", minimum=1, update=_CLUSTER)
    unclean_leader_election_enable: bool = boolean("unclean.leader.election.enable", False, "Whether the controller may elect an out-of-sync replica as leader if no in-sync replica is alive. Such an election may lose committed records.", update=_CLUSTER)
    message_max_bytes: int = integer("message.max.bytes", 1_048_588, "The maximum size, in bytes, of a record batch that a producer sends. For a compressed batch the compressed size counts.", minimum=0, update=_CLUSTER)
    compression_type: str = string("compression.type", "producer", "The compression codec in which batches are stored; producer means that each batch keeps the producer's codec.", choices=COMPRESSION_TYPES, update=_CLUSTER)

    log_segment_bytes: int = integer("log.segment.bytes", 1 << 30, "The size, in bytes, at which a segment is closed and the log begins a new one.", minimum=14, update=_CLUSTER)
    log_roll_ms: int | None = long("log.roll.ms", None, "The age at which a segment is closed and the log begins a new one. If this option is not set, log.roll.hours applies.", minimum=1, update=_CLUSTER)
    log_roll_hours: int = integer("log.roll.hours", 168, "The age at which a segment is closed and the log begins a new one.", minimum=1)
    log_roll_jitter_ms: int | None = long("log.roll.jitter.ms", None, "Each segment is closed earlier than at its maximum age, by a random time of up to this value. This keeps many logs from beginning new segments at the same time. If the option is not set, log.roll.jitter.hours applies.", minimum=0, update=_CLUSTER)
    log_roll_jitter_hours: int = integer("log.roll.jitter.hours", 0, "Each segment is closed earlier than at its maximum age, by a random time of up to this value. This keeps many logs from beginning new segments at the same time.", minimum=0)
    log_retention_ms: int | None = long("log.retention.ms", None, "The age at which a segment is deleted; -1 means never. If this option is not set, log.retention.minutes applies.", update=_CLUSTER)
    log_retention_minutes: int | None = integer("log.retention.minutes", None, "The age at which a segment is deleted; -1 means never. If this option is not set, log.retention.hours applies.")
    log_retention_hours: int = integer("log.retention.hours", 168, "The age at which a segment is deleted; -1 means never.")
    log_retention_bytes: int = long("log.retention.bytes", -1, "The maximum size, in bytes, of a partition's log. Above this size the oldest segments are deleted; -1 means no limit.", update=_CLUSTER)
    log_retention_check_interval_ms: int = long("log.retention.check.interval.ms", 300_000, "How often the broker looks for segments that retention has to delete.", minimum=1)
    log_cleanup_policy: tuple[str, ...] = listing("log.cleanup.policy", ("delete",), "What happens to old records: delete removes them by age and size, compact keeps only the last record of each key.", choices=CLEANUP_POLICIES, update=_CLUSTER)
    log_index_size_max_bytes: int = integer("log.index.size.max.bytes", 10_485_760, "The maximum size, in bytes, of a segment's offset index, and of its time index.", minimum=4, update=_CLUSTER)
    log_index_interval_bytes: int = integer("log.index.interval.bytes", 4096, "How many bytes of the log are between two entries of an index.", minimum=0, update=_CLUSTER)
    log_flush_interval_messages: int = long("log.flush.interval.messages", LONG_MAX, "The number of new records after which a partition's log is synced to disk. With 1 each write is synced before it is acknowledged.", minimum=1, update=_CLUSTER)
    log_flush_interval_ms: int | None = long("log.flush.interval.ms", None, "The maximum time before a new record is synced to disk. If the option is not set, log.flush.scheduler.interval.ms applies.", update=_CLUSTER)
    log_flush_scheduler_interval_ms: int = long("log.flush.scheduler.interval.ms", LONG_MAX, "How often the broker looks for partitions whose logs have to be synced to disk.")
    log_segment_delete_delay_ms: int = long("log.segment.delete.delay.ms", 60_000, "How long the files of a deleted segment stay on disk, under another name, before they are removed.", minimum=0, update=_CLUSTER)
    log_message_timestamp_type: str = string("log.message.timestamp.type", "CreateTime", "Whether records keep the producer's timestamp or get the time at which the broker appends them.", choices=TIMESTAMP_TYPES, update=_CLUSTER)
    log_message_timestamp_difference_max_ms: int = long("log.message.timestamp.difference.max.ms", LONG_MAX, "Deprecated in Kafka. If log.message.timestamp.before.max.ms is not set, this option limits timestamps in the past. If log.message.timestamp.after.max.ms is not set, this option limits timestamps in the future.", minimum=0, update=_CLUSTER)
    log_message_timestamp_before_max_ms: int = long("log.message.timestamp.before.max.ms", LONG_MAX, "How far in the past the timestamp of a new record may be. A record with an earlier timestamp is rejected.", minimum=0, update=_CLUSTER)
    log_message_timestamp_after_max_ms: int = long("log.message.timestamp.after.max.ms", LONG_MAX, "How far in the future the timestamp of a new record may be. A record with a later timestamp is rejected.", minimum=0, update=_CLUSTER)

    socket_request_max_bytes: int = integer("socket.request.max.bytes", 104_857_600, "The maximum size of a request, in bytes. If a client sends a larger request, its connection is closed.", minimum=1)
    socket_send_buffer_bytes: int = integer("socket.send.buffer.bytes", 102_400, "The size, in bytes, of a connection's send buffer (SO_SNDBUF). With -1, or if the configuration does not name the option, the operating system adapts the size. An adapted size halves the processor time of large responses. DescribeConfigs reports Kafka's default if the configuration does not name the option.")
    socket_receive_buffer_bytes: int = integer("socket.receive.buffer.bytes", 102_400, "The size, in bytes, of a connection's receive buffer (SO_RCVBUF). With -1, or if the configuration does not name the option, the operating system adapts the size. An adapted size halves the processor time of large requests. DescribeConfigs reports Kafka's default if the configuration does not name the option.")
    socket_listen_backlog_size: int = integer("socket.listen.backlog.size", 50, "How many connections of a listener may wait to be accepted. If the configuration does not name the option, the broker uses the limit of the operating system, because Kafka's default of 50 can be too small when many clients connect at the same time. DescribeConfigs reports Kafka's default if the configuration does not name the option.", minimum=1)
    max_connections: int = integer("max.connections", INT_MAX, "The maximum number of open connections of the broker. Further connections wait until an open connection closes.", minimum=0, update=_CLUSTER)
    max_connection_creation_rate: int = integer("max.connection.creation.rate", INT_MAX, "The maximum number of connections that the broker accepts per second. Further connections wait for the next second.", minimum=0, update=_CLUSTER)
    max_connections_per_ip: int = integer("max.connections.per.ip", INT_MAX, "The maximum number of open connections from one IP address. Further connections are closed at once.", minimum=0, update=_CLUSTER)
    max_connections_per_ip_overrides: str = string("max.connections.per.ip.overrides", "", "The maximum number of open connections from certain IP addresses, in place of max.connections.per.ip: ADDRESS:COUNT, separated by commas. Host names are rejected.", update=_CLUSTER)
    connections_max_idle_ms: int = long("connections.max.idle.ms", 600_000, "A connection that carries no request and no response for this time is closed. With a negative time idle connections stay open.")
    queued_max_request_bytes: int = long("queued.max.request.bytes", -1, "The maximum memory, in bytes, that all requests together may use while they are received or handled. If this memory is used up, further requests wait. Requests of up to 64 KiB do not count and never wait. -1 means no limit.", minimum=-1)
    fetch_max_bytes: int = integer("fetch.max.bytes", 57_671_680, "The maximum size of a Fetch response, in bytes.", minimum=1024)

    replica_high_watermark_checkpoint_interval_ms: int = long("replica.high.watermark.checkpoint.interval.ms", 5_000, "How often the broker writes the high watermarks of its replicas to the checkpoint file.", minimum=1)
    producer_id_expiration_ms: int = integer("producer.id.expiration.ms", 86_400_000, "How long a partition keeps the state of an idempotent producer that writes nothing more.", minimum=1, update=_CLUSTER)
    group_min_session_timeout_ms: int = integer("group.min.session.timeout.ms", 6_000, "The shortest session timeout that a member of a group may request.")
    group_max_session_timeout_ms: int = integer("group.max.session.timeout.ms", 1_800_000, "The longest session timeout that a member of a group may request.")
    group_max_size: int = integer("group.max.size", INT_MAX, "The maximum number of members of a group.", minimum=1)
    group_initial_rebalance_delay_ms: int = integer("group.initial.rebalance.delay.ms", 3_000, "How long the first rebalance of an empty group waits for more members.", minimum=0)
    offsets_retention_minutes: int = integer("offsets.retention.minutes", 10_080, "How long committed offsets are kept after their group has become empty. If the group never had members, the time counts from the commit.", minimum=1)
    offsets_retention_check_interval_ms: int = long("offsets.retention.check.interval.ms", 600_000, "How often a coordinator looks for expired offsets and unused groups, and removes them.", minimum=1)
    offsets_topic_num_partitions: int = integer("offsets.topic.num.partitions", 50, "The number of partitions of __consumer_offsets. This number must never change.", minimum=1)
    offsets_topic_replication_factor: int = short("offsets.topic.replication.factor", 3, "The replication factor of __consumer_offsets.", minimum=1)
    offsets_topic_segment_bytes: int = integer("offsets.topic.segment.bytes", 104_857_600, "The size, in bytes, of the segments of __consumer_offsets.", minimum=14)
    offsets_load_buffer_size: int = integer("offsets.load.buffer.size", 5_242_880, "How many bytes a coordinator reads at a time when it loads its groups.", minimum=1)
    offsets_topic_compression_codec: int = integer("offsets.topic.compression.codec", 0, "The compression codec of the batches in __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.", minimum=0, maximum=4)
    offsets_commit_timeout_ms: int = integer("offsets.commit.timeout.ms", 5_000, "How long an offset commit may wait until it is stored. After that it fails.", minimum=1)
    offset_metadata_max_bytes: int = integer("offset.metadata.max.bytes", 4_096, "The maximum length, in characters instead of bytes, of the metadata that a client stores with a committed offset.")
    offsets_storage: str = string("offsets.storage", "zookeeper", "Where the committed offsets of groups are stored. With zookeeper they are in the ZooKeeper nodes of Kafka 0.8. With kafka they are in __consumer_offsets, as in Apache Kafka since 0.9. After a change of this option the broker moves the offsets to the new place.", choices=("zookeeper", "kafka"))
    transaction_state_log_num_partitions: int = integer("transaction.state.log.num.partitions", 50, "The number of partitions of __transaction_state. This number must never change.", minimum=1)
    transaction_state_log_replication_factor: int = short("transaction.state.log.replication.factor", 3, "The replication factor of __transaction_state.", minimum=1)
    transaction_state_log_min_isr: int = integer("transaction.state.log.min.isr", 2, "The min.insync.replicas of __transaction_state.", minimum=1)
    transaction_state_log_segment_bytes: int = integer("transaction.state.log.segment.bytes", 104_857_600, "The size, in bytes, of the segments of __transaction_state.", minimum=14)
    transaction_max_timeout_ms: int = integer("transaction.max.timeout.ms", 900_000, "The longest timeout that a producer may request for its transactions. A longer timeout is rejected.", minimum=1)
    transactional_id_expiration_ms: int = integer("transactional.id.expiration.ms", 604_800_000, "How long a transactional id without an open transaction is kept after its last change.", minimum=1)
    transaction_state_log_load_buffer_size: int = integer("transaction.state.log.load.buffer.size", 5_242_880, "How many bytes a coordinator reads at a time when it loads its transactions.", minimum=1)
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = integer("transaction.abort.timed.out.transaction.cleanup.interval.ms", 10_000, "How often a coordinator aborts the transactions that are open for longer than their timeout.", minimum=1)
    transaction_remove_expired_transaction_cleanup_interval_ms: int = integer("transaction.remove.expired.transaction.cleanup.interval.ms", 3_600_000, "How often a coordinator removes expired transactional ids.", minimum=1)
    background_threads: int = integer("background.threads", 10, "The number of threads for blocking work, such as syncing and deleting files.", minimum=1, update=_CLUSTER)

    pybroker_idle_flush_interval_ms: int = long("pybroker.idle.flush.interval.ms", 30_000, "The broker syncs a segment to disk in the background within this time after the segment is closed. If a partition gets no more records, the broker syncs the active segment within this time after the last record.", minimum=100)
    pybroker_log_scrub_io_max_bytes_per_second: int = long("pybroker.log.scrub.io.max.bytes.per.second", 1_048_576, "The maximum rate, in bytes per second, at which the broker reads the logs of partitions to find damaged batches. 0 disables the search.", minimum=0)
    pybroker_log_scrub_interval_ms: int = long("pybroker.log.scrub.interval.ms", 604_800_000, "How often the broker searches the log of each partition for damaged batches. The first search begins when the broker starts.", minimum=1_000)
    pybroker_replica_fetch_idle_wait_max_ms: int = integer("pybroker.replica.fetch.idle.wait.max.ms", 6_000, "The maximum time that a leader waits before it answers the fetch of an idle follower. A follower is idle while none of its partitions changes. The wait is at most a fifth of replica.lag.time.max.ms. The option has an effect only if its value is above replica.fetch.wait.max.ms.", minimum=0)
    pybroker_request_read_timeout_ms: int = integer("pybroker.request.read.timeout.ms", 30_000, "How long a request may take to arrive. After this time the broker closes the connection, unless the request arrives at 4 KiB per second or faster on average.", minimum=1_000)
    pybroker_zookeeper_loss: str = string("pybroker.zookeeper.loss", "serve", "Which requests a leader answers while its broker cannot reach ZooKeeper. With serve the leader answers fetches, and produce requests with acks=all. The value serve loses no acknowledged record. With fence the leader answers no request.", choices=("serve", "fence"))
    pybroker_embedded_zookeeper_port: int = integer("pybroker.embedded.zookeeper.port", 2181, "The port of the embedded ZooKeeper on 127.0.0.1. If this option is set to a port that is in use, the start fails. If this option is set to 0, ZooKeeper uses the port of its last start if this port is free, else any free port. If this option is not set, ZooKeeper uses 2181 if 2181 is free, else a port as with the value 0. The broker logs the port.", minimum=0, maximum=65_535)
    pybroker_http_listener: str = string("pybroker.http.listener", "127.0.0.1:8090", "The address of the HTTP pages (health, readiness, metrics, configuration), HOST:PORT. An empty value disables the pages.")
    pybroker_log_dir: str | None = string("pybroker.log.dir", None, "The directory of server.log, controller.log and state-change.log. If this option is not set, the broker logs to standard output only, without the INFO lines about single partitions.")
    pybroker_log_format: str = string("pybroker.log.format", "text", "The format of log lines: text as in Kafka, or one JSON object per line.", choices=("text", "json"))
    pybroker_log_level: str = string("pybroker.log.level", "INFO", "The lowest level that is logged.", choices=("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"))
    pybroker_log_levels: str = string("pybroker.log.levels", "", "The lowest level that is logged by certain loggers, in place of pybroker.log.level: LOGGER=LEVEL, separated by commas.")
    pybroker_log_file_bytes: int = long("pybroker.log.file.bytes", 104_857_600, "The maximum size of a file in pybroker.log.dir, in bytes. A full file is renamed to NAME.1, and a new file begins.", minimum=4096)
    pybroker_log_files: int = integer("pybroker.log.files", 10, "How many renamed files (NAME.1, NAME.2, ...) are kept in pybroker.log.dir for each NAME.", minimum=1, maximum=1000)
    pybroker_log_config: str | None = string("pybroker.log.config", None, "A file in the format of Python's logging.config that configures all logging. If this option is set, these options have no effect: pybroker.log.dir, pybroker.log.format, pybroker.log.level, pybroker.log.levels, pybroker.log.file.bytes and pybroker.log.files.")

    # Options of controller, replication and network, and options without effect.
    auto_leader_rebalance_enable: bool = boolean("auto.leader.rebalance.enable", True, "Whether the controller moves the leadership of partitions back to their preferred leaders by itself.")
    leader_imbalance_per_broker_percentage: int = integer("leader.imbalance.per.broker.percentage", 10, "The controller looks at all partitions with the same preferred leader. If other brokers lead more than this percentage of the partitions, the controller moves the leadership back to the preferred leader.")
    leader_imbalance_check_interval_seconds: int = long("leader.imbalance.check.interval.seconds", 300, "How often the controller checks whether leader.imbalance.per.broker.percentage is exceeded.", minimum=1)
    unclean_leader_election_interval_ms: int = long("unclean.leader.election.interval.ms", 300_000, "How often the controller looks for partitions that need an unclean election.", minimum=1, effective=False)
    controlled_shutdown_enable: bool = boolean("controlled.shutdown.enable", True, "Whether a stopping broker first asks the controller to move the broker's leaderships to other brokers.")
    controlled_shutdown_max_retries: int = integer("controlled.shutdown.max.retries", 3, "How many times a stopping broker attempts its controlled shutdown.")
    controlled_shutdown_retry_backoff_ms: int = long("controlled.shutdown.retry.backoff.ms", 5_000, "The pause after a failed attempt of the controlled shutdown, before the next attempt.")
    controller_socket_timeout_ms: int = integer("controller.socket.timeout.ms", 30_000, "How long the controller waits for a broker's answer to a command.")
    inter_broker_protocol_version: str = string("inter.broker.protocol.version", "3.9-IV0", "The Kafka version of the protocol between brokers.", pattern=VERSION, shape=VERSION_SHAPE, effective=False)
    request_timeout_ms: int = integer("request.timeout.ms", 30_000, "How long the broker waits for answers to its own requests.")
    replica_lag_time_max_ms: int = long("replica.lag.time.max.ms", 30_000, "The leader removes a follower from the ISR if the follower has not reached the end of the leader's log within this time.")
    replica_socket_timeout_ms: int = integer("replica.socket.timeout.ms", 30_000, "How long a follower waits for its leader's answer.")
    replica_socket_receive_buffer_bytes: int = integer("replica.socket.receive.buffer.bytes", 65_536, "The size, in bytes, of the receive buffer (SO_RCVBUF) of a follower's connections. With -1, or if the configuration does not name the option, the operating system adapts the size. DescribeConfigs reports Kafka's default if the configuration does not name the option.")
    replica_fetch_max_bytes: int = integer("replica.fetch.max.bytes", 1_048_576, "The maximum size, in bytes, of one partition's records in the answer to a follower's fetch.", minimum=0)
    replica_fetch_response_max_bytes: int = integer("replica.fetch.response.max.bytes", 10_485_760, "The maximum size, in bytes, of all records in the answer to a follower's fetch.", minimum=0)
    replica_fetch_min_bytes: int = integer("replica.fetch.min.bytes", 1, "How many bytes of new records a leader waits for before it answers a follower's fetch.")
    replica_fetch_wait_max_ms: int = integer("replica.fetch.wait.max.ms", 500, "The maximum time that a leader waits for replica.fetch.min.bytes before it answers a follower's fetch.")
    replica_fetch_backoff_ms: int = integer("replica.fetch.backoff.ms", 1_000, "How long a follower waits after a failed fetch before it fetches again.", minimum=0)
    replica_selector_class: str | None = string("replica.selector.class", None, "The Java class that chooses the replica from which a consumer reads.", effective=False)
    num_replica_fetchers: int = integer("num.replica.fetchers", 1, "The number of connections to each leader's broker over which this broker fetches as a follower.", update=_CLUSTER, effective=False)
    num_replica_alter_log_dirs_threads: int | None = integer("num.replica.alter.log.dirs.threads", None, "The number of threads that move replicas between log directories. If the option is not set, there is one thread for each directory.", effective=False)
    num_recovery_threads_per_data_dir: int = integer("num.recovery.threads.per.data.dir", 1, "The number of threads that recover logs at the start and sync logs at the stop, for each log directory.", minimum=1, update=_CLUSTER, effective=False)

    num_network_threads: int = integer("num.network.threads", 3, "The number of threads that read requests and write responses, for each listener. This broker reads and writes in one event loop.", minimum=1, update=_CLUSTER, effective=False)
    num_io_threads: int = integer("num.io.threads", 8, "The number of threads that handle requests. This broker handles all requests in one event loop.", minimum=1, update=_CLUSTER, effective=False)
    queued_max_requests: int = integer("queued.max.requests", 500, "How many requests may wait to be handled.", minimum=1, effective=False)
    max_incremental_fetch_session_cache_slots: int = integer("max.incremental.fetch.session.cache.slots", 1_000, "The maximum number of cached incremental fetch sessions.", minimum=0)
    max_request_partition_size_limit: int = integer("max.request.partition.size.limit", 2_000, "The maximum number of partitions in a DescribeTopicPartitions response.", minimum=1, effective=False)
    fetch_purgatory_purge_interval_requests: int = integer("fetch.purgatory.purge.interval.requests", 1_000, "The number of requests after which completed fetches are removed from the purgatory. This broker removes them at once.", effective=False)
    producer_purgatory_purge_interval_requests: int = integer("producer.purgatory.purge.interval.requests", 1_000, "The number of requests after which completed produce requests are removed from the purgatory. This broker removes them at once.", effective=False)
    delete_records_purgatory_purge_interval_requests: int = integer("delete.records.purgatory.purge.interval.requests", 1, "The number of requests after which completed DeleteRecords requests are removed from the purgatory. This broker removes them at once.", effective=False)
    connections_max_reauth_ms: int = long("connections.max.reauth.ms", 0, "How long an authenticated connection may be used without reauthentication; 0 means no limit.", effective=False)
    connection_failed_authentication_delay_ms: int = integer("connection.failed.authentication.delay.ms", 100, "How long a connection that failed to authenticate is kept before it is closed.", minimum=0, effective=False)
    socket_connection_setup_timeout_ms: int = long("socket.connection.setup.timeout.ms", 10_000, "How long the broker waits for a connection to another broker.")
    socket_connection_setup_timeout_max_ms: int = long("socket.connection.setup.timeout.max.ms", 30_000, "How long the broker waits for a connection to another broker after repeated failures.", effective=False)
    zookeeper_set_acl: bool = boolean("zookeeper.set.acl", False, "Whether ACLs protect the nodes in ZooKeeper. This broker cannot set ACLs: with true the start fails.", effective=False)
    authorizer_class_name: str = string("authorizer.class.name", "", "The Java class of the authorizer. This broker has no authorizer: if a class is set, the start fails.", effective=False)
    zookeeper_max_in_flight_requests: int = integer("zookeeper.max.in.flight.requests", 10, "The maximum number of requests to ZooKeeper that have no answer yet.", minimum=1, effective=False)

    compression_gzip_level: int = integer("compression.gzip.level", -1, "The compression level with which the broker compresses batches with gzip; -1 means the codec's default.", minimum=-1, maximum=9, excluded=(0,), update=_CLUSTER)
    compression_lz4_level: int = integer("compression.lz4.level", 9, "The compression level with which the broker compresses batches with lz4.", minimum=1, maximum=17, update=_CLUSTER)
    compression_zstd_level: int = integer("compression.zstd.level", 3, "The compression level with which the broker compresses batches with zstd.", minimum=-131_072, maximum=22, update=_CLUSTER)
    log_cleaner_enable: bool = boolean("log.cleaner.enable", True, "Whether log compaction runs.")
    log_cleaner_threads: int = integer("log.cleaner.threads", 1, "The number of threads of log compaction.", minimum=0, update=_CLUSTER)
    log_cleaner_io_max_bytes_per_second: float = double("log.cleaner.io.max.bytes.per.second", sys.float_info.max, "The maximum rate, in bytes per second, at which log compaction reads logs.", update=_CLUSTER)
    log_cleaner_dedupe_buffer_size: int = long("log.cleaner.dedupe.buffer.size", 134_217_728, "The memory, in bytes, in which all threads of log compaction together collect the keys of records.", update=_CLUSTER)
    log_cleaner_io_buffer_size: int = integer("log.cleaner.io.buffer.size", 524_288, "The memory, in bytes, of the buffers with which all threads of log compaction together read and write.", minimum=0, update=_CLUSTER, effective=False)
    log_cleaner_io_buffer_load_factor: float = double("log.cleaner.io.buffer.load.factor", 0.9, "How full (0 to 1) the memory for the keys of log compaction may become.", update=_CLUSTER)
    log_cleaner_backoff_ms: int = long("log.cleaner.backoff.ms", 15_000, "If no log has to be compacted, log compaction waits this time before it looks at the logs again.", minimum=0, update=_CLUSTER)
    log_cleaner_min_cleanable_ratio: float = double("log.cleaner.min.cleanable.ratio", 0.5, "A log is compacted again when more than this share (0 to 1) of its bytes has not been compacted yet.", minimum=0, maximum=1, update=_CLUSTER)
    log_cleaner_delete_retention_ms: int = long("log.cleaner.delete.retention.ms", 86_400_000, "How long a compacted topic keeps the tombstones of deleted keys.", minimum=0, update=_CLUSTER)
    log_cleaner_min_compaction_lag_ms: int = long("log.cleaner.min.compaction.lag.ms", 0, "The minimum age of a record that is compacted. Younger records are left for a later run of the log cleaner.", minimum=0, update=_CLUSTER)
    log_cleaner_max_compaction_lag_ms: int = long("log.cleaner.max.compaction.lag.ms", LONG_MAX, "The maximum age of an uncompacted record. If a log has an older uncompacted record, the log is compacted, even if few of its bytes are uncompacted.", minimum=1, update=_CLUSTER)
    log_flush_offset_checkpoint_interval_ms: int = integer("log.flush.offset.checkpoint.interval.ms", 60_000, "How often the recovery points are written to their checkpoint file. This broker writes them together with the high watermarks.", minimum=0, effective=False)
    log_flush_start_offset_checkpoint_interval_ms: int = integer("log.flush.start.offset.checkpoint.interval.ms", 60_000, "How often the log start offsets are written to their checkpoint file. This broker writes them together with the high watermarks.", minimum=0, effective=False)
    log_preallocate: bool = boolean("log.preallocate", False, "Whether the disk space of a new segment is allocated at once.", update=_CLUSTER, effective=False)
    log_message_format_version: str = string("log.message.format.version", "3.0-IV1", "Without effect since Kafka 3.0: batches always have the newest message format.", pattern=VERSION, shape=VERSION_SHAPE, effective=False)
    log_message_downconversion_enable: bool = boolean("log.message.downconversion.enable", True, "Whether batches are converted to an older message format for old clients.", update=_CLUSTER, effective=False)

    offsets_commit_required_acks: int = short("offsets.commit.required.acks", -1, "The acks with which a coordinator writes committed offsets; this option must not be changed.", effective=False)
    transaction_partition_verification_enable: bool = boolean("transaction.partition.verification.enable", True, "Whether a transactional write is rejected if its partition was not added to the transaction.", update=_CLUSTER)
    producer_id_expiration_check_interval_ms: int = integer("producer.id.expiration.check.interval.ms", 600_000, "How often expired producer ids are removed.", minimum=1, effective=False)

    metric_reporters: tuple[str, ...] = listing("metric.reporters", (), "Java classes to which metrics are reported.", update=_CLUSTER, effective=False)
    metrics_num_samples: int = integer("metrics.num.samples", 2, "Over how many windows of time a metric is computed.", minimum=1, effective=False)
    metrics_recording_level: str = string("metrics.recording.level", "INFO", "The level of detail of the metrics that are recorded.", choices=("INFO", "DEBUG", "TRACE"), effective=False)
    metrics_sample_window_ms: int = long("metrics.sample.window.ms", 30_000, "The length of a window of time over which metrics are computed.", minimum=1, effective=False)
    quota_window_num: int = integer("quota.window.num", 11, "Over how many windows of time the quotas of clients are computed.", minimum=1, effective=False)
    quota_window_size_seconds: int = integer("quota.window.size.seconds", 1, "The length of a window of time over which the quotas of clients are computed.", minimum=1, effective=False)
    replication_quota_window_num: int = integer("replication.quota.window.num", 11, "Over how many windows of time the quotas of replication are computed.", minimum=1, effective=False)
    replication_quota_window_size_seconds: int = integer("replication.quota.window.size.seconds", 1, "The length of a window of time over which the quotas of replication are computed.", minimum=1, effective=False)
    alter_log_dirs_replication_quota_window_num: int = integer("alter.log.dirs.replication.quota.window.num", 11, "Over how many windows of time the quotas of moves between log directories are computed.", minimum=1, effective=False)
    alter_log_dirs_replication_quota_window_size_seconds: int = integer("alter.log.dirs.replication.quota.window.size.seconds", 1, "The length of a window of time over which the quotas of moves between log directories are computed.", minimum=1, effective=False)
    controller_quota_window_num: int = integer("controller.quota.window.num", 11, "Over how many windows of time the quotas of the controller are computed.", minimum=1, effective=False)
    controller_quota_window_size_seconds: int = integer("controller.quota.window.size.seconds", 1, "The length of a window of time over which the quotas of the controller are computed.", minimum=1, effective=False)
    # fmt: on
