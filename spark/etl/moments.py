"""Parses times as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

TIME_MAX_MS: Final = 2**63 - 1


def timestamp_ms(text: str) -> int:
    """Parse ms since 1970, or a time in ISO 8601 (UTC without a zone). Return ms since 1970. Raises
    ValueError, also for a time before 1970."""
    if re.fullmatch(r"\d{1,19}", text):
        found = int(text)
    else:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        found = int(moment.timestamp() * 1000)
    if not 0 <= found <= TIME_MAX_MS:
        raise ValueError(f"{text} lies before 1970 or too late")
    return found
