"""Limits of consumer groups that no broker option sets."""

from __future__ import annotations

from typing import Final

NEW_MEMBER_JOIN_TIMEOUT_S: Final = 300.0
"""How long a new member's first JoinGroup may wait. The member cannot send heartbeats before it has
the answer, so its client may have disconnected. After this time the client has to join again."""
PROTOCOLS_MAX: Final = 64
"""The maximum number of assignors of one member. Clients have a handful."""
METADATA_BYTES_MAX: Final = 1 << 20
"""The maximum size (bytes) of one member's metadata for all its assignors. A group is stored as one
record, so a member with more metadata would not fit."""
PENDING_MAX: Final = 2_000
"""How many of the member ids that it has sent to clients (KIP-394) a shard remembers. Above this
number it forgets the oldest id. If the client has not joined with that id yet, it has to ask for
another. Each id may keep a group in memory, which takes about two kilobytes."""
REASON_MAX: Final = 255
"""How many characters of a member's reason for joining are logged, as in Kafka's clients."""
NAME_PREFIX_MAX: Final = 200
"""The maximum number of characters of the client id or instance id at the beginning of a member
id."""
