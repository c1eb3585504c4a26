"""The fence of a coordinator: the node /pybroker/coordinators/<partition>.

A new coordinator changes the node's version, in a multi that also checks that the coordinator's
broker leads the partition. Every later write of the coordinator checks that the version has not
changed since. So ZooKeeper refuses the writes of earlier coordinators.
"""

from __future__ import annotations

from dataclasses import dataclass

from pybroker.coordinator.runtime.refusals import Superseded
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.json_nodes import dump
from pybroker.coordinator.zookeeper.schemas import decode_state
from pybroker.errors import BrokerError, ErrorCode, MultiFailed, NoNode
from pybroker.model import TopicPartition
from pybroker.ports import CheckOp, Coord, CoordOp, CreateOp, NodeStat, SetOp


@dataclass(frozen=True, slots=True)
class FenceOwner:
    """The content of a coordinator's fence node. `token` is a random text, new each time that a
    broker begins to coordinate the partition."""

    topic_partition: TopicPartition
    broker_id: int
    leader_epoch: int
    token: str

    def encode(self) -> bytes:
        return dump(
            {
                "version": 1,
                "broker": self.broker_id,
                "leader_epoch": self.leader_epoch,
                "claim": self.token,
            }
        )


async def take_fence(coord: Coord, owner: FenceOwner) -> int | None:
    """Write `owner` into the fence node, so that writes of earlier coordinators fail. Return the
    node's version. Return None if another client changed the fence node or the partition's state
    node in the meantime: the caller must then try again.

    Raises Superseded if another broker leads the partition, or if the topic was deleted. Raises
    BrokerError if ZooKeeper has another leader epoch than `owner`. Also raises MalformedNode and
    CoordError. After ConnectionLoss, call again.
    """
    key = owner.topic_partition
    state_path, path = paths.partition_state(key), paths.coordinator(key.partition)
    await coord.sync(state_path)
    try:
        data, state_stat = await coord.get(state_path)
    except NoNode as error:
        raise Superseded(
            f"the topic of {key} was deleted: the partition has no state node any more"
        ) from error
    state = decode_state(state_path, data)
    if state.leader != owner.broker_id:
        raise Superseded(f"broker {state.leader} leads {key} in leader epoch {state.leader_epoch}")
    if state.leader_epoch != owner.leader_epoch:
        raise BrokerError(
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            f"ZooKeeper names this broker as the leader of {key} in leader epoch "
            f"{state.leader_epoch}, but the last LeaderAndIsr that the broker "
            f"received has leader epoch {owner.leader_epoch}",
        )
    encoded = owner.encode()
    store: CoordOp
    try:
        found, stat = await coord.get(path)
        if found == encoded:
            return stat.version
        store = SetOp(path, encoded, stat.version)
    except NoNode:
        store = CreateOp(path, encoded)
    try:
        _, stored = await coord.multi([CheckOp(state_path, state_stat.version), store])
    except MultiFailed:
        return None
    return stored.version if isinstance(stored, NodeStat) else 0
