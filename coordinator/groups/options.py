"""The limits of groups that no broker option changes."""

from __future__ import annotations

from typing import Final

NEW_MEMBER_JOIN_TIMEOUT_S: Final = 300.0
"""How long the first join of a member may wait. The member cannot send heartbeats before its
answer, so its client may be gone; after this time it has to join again."""
PROTOCOLS_MAX: Final = 64
"""Assignors of one member; clients have a handful."""
METADATA_BYTES_MAX: Final = 1 << 20
"""Metadata of one member for all its assignors. A group is one record, so a generation with more
could not be stored."""
PENDING_MAX: Final = 2_000
"""Member ids of one shard that were given out (KIP-394) and not used yet. Above this number the
oldest is forgotten, and its client asks for another. Each may keep a group in memory, some two
kilobytes."""
REASON_MAX: Final = 255
"""Characters of a member's reason for joining that are logged, as in Kafka's clients."""
NAME_PREFIX_MAX: Final = 200
"""Characters of the client id or instance id at the start of a member id."""
