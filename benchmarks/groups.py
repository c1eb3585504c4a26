"""Measures the cost of consumer groups, and compares it with Apache Kafka 3.9.1: python
benchmarks/groups.py [--rounds N] [--quick] [--delay MS]

The same members connect to a pybroker broker and to an Apache broker in turn, each over its own
connection. The measures are:

    join    50 members join an empty group at the same time, until all have an assignment of the
            same generation
    again   50 members of a stable group join again at the same time, with other metadata
    leave   one of 50 members leaves, until the other 49 have the next generation
    first   the first members of two new groups send their JoinGroup requests together on one
            connection, until both responses have arrived
    idle    the broker's CPU time with 1,000 groups of one member, which sends a heartbeat every 3 s

`join` and `first` include group.initial.rebalance.delay.ms (`--delay`) twice: the delay begins
again if a member joins during it, and the second request of a connection waits for the first.
`leave` includes the time until members learn of the rebalance by their heartbeats, which they send
every 100 ms. The program prints the median, the smallest and the largest value of all rounds, and
the ratio of pybroker's median to Apache's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import struct
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable
from pathlib import Path
from typing import Final, TypeVar

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from integration_tests.apache import KAFKA_JAVA_OPTIONS, ApacheKafka
from integration_tests.broker import Broker, PybrokerProcess
from integration_tests.wire_client import frame_of
from pybroker.errors import ErrorCode
from pybroker.wire.api import APIS
from pybroker.wire.codec import decode_response
from pybroker.wire.headers import parse_response_header
from pybroker.wire.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from pybroker.wire.schema import Message

ResponseT = TypeVar("ResponseT", bound=Message)
MEMBERS: Final = 50
GROUPS: Final = 1_000
HEARTBEAT_S: Final = 0.1
IDLE_HEARTBEAT_S: Final = 3.0
SESSION_MS: Final = 30_000
PART: Final = bytes(100)
"""The content of an assignment: about as many bytes as for a few partitions."""
OPTIONS: Final = {
    "offsets.topic.num.partitions": "50",
    "offsets.topic.replication.factor": "1",
}
JOIN_AGAIN: Final = frozenset(
    {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.ILLEGAL_GENERATION}
)
LOADING: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)


class Member:
    """A group member with its own connection. It sends a request when the previous one is
    answered."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self._address = bootstrap.rsplit(":", 1)
        self.group = group
        self.id = ""
        self.generation = -1
        self.metadata = b"1"
        self.is_leaving = False

    async def connect(self) -> None:
        host, port = self._address
        self._reader, self._writer = await asyncio.open_connection(host, int(port))

    async def ask(self, version: int, request: Message, response: type[ResponseT]) -> ResponseT:
        self._writer.write(_framed(version, request))
        return await self._answer(version, response)

    async def join_for_two(self, groups: tuple[str, str]) -> None:
        """Send a JoinGroup for each of two new groups in one write, and wait until both are
        answered. The requests have version 3, in which a member needs no member id for its first
        JoinGroup."""
        joins = [_framed(3, self._join_request(group)) for group in groups]
        self._writer.write(b"".join(joins))
        for _ in groups:
            answer = await self._answer(3, JoinGroupResponse)
            assert not answer.error_code, answer

    async def _answer(self, version: int, response: type[ResponseT]) -> ResponseT:
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        answer = memoryview(await self._reader.readexactly(size))
        api = next(api for api in APIS.values() if api.response is response)
        _, position = parse_response_header(answer, api.response_header_version(version))
        found = decode_response(api, version, answer[position:])
        assert isinstance(found, response)
        return found

    async def join(self) -> None:
        """Send JoinGroup and SyncGroup until the member has its assignment."""
        while not await self._try_to_join():
            pass

    async def _try_to_join(self) -> bool:
        joined = await self.ask(5, self._join_request(self.group), JoinGroupResponse)
        self.id = joined.member_id or self.id
        if joined.error_code:
            await self._bear(joined.error_code)
            return False
        generation = joined.generation_id
        synced = await self.ask(
            3,
            SyncGroupRequest(
                group_id=self.group,
                generation_id=generation,
                member_id=self.id,
                assignments=[
                    SyncGroupRequestAssignment(member_id=each.member_id, assignment=PART)
                    for each in joined.members
                ],
            ),
            SyncGroupResponse,
        )
        if synced.error_code:
            await self._bear(synced.error_code)
            return False
        self.generation = generation
        return True

    def _join_request(self, group: str) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=self.id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=self.metadata)],
        )

    async def _bear(self, code: int) -> None:
        if code in LOADING:
            await asyncio.sleep(0.05)
        elif code not in JOIN_AGAIN:
            raise SystemExit(
                f"the broker answered a request of group {self.group} with error {code}"
            )

    async def heartbeat(self) -> int:
        request = HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.id
        )
        return (await self.ask(3, request, HeartbeatResponse)).error_code

    async def live(self) -> None:
        """Send heartbeats until `is_leaving` is set. Join again if the coordinator requires it."""
        while not self.is_leaving:
            if await self.heartbeat():
                await self.join()
            await asyncio.sleep(HEARTBEAT_S)

    async def leave(self) -> None:
        identity = MemberIdentity(member_id=self.id)
        request = LeaveGroupRequest(group_id=self.group, members=[identity])
        await self.ask(3, request, LeaveGroupResponse)

    def close(self) -> None:
        self._writer.close()


def _framed(version: int, request: Message) -> bytes:
    frame = frame_of(version, request, 1, "bench")
    return struct.pack(">i", len(frame)) + frame


async def _ready(member: Member) -> None:
    """Wait until a broker coordinates the member's group and has loaded it."""
    request = FindCoordinatorRequest(key=member.group, key_type=0)
    while True:
        if not (await member.ask(1, request, FindCoordinatorResponse)).error_code:
            return
        await asyncio.sleep(0.1)


async def _loaded(member: Member, group: str) -> None:
    """Wait until the coordinator has loaded the group. Until then it answers a LeaveGroup of an
    unknown member with an error in LOADING."""
    request = LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id="nobody")])
    while True:
        if (await member.ask(3, request, LeaveGroupResponse)).error_code not in LOADING:
            return
        await asyncio.sleep(0.05)


async def _until_one_generation(members: list[Member], work: Awaitable[object], than: int) -> float:
    """Return the seconds until `work` is done and all `members` have the same generation, which is
    above the generation `than`."""
    begun = time.perf_counter()
    await work
    while True:
        generations = {each.generation for each in members}
        if len(generations) == 1 and generations.pop() > than:
            return time.perf_counter() - begun
        await asyncio.sleep(0.002)


async def _stop_heartbeats(members: list[Member], lives: list[asyncio.Task[None]]) -> None:
    """End the heartbeat tasks `lives` of the members. Each task waits for the response to its last
    request."""
    for member in members:
        member.is_leaving = True
    await asyncio.gather(*lives)
    for member in members:
        member.is_leaving = False


async def rebalances(bootstrap: str, group: str) -> dict[str, float]:
    """Measure `first`, `join`, `again` and `leave` at one broker. Return name -> seconds."""
    members = [Member(bootstrap, group) for _ in range(MEMBERS)]
    for member in members:
        await member.connect()
    await _ready(members[0])
    news = (f"{group}-a", f"{group}-b")
    for each in news:
        await _loaded(members[0], each)
    begun = time.perf_counter()
    await members[0].join_for_two(news)
    first = time.perf_counter() - begun
    lives: list[asyncio.Task[None]] = []

    async def come(member: Member) -> None:
        await member.join()
        lives.append(asyncio.create_task(member.live()))

    took = {"first": first}
    took["join"] = await _until_one_generation(members, asyncio.gather(*map(come, members)), 0)
    await _stop_heartbeats(members, lives)
    before = members[0].generation
    for member in members:
        member.metadata = b"2"
    everybody = asyncio.gather(*(member.join() for member in members))
    took["again"] = await _until_one_generation(members, everybody, before)
    lives = [asyncio.create_task(member.live()) for member in members[:-1]]
    took["leave"] = await _until_one_generation(
        members[:-1], members[-1].leave(), members[0].generation
    )
    await _stop_heartbeats(members, lives)
    for member in members[:-1]:
        await member.leave()
    for member in members:
        member.close()
    return took


async def idle(bootstrap: str, name: str, process: psutil.Process, seconds: float) -> float:
    """Measure `idle`: return the CPU seconds per second that the broker's `process` uses. The names
    of the groups begin with `name`."""
    members = [Member(bootstrap, f"{name}-{number}") for number in range(GROUPS)]
    for member in members:
        await member.connect()
    await _ready(members[0])
    for at in range(0, GROUPS, 50):
        await asyncio.gather(*(member.join() for member in members[at : at + 50]))

    async def live(number: int, member: Member) -> None:
        await asyncio.sleep(IDLE_HEARTBEAT_S * number / GROUPS)
        while True:
            assert not await member.heartbeat()
            await asyncio.sleep(IDLE_HEARTBEAT_S)

    lives = [asyncio.create_task(live(number, each)) for number, each in enumerate(members)]
    await asyncio.sleep(IDLE_HEARTBEAT_S)
    before, begun = process.cpu_times(), time.perf_counter()
    await asyncio.sleep(seconds)
    after, elapsed = process.cpu_times(), time.perf_counter() - begun
    assert not any(life.done() for life in lives), "the broker answered a heartbeat with an error"
    for life in lives:
        life.cancel()
    await asyncio.gather(*lives, return_exceptions=True)
    for member in members:
        member.close()
    return (after.user + after.system - before.user - before.system) / elapsed


def report(name: str, unit: str, scale: float, ours: list[float], theirs: list[float]) -> None:
    def text(values: list[float]) -> str:
        low, high = min(values) * scale, max(values) * scale
        return f"{statistics.median(values) * scale:7.1f} {unit} ({low:.1f}..{high:.1f})"

    ratio = statistics.median(ours) / statistics.median(theirs)
    print(f"{name:6} pybroker {text(ours)}  Apache {text(theirs)}  ratio {ratio:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--quick", action="store_true", help="only three rounds, and ten seconds for `idle`"
    )
    parser.add_argument(
        "--delay", type=int, default=200, help="group.initial.rebalance.delay.ms of both brokers"
    )
    given = parser.parse_args()
    options = {**OPTIONS, "group.initial.rebalance.delay.ms": str(given.delay)}
    rounds, seconds = (3, 10.0) if given.quick else (given.rounds, 30.0)
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        brokers: dict[str, Broker] = {
            "pybroker": PybrokerProcess(Path(folder) / "ours", overrides=options),
            "apache": ApacheKafka(Path(folder), overrides=options, java_options=KAFKA_JAVA_OPTIONS),
        }
        for broker in brokers.values():
            stack.callback(broker.close)
            broker.start()
        for number in range(rounds + 2):  # two rounds to warm up
            for name, broker in brokers.items():
                took = asyncio.run(rebalances(broker.bootstrap, f"group-{number}"))
                if number >= 2:
                    for step, value in took.items():
                        found[step, name].append(value)
        for step in ("first", "join", "again", "leave"):
            report(step, "ms", 1_000, found[step, "pybroker"], found[step, "apache"])
        for number in range(3):
            for name, broker in brokers.items():
                process = psutil.Process(broker.process.pid)
                value = asyncio.run(idle(broker.bootstrap, f"idle-{number}", process, seconds))
                found["idle", name].append(value)
        report("idle", "%", 100, found["idle", "pybroker"], found["idle", "apache"])


if __name__ == "__main__":
    main()
