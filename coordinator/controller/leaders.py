"""The choice of a partition's leader: one pure function for each kind of election. The caller sets
the leader epoch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pybroker.model import PartitionState


@dataclass(frozen=True, slots=True)
class Elected:
    """A leader and its ISR, which contains the leader. `unclean`: the leader may lack acknowledged
    records."""

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
    """Return a new leader for a partition whose leader is lost; None if no replica may lead. The
    candidates have these ranks, best first:

    - a live ISR member that has not restarted since it was last in sync (is not in `stale`);
    - any live ISR member;
    - a live eligible leader replica (KIP-966);
    - with `unclean`, any live replica.

    Within a rank, the first one in the assignment is elected. In the last three ranks, the new
    leader alone becomes the ISR.
    """
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
    """Return the preferred replica (the first assigned one) as the leader, with an unchanged ISR.
    Return None if that replica is not live or not in sync."""
    if replicas and replicas[0] in live and replicas[0] in state.isr:
        return Elected(replicas[0], state.isr)
    return None


def handover(
    replicas: Sequence[int], state: PartitionState, live: Collection[int], leaving: Collection[int]
) -> Elected | None:
    """Return a new leader for a partition whose leader is about to stop, and the ISR without the
    `leaving` brokers. The new leader is the first broker in `replicas` that is `live` and in this
    ISR. Return None if there is no such broker."""
    isr = tuple(broker for broker in state.isr if broker not in leaving)
    for candidate in replicas:
        if candidate in isr and candidate in live:
            return Elected(candidate, isr)
    return None
