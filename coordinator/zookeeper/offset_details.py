"""The details of a committed offset: leader epoch, metadata and times. The offset's node below
`/consumers` must contain only a number, so the details have a second node, below
`/pybroker/offsets`. The details are valid only if both nodes have the same offset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pybroker.coordinator.zookeeper.json_nodes import dump, load_object
from pybroker.model import NO_EPOCH, NO_TIMESTAMP

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class OffsetDetails:
    """The details of a committed offset. Times are in ms since 1970. If `commit_ms` is -1, the
    commit time is the modification time of the offset's node. If `expire_ms` is -1, the broker's
    options set the expiry."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_ms: int = NO_TIMESTAMP
    expire_ms: int = NO_TIMESTAMP


def encode_offset_details(details: OffsetDetails) -> bytes:
    """Return the content of the offset's node below `/pybroker/offsets`, without empty fields.
    Numbers that may exceed 32 bits are strings."""
    content: dict[str, object] = {"version": _VERSION, "offset": str(details.offset)}
    if details.leader_epoch != NO_EPOCH:
        content["leader_epoch"] = details.leader_epoch
    if details.metadata:
        content["metadata"] = details.metadata
    if details.commit_ms != NO_TIMESTAMP:
        content["commit_timestamp"] = str(details.commit_ms)
    if details.expire_ms != NO_TIMESTAMP:
        content["expire_timestamp"] = str(details.expire_ms)
    return dump(content)


def decode_offset_details(path: str, data: bytes) -> OffsetDetails:
    """Decode the node that has the details of a committed offset. Raises MalformedNode."""
    fields = load_object(path, data)
    has_epoch = "leader_epoch" in fields.names()
    return OffsetDetails(
        offset=fields.number_in_text("offset"),
        leader_epoch=fields.integer("leader_epoch") if has_epoch else NO_EPOCH,
        metadata=fields.text("metadata", default=""),
        commit_ms=fields.number_in_text("commit_timestamp", default=NO_TIMESTAMP),
        expire_ms=fields.number_in_text("expire_timestamp", default=NO_TIMESTAMP),
    )
