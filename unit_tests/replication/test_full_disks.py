"""Tests of replicas in a full log directory: when they begin and stop to yield leadership."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TypeVar, cast

import pytest

from pybroker.clock import ManualClock
from pybroker.errors import DiskFull, StorageError
from pybroker.model import TopicPartition
from pybroker.replication.full_disks import FREE_BYTES_MIN, QUIET_S, FullDisks
from pybroker.replication.leadership_yield import LeadershipYield
from pybroker.replication.manager import ReplicaManager
from pybroker.storage.chores import Refusals
from pybroker.storage.manager import LogManager
from unit_tests.idle_loop import idle

T = TypeVar("T")
LED, FOLLOWED, ALONE, ELSEWHERE = (TopicPartition("t", number) for number in range(4))
FULL = DiskFull("append to /a/t-0: No space left on device")


@dataclass
class Replica:
    is_leader: bool
    is_replicated: bool


@dataclass
class Host:
    """A double of the log manager, the replica manager and the Blocking port."""

    clock: ManualClock = field(default_factory=ManualClock)
    failed_directories: dict[str, StorageError] = field(default_factory=dict)
    room_bytes: int = 0
    usable_directories: tuple[str, ...] = ("/a", "/b")
    silent: str = ""
    """The directory whose file system does not answer."""
    homes: dict[TopicPartition, str] = field(
        default_factory=lambda: {LED: "/a", FOLLOWED: "/a", ALONE: "/a", ELSEWHERE: "/b"}
    )

    def __post_init__(self) -> None:
        self.leadership_yield = LeadershipYield(1, self.clock)
        self.partitions = {
            LED: Replica(is_leader=True, is_replicated=True),
            FOLLOWED: Replica(is_leader=False, is_replicated=False),
            ALONE: Replica(is_leader=True, is_replicated=False),
            ELSEWHERE: Replica(is_leader=True, is_replicated=True),
        }
        self.refusals = Refusals(self.clock)
        self.full = FullDisks(
            logs=cast(LogManager, self),
            replicas=cast(ReplicaManager, self),
            blocking=self,
            clock=self.clock,
        )

    def partitions_in(self, path: str) -> list[TopicPartition]:
        return [key for key, home in self.homes.items() if home == path]

    def free_bytes(self, path: str) -> int:
        if path == self.silent:
            raise StorageError("statvfs: input/output error")
        return self.room_bytes

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        return function(*arguments)

    async def refuse(self, path: str = "/a") -> None:
        self.refusals.of_log(path, LED, FULL)
        await idle()

    async def look(self) -> set[TopicPartition]:
        """Check the directories once, and return the replicas that yield leadership."""
        await self.full._look_at("/a")
        return set(self.leadership_yield.reasons)


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    host = Host()
    host.full.start()
    yield host
    await host.full.stop()


async def test_replicated_partitions_of_a_full_directory_yield_leadership(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        await host.refuse()
    assert set(host.leadership_yield.reasons) == {LED, FOLLOWED}
    assert len([r for r in caplog.records if "log directory full path=/a " in r.message]) == 1


async def test_a_directory_is_no_longer_full_after_free_space_and_a_quiet_time(host: Host) -> None:
    await host.refuse()
    host.clock.advance(QUIET_S)
    assert await host.look() == {LED, FOLLOWED}
    host.room_bytes = FREE_BYTES_MIN
    await host.refuse()
    assert await host.look() == {LED, FOLLOWED}
    host.clock.advance(QUIET_S)
    assert await host.look() == set()
    await host.refuse()
    assert set(host.leadership_yield.reasons) == {LED, FOLLOWED}


async def test_the_free_space_of_each_usable_directory_is_returned(host: Host) -> None:
    assert await host.full.free_bytes() == {"/a": 0, "/b": 0}
    assert host.full.full == []
    await host.refuse()
    host.silent = "/a"
    assert await host.full.free_bytes() == {"/b": 0}
    assert host.full.full == ["/a"]


async def test_replicas_yield_leadership_while_they_are_in_a_full_directory(
    host: Host,
) -> None:
    await host.refuse()
    host.homes |= {LED: "/b", ELSEWHERE: "/a"}
    assert await host.look() == {FOLLOWED, ELSEWHERE}


async def test_a_failed_directory_is_no_longer_full(host: Host) -> None:
    await host.refuse()
    host.failed_directories["/a"] = FULL
    assert await host.look() == set()


async def test_replicas_of_a_full_directory_yield_in_sorted_order(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of a set differs between processes, and a simulation must not."""
    keys = [TopicPartition(f"topic-{number}", 0) for number in range(9)]
    host.homes = dict.fromkeys(reversed(keys), "/a")
    host.partitions = {key: Replica(is_leader=True, is_replicated=True) for key in keys}
    removed: list[TopicPartition] = []
    monkeypatch.setattr(host.leadership_yield, "remove", removed.append)
    await host.refuse()
    assert list(host.leadership_yield.reasons) == keys
    host.homes.clear()
    await host.look()
    assert removed == keys
