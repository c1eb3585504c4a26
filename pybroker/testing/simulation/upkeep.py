"""What whoever looks after brokers does: starts who gave up, and says of a disk that it is gone for
good. Without the latter a partition waits for its disk for ever, as it has to."""

from __future__ import annotations

from collections.abc import Iterator

from pybroker.model import TopicPartition
from pybroker.storage.filename import ACCEPTED_LOSS
from pybroker.testing.simulation.broker import SimBroker
from pybroker.testing.simulation.cluster import SimCluster
from pybroker.testing.simulation.view import stored_states


def look_after(cluster: SimCluster) -> None:
    """To be called now and then, once nothing is broken any more. Who gave up, because of ZooKeeper
    for instance, is started again."""
    for broker in [*_awaited_in_vain(cluster)]:
        _accept_loss(broker)
    cluster.start()


def _awaited_in_vain(cluster: SimCluster) -> Iterator[SimBroker]:
    """Brokers without their disks which alone count for some partition."""
    gone = {
        broker.id
        for broker in cluster.brokers.values()
        if broker.serves and broker.rooms is not None and broker.rooms.logs.lost_directories
    }
    found: set[int] = set()
    for key, state in stored_states(cluster).items() if gone else ():
        counted = {*state.isr, *state.eligible}
        if counted <= gone and not any(_has(cluster.brokers[each], key) for each in counted):
            found |= counted
    return (cluster.brokers[each] for each in sorted(found))


def _has(broker: SimBroker, key: TopicPartition) -> bool:
    return broker.rooms is not None and key in broker.rooms.replicas.partitions


def _accept_loss(broker: SimBroker) -> None:
    """As docs/operations.rst has it."""
    broker.machine.kill()
    directory = broker.properties["log.dirs"]
    broker.disk.of_process().replace(f"{directory}/{ACCEPTED_LOSS}", directory.encode())
    broker.machine.world.note(f"loss of {directory} accepted")
