"""TxnOffsetCommit: a producer commits offsets of a group with its transaction (KIP-98).

The membership check and the append must run in one step of the event loop, so that a replaced
member cannot commit (KIP-447).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pybroker.coordinator.groups.calls import Identity
from pybroker.coordinator.groups.coordinator import GroupCoordinator
from pybroker.coordinator.groups.offset_store import CommittedOffset, pending_bytes
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import Producer


@dataclass(frozen=True, slots=True)
class TransactionalCommit:
    """A TxnOffsetCommit request. If the request names no member, `generation` is -1, and the ids in
    `identity` are empty."""

    group_id: str
    identity: Identity
    generation: int
    transactional_id: str
    producer: Producer
    offsets: Mapping[TopicPartition, CommittedOffset]


async def commit(
    shard: GroupCoordinator, call: TransactionalCommit
) -> Mapping[TopicPartition, ErrorCode]:
    """Append the offsets to the producer's open transaction. Wait until the in-sync replicas have
    the records, and return an error code for each partition. Raises BrokerError."""
    producer = await shard.context.verified(call.transactional_id, call.producer)
    await shard.offsets.prepare(call.group_id)
    code = shard.may_commit(call.group_id, call.identity, call.generation, in_transaction=True)
    if code is not ErrorCode.NONE:
        return dict.fromkeys(call.offsets, code)
    shard.take_memory(sum(pending_bytes(call.group_id, *each) for each in call.offsets.items()))
    return await shard.offsets.commit_in_transaction(call.group_id, producer, call.offsets)
