"""The snapshot that the next run of a job reads. In the mode `append`, it begins at the end offsets
of the last committed snapshot, if there is one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pybroker.client import defaults
from pybroker.client.blocking import run_blocking
from pybroker.client.cluster import Cluster
from pybroker.client.offset_lookup import EARLIEST, LATEST
from pybroker.client.options import ConsumerOptions
from pybroker.client.range_reader import Patience
from pybroker.client.ranges.options import parse_range_options
from pybroker.model import TopicPartition
from pybroker.spark.etl.exactly_once import Lost
from pybroker.spark.etl.files import OutputError
from pybroker.spark.etl.job_model import JobFile
from pybroker.spark.etl.manifest import Commit, Json
from pybroker.spark.planning import AtTime, Bounds, SnapshotSpec, plan
from pybroker.spark.snapshot_model import Snapshot, SnapshotError, TopicCut
from pybroker.spark.splits import bytes_per_offset

CLIENT_ID: Final = "pybroker-etl"
LISTED: Final = 3
"""The largest number of partitions that an error message lists."""


class DataLost(SnapshotError):
    """Offsets that the next run must read are no longer in the log."""


def snapshot_of(value: Json) -> Snapshot:
    """Return the snapshot from its JSON value in a plan or commit. Raises SnapshotError."""
    return Snapshot.from_json(json.dumps(value))


def as_json(snapshot: Snapshot) -> Json:
    value: Json = json.loads(snapshot.to_json())
    return value


def propose(job: JobFile, last: Commit | None, until_ms: int | None = None) -> Snapshot | None:
    """Return the snapshot that the next run reads; None if there are no new records. Ranges end at
    the latest offset. If a record has the timestamp `until_ms` (ms since 1970) or a later one, its
    range ends before the first such record. The size limit of a run may shorten the ranges.

    Raises:

    - ConfigError: a client option is invalid
    - SnapshotError: the snapshot cannot be taken
    - DataLost: unread offsets are no longer in the log
    - OutputError: the job file or the cluster does not fit the last commit
    - ClientError: the cluster does not answer
    """
    before = snapshot_of(last.snapshot) if last is not None else None
    if before is not None and job.source.mode == "append":
        _check_continues(job, before)
    try:
        found = _now(job, before, until_ms)
    except SnapshotError as error:
        if before is None or job.source.mode == "latest":
            raise
        raise SnapshotError(
            f"{error}; so the job cannot continue after its last commit in {job.sink.path} (to "
            "read the topics from source.starting again, set another sink.path)"
        ) from error
    if before is not None and before.cluster_id != found.cluster_id:
        raise OutputError(
            f"{job.sink.path} contains data of the cluster {before.cluster_id}, but "
            f"the brokers {job.source.bootstrap_servers} are of the cluster "
            f"{found.cluster_id}; correct bootstrap.servers, or set another sink.path"
        )
    if not _is_new(job, before, found):
        return None
    if job.source.mode == "append":
        if job.source.fail_on_data_loss:
            _refuse_loss(found)
        if job.source.max_bytes_per_run is not None:
            found = cut(found, _offset_sizes(job, found), job.source.max_bytes_per_run)
    return found


def _check_continues(job: JobFile, last: Snapshot) -> None:
    """Raise OutputError if the job file lacks a topic of the last run's snapshot (`last`), or has
    another isolation level than `last`."""
    gone = [topic for topic in last.topics if topic not in job.source.topics]
    if gone:
        raise OutputError(
            f"{job.file}: source.topics lacks {', '.join(gone)}, which earlier runs "
            f"read into {job.sink.path}: add the missing topics or partitions, or set "
            "another sink.path"
        )
    if last.isolation != job.source.isolation:
        raise OutputError(
            f"{job.file}: source.isolation.level: the earlier runs in {job.sink.path} read"
            f" with {last.isolation}: set this isolation level, or set another sink.path"
        )


def reached(goal: Snapshot, done: Snapshot) -> bool:
    """Return whether `done` ends at or after `goal` in every partition."""
    ends = {item.topic_partition: item.end for item in done.ranges()}
    return all(ends.get(item.topic_partition, 0) >= item.end for item in goal.ranges())


def lost_at_start(snapshot: Snapshot) -> tuple[Lost, ...]:
    """Return the parts of the snapshot's ranges that were below the log start offset when the
    snapshot was taken."""
    return tuple(
        (item.topic, item.partition, item.start, min(item.log_start, item.end))
        for item in snapshot.ranges()
        if item.start < min(item.log_start, item.end)
    )


def lost_meanwhile(job: JobFile, snapshot: Snapshot) -> tuple[Lost, ...]:
    """Return the parts of the snapshot's ranges that are no longer in the log. Call this after the
    run has read the snapshot, because the log may lose records during the read."""
    spec = SnapshotSpec(topics=tuple(snapshot.topics), isolation=snapshot.isolation)
    begins = {item.topic_partition: item.log_start for item in _plan(job, spec).ranges()}
    aged = (
        replace(item, log_start=begins.get(item.topic_partition, 0)) for item in snapshot.ranges()
    )
    return tuple(
        (item.topic, item.partition, item.start, min(item.log_start, item.end))
        for item in aged
        if item.start < min(item.log_start, item.end)
    )


def cut(snapshot: Snapshot, sizes: Mapping[TopicPartition, float], bytes_max: int) -> Snapshot:
    """Shorten all ranges in the same proportion, to about `bytes_max` bytes together. A range that
    is not empty keeps at least one offset. `sizes` are bytes per offset."""
    total = sum(item.offsets * sizes.get(item.topic_partition, 0) for item in snapshot.ranges())
    if total <= bytes_max:
        return snapshot
    part = bytes_max / total
    topics = {
        topic: TopicCut(
            found.topic_id,
            {
                number: replace(each, end=each.start + math.ceil((each.end - each.start) * part))
                for number, each in found.partitions.items()
            },
        )
        for topic, found in snapshot.topics.items()
    }
    return replace(snapshot, topics=topics)


def _now(job: JobFile, before: Snapshot | None, until_ms: int | None) -> Snapshot:
    source = job.source
    ends: Bounds = LATEST if until_ms is None else AtTime(until_ms)
    if before is None or source.mode == "latest":
        starts: Bounds = EARLIEST if source.starting == "earliest" else AtTime(source.starting)
        if until_ms is not None and source.starting != "earliest":
            starts = AtTime(min(int(source.starting), until_ms))
        found = _plan(
            job,
            SnapshotSpec(
                topics=source.topics, starts=starts, ends=ends, isolation=source.isolation
            ),
        )
        return replace(found, parent=before.id) if before is not None else found
    if until_ms is not None:
        ends = _ends_from(job, before, ends)
    return _plan(
        job, SnapshotSpec(topics=source.topics, ends=ends, since=before, isolation=source.isolation)
    )


def _ends_from(job: JobFile, last: Snapshot, ends: Bounds) -> Bounds:
    """Return each partition's end for the next run: the end that `ends` specifies, but at least the
    last run's end."""
    source = job.source
    found = _plan(job, SnapshotSpec(topics=source.topics, ends=ends, isolation=source.isolation))
    read = {item.topic_partition: item.end for item in last.ranges()}
    clamped: dict[str, dict[int, int | AtTime]] = {}
    for item in found.ranges():
        end = max(item.end, read.get(item.topic_partition, 0))
        clamped.setdefault(item.topic, {})[item.partition] = end
    return clamped


def _plan(job: JobFile, spec: SnapshotSpec) -> Snapshot:
    options, _ = _options(job)
    return run_blocking(lambda: plan(options, spec))


def _options(job: JobFile) -> tuple[ConsumerOptions, Patience]:
    return parse_range_options(
        {"client.id": CLIENT_ID, **job.source.kafka},
        bootstrap_servers=job.source.bootstrap_servers,
    )


def _is_new(job: JobFile, before: Snapshot | None, found: Snapshot) -> bool:
    if job.source.mode == "append" or before is None:
        return any(found.counts().values())
    ends = {(item.topic_id, item.topic_partition): item.end for item in before.ranges()}
    return any(
        item.end != ends.get((item.topic_id, item.topic_partition), 0) for item in found.ranges()
    )


def _refuse_loss(snapshot: Snapshot) -> None:
    lost = lost_at_start(snapshot)
    if lost:
        listed = ", ".join(
            f"{topic}-{number}@{start}-{end}" for topic, number, start, end in lost[:LISTED]
        )
        more = f" and {len(lost) - LISTED} more" if len(lost) > LISTED else ""
        raise DataLost(
            f"unread offsets are no longer in the log: {listed}{more}; set"
            " source.fail-on-data-loss: false to continue without them (the commit lists them"
            " as lost)"
        )


def _offset_sizes(job: JobFile, snapshot: Snapshot) -> dict[TopicPartition, float]:
    """Return the average number of bytes per offset in the log of each partition."""
    return run_blocking(lambda: _ask_sizes(job, snapshot))


async def _ask_sizes(job: JobFile, snapshot: Snapshot) -> dict[TopicPartition, float]:
    options, _ = _options(job)
    cluster = Cluster(options, clock=defaults.make_clock(), rng=defaults.make_rng())
    try:
        cluster.watch(snapshot.topics)
        await cluster.start()
        keys = [item.topic_partition for item in snapshot.ranges()]
        return await bytes_per_offset(cluster, keys)
    finally:
        await cluster.close()
