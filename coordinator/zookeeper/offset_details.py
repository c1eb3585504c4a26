"""What came with a committed offset and has no room in its classic node, which holds a decimal
number only: leader epoch, the client's text, times of its own. One node of ours an offset, below
`/pybroker/offsets`.

The node names the offset that it belongs to: when somebody edits the classic node, the rest no
longer holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pybroker.coordinator.zookeeper.json_nodes import dump, load_object
from pybroker.model import NO_EPOCH, NO_TIMESTAMP

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class OffsetDetails:
    """Times in ms since 1970, -1 where there is none: then the offset was committed when its node
    was written, and expires by the broker's rule."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_ms: int = NO_TIMESTAMP
    expire_ms: int = NO_TIMESTAMP


def encode_offset_details(details: OffsetDetails) -> bytes:
    """Only what is not empty; numbers over 32 bits are strings, as in every node."""
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
    """Raises MalformedNode."""
    fields = load_object(path, data)
    has_epoch = "leader_epoch" in fields.names()
    return OffsetDetails(
        offset=fields.number_in_text("offset"),
        leader_epoch=fields.integer("leader_epoch") if has_epoch else NO_EPOCH,
        metadata=fields.text("metadata", default=""),
        commit_ms=fields.number_in_text("commit_timestamp", default=NO_TIMESTAMP),
        expire_ms=fields.number_in_text("expire_timestamp", default=NO_TIMESTAMP),
    )
