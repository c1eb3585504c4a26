"""Tests of the classic consumer in a simulated cluster: members are killed, stopped, and cut off
from ZooKeeper or from all machines. Every seed must read all records.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from pybroker.classic import ClassicConsumer
from pybroker.client import Admin, NewTopic, Producer
from pybroker.testing.simulation import ZOOKEEPER, Simulation
from pybroker.testing.simulation.zookeeper import Change

PARTITIONS = 4
SESSION_MS = 6_000


@dataclass
class ReadLog:
    """The records that members have read, as (virtual seconds, member, partition, offset), and the
    errors in changes of the group's nodes.
    """

    read: list[tuple[float, str, int, int]] = field(default_factory=list)
    owners: dict[str, int] = field(default_factory=dict)
    """Partition -> the id of the session that created the owner node."""
    committed: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def changed(self, change: Change) -> None:
        match change.path.split("/")[1:], change.data:
            case ["consumers", "g", "owners", "orders", number], None:
                del self.owners[number]
            case ["consumers", "g", "owners", "orders", number], _:
                self.owners[number] = change.session_id
            case ["consumers", "g", "offsets", "orders", number], bytes(data):
                if self.owners.get(number) != change.session_id:
                    self.wrong.append(
                        f"{change.at}: a member that does not own partition {number} stores the"
                        f" offset {data!r}"
                    )
                if int(data) < self.committed.get(number, 0):
                    self.wrong.append(
                        f"{change.at}: the committed offset of partition {number} decreases to"
                        f" {data!r}"
                    )
                self.committed[number] = int(data)

    def distinct(self) -> set[tuple[int, int]]:
        return {(partition, offset) for _, _, partition, offset in self.read}


async def make_topic(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        (made,) = await admin.create_topics([NewTopic("orders", PARTITIONS, 3)])
        made.check()


async def produce(bootstrap: str, count: int) -> None:
    async with Producer(bootstrap) as producer:
        for number in range(count):
            await (await producer.send("orders", b"%d" % number, partition=number % PARTITIONS))
            await asyncio.sleep(0.05)


async def consume(simulation: Simulation, name: str, read_log: ReadLog) -> None:
    machine = simulation.cluster.machine(name)
    coord = simulation.cluster.zookeeper.session(machine, timeout_ms=SESSION_MS)
    await coord.start(60)
    async with ClassicConsumer(
        coord=coord,
        group_id="g",
        auto_offset_reset="smallest",
        auto_commit_interval_ms=200,
        rebalance_max_retries=60,
    ) as consumer:
        ((stream,),) = (await consumer.subscribe({"orders": 1})).values()
        async for record in stream:
            read_log.read.append((simulation.now, name, record.partition, record.offset))


def lose_some_members(seed: int) -> str:
    """Run a group under faults and check that all records are read. Return the digest of the
    run.
    """
    read_log = ReadLog()
    records = 1_200
    with Simulation(seed) as simulation:
        simulation.run(make_topic, simulation.bootstrap)
        simulation.cluster.zookeeper.on_commit.append(read_log.changed)

        def progress(more: int = 20) -> None:
            goal = len(read_log.distinct()) + more
            simulation.wait(lambda: len(read_log.distinct()) >= goal)

        def is_read_by(*names: str) -> None:
            """Wait until all partitions have new records read, and the last 20 reads are by exactly
            these members.
            """
            start = len(read_log.read)

            def shared() -> bool:
                new = read_log.read[start:]
                return {row[2] for row in new} == set(range(PARTITIONS)) and {
                    row[1] for row in new[-20:]
                } == set(names)

            simulation.wait(shared)

        writer = simulation.start(produce, simulation.bootstrap, records)
        members = {
            name: simulation.start(consume, simulation, name, read_log, name=name)
            for name in ("one", "two", "three")
        }
        is_read_by("one", "two", "three")
        members["one"].kill()
        is_read_by("two", "three")
        simulation.cut("two", [ZOOKEEPER])
        cut_at = simulation.now
        is_read_by("three")
        assert max(row[0] for row in read_log.read if row[1] == "two") < cut_at + SESSION_MS / 1_000
        simulation.heal()
        is_read_by("two", "three")
        members["three"].pause()
        is_read_by("two")
        members["three"].resume()
        members["one"].start()
        is_read_by("one", "two", "three")
        simulation.cut("one")
        is_read_by("two", "three")
        simulation.heal()
        simulation.kill(simulation.leader("orders", 0))
        progress()
        simulation.mend()
        simulation.wait(lambda: not writer.is_running, seconds=120)
        whole = {(number % PARTITIONS, number // PARTITIONS) for number in range(records)}
        simulation.wait(lambda: read_log.distinct() == whole)
        simulation.wait(lambda: sum(read_log.committed.values()) == records)
        assert not read_log.wrong
        assert len(read_log.read) < 2 * records
        return simulation.digest


@pytest.mark.parametrize("seed", range(2))
def test_every_record_is_read_whatever_happens_to_members(seed: int) -> None:
    lose_some_members(seed)


def test_a_run_with_members_can_be_repeated() -> None:
    assert lose_some_members(7) == lose_some_members(7)
