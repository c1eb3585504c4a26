"""What whoever looks after brokers does: starts who gave up, and gives up what cannot come back,
the contents of a lost disk or what lies behind a hole in a log. Without the latter a partition that
may need it waits for ever, as it has to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from pybroker.model import TopicPartition
from pybroker.storage.filename import ACCEPTED_LOSS
from pybroker.testing.simulation.broker import SimBroker
from pybroker.testing.simulation.cluster import SimCluster
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.view import stored_states


def look_after(cluster: SimCluster) -> None:
    """To be called now and then, once nothing is broken any more. Who gave up, because of ZooKeeper
    for instance, is started again."""
    for broker, names in _awaited_in_vain(cluster).items():
        _accept_loss(cluster.brokers[broker], names)
    cluster.start()


def _awaited_in_vain(cluster: SimCluster) -> Mapping[int, set[str]]:
    """What brokers have lost without which some partition has no leader, or one that others cannot
    copy: nobody else counts for it. By broker, as the operator names it."""
    found: dict[int, set[str]] = defaultdict(set)
    for key, state in stored_states(cluster).items():
        lost = {
            broker.id: name
            for broker in cluster.brokers.values()
            if (name := _name_of_loss(broker, key)) is not None
        }
        if {*state.isr, *state.eligible} <= lost.keys():
            for broker, name in lost.items():
                found[broker].add(name)
    return found


def _name_of_loss(broker: SimBroker, key: TopicPartition) -> str | None:
    """None if it has the partition, or may have it soon. A copy that is not complete is no more
    than a beginning of what was lost; a leader in use leads on with a hole."""
    rooms, app = broker.rooms, broker.app
    if not broker.serves or rooms is None or app is None:
        return None
    if key in app.quarantine.waiting:
        return str(key)
    if key in rooms.replicas.partitions and key not in rooms.logs.incomplete:
        return None
    if rooms.logs.lost_directories:
        return broker.properties["log.dirs"]
    return str(key) if key in rooms.logs.damaged() else None


def _accept_loss(broker: SimBroker, names: Iterable[str]) -> None:
    """As docs/operations.rst has it."""
    broker.machine.kill()
    path = f"{broker.properties['log.dirs']}/{ACCEPTED_LOSS}"
    told = sorted(names)
    DiskView(broker.disk).replace(path, "\n".join(told).encode())
    broker.machine.world.note(f"broker {broker.id}: {', '.join(told)} given up")
