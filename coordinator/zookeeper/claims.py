"""The log end reports (claims) of the replicas of an orphaned partition: after a power loss of
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
class Claim:
    """The log of `replica` ends at offset `end`, and its last batch has the leader epoch `epoch`.

    `leader_epoch`: the leader epoch of the partition's state to which this claim is the answer.
    `incarnation`: the broker's incarnation (KIP-903); in a later one the broker may have lost the
    log. `topic_id`: NO_TOPIC_ID if the replica does not know it.
    """

    replica: int
    epoch: int
    end: int
    leader_epoch: int
    incarnation: int
    topic_id: uuid.UUID = NO_TOPIC_ID


def encode_claim(claim: Claim) -> bytes:
    """Return the node's content. Offsets are strings, as every number over 32 bits in a node."""
    return dump(
        {
            "version": 1,
            "replica": claim.replica,
            "epoch": claim.epoch,
            "end": str(claim.end),
            "leader_epoch": claim.leader_epoch,
            "incarnation": claim.incarnation,
            "topic_id": encode_uuid(claim.topic_id),
        }
    )


def decode_claim(path: str, data: bytes) -> Claim:
    """Decode a claim. Raises MalformedNode."""
    fields = load_object(path, data)
    text = fields.text("topic_id", default="")
    try:
        topic_id = decode_uuid(text) if text else NO_TOPIC_ID
    except ValueError as error:
        raise malformed(path, "a base64url UUID of 22 characters at topic_id", text) from error
    return Claim(
        replica=fields.integer("replica"),
        epoch=fields.integer("epoch"),
        end=fields.number_in_text("end"),
        leader_epoch=fields.integer("leader_epoch"),
        incarnation=fields.integer("incarnation"),
        topic_id=topic_id,
    )


async def write_claim(coord: Coord, key: TopicPartition, claim: Claim) -> None:
    """Write the claim, in place of an earlier one of the replica. Raises CoordError."""
    path, data = paths.suspect(key, claim.replica), encode_claim(claim)
    try:
        await coord.set(path, data)
    except NoNode:
        await ensure(coord, paths.parent(path))
        with suppress(NodeExists):
            await coord.create(path, data)
            return
        await coord.set(path, data)


async def read_claim(coord: Coord, key: TopicPartition, replica: int) -> Claim | None:
    """Return the replica's claim; None if there is none, or if it is malformed. Raises
    CoordError."""
    path = paths.suspect(key, replica)
    with suppress(NoNode, MalformedNode):
        return decode_claim(path, (await coord.get(path))[0])
    return None
