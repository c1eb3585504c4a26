"""The health of a broker's replicas: whether a replica may lack acknowledged records, and why.
LEGAL_MOVES says how each event changes the health. Files on the disk preserve the health over a
restart."""

from __future__ import annotations

import enum
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pybroker.errors import BrokerError, ErrorCode, IllegalMove
from pybroker.model import TopicPartition
from pybroker.ports import Disk
from pybroker.storage.filename import DAMAGED, INCOMPLETE
from pybroker.storage.log import Log
from pybroker.storage.log_parts import Damage

_INCOMPLETE: Final = b"this replica is being copied from its leader; it may not lead before\n"


class Health(enum.Enum):
    WHOLE = "Whole"
    """The replica has every record that it has acknowledged, as far as the broker knows."""
    SUSPECT = "Suspect"
    """A power loss or a failed disk may have removed records that were not synced. The replica has
    not been in the ISR since."""
    DAMAGED = "Damaged"
    """The log has a corrupt range. The replica may still be in sync or eligible."""
    REPLACEABLE = "Replaceable"
    """The log has a corrupt range, and the replica is neither in sync nor eligible. When another
    broker leads, a new copy replaces the log."""
    COPYING = "Copying"
    """The log was lost, and the broker copies a new one from the leader. The copy is incomplete:
    the replica may not lead."""
    RESIGNED = "Resigned"
    """As COPYING. Besides, the replica was the last in-sync or eligible one of the partition, and
    it has stepped aside: the partition now has no leader."""
    ELECTABLE = "Electable"
    """As RESIGNED. Besides, the controller has elected the replica, and the replica has stepped
    aside a second time: the partition is orphaned again. If the controller elects the replica once
    more, the replica leads, so that incomplete replicas do not step aside in turn without end."""
    DAMAGED_COPY = "DamagedCopy"
    """Both COPYING and DAMAGED."""
    GONE = "Gone"
    """The log has disappeared from its log directory, or its log directory has failed."""


class Event(enum.Enum):
    UNSYNCED = "power loss or disk error"
    CORRUPT = "corrupt range found"
    LOST = "log or log directory lost"
    COPY_BEGUN = "copying begins"
    COMPLETE = "copying ends"
    FOLLOWS = "another broker leads"
    ORPHANED = "steps aside, partition orphaned"
    STEPPED_ASIDE = "steps aside"
    DISMISSED = "wrong epoch accepted"
    IN_SYNC = "in the ISR again"


LEGAL_MOVES: Final[Mapping[Event, Mapping[Health, Health]]] = MappingProxyType(
    {
        Event.UNSYNCED: {Health.WHOLE: Health.SUSPECT},
        Event.CORRUPT: {
            Health.WHOLE: Health.DAMAGED,
            Health.SUSPECT: Health.DAMAGED,
            Health.COPYING: Health.DAMAGED_COPY,
            Health.RESIGNED: Health.DAMAGED_COPY,
            Health.ELECTABLE: Health.DAMAGED_COPY,
        },
        Event.LOST: dict.fromkeys(Health, Health.GONE),
        Event.COPY_BEGUN: {
            Health.WHOLE: Health.COPYING,
            Health.REPLACEABLE: Health.COPYING,
            Health.GONE: Health.COPYING,
        },
        Event.COMPLETE: {
            Health.COPYING: Health.WHOLE,
            Health.RESIGNED: Health.WHOLE,
            Health.ELECTABLE: Health.WHOLE,
            Health.DAMAGED_COPY: Health.DAMAGED,
        },
        Event.FOLLOWS: {Health.ELECTABLE: Health.RESIGNED},
        Event.ORPHANED: {
            Health.COPYING: Health.RESIGNED,
            Health.RESIGNED: Health.ELECTABLE,
            Health.ELECTABLE: Health.ELECTABLE,
            Health.DAMAGED_COPY: Health.DAMAGED_COPY,
        },
        Event.STEPPED_ASIDE: {
            Health.DAMAGED: Health.REPLACEABLE,
            Health.DAMAGED_COPY: Health.REPLACEABLE,
        },
        Event.DISMISSED: {
            Health.DAMAGED: Health.WHOLE,
            Health.DAMAGED_COPY: Health.COPYING,
        },
        Event.IN_SYNC: {Health.SUSPECT: Health.WHOLE},
    }
)
"""Event -> health before the event -> health after it."""

_HAS_DAMAGE: Final = frozenset({Health.DAMAGED, Health.REPLACEABLE, Health.DAMAGED_COPY})


class ReplicaHealth:
    """The health of each replica of one broker. Thread-safe."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._replicas: Mapping[Health, set[TopicPartition]] = {each: set() for each in Health}
        """The replicas with each health except WHOLE."""
        self._damage: dict[TopicPartition, Damage] = {}
        self._lock = threading.Lock()

    def __getitem__(self, key: TopicPartition) -> Health:
        """Return the health of the replica; WHOLE if this broker has no such replica."""
        return next((each for each, keys in self._replicas.items() if key in keys), Health.WHOLE)

    def having(self, *healths: Health) -> list[TopicPartition]:
        """Return the replicas with one of these healths. WHOLE replicas are never returned."""
        return [key for each in healths for key in list(self._replicas[each])]

    def allows(self, key: TopicPartition, event: Event) -> bool:
        """Return whether the event is legal for the replica now."""
        return self[key] in LEGAL_MOVES[event]

    def allowing(self, event: Event) -> list[TopicPartition]:
        """Return the replicas whose health allows the event now (see LEGAL_MOVES). Replicas with
        the health WHOLE are never returned."""
        if not any(self._replicas.values()):
            return []
        return self.having(*LEGAL_MOVES[event])

    @property
    def damage(self) -> Mapping[TopicPartition, Damage]:
        """A copy of the mapping: replica -> the first corrupt range of the replica's log."""
        return self._damage.copy()

    def move(
        self,
        key: TopicPartition,
        event: Event,
        seen: Health | None = None,
        damage: Damage | None = None,
    ) -> bool:
        """Apply the event to the replica's health, and return True. Change nothing and return False
        if `seen` is given and is not the current health. Raises IllegalMove if LEGAL_MOVES does not
        allow the event. `damage` is the corrupt range found."""
        with self._lock:
            before = self[key]
            if seen not in (None, before):
                return False
            after = LEGAL_MOVES[event].get(before)
            if after is None:
                raise IllegalMove(
                    f'replica={key} is {before.value}: the event "{event.value}" is not legal '
                    "in this state"
                )
            if damage is not None:
                self._damage[key] = damage
            self._set(key, before, after)
            return True

    def forget(self, key: TopicPartition) -> None:
        """Drop the recorded health of a replica whose log is removed or newly created. The health
        is then WHOLE."""
        with self._lock:
            self._set(key, self[key], Health.WHOLE)

    def _set(self, key: TopicPartition, before: Health, after: Health) -> None:
        if after is not Health.WHOLE:
            self._replicas[after].add(key)
        if after is not before:  # removed last: a reader in another thread finds the replica
            self._replicas[before].discard(key)
        if after not in _HAS_DAMAGE:
            self._damage.pop(key, None)

    # -- with the marks on the disk; each method waits for the disk, and raises StorageError

    def find(self, log: Log, *, is_suspect: bool) -> None:
        """Determine the health of a replica at the broker's start. `is_suspect`: a power loss or a
        disk failure may have removed records."""
        key = log.topic_partition
        if self._disk.exists(f"{log.directory}/{INCOMPLETE}"):
            self.move(key, Event.COPY_BEGUN)
        elif is_suspect:
            self.move(key, Event.UNSYNCED)
        if log.damage is not None:
            self.move(key, Event.CORRUPT, damage=log.damage)

    def mark_incomplete(self, directory: str) -> None:
        """Create the directory of a new log, with the file that marks an incomplete log."""
        self._disk.make_dirs(directory)
        self._disk.replace(f"{directory}/{INCOMPLETE}", _INCOMPLETE)

    def require_complete(self, key: TopicPartition, is_copied: bool) -> None:
        """Raise BrokerError KAFKA_STORAGE_ERROR if the replica is incomplete (may lack acknowledged
        records) and `is_copied` is False. `is_copied`: another broker leads the partition, and this
        broker copies the leader's log."""
        if self.allows(key, Event.COMPLETE) and not is_copied:
            raise BrokerError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the log of {key} was lost, and its new copy is incomplete: the copy may lack "
                "records that this broker has acknowledged. This broker copies the rest when "
                "another broker leads the partition. Start the brokers that had the in-sync "
                "replicas, or elect another replica by an unclean election",
            )

    def complete(self, log: Log) -> None:
        """Treat the replica as complete from now on, so that it may lead. Call this if the replica
        has copied all records of its leader, or if no replica is in the ISR or eligible (KIP-966).
        Do nothing if the replica is complete already."""
        key = log.topic_partition
        seen = self[key]
        if seen in LEGAL_MOVES[Event.COMPLETE] and self.move(key, Event.COMPLETE, seen):
            self._disk.unlink(f"{log.directory}/{INCOMPLETE}")

    def give_up(self, log: Log, damage: Damage) -> None:
        """Stop using the log because of `damage`, also after a restart. The caller must know that
        other replicas have the log's records."""
        seen = self[log.topic_partition]
        if log.damage is None:
            self._disk.replace(f"{log.directory}/{DAMAGED}", damage.encode())
            log.damage = damage
        self.move(log.topic_partition, Event.STEPPED_ASIDE, seen)
