"""The sequences by which a broker knows an idempotent producer's batches (KIP-98), one partition.

A broker accepts a batch only if its first sequence follows the last one it stored; a lower one is a
duplicate, a higher one a gap. So the producer must know which numbers are used up for certain:

- A batch that failed for good leaves a gap. The partition is `unresolved`: batches that have
  numbers keep them and may be sent again, new ones wait. When none is left and the gap is real,
  the numbers start again under a higher epoch (KIP-360).
- The broker reports that the first outstanding batch does not follow: earlier ones are lost there.
  The partition is `restarting`: nothing is sent until all answers are in, then all start again.

Pure state; nothing here waits or sends.
"""

from __future__ import annotations

SEQUENCE_COUNT = 2**31


def add(sequence: int, count: int) -> int:
    """Return the sequence `count` later; after 2^31-1 comes 0."""
    return (sequence + count) % SEQUENCE_COUNT


class SequenceState:
    """Invariant: every number below `next_sequence` has been given to a batch; `last_acknowledged`
    is the highest that the broker acknowledged, -1 if none under this epoch."""

    def __init__(self) -> None:
        self.producer_id = -1
        self.producer_epoch = -1
        self.next_sequence = 0
        self.last_acknowledged = -1
        self.unresolved = False
        self.restarting = False

    def start(self, producer_id: int, producer_epoch: int) -> None:
        """Begin at 0 under this identity."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.next_sequence = 0
        self.last_acknowledged = -1
        self.unresolved = False
        self.restarting = False

    def assign(self, count: int) -> int:
        """Return the first of `count` numbers for a new batch."""
        first = self.next_sequence
        self.next_sequence = add(first, count)
        return first

    def acknowledge(self, base_sequence: int, count: int) -> None:
        """Note an acknowledgement. An earlier leader's answer may come after one of the next leader
        to a later batch."""
        last = add(base_sequence, count - 1)
        behind = (self.last_acknowledged - last) % SEQUENCE_COUNT
        if self.last_acknowledged < 0 or behind >= SEQUENCE_COUNT // 2:
            self.last_acknowledged = last

    def is_next(self, base_sequence: int) -> bool:
        """Whether this is the number that must follow the last acknowledged one."""
        return base_sequence == add(self.last_acknowledged, 1)

    def has_hole(self) -> bool:
        """Whether, with no batch outstanding, given numbers were never acknowledged."""
        return self.next_sequence != add(self.last_acknowledged, 1)
