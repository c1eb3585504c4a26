"""Tests of members of a classic group: their partitions, their stored offsets, and expired
sessions."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pybroker.classic import (
    GroupIsCoordinated,
    NotOwned,
)
from pybroker.client.errors import Closed, DeadlinePassed
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import CreateOp, DeleteOp
from unit_tests.classic.stage import GROUP, only, read, stage, values
from unit_tests.patience import PATIENCE_S, until

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


async def test_one_member_reads_everything_and_leaves_kafkas_nodes() -> None:
    async with stage(t=2) as scene:
        scene.append("t", 0, b"a", b"b")
        scene.append("t", 1, b"c")
        member = await scene.member("m")
        stream = await only(member)
        assert sorted(values(await read(stream, 3))) == [b"a", b"b", b"c"]
        assert member.owned() == {T0: "g_m-0", T1: "g_m-0"}
        assert (scene.owner("t", 0), scene.owner("t", 1)) == ("g_m-0", "g_m-0")
        found = scene.tree.node("/consumers/g/ids/g_m")
        assert found is not None
        content = json.loads(found[0])
        assert content.pop("timestamp").isdigit()
        assert content == {"version": 1, "subscription": {"t": 1}, "pattern": "static"}
        assert await stream.getmany() == {}
        await until(lambda: (scene.offset("t", 0), scene.offset("t", 1)) == (2, 1))
        assert await member.committed(T0) == 2
        await member.close()
        assert scene.owner("t", 0) is None
        assert "/consumers/g/ids/g_m" not in scene.tree.paths()
        assert scene.offset("t", 0) == 2


async def test_a_consumer_id_is_generated_as_in_kafka() -> None:
    async with stage(t=1) as scene:
        member = await scene.member("")
        group, _, rest = member.consumer_id.partition("_")
        host, milliseconds, digits = rest.rsplit("-", 2)
        assert group == GROUP
        assert host
        assert milliseconds.isdigit()
        assert len(bytes.fromhex(digits)) == 4


async def test_the_second_member_continues_at_the_first_members_offset() -> None:
    async with stage(t=2) as scene:
        for number in range(2):
            scene.append("t", number, b"%d-a" % number, b"%d-b" % number)
        first = await scene.member("1")
        one = await only(first)
        assert len(await read(one, 4)) == 4
        reading = asyncio.ensure_future(one.getone())  # so the four records count as consumed
        two = await only(await scene.member("2"))
        await until(lambda: first.owned() == {T0: "g_1-0"})
        assert scene.owner("t", 1) == "g_2-0"
        scene.append("t", 0, b"0-c")
        scene.append("t", 1, b"1-c")
        async with asyncio.timeout(PATIENCE_S):
            assert (await reading).value == b"0-c"
        assert values(await read(two, 1)) == [b"1-c"]


async def test_a_kept_partition_is_read_without_gap_or_repetition() -> None:
    async with stage(t=2) as scene:
        scene.append("t", 0, *(b"%d" % number for number in range(50)))
        first = await scene.member("1")
        one = await only(first)
        before = values(await read(one, 10))
        await only(await scene.member("2"))
        await until(lambda: first.owned() == {T0: "g_1-0"})
        assert before + values(await read(one, 40)) == [b"%d" % number for number in range(50)]


async def test_records_in_hand_of_a_leaving_member_are_read_again() -> None:
    async with stage(t=1) as scene:
        scene.append("t", 0, b"a", b"b", b"c")
        first = await scene.member("1")
        assert values(await read(await only(first), 2)) == [b"a", b"b"]
        await first.close()
        assert scene.offset("t", 0) == 1
        assert values(await read(await only(await scene.member("2")), 2)) == [b"b", b"c"]


async def test_a_rebalance_waits_for_records_in_hand() -> None:
    async with stage(t=1) as scene:
        scene.append("t", 0, b"a", b"b")
        first = await scene.member("2", rebalance_backoff_ms=60_000)
        one = await only(first)
        await read(one, 1)
        second = await scene.member("1")  # sorts before the other member, so it gets the partition
        joining = asyncio.ensure_future(only(second))
        await until(lambda: not first.owned())
        assert scene.owner("t", 0) == "g_2-0"
        assert await one.getmany() == {}
        async with asyncio.timeout(PATIENCE_S):
            two = await joining
        assert values(await read(two, 1)) == [b"b"]


async def test_no_offset_is_committed_with_auto_commit_disabled() -> None:
    async with stage(t=1) as scene:
        scene.append("t", 0, b"a", b"b", b"c")
        member = await scene.member("1", auto_commit_enable=False)
        stream = await only(member)
        await read(stream, 2)
        assert scene.offset("t", 0) is None
        await member.commit({T0: 1})
        assert scene.offset("t", 0) == 1
        await member.commit()
        assert scene.offset("t", 0) == 2
        node = scene.tree.node(paths.offset(GROUP, T0))
        assert node is not None
        version = node[1].version
        await member.commit()
        node = scene.tree.node(paths.offset(GROUP, T0))
        assert node is not None
        assert node[1].version == version  # written only if changed
        await read(stream, 1)
        await member.close()
        assert scene.offset("t", 0) == 2


async def test_an_automatic_commit_does_not_lower_a_manual_one() -> None:
    async with stage(t=1) as scene:
        member = await scene.member("1")
        scene.broker.without_leader = True
        stream = await only(member)
        await member.commit({T0: 7})
        scene.append("t", 0, b"a")
        scene.broker.without_leader = False
        assert values(await read(stream, 1)) == [b"a"]
        await member.commit()
        assert scene.offset("t", 0) == 7


async def test_only_owned_partitions_can_be_committed() -> None:
    async with stage(t=1) as scene:
        member = await scene.member("1")
        await only(member)
        with pytest.raises(NotOwned, match="t-1 were not committed") as caught:
            await member.commit({T0: 0, T1: 5})
        assert caught.value.partitions == {T1}
        with pytest.raises(ValueError, match="offset to commit for t-0 is -2"):
            await member.commit({T0: -2})
        assert scene.offset("t", 0) == 0
        assert scene.offset("t", 1) is None


async def test_a_coordinated_group_is_refused() -> None:
    async with stage(t=1) as scene:
        scene.make(
            "/consumers/g/ids/consumer-1",
            b'{"version":1,"subscription":{"t":1},"pattern":"static","pybroker":1}',
        )
        member = await scene.member("1", rebalance_backoff_ms=60_000)
        with pytest.raises(GroupIsCoordinated, match="members that use JoinGroup") as caught:
            async with asyncio.timeout(PATIENCE_S):
                await member.subscribe(["t"])
        assert caught.value.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert "/consumers/g/ids/g_1" not in scene.tree.paths()
        assert scene.owner("t", 0) is None


async def test_members_stay_after_a_refused_coordinated_join() -> None:
    async with stage(t=1) as scene:
        stream = await only(await scene.member("1"))
        scene.make("/consumers/g/ids/consumer-1", b'{"pybroker":1}')
        other = await scene.member("2", rebalance_backoff_ms=5)
        with pytest.raises(GroupIsCoordinated):
            await other.subscribe(["t"])
        scene.append("t", 0, b"a")
        assert values(await read(stream, 1)) == [b"a"]
        scene.apply(DeleteOp("/consumers/g/ids/consumer-1"))
        scene.append("t", 1, b"b")
        scene.topic("t", 2)
        assert values(await read(stream, 1)) == [b"b"]


async def test_a_member_leaves_when_its_group_becomes_coordinated() -> None:
    async with stage(t=1) as scene:
        stream = await only(await scene.member("1", rebalance_backoff_ms=5))
        scene.make("/consumers/g/ids/consumer-1", b'{"pybroker":1}')
        with pytest.raises(GroupIsCoordinated):
            await read(stream, 1)
        await until(lambda: scene.owner("t", 0) is None)
        assert "/consumers/g/ids/g_1" not in scene.tree.paths()


async def test_the_start_offset_of_a_member_is_stored_at_once() -> None:
    async with stage(t=1) as scene:
        scene.append("t", 0, b"old")
        coord = await scene.session()
        options: dict[str, Any] = {
            "auto_offset_reset": "largest",
            "auto_commit_interval_ms": 3_600_000,
        }
        await only(await scene.member("1", coord=coord, **options))
        await until(lambda: scene.offset("t", 0) == 1)
        coord.suspend()
        scene.tree.end_session(coord.session_id)
        scene.append("t", 0, b"new")
        assert values(await read(await only(await scene.member("2", **options)), 1)) == [b"new"]


async def test_an_offset_out_of_range_is_reset() -> None:
    async with stage(t=1) as scene:
        scene.append("t", 0, b"a", b"b")
        scene.make("/consumers/g/offsets/t/0", b"77")
        member = await scene.member("1")
        assert values(await read(await only(member), 2)) == [b"a", b"b"]
        await until(lambda: scene.offset("t", 0) == 0)


async def test_new_partitions_are_read() -> None:
    async with stage(t=1) as scene:
        stream = await only(await scene.member("1"))
        scene.append("t", 1, b"grown")
        scene.topic("t", 2)
        assert values(await read(stream, 1)) == [b"grown"]


async def test_a_topic_may_be_created_later() -> None:
    async with stage() as scene:
        stream = await only(await scene.member("1"))
        scene.append("t", 0, b"a")
        scene.topic("t", 1)
        assert values(await read(stream, 1)) == [b"a"]


async def test_no_offset_is_stored_for_a_deleted_topic() -> None:
    async with stage(t=1, u=1) as scene:
        scene.append("t", 0, b"a")
        member = await scene.member("1", auto_commit_interval_ms=3_600_000)
        streams = await member.subscribe({"t": 1, "u": 1})
        (stream,) = streams["t"]
        await read(stream, 1)
        await stream.getmany()
        scene.delete_topic("t")
        await until(lambda: T0 not in member.owned() and scene.owner("t", 0) is None)
        assert scene.offset("t", 0) is None
        assert member.owned() == {TopicPartition("u", 0): "g_1-0"}


async def test_a_pattern_reads_matching_topics_now_and_later_but_no_internal_ones() -> None:
    async with stage(orders=1, other=1, __consumer_offsets=1) as scene:
        member = await scene.member("1")
        (stream,) = await member.subscribe_pattern(white_list=" '.*orders, .*offsets'")
        assert [key.topic for key in member.owned()] == ["orders"]
        node = scene.tree.node("/consumers/g/ids/g_1")
        assert node is not None
        assert json.loads(node[0])["subscription"] == {".*orders|.*offsets": 1}
        assert json.loads(node[0])["pattern"] == "white_list"
        scene.append("new-orders", 0, b"x")
        scene.topic("new-orders", 1)
        assert values(await read(stream, 1)) == [b"x"]
        other = await scene.member("2", group_id="h")
        await other.subscribe_pattern(black_list=".*orders")
        assert [key.topic for key in other.owned()] == ["other"]


async def test_streams_of_a_member_read_side_by_side() -> None:
    async with stage(t=4) as scene:
        for number in range(4):
            scene.append("t", number, b"%d" % number)
        member = await scene.member("1")
        one, two = (await member.subscribe({"t": 2}))["t"]
        assert sorted(values(await read(one, 2))) == [b"0", b"1"]
        assert sorted(values(await read(two, 2))) == [b"2", b"3"]
        assert one.partitions() == {T0, T1}


async def test_reading_ends_with_the_consumer_or_by_its_timeout() -> None:
    async with stage(t=1) as scene:
        member = await scene.member("1", consumer_timeout_ms=5)
        stream = await only(member)
        with pytest.raises(DeadlinePassed, match=r"consumer\.timeout\.ms=5"):
            await stream.getone()
        await member.close()
        assert [record async for record in stream] == []
        with pytest.raises(Closed):
            await member.commit()


async def test_a_member_waits_for_the_first_broker() -> None:
    async with stage(t=1) as scene:
        node = scene.tree.node("/brokers/ids/1")
        assert node is not None
        scene.apply(DeleteOp("/brokers/ids/1"))
        scene.append("t", 0, b"a")
        stream = await only(await scene.member("1"))
        scene.apply(CreateOp("/brokers/ids/1", node[0]))
        assert values(await read(stream, 1)) == [b"a"]


async def test_groups_of_any_name_have_separate_nodes() -> None:
    async with stage(t=1) as scene:
        scene.append("t", 0, b"a")
        member = await scene.member("1", group_id="a/../b c")
        await read(await only(member), 1)
        await member.commit()
        node = scene.tree.node("/consumers/a%2F..%2Fb%20c/offsets/t/0")
        assert node is not None
        assert node[0] == b"1"
