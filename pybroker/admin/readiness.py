"""The readiness of the broker. All these conditions must hold:

- The broker is started and not stopping.
- The broker is registered, and its ZooKeeper session is alive.
- The broker knows the controller.
- Every log directory has free space.
- Each assigned replica is open, undamaged and in sync.
- No partition that the broker leads has a hanging transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pybroker.admin.view import BrokerView, Phase, Rooms
from pybroker.model import PartitionFacts, PartitionState, TopicPartition
from pybroker.replication.partition import Partition
from pybroker.storage.log_parts import Damage
from pybroker.storage.replica_health import Event, Health

_NAMED_MAX: Final = 5
"""The maximum number of partitions that a reason names. If there are more, the reason also says how
many."""
_AT_A_TIME: Final = 1_000
"""The number of partitions that the broker checks before it yields to the event loop."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of readiness. `fault` is the reason why it fails, or empty if it holds."""

    name: str
    fault: str

    @property
    def holds(self) -> bool:
        return not self.fault


async def conditions(view: BrokerView) -> list[Condition]:
    """Return all conditions of readiness, in the order in which a starting broker fulfils them.
    Before the broker's components exist, return only the condition `started`, which fails."""
    rooms = view.rooms
    if rooms is None:
        return [Condition("started", f"the broker is {view.phase.name.lower()}")]
    running = view.phase is Phase.RUNNING
    return [
        Condition("started", "" if running else f"the broker is {view.phase.name.lower()}"),
        Condition("zookeeper_session", _session_fault(rooms)),
        Condition("registered", _registration_fault(rooms)),
        Condition("controller", _controller_fault(rooms)),
        Condition("log_directories", _directory_faults(rooms)),
        Condition("replicas", await _replica_faults(rooms)),
        Condition("transactions", await _transaction_faults(rooms)),
    ]


def _session_fault(rooms: Rooms) -> str:
    if rooms.session.is_alive:
        return ""
    return f"the ZooKeeper session is {rooms.session.state.value}"


def _registration_fault(rooms: Rooms) -> str:
    if not rooms.is_registered():
        return f"broker {rooms.broker_id} is not registered in ZooKeeper"
    if rooms.broker_id not in rooms.metadata.brokers:
        return f"the controller's metadata does not include broker {rooms.broker_id} yet"
    return ""


def _controller_fault(rooms: Rooms) -> str:
    return "the broker knows no controller" if rooms.controller.controller_id is None else ""


def _directory_faults(rooms: Rooms) -> str:
    return "; ".join(
        f"the disk of log directory {path} is full" for path in sorted(rooms.full_directories())
    )


async def _replica_faults(rooms: Rooms) -> str:
    faulty = []
    damaged = rooms.logs.health.damage
    facts = [
        facts for topic in rooms.metadata.topics.values() for facts in topic.partitions.values()
    ]
    for start in range(0, len(facts), _AT_A_TIME):
        for each in facts[start : start + _AT_A_TIME]:
            if rooms.broker_id in each.replicas:
                fault = _replica_fault(rooms, damaged, each)
                if fault:
                    faulty.append(f"{each.topic_partition} {fault}")
        await asyncio.sleep(0)
    return _listed(faulty)


def _listed(faulty: Sequence[str]) -> str:
    """Return the first few items of `faulty` as one text, with the number of those left out. The
    text is empty if `faulty` is empty."""
    more = f" and {len(faulty) - _NAMED_MAX} more" if len(faulty) > _NAMED_MAX else ""
    return "; ".join(faulty[:_NAMED_MAX]) + more


async def _transaction_faults(rooms: Rooms) -> str:
    """Return a text that lists the partitions with a hanging transaction. A transaction hangs if it
    has held back the last stable offset for longer than transaction.max.timeout.ms."""
    limit_ms = rooms.layers().current.transaction_max_timeout_ms
    now_ms = rooms.replicas.clock.wall_ms()
    faulty = []
    for number, (key, partition) in enumerate(list(rooms.replicas.partitions.items()), 1):
        still_ms = partition.log.producers.stood_still_ms(now_ms) if partition.is_leader else 0
        if still_ms > limit_ms:
            faulty.append(
                f"{key} has had the last stable offset {partition.last_stable_offset()} for"
                f" {still_ms // 1000} s: a transaction is hanging"
            )
        if number % _AT_A_TIME == 0:
            await asyncio.sleep(0)
    return _listed(sorted(faulty))


def _replica_fault(
    rooms: Rooms, damaged: Mapping[TopicPartition, Damage], facts: PartitionFacts
) -> str:
    key = facts.topic_partition
    partition = rooms.replicas.partitions.get(key)
    damage = damaged.get(key)
    if damage is not None:
        return f"is damaged from offset {damage.offset} in {damage.path}: {damage.reason}"
    if partition is None:
        return f"is not open: {rooms.replicas.not_opened.get(key, 'not yet')}"
    if partition.log.failure is not None:
        return f"has a failed log directory: {partition.log.failure}"
    if rooms.broker_id in _newest_state(partition, facts).isr:
        return ""
    health = rooms.logs.health
    if health.allows(key, Event.COMPLETE):
        return "is not in sync: it replicates the whole log again"
    if health[key] is Health.SUSPECT:
        return "is not in sync: it may have lost records in a power loss"
    return "is not in sync"


def _newest_state(partition: Partition, facts: PartitionFacts) -> PartitionState:
    """Return the newer of two states: the local replica's state and the state in `facts`. If the
    local replica leads, return its state in any case."""
    state = partition.state
    if state is None:
        return facts.state
    leads = partition.is_leader
    return state if leads or state.leader_epoch > facts.state.leader_epoch else facts.state
