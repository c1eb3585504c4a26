"""The settings of a workload process, passed as JSON on its command line."""

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
    """The settings of a workload. `clients` are names in `producers.KINDS` and `consumers.KINDS`;
    `rate` is the number of records per second of each producer, spread over the partitions.
    """

    folder: str
    bootstrap: str
    topic: str
    partitions: int = 4
    clients: tuple[str, ...] = (*PRODUCERS, *READERS)
    rate: int = 150
    incarnation: int = 1
    leader_only: bool = False
    """A planted bug for a test of the checker: producers use acks=1, but record acks=all."""

    @property
    def ops_folder(self) -> Path:
        return Path(self.folder)

    def encode(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def decode(text: str) -> Settings:
    given = json.loads(text)
    return Settings(**{**given, "clients": tuple(given["clients"])})
