"""The values of all partitions for the metrics page. They are read in slices, and the broker serves
clients between two slices."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from pybroker.admin.view import Rooms
from pybroker.metrics_text import escaped
from pybroker.model import NO_LEADER, PartitionFacts
from pybroker.replication.partition import Partition

AT_A_TIME: Final = 250
"""The number of partitions that the broker reads, or of lines that it writes, before it yields to
the event loop. That many take about a millisecond."""


class LogRow(NamedTuple):
    """The size and the offsets of one replica's log on this broker. `min_isr` is
    min.insync.replicas, or the number of replicas if that is smaller."""

    size_bytes: int
    start: int
    end: int
    high_watermark: int
    last_stable: int
    leads: bool
    min_isr: int
    held_back_ms: int
    """For how long (ms) a transaction has held back the last stable offset; 0 if none does."""


class PartitionRow(NamedTuple):
    """The values of a partition. `leader` and `preferred` (broker ids), and `replicas` and `isr`
    (counts), are from the cluster's metadata. `log` is None if this broker has no open replica of
    the partition."""

    labels: str
    """The labels in Prometheus' text format: {topic="...",partition="..."}."""
    leader: int
    preferred: int
    replicas: int
    isr: int
    belongs_here: bool
    log: LogRow | None


class TopicRow(NamedTuple):
    name: str
    labels: str
    partitions: int


class Picture(NamedTuple):
    """The rows of all topics and partitions. Only the values in the same row are from the same
    moment."""

    topics: list[TopicRow]
    partitions: list[PartitionRow]


async def look(rooms: Rooms) -> Picture:
    """Return the metrics of all topics and partitions that the broker's metadata names. Yield to
    the event loop after each AT_A_TIME partitions."""
    picture = Picture([], [])
    looked_at = 0
    opened, now_ms = rooms.replicas.partitions, rooms.replicas.clock.wall_ms()
    for topic in sorted(rooms.metadata.topics.values(), key=lambda each: each.name):
        start = f'{{topic="{escaped(topic.name)}"'
        picture.topics.append(TopicRow(topic.name, start + "}", len(topic.partitions)))
        for number, facts in sorted(topic.partitions.items()):
            row = _row(f'{start},partition="{number}"}}', facts, rooms.broker_id)
            partition = opened.get(facts.topic_partition)
            if partition is not None:
                row = _with_log(row, partition, now_ms)
            picture.partitions.append(row)
            looked_at += 1
            if looked_at % AT_A_TIME == 0:
                await asyncio.sleep(0)
    return picture


def _row(labels: str, facts: PartitionFacts, broker_id: int) -> PartitionRow:
    return PartitionRow(
        labels=labels,
        leader=facts.state.leader,
        preferred=facts.replicas[0] if facts.replicas else NO_LEADER,
        replicas=len(facts.replicas),
        isr=len(facts.state.isr),
        belongs_here=broker_id in facts.replicas,
        log=None,
    )


def _with_log(row: PartitionRow, partition: Partition, now_ms: int) -> PartitionRow:
    log, state = partition.log, partition.state
    leads = state is not None and partition.is_leader
    found = LogRow(
        size_bytes=log.size_bytes,
        start=log.log_start_offset,
        end=log.log_end_offset,
        high_watermark=partition.high_watermark,
        last_stable=partition.last_stable_offset(),
        leads=leads,
        min_isr=min(log.config.min_insync_replicas, row.replicas),
        held_back_ms=log.producers.stood_still_ms(now_ms),
    )
    usable = log.failure is None
    if leads and state is not None:  # the leader has the newest ISR
        row = row._replace(leader=state.leader, isr=len(state.isr))
    return row._replace(log=found if usable else None)
