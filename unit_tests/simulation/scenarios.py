"""Applications and steps for small scenarios with one topic of one partition."""

from __future__ import annotations

from collections.abc import Sequence

from pybroker.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from pybroker.storage.replica_health import Event
from pybroker.testing.simulation import Simulation
from pybroker.testing.simulation.broker import SimBroker
from pybroker.testing.simulation.view import stored_states

PARTITION = TopicPartition("orders", 0)


async def create(bootstrap: str, configs: dict[str, str] | None = None) -> None:
    async with Admin(bootstrap) as admin:
        for result in await admin.create_topics([NewTopic("orders", 1, 3, configs=configs or {})]):
            result.check()


async def produce(bootstrap: str, count: int, key: bytes | None = None) -> list[int]:
    """Send `count` numbered values, each after the acknowledgement of the previous value. Return
    their offsets.
    """
    async with Producer(bootstrap) as producer:
        return [
            (await (await producer.send("orders", b"%d" % number, key=key))).offset
            for number in range(count)
        ]


async def read_on(bootstrap: str, seen: list[bytes | None]) -> None:
    """Read endlessly, and append each value after those in `seen` to `seen`."""
    async with Consumer(bootstrap) as consumer:
        consumer.assign([PARTITION])
        consumer.seek(PARTITION, len(seen))
        async for record in consumer:
            seen.append(record.value)


async def read_all(bootstrap: str, count: int) -> list[bytes | None]:
    """Read and return the first `count` values."""
    async with Consumer(bootstrap) as consumer:
        consumer.assign([PARTITION])
        consumer.seek_to_beginning()
        return [(await consumer.getone()).value for _ in range(count)]


def begins_anew(broker: SimBroker) -> bool:
    """Return whether the broker's replica is an incomplete copy."""
    rooms = broker.rooms
    return rooms is not None and rooms.logs.health.allows(PARTITION, Event.COMPLETE)


def begin_with_empty_disks(
    simulation: Simulation, leader: int, brokers: Sequence[SimBroker]
) -> None:
    """Give each broker an empty disk, let it begin a copy there, then cut it off from the
    leader.
    """
    cluster = simulation.cluster
    for broker in brokers:
        simulation.kill(broker.id)
        broker.disk.replace_medium()
    simulation.wait(lambda: stored_states(cluster)[PARTITION].isr == (leader,))
    for broker in brokers:
        simulation.start_broker(broker.id)
        simulation.wait(lambda broker=broker: begins_anew(broker))  # type: ignore[misc]
        simulation.cut(leader, [broker.id])
