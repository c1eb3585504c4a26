"""The log end reports of orphaned partitions, which have no leader, no in-sync replica and no
eligible replica (KIP-966), for example after a power loss. Each assigned replica writes its log end
below `/pybroker/suspects`. The controller elects a replica with the longest log."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass

from pybroker.coordinator.zookeeper import paths, topic_nodes
from pybroker.coordinator.zookeeper.json_nodes import dump, load_object
from pybroker.coordinator.zookeeper.registry import ensure
from pybroker.errors import MalformedNode, NoNode
from pybroker.model import TopicPartition
from pybroker.ports import Coord, SetOp


@dataclass(frozen=True, slots=True)
class LogEndReport:
    """The log of `replica` ends at offset `end`, and its last batch has the leader epoch `epoch`.
    At the time of the report, the partition had `leader_epoch`, and the replica's broker had
    `incarnation` (KIP-903). A later incarnation makes the report invalid: that broker may have lost
    the log."""

    replica: int
    epoch: int
    end: int
    leader_epoch: int
    incarnation: int


def encode_log_end(report: LogEndReport) -> bytes:
    """Return the content of the report's ZooKeeper node. The offset `end` is a string."""
    return dump(
        {
            "version": 1,
            "replica": report.replica,
            "epoch": report.epoch,
            "end": str(report.end),
            "leader_epoch": report.leader_epoch,
            "incarnation": report.incarnation,
        }
    )


def decode_log_end(path: str, data: bytes) -> LogEndReport:
    """Decode a report. Raises MalformedNode."""
    fields = load_object(path, data)
    return LogEndReport(
        replica=fields.integer("replica"),
        epoch=fields.integer("epoch"),
        end=fields.number_in_text("end"),
        leader_epoch=fields.integer("leader_epoch"),
        incarnation=fields.integer("incarnation"),
    )


async def write_log_end(
    coord: Coord, key: TopicPartition, topic_id: uuid.UUID, report: LogEndReport
) -> None:
    """Store `report` in place of the replica's earlier report. Raises CoordError, such as NoNode if
    the topic with the id `topic_id` is deleted."""
    path = paths.suspect(key, report.replica)
    await ensure(coord, path)
    await topic_nodes.apply(coord, (key.topic, topic_id), SetOp(path, encode_log_end(report)))


async def read_log_end(coord: Coord, key: TopicPartition, replica: int) -> LogEndReport | None:
    """Return the replica's report; None if it is missing or malformed. Raises CoordError."""
    path = paths.suspect(key, replica)
    with suppress(NoNode, MalformedNode):
        return decode_log_end(path, (await coord.get(path))[0])
    return None
