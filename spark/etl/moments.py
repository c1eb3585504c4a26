"""Times as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

TIME_MAX_MS: Final = 2**63 - 1


def timestamp_ms(text: str) -> int:
    """Milliseconds since 1970 of a number of them, or of a time in ISO 8601 (UTC if it does not
    say), from 1970 on. Raises ValueError."""
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
