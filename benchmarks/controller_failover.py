"""How long a new controller takes for a cluster of three brokers when the old one dies with its
broker, against a real ZooKeeper, with channels that answer at once: python
benchmarks/controller_failover.py [partitions] [topics].

Measured from the end of the old controller's session (the session timeout is not in it) until the
surviving brokers have been told of a leader for every partition.
"""

from __future__ import annotations

import asyncio
import cProfile
import logging
import os
import pstats
import random
import sys
import tempfile
import time
from collections.abc import Mapping

from pybroker.clock import SystemClock
from pybroker.coordinator.controller.controller import Controller
from pybroker.coordinator.controller.office import ControllerSettings
from pybroker.coordinator.controller.topics import create_topic, random_topic_id
from pybroker.coordinator.zookeeper.embedded import EmbeddedZooKeeper
from pybroker.coordinator.zookeeper.registry import create_parents, register_broker
from pybroker.coordinator.zookeeper.session import KazooCoord
from pybroker.errors import ErrorCode
from pybroker.model import (
    Broker,
    Endpoint,
    LeaderAndIsr,
    StopReplica,
    TopicPartition,
    UpdateMetadata,
)

BROKERS = (1, 2, 3)


class AgreeableChannel:
    """A broker that does as it is told, at once; it remembers who leads."""

    def __init__(self, known: dict[TopicPartition, int]) -> None:
        self._known = known

    async def close(self) -> None:
        """Nothing is open."""

    async def leader_and_isr(self, command: LeaderAndIsr) -> Mapping[TopicPartition, ErrorCode]:
        return {each.topic_partition: ErrorCode.NONE for each in command.partitions}

    async def update_metadata(self, command: UpdateMetadata) -> None:
        self._known.update({each.topic_partition: each.state.leader for each in command.partitions})

    async def stop_replica(self, command: StopReplica) -> Mapping[TopicPartition, ErrorCode]:
        return {each.topic_partition: ErrorCode.NONE for each in command.partitions}


class Phases(logging.Handler):
    """When the controller said what."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[float, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((time.perf_counter(), record.getMessage()))


class Member:
    """A broker: a session, a registration, a controller."""

    def __init__(self, broker_id: int, servers: str, known: dict[TopicPartition, int]) -> None:
        self.id = broker_id
        clock = SystemClock()
        self.coord = KazooCoord(servers, clock=clock, session_timeout_ms=6_000)
        self.controller = Controller(
            coord=self.coord,
            broker_id=broker_id,
            clock=clock,
            rng=random.SystemRandom(),
            channels=lambda broker: AgreeableChannel(known),
            settings=ControllerSettings(),
        )

    async def start(self) -> None:
        await self.coord.start(10.0)
        await create_parents(self.coord)
        broker = Broker(self.id, (Endpoint("PLAINTEXT", "127.0.0.1", 9000 + self.id),))
        await register_broker(
            self.coord,
            broker,
            clock=SystemClock(),
            session_timeout_ms=6_000,
            earlier_session_ids=(),
        )
        self.controller.start()

    async def kill(self) -> None:
        """The session ends, as the server would end it."""
        self.controller.session_expired()
        await self.coord.close()


async def until(condition: object, *, seconds: float = 120.0) -> None:
    assert callable(condition)
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def measure(partitions: int, topics: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        zookeeper = EmbeddedZooKeeper(directory)
        await zookeeper.start()
        try:
            await race(zookeeper.connect, partitions, topics)
        finally:
            await zookeeper.stop()


async def race(servers: str, partitions: int, topics: int) -> None:
    known: dict[TopicPartition, int] = {}
    members = [Member(number, servers, known) for number in BROKERS]
    for member in members:
        await member.start()
        await until(lambda: members[0].controller.is_active)
    each = partitions // topics
    began = time.perf_counter()
    for topic in range(topics):
        replicas = {
            number: tuple(BROKERS[(number + place) % 3] for place in range(3))
            for number in range(each)
        }
        rng = random.SystemRandom()
        await create_topic(members[1].coord, f"topic-{topic}", replicas, {}, random_topic_id(rng))
    await until(lambda: len(known) == each * topics and -1 not in known.values())
    print(f"created {each * topics} partitions in {time.perf_counter() - began:.2f} s")
    phases = Phases()
    watched = logging.getLogger("pybroker.coordinator.controller")
    watched.addHandler(phases)
    watched.setLevel(logging.INFO)
    known.clear()
    profile = cProfile.Profile()
    if os.environ.get("PROFILE"):
        profile.enable()
    began = time.perf_counter()
    await members[0].kill()
    closed = time.perf_counter()
    await until(lambda: len(known) == each * topics and not {-1, 1} & set(known.values()))
    done = time.perf_counter()
    profile.disable()
    for moment, text in phases.seen:
        print(f"{moment - closed:8.3f} s  {text[:110]}")
    print(f"{done - closed:8.3f} s  the survivors know a leader of each of {each * topics}")
    if os.environ.get("PROFILE"):
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    for member in members[1:]:
        await member.controller.stop()
        await member.coord.close()


if __name__ == "__main__":
    arguments = [int(word) for word in sys.argv[1:]]
    asyncio.run(measure(*(arguments + [2_000, 100][len(arguments) :])))
