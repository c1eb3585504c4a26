"""The decision journal: each decision of the controller, its reason, and the event that caused it.

Entries are plain JSON objects with `time` (UTC), `controller`, `controller_epoch`, `event` (the
event that the controller is handling, see `events.py`) and `what`:

- `state`: a new state of `partition` was stored; `reason` is a value of `partitions.Reason`; `from`
  and `to` are the states (`from` is null for a new partition);
- `elected`, `steps-down`: this broker became the controller, or stopped being the controller;
- `brokers`: the brokers that were `lost` and `started`;
- `deletion`: the deletion of `topic` has begun, or has ended (`done`);
- `election-failed`: an election requested by /admin/preferred_replica_election failed; `reason` is
  the name of Kafka's error code;
- `election-ignored`: /admin/preferred_replica_election cannot be parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Final

from pybroker.coordinator.controller.election import Won
from pybroker.coordinator.controller.partitions import Partition, StateWrite
from pybroker.model import PartitionState, TopicPartition
from pybroker.ports import Clock

REASON_CHARACTERS_MAX: Final = 200
"""The maximum number of characters of a `reason` that quotes the content of a node."""

Entry = dict[str, object]
Note = Callable[[Entry], None]
"""Stores an entry. Must not wait or raise."""


class Journal:
    """Makes an entry for each decision of the controller during one term. `note` stores the entry.
    The controller sets `event` to the event that the controller is handling."""

    def __init__(self, note: Note, won: Won, clock: Clock) -> None:
        self._note = note
        self._won = won
        self._clock = clock
        self.event = "elected"

    def state_stored(self, before: Partition, write: StateWrite, version: int) -> None:
        earlier = None if before.state is None else _state(before.state, before.version)
        self._add(
            "state",
            partition=str(write.topic_partition),
            reason=write.reason.value,
            **{"from": earlier},
            to=_state(write.state, version),
            replicas=list(before.replicas),
        )

    def elected(self) -> None:
        self._add("elected")

    def steps_down(self) -> None:
        self.event = "steps-down"
        self._add("steps-down")

    def brokers_changed(self, lost: Collection[int], started: Collection[int]) -> None:
        if lost or started:
            self._add("brokers", lost=sorted(lost), started=sorted(started))

    def deletion(self, topic: str, *, done: bool) -> None:
        self._add("deletion", topic=topic, done=done)

    def election_failed(self, key: TopicPartition, reason: str) -> None:
        self._add("election-failed", partition=str(key), reason=reason)

    def election_ignored(self, reason: str) -> None:
        self._add("election-ignored", reason=reason[:REASON_CHARACTERS_MAX])

    def _add(self, what: str, **fields: object) -> None:
        moment = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)
        entry: Entry = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "controller": self._won.broker_id,
            "controller_epoch": self._won.epoch,
            "event": self.event,
            "what": what,
        }
        self._note(entry | fields)


def _state(state: PartitionState, version: int) -> dict[str, object]:
    return {
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
        "eligible": list(state.eligible),
        "controller_epoch": state.controller_epoch,
        "version": version,
    }
