"""Tests of the coordinator of a shard: limits, records that cannot be decoded, and clients that
disconnect while they wait."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable

import pytest

from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.groups.calls import Identity, Join, Joined, Sync
from pybroker.coordinator.groups.coordinator import NOTES_MAX, GroupCoordinator
from pybroker.coordinator.groups.dependencies import GroupDependencies, UnmirroredGroups
from pybroker.coordinator.groups.memory_limit import FULL_S, MemoryLimit
from pybroker.coordinator.groups.options import PENDING_MAX
from pybroker.coordinator.groups.records import encode_group_key
from pybroker.coordinator.groups.states import GroupState
from pybroker.errors import BrokerError, ErrorCode
from pybroker.ports import KeyValue
from unit_tests.coordinator.groups.memory_offsets import MemoryOffsets
from unit_tests.coordinator.runtime.vocabulary import NOW_MS, MemoryShard
from unit_tests.idle_loop import idle


def hosted(
    shard: MemoryShard,
    offsets: MemoryOffsets | None = None,
    take_memory: Callable[[int], None] = lambda _: None,
) -> GroupCoordinator:
    around = GroupDependencies(
        BrokerConfig(group_initial_rebalance_delay_ms=0), take_memory=take_memory
    )
    return shard.host(
        lambda context: GroupCoordinator(
            context, offsets or MemoryOffsets(), UnmirroredGroups(), around
        )
    )


def call(
    member_id: str = "",
    *,
    known: bool = True,
    session_ms: int = 1_800_000,
    metadata: bytes = b"",
) -> Join:
    return Join(
        member_id,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=(("range", metadata),),
        client_id="c",
        requires_known_id=known,
    )


async def joined(shard: MemoryShard, coordinator: GroupCoordinator, group: str = "g") -> Joined:
    waiting = asyncio.ensure_future(coordinator.join(group, call(known=False)))
    await idle()
    shard.advance(0)
    return await waiting


async def stable(shard: MemoryShard, coordinator: GroupCoordinator, group: str = "g") -> Joined:
    answer = await joined(shard, coordinator, group)
    synced = await coordinator.sync(group, Sync(answer.member_id, answer.generation))
    assert synced.error is ErrorCode.NONE
    return answer


@pytest.mark.parametrize("groups", [1, 500])
async def test_a_flood_of_joins_does_not_fill_the_memory(groups: int) -> None:
    shard = MemoryShard()
    coordinator = hosted(shard)
    await shard.load()
    ids: list[tuple[str, str]] = []
    for number in range(PENDING_MAX + 200):
        group = f"g{number % groups}"
        answer = await coordinator.join(group, call())
        assert answer.error is ErrorCode.MEMBER_ID_REQUIRED
        ids.append((group, answer.member_id))
    known = sum(len(group.pending) for group in coordinator._groups.values())
    assert known == PENDING_MAX
    (group, first), (_, last) = ids[0], ids[-1]
    assert (await coordinator.join(group, call(first))).error is ErrorCode.UNKNOWN_MEMBER_ID
    waiting = asyncio.ensure_future(coordinator.join(ids[-1][0], call(last)))
    await idle()
    assert last in coordinator._groups[ids[-1][0]].members
    shard.end()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_an_unused_member_id_leaves_no_group_behind() -> None:
    shard = MemoryShard()
    coordinator = hosted(shard)
    await shard.load()
    for number in range(20):
        await coordinator.join(f"g{number}", call(session_ms=6_000))
    shard.advance(6)
    assert coordinator._groups == {}
    assert coordinator._timers == {}


async def test_a_record_that_cannot_be_read_loses_only_its_group(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shard = MemoryShard()
    coordinator = hosted(shard)
    await shard.load()
    member = await stable(shard, coordinator, "good")
    for value in (b"\x00\x63", b"\x00\x03\xff"):
        shard.log.append([KeyValue(encode_group_key("bad"), value)], NOW_MS)
    shard.log.append([KeyValue(b"\x00\x63 of the future", b"?")], NOW_MS)
    shard.log.append([KeyValue(b"\x00", b"?")], NOW_MS)
    successor = shard.fail_over()
    again = hosted(successor)
    await successor.load()
    assert [each.group_id for each in await again.overviews()] == ["good"]
    assert again.heartbeat("good", Identity(member.member_id), 1) is ErrorCode.NONE
    lines = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(lines) == 3 and all("offset=" in line for line in lines)


async def test_a_waiting_client_that_disconnects_stays_a_member() -> None:
    shard = MemoryShard()
    coordinator = hosted(shard)
    await shard.load()
    first = await stable(shard, coordinator)
    gone = asyncio.ensure_future(coordinator.join("g", call(known=False)))
    await idle()
    gone.cancel()
    await idle()
    again = await coordinator.join("g", call(first.member_id))
    assert (again.error, again.generation) == (ErrorCode.NONE, 2)
    assert len(again.members) == 2  # the cancelled client is a member until its session times out


async def test_a_cancelled_deletion_leaves_the_group_usable() -> None:
    shard = MemoryShard()
    offsets = MemoryOffsets()
    coordinator = hosted(shard, offsets)
    await shard.load()
    member = await stable(shard, coordinator)
    coordinator.leave("g", [Identity(member.member_id)])
    offsets.groups.add("g")
    offsets.go_on.clear()
    deletion = asyncio.ensure_future(coordinator.delete("g"))
    await idle()
    assert coordinator.states() == [GroupState.DEAD]
    deletion.cancel()
    await idle()
    assert coordinator.states() == [GroupState.EMPTY]
    offsets.go_on.set()
    assert await coordinator.delete("g") is ErrorCode.NONE


async def test_members_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    shard = MemoryShard()
    coordinator = hosted(shard)
    await shard.load()
    for _ in range(NOTES_MAX):
        member = await joined(shard, coordinator)
        coordinator.leave("g", [Identity(member.member_id)])
    name = "pybroker.coordinator.groups.coordinator"
    assert len([each for each in caplog.records if each.name == name]) == NOTES_MAX
    shard.advance(10)
    await joined(shard, coordinator)
    assert any("left_out=" in each.getMessage() for each in caplog.records)


async def with_little_room() -> tuple[MemoryShard, GroupCoordinator]:
    """Return a coordinator whose members together may use 100,000 bytes."""
    shard = MemoryShard()
    hosts: list[GroupCoordinator] = []
    room = MemoryLimit(shard.clock, lambda: sum(host.size() for host in hosts), bytes_max=100_000)
    coordinator = hosted(shard, take_memory=room.take)
    hosts.append(coordinator)
    await shard.load()
    return shard, coordinator


async def test_the_memory_of_all_members_is_limited() -> None:
    """Existing members stay. When members leave, their memory is free for new members."""
    shard, coordinator = await with_little_room()

    async def come(group: str) -> Joined:
        joining = call(known=False, session_ms=10_000, metadata=bytes(20_000))
        waiting = asyncio.ensure_future(coordinator.join(group, joining))
        await idle()
        shard.advance(0)
        return await waiting

    first = await come("g-0")
    for number in range(1, 4):
        assert (await come(f"g-{number}")).error is ErrorCode.NONE
    with pytest.raises(BrokerError) as caught:
        await come("g-4")
    assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(BrokerError):
        await coordinator.sync(
            "g-0", Sync(first.member_id, 1, assignments={first.member_id: bytes(40_000)})
        )
    assert coordinator.states().count(GroupState.COMPLETING_REBALANCE) == 4
    for number in range(100):  # a request for a member id takes no memory
        waiting = await coordinator.join(f"new-{number}", call(metadata=bytes(20_000)))
        assert waiting.error is ErrorCode.MEMBER_ID_REQUIRED
    assert coordinator.leave("g-0", [Identity(first.member_id)]) == [ErrorCode.NONE]
    shard.advance(FULL_S + 0.1)
    assert (await come("g-4")).error is ErrorCode.NONE


@pytest.mark.parametrize(
    "joining",
    [
        dataclasses.replace(call(known=False), client_id="c" * 20_000),
        dataclasses.replace(call(known=False), protocol_type="t" * 20_000),
    ],
    ids=["client id", "protocol type"],
)
async def test_all_text_of_a_member_counts_as_memory(joining: Join) -> None:
    """The ids and the protocol type have up to 32 KiB each, and the coordinator keeps them like the
    metadata."""
    shard, coordinator = await with_little_room()

    async def come(group: str) -> Joined:
        waiting = asyncio.ensure_future(coordinator.join(group, joining))
        await idle()
        shard.advance(0)
        return await waiting

    for number in range(4):
        assert (await come(f"g-{number}")).error is ErrorCode.NONE
    with pytest.raises(BrokerError) as caught:
        await come("g-4")
    assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
