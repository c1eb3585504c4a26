"""Turns the options of a simulation schedule into the options of brokers and clients."""

from __future__ import annotations

from typing import Final

from pybroker.testing.simulation.schedule import Options
from pybroker.testing.simulation.workload import ProducerKind, WorkloadOptions

ANSWER_S_MAX: Final = 10.0
"""The time in seconds after which brokers close half-open connections. Until then a replica may be
out of sync or not have received its role, and clients may wait for their own timeouts.
"""
TRANSACTION_PARTITIONS: Final = 3
_RETENTION_CHECK_MS: Final = 400
_CLEANER_PAUSE_MS: Final = 200
_IDLE_FLUSH_MS: Final = 300
"""Short, because the log cleaner cleans only synced segments."""
_KEYED_SEGMENT_BYTES: Final = 1_024
_OFFSETS_PARTITIONS: Final = 3
_TIME_OUT_CHECK_MS: Final = 500
_UNCLEAN_MEAN_S: Final = (0.0, 4.0, 1.0)
"""The mean time in seconds between two unclean elections, by the value of the option `lossy`."""
_PRODUCERS: Final = (
    ProducerKind.IDEMPOTENT,
    ProducerKind.PLAIN,
    ProducerKind.LEADER_ONLY,
    ProducerKind.UNACKNOWLEDGED,
)


def broker_config(options: Options) -> dict[str, object]:
    """Return the options of every broker of the run."""
    return {
        "min.insync.replicas": options.min_isr,
        "log.flush.interval.messages": 1 if options.flush else 2**63 - 1,
        "unclean.leader.election.enable": options.lossy == 1,
        "log.segment.bytes": options.segment_bytes,
        "log.retention.bytes": options.retention_bytes or -1,
        "log.retention.ms": options.retention_ms or -1,
        "log.retention.check.interval.ms": _RETENTION_CHECK_MS,
        "zookeeper.session.timeout.ms": int(1000 * options.session_s),
        "replica.lag.time.max.ms": int(1000 * options.lag_s),
        "controller.socket.timeout.ms": int(1000 * ANSWER_S_MAX),
        "replica.socket.timeout.ms": int(1000 * ANSWER_S_MAX),
        "replica.fetch.wait.max.ms": options.fetch_wait_ms,
        "replica.fetch.max.bytes": options.fetch_bytes,
        "offsets.topic.num.partitions": _OFFSETS_PARTITIONS,
        "offsets.storage": "kafka" if options.offsets_in_log else "zookeeper",
        "group.min.session.timeout.ms": 1_000,
        "transaction.state.log.num.partitions": TRANSACTION_PARTITIONS,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": _TIME_OUT_CHECK_MS,
        **_cleaner_config(options),
    }


def _cleaner_config(options: Options) -> dict[str, object]:
    if not options.compacted:
        return {}
    return {
        "log.cleaner.backoff.ms": _CLEANER_PAUSE_MS,
        "pybroker.idle.flush.interval.ms": _IDLE_FLUSH_MS,
    }


def _keyed_configs(options: Options) -> dict[str, str]:
    return {
        "cleanup.policy": "compact,delete" if options.also_deletes else "compact",
        "segment.bytes": str(_KEYED_SEGMENT_BYTES),
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": str(options.delete_retention_ms),
    }


def workload_options(options: Options) -> WorkloadOptions:
    """Return the options of the run's clients."""
    return WorkloadOptions(
        partitions=options.partitions,
        replication=options.brokers,
        producers=_PRODUCERS[: options.producers],
        records_per_s=options.records_per_s,
        linger_ms=options.linger_ms,
        # A batch, with its header and the error of its estimated size, must fit into a segment.
        batch_bytes=min(options.batch_bytes, options.segment_bytes // 2),
        readers=options.readers,
        askers=options.askers,
        fetch_wait_ms=options.fetch_wait_ms,
        crash_mean_s=options.crash_mean_s,
        churn_mean_s=options.churn_mean_s,
        election_mean_s=options.election_mean_s,
        groups=options.groups,
        members=options.members,
        late_commits=bool(options.late_commits),
        writers=options.writers,
        keyed_writers=options.compacted,
        keyed_configs=_keyed_configs(options),
        loops=options.loops,
        has_api_transactions=bool(options.api_transactions),
        offsets_partitions=_OFFSETS_PARTITIONS,
        unclean_mean_s=_UNCLEAN_MEAN_S[options.lossy],
    )
