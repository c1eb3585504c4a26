"""Recorded requests of real clients, in the file `recorded_requests.txt`: one request of each
client, API and version, without its size. The fuzzers mutate them, and a test checks that the codec
decodes and encodes each request without a change.

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
    """Return all requests in the file."""
    return [_parse(line) for line in FILE.read_text("ascii").splitlines() if line]


def keep(requests: Iterable[Recorded]) -> int:
    """Replace the content of the file by these requests. Return the number of lines."""
    lines = [
        f"{one.client} {one.key} {one.version} {base64.b64encode(one.frame).decode()}\n"
        for one in sorted(requests)
    ]
    FILE.write_text("".join(lines), "ascii")
    return len(lines)


def _parse(line: str) -> Recorded:
    client, key, version, text = line.split(" ")
    return Recorded(client, int(key), int(version), base64.b64decode(text))
