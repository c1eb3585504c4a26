"""The limits of groups that no option moves."""

from __future__ import annotations

from typing import Final

NEW_MEMBER_JOIN_TIMEOUT_S: Final = 300.0
"""A member that has no id yet cannot heartbeat while its join waits; its client may be gone. After
that time it has to ask again."""
PROTOCOLS_MAX: Final = 64
"""Assignors of one member; clients know a handful."""
METADATA_BYTES_MAX: Final = 1 << 20
"""Metadata of one member for all its assignors. With more than that no generation could be stored,
since a group is one record."""
PENDING_MAX: Final = 2_000
"""Ids of one shard that were given out and not yet come back with: the oldest makes room, and its
owner, if there is one, asks for another. Each may keep a group of its own, some two kilobytes."""
REASON_MAX: Final = 255
"""Characters of a member's own words that come into the log, as in Kafka's clients."""
NAME_PREFIX_MAX: Final = 200
"""Characters of a client id or an instance id that a member id begins with."""
