"""The settings of a member process, passed as JSON on its command line."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """The settings of a member. `client` is the name of this process in the log; a nonempty
    `instance` makes it a static member; `strategy` is Kafka's name of the assignor; times are in
    ms.
    """

    library: str
    client: str
    group: str
    bootstrap: str
    topics: tuple[str, ...]
    folder: str
    strategy: str = "range"
    instance: str = ""
    session_ms: int = 4_000
    heartbeat_ms: int = 400

    @property
    def ops_folder(self) -> Path:
        return Path(self.folder)

    def encode(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def decode(text: str) -> MemberSettings:
    given = json.loads(text)
    return MemberSettings(**{**given, "topics": tuple(given["topics"])})
