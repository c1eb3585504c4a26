"""The partitions of the metrics page, one row each, looked up in slices so that a broker with
thousands of partitions keeps serving meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from pybroker.admin.text_format import escaped
from pybroker.admin.view import Rooms
from pybroker.model import NO_LEADER, PartitionFacts
from pybroker.replication.partition import Partition

AT_A_TIME: Final = 250
"""Partitions looked up, or lines written, before the code yields to the event loop: about a
millisecond of work."""


class LogRow(NamedTuple):
    """The log of a replica that is open here. `min_isr` is the effective min.insync.replicas."""

    size_bytes: int
    start: int
    end: int
    high_watermark: int
    leads: bool
    min_isr: int


class PartitionRow(NamedTuple):
    """A partition as the cluster knows it, and its log if it is here."""

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
    """All topics and partitions, each at the moment of its lookup."""

    topics: list[TopicRow]
    partitions: list[PartitionRow]


async def look(rooms: Rooms) -> Picture:
    """Look up all topics and partitions, yielding to the event loop between slices."""
    picture = Picture([], [])
    looked_at = 0
    opened = rooms.replicas.partitions
    for topic in sorted(rooms.metadata.topics.values(), key=lambda each: each.name):
        start = f'{{topic="{escaped(topic.name)}"'
        picture.topics.append(TopicRow(topic.name, start + "}", len(topic.partitions)))
        for number, facts in sorted(topic.partitions.items()):
            row = _row(f'{start},partition="{number}"}}', facts, rooms.broker_id)
            partition = opened.get(facts.topic_partition)
            if partition is not None:
                row = _with_log(row, partition)
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


def _with_log(row: PartitionRow, partition: Partition) -> PartitionRow:
    log, state = partition.log, partition.state
    leads = state is not None and partition.is_leader
    found = LogRow(
        size_bytes=log.size_bytes,
        start=log.log_start_offset,
        end=log.log_end_offset,
        high_watermark=partition.high_watermark,
        leads=leads,
        min_isr=min(log.config.min_insync_replicas, row.replicas),
    )
    usable = log.failure is None
    if leads and state is not None:  # the leader knows its own ISR best
        row = row._replace(leader=state.leader, isr=len(state.isr))
    return row._replace(log=found if usable else None)
