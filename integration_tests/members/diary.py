"""The operation log of a member: its assignments, processed records and commits.

A failed commit always has the outcome "info", because an earlier attempt of the library may have
succeeded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from integration_tests.members.settings import MemberSettings
from pybroker.testing.history.ops import OpsLog
from pybroker.testing.history.values import TopicPartition

COMMIT_AFTER: Final = 20
"""The number of records after which a member commits. It also commits when it has no more
records.
"""


class Diary:
    """The operation log of one member of any library. `pending` is its uncommitted progress:
    partition -> offset of the next record.
    """

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings
        self._log = OpsLog(settings.ops_folder, f"member-{settings.client}")
        self.held: set[TopicPartition] = set()
        self.pending: dict[TopicPartition, int] = {}
        self._uncommitted = 0

    def assigned(self, member: str, generation: int, partitions: Iterable[TopicPartition]) -> None:
        """Record that exactly these partitions are assigned to the member from now on."""
        self.held = set(partitions)
        self.pending = {place: at for place, at in self.pending.items() if place in self.held}
        self._write(
            "holds",
            "ok",
            # A restarted static member takes over its own assignment within the generation.
            member=self._settings.instance or member,
            generation=generation,
            tps=sorted(self.held),
        )
        numbers = " ".join(f"{topic}/{number}" for topic, number in sorted(self.held))
        print(f"holds {generation} {numbers}", flush=True)

    def processed(self, place: TopicPartition, offsets: Iterable[int]) -> None:
        done = list(offsets)
        self._write("processed", "ok", tp=place, offs=done)
        self.pending[place] = done[-1] + 1
        self._uncommitted += len(done)

    @property
    def is_due(self) -> bool:
        return self._uncommitted >= COMMIT_AFTER

    def commit_begins(self, generation: int) -> dict[TopicPartition, int]:
        """Record the begin of a commit. Return the offsets to commit."""
        self._uncommitted = 0
        for place, offset in self.pending.items():
            self._write("commit", "invoke", tp=place, off=offset, generation=generation)
        return dict(self.pending)

    def commit_ends(self, generation: int, errors: Mapping[TopicPartition, str | None]) -> None:
        """Record the outcome of a commit. `generation` is the current generation: the commit was
        sent with this generation or an earlier one.
        """
        for place, error in errors.items():
            offset = self.pending[place]
            if error is None:
                self._write("commit", "ok", tp=place, off=offset, generation=generation)
                del self.pending[place]
            else:
                self._write("commit", "info", tp=place, off=offset, err=error)

    def _write(self, function: str, kind: str, **more: Any) -> None:
        client, group = self._settings.client, self._settings.group
        self._log.write(client, function, kind, group=group, **more)
