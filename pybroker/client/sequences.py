"""The sequence numbers of an idempotent producer in one partition (KIP-98). Two flags show a
failure:

- `unresolved`: a failed batch may have left a gap in the sequence numbers. Batches that have
  sequence numbers are retried, and new batches wait. If the gap remains, `restarting` is set.
- `restarting`: a gap remains, or the broker has lost earlier batches. When all batches in flight
  have a response, the producer resets the numbers in a new epoch (KIP-360).
"""

from __future__ import annotations

SEQUENCE_COUNT = 2**31


def add(sequence: int, count: int) -> int:
    """Return `sequence` + `count`, wrapped: the number after 2^31-1 is 0."""
    return (sequence + count) % SEQUENCE_COUNT


class SequenceState:
    """The sequence numbers of one partition. Invariant: all numbers below `next_sequence` are
    assigned to batches. `last_acknowledged` is the highest acknowledged number; -1 if none is
    acknowledged in this epoch."""

    def __init__(self) -> None:
        self.producer_id = -1
        self.producer_epoch = -1
        self.next_sequence = 0
        self.last_acknowledged = -1
        self.unresolved = False
        self.restarting = False

    def start(self, producer_id: int, producer_epoch: int) -> None:
        """Start again at sequence number 0, with this producer id and epoch."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.next_sequence = 0
        self.last_acknowledged = -1
        self.unresolved = False
        self.restarting = False

    def assign(self, count: int) -> int:
        """Assign the next `count` sequence numbers, and return the first."""
        first = self.next_sequence
        self.next_sequence = add(first, count)
        return first

    def acknowledge(self, base_sequence: int, count: int) -> None:
        """Record that the broker has stored `count` records from the number `base_sequence` on. A
        late response of an earlier leader does not lower `last_acknowledged`."""
        last = add(base_sequence, count - 1)
        behind = (self.last_acknowledged - last) % SEQUENCE_COUNT
        if self.last_acknowledged < 0 or behind >= SEQUENCE_COUNT // 2:
            self.last_acknowledged = last

    def is_next(self, base_sequence: int) -> bool:
        """Return whether `base_sequence` is the sequence number after `last_acknowledged`."""
        return base_sequence == add(self.last_acknowledged, 1)

    def has_hole(self) -> bool:
        """Return whether failed batches have used sequence numbers above `last_acknowledged`. Call
        this only when all batches with sequence numbers have succeeded or failed."""
        return self.next_sequence != add(self.last_acknowledged, 1)
