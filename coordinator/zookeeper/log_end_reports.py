"""The log end reports of the replicas of an orphaned partition: after a power loss of
every in-sync and every eligible replica, no replica is known to hold all committed records. Each
replica writes one node below `/pybroker/suspects`; the controller compares them when all replicas
have returned.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass

from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.json_nodes import dump, load_object, malformed
from pybroker.coordinator.zookeeper.registry import ensure
from pybroker.errors import MalformedNode, NodeExists, NoNode
from pybroker.model import NO_TOPIC_ID, TopicPartition, decode_uuid, encode_uuid
from pybroker.ports import Coord


@dataclass(frozen=True, slots=True)
class LogEndReport:
    """The log of `replica` ends at offset `end`, and its last batch has the leader epoch `epoch`.

    `leader_epoch`: the leader epoch of the partition's state to which this report is the answer.
    `incarnation`: the broker's incarnation (KIP-903); in a later one the broker may have lost the
    log. `topic_id`: NO_TOPIC_ID if the replica does not know it.
    """

    replica: int
    epoch: int
    end: int
    leader_epoch: int
    incarnation: int
    topic_id: uuid.UUID = NO_TOPIC_ID


def encode_log_end(report: LogEndReport) -> bytes:
    """Return the node's content. Offsets are strings, as every number over 32 bits in a node."""
    return dump(
        {
            "version": 1,
            "replica": report.replica,
            "epoch": report.epoch,
            "end": str(report.end),
            "leader_epoch": report.leader_epoch,
            "incarnation": report.incarnation,
            "topic_id": encode_uuid(report.topic_id),
        }
    )


def decode_log_end(path: str, data: bytes) -> LogEndReport:
    """Decode a report. Raises MalformedNode."""
    fields = load_object(path, data)
    text = fields.text("topic_id", default="")
    try:
        topic_id = decode_uuid(text) if text else NO_TOPIC_ID
    except ValueError as error:
        raise malformed(path, "a base64url UUID of 22 characters at topic_id", text) from error
    return LogEndReport(
        replica=fields.integer("replica"),
        epoch=fields.integer("epoch"),
        end=fields.number_in_text("end"),
        leader_epoch=fields.integer("leader_epoch"),
        incarnation=fields.integer("incarnation"),
        topic_id=topic_id,
    )


async def write_log_end(coord: Coord, key: TopicPartition, report: LogEndReport) -> None:
    """Write the report, in place of an earlier one of the replica. Raises CoordError."""
    path, data = paths.suspect(key, report.replica), encode_log_end(report)
    try:
        await coord.set(path, data)
    except NoNode:
        await ensure(coord, paths.parent(path))
        with suppress(NodeExists):
            await coord.create(path, data)
            return
        await coord.set(path, data)


async def read_log_end(coord: Coord, key: TopicPartition, replica: int) -> LogEndReport | None:
    """Return the replica's report; None if there is none, or if it is malformed. Raises
    CoordError."""
    path = paths.suspect(key, replica)
    with suppress(NoNode, MalformedNode):
        return decode_log_end(path, (await coord.get(path))[0])
    return None
