"""Parses points in time."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

TIME_MAX_MS: Final = 2**63 - 1


def timestamp_ms(text: str) -> int:
    """Parse a number of ms since 1970, or an ISO 8601 time (default: UTC). Return the ms since
    1970. Raises ValueError for any other text or a time out of range."""
    if re.fullmatch(r"\d{1,19}", text):
        found = int(text)
    else:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        found = int(moment.timestamp() * 1000)
    if not 0 <= found <= TIME_MAX_MS:
        raise ValueError(f"{text} is before 1970 or beyond the largest timestamp")
    return found
