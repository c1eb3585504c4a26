"""What whoever looks after brokers does: starts who gave up, and gives up what cannot come back,
the contents of a lost disk or what lies behind a hole in a log. Without the latter a partition that
may need it waits for ever, as it has to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pybroker.model import TopicPartition
from pybroker.storage.filename import ACCEPTED_LOSS
from pybroker.testing.simulation.broker import SimBroker
from pybroker.testing.simulation.cluster import SimCluster
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.view import stored_states


def look_after(cluster: SimCluster) -> None:
    """To be called now and then, once nothing is broken any more. Who gave up, because of ZooKeeper
    for instance, is started again."""
    found = _awaited_in_vain(cluster)
    for broker in cluster.brokers.values():
        found[broker.id] |= _kept_out(broker)
        if found[broker.id]:
            _accept_loss(broker, found[broker.id])
    cluster.start()


def _kept_out(broker: SimBroker) -> set[str]:
    """Directories whose disk is a new one, and what was lost with them: a broker that has another
    directory makes nothing of the kind anew before it is told."""
    if not broker.serves or broker.rooms is None:
        return set()
    logs = broker.rooms.logs
    empty = {path for path, why in logs.failed_directories.items() if ACCEPTED_LOSS in str(why)}
    return empty | {*logs.lost_directories} if empty else set()


def _awaited_in_vain(cluster: SimCluster) -> defaultdict[int, set[str]]:
    """What brokers have lost without which some partition has no leader, or one that others cannot
    copy: nobody else counts for it. By broker, as the operator names it."""
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
    """Nothing if it has the partition, or may have it soon. A copy that is not complete is no more
    than a beginning of what was lost; a leader in use leads on with a hole."""
    rooms, app = broker.rooms, broker.app
    if not broker.serves or rooms is None or app is None:
        return set()
    if key in app.damaged_replicas.waiting:
        return {str(key)}
    if key in rooms.replicas.partitions and key not in rooms.logs.incomplete:
        return set()
    if rooms.logs.lost_directories:
        return {*rooms.logs.lost_directories}
    return {str(key)} if key in rooms.logs.damaged() else set()


def _accept_loss(broker: SimBroker, names: Iterable[str]) -> None:
    """As docs/operations.rst has it."""
    assert broker.rooms is not None
    path = f"{broker.rooms.logs.usable_directories[0]}/{ACCEPTED_LOSS}"
    broker.machine.kill()
    told = sorted(names)
    DiskView(broker.disk).replace(path, "\n".join(told).encode())
    broker.machine.world.note(f"broker {broker.id}: {', '.join(told)} given up")
