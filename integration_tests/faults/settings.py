"""The settings of a workload, as JSON on its command line."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PRODUCERS: Final = ("idempotent", "one-in-flight", "five-in-flight", "ours")
READERS: Final = ("reader", "our-reader", "asker")


@dataclass(frozen=True, slots=True)
class Settings:
    """`clients` are names of `producers.KINDS` and `consumers.KINDS`; `rate` is in records a second
    for each producer, spread over the partitions."""

    folder: str
    bootstrap: str
    topic: str
    partitions: int = 4
    clients: tuple[str, ...] = (*PRODUCERS, *READERS)
    rate: int = 150
    incarnation: int = 1
    leader_only: bool = False
    """The planted mistake: producers use acks=1 and claim acks=all."""

    @property
    def ops_folder(self) -> Path:
        return Path(self.folder)

    def encode(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def decode(text: str) -> Settings:
    given = json.loads(text)
    return Settings(**{**given, "clients": tuple(given["clients"])})
