"""Who may lead a partition: one pure function a strategy.

A strategy looks at the assignment, the stored state and the live brokers; it knows no epochs and
writes nothing. `decisions.py` turns its answer into a new state.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pybroker.model import PartitionState


@dataclass(frozen=True, slots=True)
class Elected:
    """Invariant: `leader` is in `isr`. `unclean`: records that were acknowledged may be missing."""

    leader: int
    isr: tuple[int, ...]
    unclean: bool = False


def offline(
    replicas: Sequence[int],
    state: PartitionState,
    live: Collection[int],
    *,
    stale: Collection[int] = (),
    unclean: bool = False,
) -> Elected | None:
    """A leader for a partition that lost its own: the first assigned replica that is live and in
    sync; else one that was, and whose broker has been restarted since (`stale`): the others have to
    catch up with it first; else one that is eligible, since it still holds all that is committed
    (KIP-966); else, only if `unclean`, any live one. None if nobody may lead."""
    in_sync = tuple(broker for broker in state.isr if broker in live and broker not in stale)
    for candidate in replicas:
        if candidate in in_sync:
            return Elected(candidate, in_sync)
    for group in (state.isr, state.eligible):
        for candidate in replicas:
            if candidate in group and candidate in live:
                return Elected(candidate, (candidate,))
    if unclean:
        for candidate in replicas:
            if candidate in live:
                return Elected(candidate, (candidate,), unclean=True)
    return None


def preferred(
    replicas: Sequence[int], state: PartitionState, live: Collection[int]
) -> Elected | None:
    """The preferred replica, which is the first assigned one, if it is live and in sync. The ISR
    stays as it is."""
    if replicas and replicas[0] in live and replicas[0] in state.isr:
        return Elected(replicas[0], state.isr)
    return None


def handover(
    replicas: Sequence[int], state: PartitionState, live: Collection[int], leaving: Collection[int]
) -> Elected | None:
    """A leader in place of one that is about to stop (`live` are those that stay): the first
    assigned replica that stays and is in sync. Who is leaving is not in the ISR any more."""
    isr = tuple(broker for broker in state.isr if broker not in leaving)
    for candidate in replicas:
        if candidate in isr and candidate in live:
            return Elected(candidate, isr)
    return None
