"""Two classes that the consumer and the producer both use: an offset to commit, and the identity of
a consumer in its group."""

from __future__ import annotations

from dataclasses import dataclass

from pybroker.model import NO_EPOCH


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """An offset to commit. `offset` is the next one to read. `metadata` is a text that is stored
    with the offset. `leader_epoch` is the leader epoch of the last read record (-1: unknown)."""

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """The identity of a consumer in its group. A producer sends it with the offsets of a
    transaction. The broker refuses the offsets if the member has left the generation (KIP-447).
    Without membership, the generation is -1 and the member id empty."""

    group_id: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None
