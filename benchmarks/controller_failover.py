"""Measures the failover time of the controller in a cluster of three brokers: python
benchmarks/controller_failover.py [partitions] [topics].

ZooKeeper is real. The brokers are simulated and answer at once: requests to them are encoded, but
not sent. The time begins at the end of the old controller's ZooKeeper session, without the session
timeout. It ends when the two other brokers know a leader for every partition. The program also
prints the longest callbacks of the event loop, with their CPU time if it is 5 ms or more.
"""

from __future__ import annotations

import asyncio
import contextlib
import cProfile
import gc
import logging
import os
import pstats
import random
import sys
import tempfile
import time
from collections.abc import Iterator

from pybroker.clock import SystemClock
from pybroker.coordinator.controller.controller import Controller
from pybroker.coordinator.controller.services import ControllerSettings
from pybroker.coordinator.controller.topics import create_topic, random_topic_id
from pybroker.coordinator.zookeeper.registry import create_parents, register_broker
from pybroker.coordinator.zookeeper.session import KazooCoord
from pybroker.host.embedded_zookeeper import EmbeddedZooKeeper
from pybroker.model import Broker, Endpoint, TopicPartition, UpdateMetadata
from pybroker.peers.broker_channel import AnswerT, RemoteBrokerChannel
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.codec import encode_request
from pybroker.wire.messages.control import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from pybroker.wire.schema import Message

BROKERS = (1, 2, 3)


class EncodingChannel(RemoteBrokerChannel):
    """A channel to a simulated broker, which executes every command at once. Requests are created
    and encoded as usual, but not sent. `known` receives the leader of each partition in the
    requests."""

    def __init__(self, broker: Broker, known: dict[TopicPartition, int]) -> None:
        super().__init__(broker, "PLAINTEXT", client_id="benchmark", timeout_s=1.0, connect_s=1.0)
        self._known = known

    async def update_metadata(self, command: UpdateMetadata) -> None:
        await super().update_metadata(command)
        self._known.update({each.topic_partition: each.state.leader for each in command.partitions})

    async def _ask(self, key: ApiKey, request: Message, answer: type[AnswerT]) -> AnswerT:
        ENCODED.append(len(encode_request(APIS[key], APIS[key].max_version, request)))
        await asyncio.sleep(0)
        response = answer()
        if isinstance(request, LeaderAndIsrRequest):
            assert isinstance(response, LeaderAndIsrResponse)
            response.topics = [
                LeaderAndIsrTopicError(topic_id=topic.topic_id) for topic in request.topic_states
            ]
        return response


ENCODED: list[int] = []
"""The sizes of the encoded requests, in bytes."""


class CallbackTimes:
    """Collects the callbacks of the event loop that need more than 5 ms of CPU time."""

    def __init__(self) -> None:
        self.longest: list[tuple[float, str]] = []

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        plain = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            plain(handle)
            spent = time.thread_time() - began
            if spent > 0.005:
                self.longest.append((spent, repr(handle)[:150]))

        asyncio.Handle._run = timed  # type: ignore[method-assign]
        try:
            yield
        finally:
            asyncio.Handle._run = plain  # type: ignore[method-assign]


class Phases(logging.Handler):
    """Collects the controller's log lines with their times, which show the phases of a failover."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[float, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((time.perf_counter(), record.getMessage()))


class Member:
    """A simulated broker with a ZooKeeper session, a registration and a controller. `known`
    receives the leader of each partition that the controller sends."""

    def __init__(self, broker_id: int, servers: str, known: dict[TopicPartition, int]) -> None:
        self.id = broker_id
        clock = SystemClock()
        self.coord = KazooCoord(servers, clock=clock, session_timeout_ms=6_000)
        self.controller = Controller(
            coord=self.coord,
            broker_id=broker_id,
            clock=clock,
            rng=random.SystemRandom(),
            channels=lambda broker: EncodingChannel(broker, known),
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
        """End the broker's ZooKeeper session, as the ZooKeeper server does after the session
        timeout."""
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
    ENCODED.clear()
    gc.freeze()  # a broker freezes its objects after its start, too
    turns = CallbackTimes()
    with turns.watch():
        await members[0].kill()
        closed = time.perf_counter()
        await until(lambda: len(known) == each * topics and not {-1, 1} & set(known.values()))
        done = time.perf_counter()
    profile.disable()
    for moment, text in phases.seen:
        print(f"{moment - closed:8.3f} s  {text[:110]}")
    print(
        f"{done - closed:8.3f} s  the remaining brokers know a leader for each of"
        f" {each * topics} partitions"
    )
    print(f"{len(ENCODED)} requests of up to {max(ENCODED)} bytes were encoded")
    for spent, what in sorted(turns.longest, reverse=True)[:8]:
        print(f"{spent * 1000:8.1f} ms at a time: {what}")
    if os.environ.get("PROFILE"):
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    for member in members[1:]:
        await member.controller.stop()
        await member.coord.close()


if __name__ == "__main__":
    arguments = [int(word) for word in sys.argv[1:]]
    asyncio.run(measure(*(arguments + [2_000, 100][len(arguments) :])))
