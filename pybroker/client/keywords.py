"""The keyword arguments of the clients. `make docs` makes this file from the table in
`options.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

Acks = Literal["all", -1, 0, 1]
AutoOffsetReset = Literal["earliest", "latest", "none"]
CompressionType = Literal["none", "gzip", "snappy", "lz4", "zstd"]
IsolationLevel = Literal["read_uncommitted", "read_committed"]
SecurityProtocol = Literal["plaintext"]


class ClientKeywords(TypedDict, total=False):
    """The keyword arguments of all clients, with Kafka's names and defaults."""

    client_id: str
    """The name by which brokers log this client. Default: pybroker."""

    security_protocol: SecurityProtocol
    """The only supported protocol. Default: plaintext."""

    bootstrap_timeout_ms: int
    """The time limit for connecting to any of the bootstrap addresses. Default: 5000."""

    request_timeout_ms: int
    """The time limit for a response. Default: 30000."""

    default_api_timeout_ms: int
    """The time limit of an operation with its retries. Default: 60000."""

    socket_connection_setup_timeout_ms: int
    """The time limit for connecting, including the first request. Default: 10000."""

    reconnect_backoff_ms: int
    """The first backoff after a failed connection. Default: 50."""

    reconnect_backoff_max_ms: int
    """The maximum backoff after failed connections. Default: 1000."""

    retry_backoff_ms: int
    """The first backoff after a failed request. Default: 100."""

    retry_backoff_max_ms: int
    """The maximum backoff after failed requests. Default: 1000."""

    leaderless_timeout_ms: int
    """A read or an admin call fails after its partition has had no leader for this time; 0 means no
    such limit; for records of a producer, delivery.timeout.ms applies instead. Default: 0."""

    metadata_max_age_ms: int
    """Refresh metadata at least this often. Default: 300000."""

    receive_message_max_bytes: int
    """The maximum size of a response in bytes (as in librdkafka). Default: 100000000."""


class AdminKeywords(ClientKeywords, total=False):
    """The keyword arguments of `Admin`, with Kafka's names and defaults."""


class ProducerKeywords(ClientKeywords, total=False):
    """The keyword arguments of `Producer`, with Kafka's names and defaults."""

    acks: Acks
    """Required acknowledgements: all in-sync replicas (-1), leader (1), none (0). Default: -1."""

    enable_idempotence: bool
    """Whether retries of the producer add no duplicates. Default: True."""

    compression_type: CompressionType
    """Codec of the batches. Default: none."""

    linger_ms: int
    """The time to wait for more records of a batch. Default: 0."""

    batch_size: int
    """The maximum size of a batch before compression, in bytes. Default: 16384."""

    buffer_memory: int
    """The maximum size of all unsent records, in bytes. Default: 33554432."""

    max_block_ms: int
    """The maximum time that send() waits for memory and metadata. Default: 60000."""

    max_request_size: int
    """The maximum size of a record or a request, in bytes. Default: 1048576."""

    delivery_timeout_ms: int
    """The maximum time from send() to success or failure. Default: 120000."""

    max_in_flight_requests_per_connection: int
    """The maximum number of requests in flight to a broker. Default: 5."""

    max_in_flight: int
    """The maximum number of requests in flight to a broker. Default: 5."""

    metadata_max_idle_ms: int
    """Omit a topic from metadata requests if no record was sent to it for this time. Default:
    300000."""

    transactional_id: str | None
    """The id of a transactional producer, which must be the same after a restart."""

    transaction_timeout_ms: int
    """The time after which the coordinator aborts an open transaction. Default: 60000."""

    allow_auto_create_topics: bool
    """Let the broker create a topic that does not exist. Default: True."""

    statistics_interval_ms: int
    """The interval of the calls of on_metrics (as in librdkafka); 0: only at the end of close.
    Default: 10000."""


class ConsumerKeywords(ClientKeywords, total=False):
    """The keyword arguments of `Consumer`, with Kafka's names and defaults."""

    auto_offset_reset: AutoOffsetReset
    """Where reading starts if no valid offset is committed. Default: latest."""

    isolation_level: IsolationLevel
    """read_uncommitted returns records of open and aborted transactions, too. Default:
    read_uncommitted."""

    fetch_min_bytes: int
    """The number of bytes for which a broker waits before it answers a Fetch. Default: 1."""

    fetch_max_wait_ms: int
    """The maximum time that a broker waits for fetch.min.bytes. Default: 500."""

    fetch_max_bytes: int
    """The maximum bytes of a Fetch response. Default: 52428800."""

    max_partition_fetch_bytes: int
    """The maximum bytes of one partition in a Fetch response. Default: 1048576."""

    max_poll_records: int
    """The maximum number of records from one getmany(). Default: 500."""

    max_poll_interval_ms: int
    """A consumer that does not read for this time leaves its group. Default: 300000."""

    group_id: str | None
    """The group of the consumer."""

    group_instance_id: str | None
    """The id of a static member, whose restarts cause no rebalance."""

    session_timeout_ms: int
    """The time without heartbeats after which a member is removed from its group. Default:
    45000."""

    heartbeat_interval_ms: int
    """The interval of a member's heartbeats. Default: 3000."""

    partition_assignment_strategy: str | Sequence[str]
    """The assignors, in order of preference. Default: range, cooperative-sticky."""

    enable_auto_commit: bool
    """Commit positions automatically while reading. Default: True."""

    auto_commit_interval_ms: int
    """The interval of automatic commits. Default: 5000."""

    exclude_internal_topics: bool
    """Whether internal topics are excluded from patterns. Default: True."""

    client_rack: str
    """The rack of the consumer, for the assignor."""

    check_crcs: bool
    """Whether to verify the checksum of each batch. Default: True."""

    allow_auto_create_topics: bool
    """Let the broker create a topic that does not exist. Default: False."""

    statistics_interval_ms: int
    """The interval of the calls of on_metrics (as in librdkafka); 0: only at the end of close.
    Default: 10000."""
