"""Does the work of a human operator in a simulated cluster: restarts brokers, and accepts the loss
of data that cannot come back."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Iterable

from pybroker.model import TopicPartition
from pybroker.storage.filename import ACCEPTED_LOSS
from pybroker.storage.replica_health import Event
from pybroker.testing.simulation.broker import SimBroker
from pybroker.testing.simulation.cluster import SimCluster
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.view import stored_states


def repair(cluster: SimCluster) -> None:
    """Accept the loss of data that cannot come back. Restart each broker that has ended, and
    each broker whose disk was full when the broker started. Call this repeatedly after the last
    fault."""
    found = _irrecoverable(cluster)
    for broker in cluster.brokers.values():
        found[broker.id] |= _replaced_directories(broker)
        if found[broker.id]:
            _accept_loss(broker, found[broker.id])
        elif _was_full_at_its_start(broker):
            broker.machine.kill()
    cluster.start()


def _was_full_at_its_start(broker: SimBroker) -> bool:
    """Return whether a log directory is offline because the disk was full at the broker's start.
    Only a restart of the broker brings this directory online again."""
    if not broker.serves or broker.rooms is None:
        return False
    reasons = map(str, broker.rooms.logs.failed_directories.values())
    return any(os.strerror(errno.ENOSPC) in reason for reason in reasons)


def _replaced_directories(broker: SimBroker) -> set[str]:
    """Return the log directories whose data the operator gives up. These are the directories that
    are offline because they are unexpectedly empty, and all lost directories. If no directory is
    offline for this reason, return an empty set, even if directories are lost."""
    if not broker.serves or broker.rooms is None:
        return set()
    logs = broker.rooms.logs
    empty = {path for path, why in logs.failed_directories.items() if ACCEPTED_LOSS in str(why)}
    return empty | {*logs.lost_directories} if empty else set()


def _irrecoverable(cluster: SimCluster) -> defaultdict[int, set[str]]:
    """Return broker id -> the log directories and partitions whose loss the operator must accept,
    because all in-sync and eligible replicas (KIP-966) of a partition have lost data."""
    found: defaultdict[int, set[str]] = defaultdict(set)
    for key, state in stored_states(cluster).items():
        lost = {
            broker.id: names
            for broker in cluster.brokers.values()
            if (names := _names_of_loss(broker, key))
        }
        if {*state.isr, *state.eligible} <= lost.keys():
            for broker, names in lost.items():
                found[broker] |= names
    return found


def _names_of_loss(broker: SimBroker, key: TopicPartition) -> set[str]:
    """Return the names that the operator must list to accept the loss of the broker's replica: log
    directories, the partition, or nothing. The first case that applies decides:

    - the broker does not serve: nothing;
    - the replica has a corrupt range, and is in sync or eligible (KIP-966): the partition;
    - the broker's log is a complete copy: nothing;
    - the broker has lost log directories: these directories;
    - the replica has a corrupt range: the partition;
    - otherwise: nothing.
    """
    rooms, app = broker.rooms, broker.app
    if not broker.serves or rooms is None or app is None:
        return set()
    if key in app.unhealthy_replicas.waiting:
        return {str(key)}
    health = rooms.logs.health
    if key in rooms.replicas.partitions and not health.allows(key, Event.COMPLETE):
        return set()
    if rooms.logs.lost_directories:
        return {*rooms.logs.lost_directories}
    return {str(key)} if key in health.damage else set()


def _accept_loss(broker: SimBroker, names: Iterable[str]) -> None:
    """Kill the broker, and write `names` (log directories and partitions) into its file
    `pybroker.accept-loss`, which the broker reads at its next start."""
    assert broker.rooms is not None
    path = f"{broker.rooms.logs.usable_directories[0]}/{ACCEPTED_LOSS}"
    broker.machine.kill()
    told = sorted(names)
    DiskView(broker.disk).replace(path, "\n".join(told).encode())
    broker.machine.environment.note(f"broker {broker.id}: {', '.join(told)} given up")
