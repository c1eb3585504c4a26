"""Two classes that the consumer and the producer both use: an offset to commit, and the identity of
a consumer in its group."""

from __future__ import annotations

from dataclasses import dataclass

from pybroker.model import NO_EPOCH


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """An offset to commit. `offset` is the offset of the next record to read. `leader_epoch` is the
    leader epoch of the last read record (-1: unknown)."""

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A consumer's identity in its group. The broker checks the identity to refuse a transaction's
    offsets after the consumer has left the generation (KIP-447)."""

    group_id: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None
