"""What replicas say they have when nobody is known to have everything: after a power loss that
reached every in-sync and every eligible replica of a partition. One node a replica, in
`/pybroker/suspects`; the controller compares them when all replicas are back.
"""

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
class Claim:
    """The replica's log ends at `end`, its last batch is of leader epoch `epoch`. `leader_epoch`:
    that of the partition's state to which this is the answer. `incarnation`: that of the broker
    (KIP-903); one that has begun anew since may have lost what it claimed."""

    replica: int
    epoch: int
    end: int
    leader_epoch: int
    incarnation: int


def encode_claim(claim: Claim) -> bytes:
    """Offsets are strings, as every number over 32 bits in a node."""
    return dump(
        {
            "version": 1,
            "replica": claim.replica,
            "epoch": claim.epoch,
            "end": str(claim.end),
            "leader_epoch": claim.leader_epoch,
            "incarnation": claim.incarnation,
        }
    )


def decode_claim(path: str, data: bytes) -> Claim:
    """Raises MalformedNode."""
    fields = load_object(path, data)
    return Claim(
        replica=fields.integer("replica"),
        epoch=fields.integer("epoch"),
        end=fields.number_in_text("end"),
        leader_epoch=fields.integer("leader_epoch"),
        incarnation=fields.integer("incarnation"),
    )


async def write_claim(coord: Coord, key: TopicPartition, topic_id: uuid.UUID, claim: Claim) -> None:
    """In place of an earlier one. Raises CoordError; NoNode if the topic of that id is gone."""
    path = paths.suspect(key, claim.replica)
    await ensure(coord, path)
    await topic_nodes.apply(coord, (key.topic, topic_id), SetOp(path, encode_claim(claim)))


async def read_claim(coord: Coord, key: TopicPartition, replica: int) -> Claim | None:
    """None if there is none that can be understood. Raises CoordError."""
    path = paths.suspect(key, replica)
    with suppress(NoNode, MalformedNode):
        return decode_claim(path, (await coord.get(path))[0])
    return None
