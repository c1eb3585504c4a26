"""The requests that real clients sent, kept in `recorded_requests.txt`: one of each client, API and
version, without its size. They are seeds for mutations, and the codec must bring each through
unchanged.

A line is `CLIENT KEY VERSION BASE64`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("recorded_requests.txt")
FRAME_BYTES_MAX: Final = 1500
"""A longer request is not kept."""


@dataclass(frozen=True, slots=True, order=True)
class Recorded:
    client: str
    key: int
    version: int
    frame: bytes


def recorded_requests() -> list[Recorded]:
    """All that the file holds."""
    return [_parse(line) for line in FILE.read_text("ascii").splitlines() if line]


def keep(requests: Iterable[Recorded]) -> int:
    """Write the file anew with these; gives the number of lines."""
    lines = [
        f"{one.client} {one.key} {one.version} {base64.b64encode(one.frame).decode()}\n"
        for one in sorted(requests)
    ]
    FILE.write_text("".join(lines), "ascii")
    return len(lines)


def _parse(line: str) -> Recorded:
    client, key, version, text = line.split(" ")
    return Recorded(client, int(key), int(version), base64.b64decode(text))
