"""Tests of members that lose their session, a reply of ZooKeeper or a node, and of partitions
that another member owns."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from pybroker.classic import ClassicConsumer, ConsumerIdTaken, NotOwned, RebalanceFailed
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import CoordError
from pybroker.model import TopicPartition
from pybroker.ports import CreateOp, DeleteOp
from unit_tests.classic.stage import GROUP, only, read, stage, values
from unit_tests.idle_loop import idle, loop_turns
from unit_tests.patience import PATIENCE_S, until

T0 = TopicPartition("t", 0)


async def test_after_an_expired_session_a_member_registers_and_reads_again() -> None:
    async with stage(t=1) as scene:
        scene.append("t", 0, b"a", b"b")
        coord = await scene.session()
        member = await scene.member("1", coord=coord)
        stream = await only(member)
        await read(stream, 1)
        before = coord.session_id
        coord.expire()
        await until(lambda: coord.session_id not in (0, before) and member.owned() != {})
        owner = scene.tree.node(paths.group_owner(GROUP, T0))
        assert owner is not None
        assert owner[1].ephemeral_owner == coord.session_id
        assert values(await read(stream, 1)) == [b"a"]  # its offset had not been committed


async def test_offsets_of_an_expired_session_are_not_stored_in_a_new_one() -> None:
    async with stage(t=1) as scene:
        scene.append("t", 0, b"a", b"b", b"c")
        coord = await scene.session()
        member = await scene.member("2", coord=coord, auto_commit_enable=False)
        stream = await only(member)
        await read(stream, 1)
        coord.suspend()
        scene.tree.end_session(coord.session_id)
        other = await scene.member("1", auto_commit_enable=False)
        await read(await only(other), 3)
        await other.commit()
        with pytest.raises(CoordError):
            await member.commit()
        before = coord.session_id
        coord.resume()
        await until(lambda: coord.session_id not in (0, before))
        with pytest.raises(NotOwned):
            await member.commit({T0: 1})
        assert scene.offset("t", 0) == 3
        assert scene.owner("t", 0) == "g_1-0"


async def test_no_record_is_returned_while_zookeeper_is_silent() -> None:
    async with stage(t=1) as scene:
        scene.append("t", 0, b"a", b"b")
        clock = scene.tree.clock
        coord = await scene.session()
        member = await scene.member("1", coord=coord)
        stream = await only(member)
        assert values(await read(stream, 1)) == [b"a"]
        coord.suspend()
        assert hasattr(clock, "advance")
        clock.advance(3.9)
        assert len(await stream.getmany()) == 1  # two thirds of a session have not passed
        scene.append("t", 0, b"c")
        clock.advance(0.2)
        assert await stream.getmany(50) == {}
        coord.resume()
        assert values(await read(stream, 1)) == [b"c"]


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("request_number", range(24))
async def test_any_reply_may_be_lost(request_number: int, applied: bool) -> None:
    async with stage(t=2) as scene:
        scene.append("t", 0, b"a")
        coord = await scene.session()
        answered = 0
        patient: dict[str, Any] = {"rebalance_backoff_ms": 5, "rebalance_max_retries": 10_000}

        class Lossy:
            """A client that loses the reply of its n-th request."""

            def __getattr__(self, name: str) -> object:
                nonlocal answered
                if name in ("get", "exists", "children", "create", "delete", "multi", "set"):
                    if answered == request_number:
                        coord.lose_reply(applied=applied)
                    answered += 1
                return getattr(coord, name)

        member = await scene.member("2", coord=Lossy(), **patient)  # type: ignore[arg-type]
        stream = await only(member)
        assert values(await read(stream, 1)) == [b"a"]
        assert (scene.owner("t", 0), scene.owner("t", 1)) == ("g_2-0", "g_2-0")
        await member.commit()
        assert scene.offset("t", 0) == 1
        assert answered > request_number


async def test_a_member_waits_for_the_owner_and_creates_no_owner_node_before() -> None:
    async with stage(t=2) as scene:
        scene.append("t", 0, b"a")
        scene.make("/consumers/g/owners/t/1", b"g_else-0")
        member = await scene.member("1", rebalance_backoff_ms=5)
        with pytest.raises(RebalanceFailed, match="/consumers/g/owners/t/1 belongs to another"):
            await member.subscribe(["t"])
        assert scene.owner("t", 0) is None
        assert "/consumers/g/ids/g_1" not in scene.tree.paths()
        patient = await scene.member("0", rebalance_backoff_ms=60_000)
        await member.close()
        joining = asyncio.ensure_future(only(patient))
        await until(lambda: "/consumers/g/ids/g_0" in scene.tree.paths())
        scene.apply(DeleteOp("/consumers/g/owners/t/1"))
        async with asyncio.timeout(PATIENCE_S):  # not the minute of the backoff
            stream = await joining
        assert values(await read(stream, 1)) == [b"a"]


async def test_readers_get_the_error_of_a_later_failed_rebalance_until_one_succeeds() -> None:
    async with stage(t=1) as scene:
        scene.append("t", 0, b"a")
        member = await scene.member("1", rebalance_backoff_ms=5)
        stream = await only(member)
        await read(stream, 1)
        scene.make("/consumers/g/owners/t/1", b"g_else-0")
        scene.topic("t", 2)
        with pytest.raises(RebalanceFailed):
            async with asyncio.timeout(PATIENCE_S):
                await stream.getone()
        assert member.owned() == {T0: "g_1-0"}
        scene.append("t", 1, b"b")
        scene.apply(DeleteOp("/consumers/g/owners/t/1"))
        await until(lambda: len(member.owned()) == 2)
        assert values(await read(stream, 1)) == [b"b"]


async def test_a_deleted_owner_node_is_created_again() -> None:
    async with stage(t=1) as scene:
        scene.append("t", 0, b"a")
        member = await scene.member("1", auto_commit_enable=False)
        stream = await only(member)
        await read(stream, 1)
        scene.apply(DeleteOp("/consumers/g/owners/t/0"))
        with pytest.raises(NotOwned):
            await member.commit()
        assert scene.offset("t", 0) is None
        await until(lambda: scene.owner("t", 0) == "g_1-0" and member.owned() != {})
        assert values(await read(stream, 1)) == [b"a"]
        await member.commit()
        assert scene.offset("t", 0) == 1


async def test_a_member_without_a_node_registers_again() -> None:
    async with stage(t=1) as scene:
        await only(await scene.member("1"))
        scene.apply(DeleteOp("/consumers/g/ids/g_1"))
        await until(lambda: "/consumers/g/ids/g_1" in scene.tree.paths())


async def test_the_same_id_twice_is_refused() -> None:
    async with stage(t=1) as scene:
        await only(await scene.member("1"))
        again = await scene.member("1", rebalance_backoff_ms=5)
        with pytest.raises(RebalanceFailed, match="set another consumer") as caught:
            await again.subscribe(["t"])
        assert isinstance(caught.value.__cause__, ConsumerIdTaken)
        await again.close()
        assert scene.owner("t", 0) == "g_1-0"


class Diary:
    """A listener that records its calls, and commits before a release."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.member: ClassicConsumer | None = None

    async def before_release(self, partitions: Collection[TopicPartition]) -> None:
        self.entries.append(f"- {' '.join(map(str, sorted(partitions)))}")
        assert self.member is not None
        await self.member.commit()

    async def after_claim(self, partitions: Collection[TopicPartition]) -> None:
        self.entries.append(f"+ {' '.join(map(str, sorted(partitions)))}")

    async def after_loss(self, partitions: Collection[TopicPartition]) -> None:
        self.entries.append(f"x {' '.join(map(str, sorted(partitions)))}")


async def test_a_listener_may_commit_before_a_release() -> None:
    async with stage(t=2) as scene:
        scene.append("t", 1, b"a", b"b")
        diary = Diary()
        diary.member = await scene.member(
            "1", listener=diary, auto_commit_enable=False, rebalance_backoff_ms=5
        )
        await read(await only(diary.member), 2)
        two = await only(await scene.member("2"))
        await until(lambda: scene.owner("t", 1) == "g_2-0")
        assert scene.offset("t", 1) == 2
        await diary.member.close()
        assert diary.entries == ["+ t-0 t-1", "- t-1", "- t-0"]
        scene.append("t", 1, b"c")
        assert values(await read(two, 1)) == [b"c"]


class Late(Diary):
    """A listener that commits partitions that the member no longer owns."""

    async def before_release(self, partitions: Collection[TopicPartition]) -> None:
        with pytest.raises(NotOwned):
            await super().before_release(partitions)


async def test_a_recreated_topic_is_read_from_its_start() -> None:
    async with stage(t=1) as scene:
        scene.append("t", 0, b"a", b"b")
        diary = Late()
        diary.member = await scene.member("1", listener=diary, auto_commit_enable=False)
        stream = await only(diary.member)
        await read(stream, 2)
        await stream.getmany()
        path = paths.topic("t")
        node = scene.tree.node(path)
        assert node is not None
        scene.delete_topic("t")
        scene.broker.topics["t"] = 1
        del scene.broker.partitions[T0]
        scene.append("t", 0, b"c")
        scene.make("/consumers/g/offsets/t")
        scene.apply(CreateOp(path, node[0]))
        assert values(await read(stream, 1)) == [b"c"]
        assert scene.offset("t", 0) is None


async def test_after_loss_is_called_for_partitions_lost_with_the_session() -> None:
    async with stage(t=2) as scene:
        diary = Diary()
        coord = await scene.session()
        diary.member = await scene.member("1", coord=coord, listener=diary)
        await only(diary.member)
        coord.expire()
        await until(lambda: diary.entries == ["+ t-0 t-1", "x t-0 t-1", "+ t-0 t-1"])


async def test_close_that_is_cancelled_leaves_no_task_and_no_session() -> None:
    async with stage(t=1) as scene:
        for turns in range(1, 40):
            before = asyncio.all_tasks()
            coord = await scene.session()
            member = await scene.member(f"m{turns}", coord=coord)
            member._own_coord = coord  # type: ignore[assignment] # as if it had opened it
            await only(member)
            closing = asyncio.ensure_future(member.close())
            await loop_turns(turns)
            closing.cancel()
            await asyncio.wait([closing])
            await idle()
            left = [task.get_name() for task in asyncio.all_tasks() - before]
            assert not [name for name in left if "classic consumer" in name]
            assert not {"consumer fetcher", "metadata"} & {*left}
            assert coord.session_id == 0
