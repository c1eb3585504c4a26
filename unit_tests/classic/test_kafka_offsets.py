"""Tests of a classic consumer's offsets at the coordinator: where members start, where offsets
are stored, and refused commits."""

from __future__ import annotations

from typing import Any

import pytest

from pybroker.classic import NotOwned
from pybroker.client.errors import ResponseError
from pybroker.errors import CoordError, ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import DeleteOp
from pybroker.wire.api import ApiKey
from unit_tests.classic.stage import only, read, stage, values
from unit_tests.client.fake_groups import FakeGroup
from unit_tests.patience import until

T0 = TopicPartition("t", 0)
BOTH: dict[str, Any] = {"offsets_storage": "kafka"}
KAFKA_ONLY: dict[str, Any] = {**BOTH, "dual_commit_enabled": False}
BY_HAND: dict[str, Any] = {"auto_commit_enable": False}


async def test_offsets_are_stored_at_the_coordinator_and_with_dual_commit_in_nodes() -> None:
    async with stage(t=1) as scene:
        group = FakeGroup(scene.broker).attach()
        scene.append("t", 0, b"a", b"b", b"c")
        first = await scene.member("1", **BOTH)
        await read(await only(first), 2)
        await first.commit()
        assert (group.committed[T0], scene.offset("t", 0)) == (2, 2)
        assert await first.committed(T0) == 2
        await first.close()
        second = await scene.member("2", **KAFKA_ONLY)
        assert values(await read(await only(second), 1)) == [b"c"]
        await second.commit()
        assert (group.committed[T0], scene.offset("t", 0)) == (3, 2)


@pytest.mark.parametrize(("at_the_coordinator", "in_the_node"), [(1, 2), (2, 1), (-1, 2), (2, -1)])
async def test_a_migrating_group_starts_at_the_larger_offset_and_stores_it(
    at_the_coordinator: int, in_the_node: int
) -> None:
    async with stage(t=1) as scene:
        group = FakeGroup(scene.broker).attach()
        scene.append("t", 0, b"a", b"b", b"c")
        if at_the_coordinator >= 0:
            group.committed[T0] = at_the_coordinator
        if in_the_node >= 0:
            scene.make("/consumers/g/offsets/t/0", b"%d" % in_the_node)
        member = await scene.member("1", **BOTH)
        assert values(await read(await only(member), 1)) == [b"c"]
        await until(lambda: group.committed.get(T0) == 2)
        await member.commit()
        assert (group.committed[T0], scene.offset("t", 0)) == (3, 3)


async def test_without_dual_commits_the_nodes_are_ignored() -> None:
    async with stage(t=1) as scene:
        FakeGroup(scene.broker).attach()
        scene.append("t", 0, b"a", b"b")
        scene.make("/consumers/g/offsets/t/0", b"1")
        member = await scene.member("1", **KAFKA_ONLY)
        assert values(await read(await only(member), 1)) == [b"a"]


async def test_only_changed_offsets_are_sent_to_the_coordinator() -> None:
    async with stage(t=1) as scene:
        group = FakeGroup(scene.broker).attach()
        scene.append("t", 0, b"a")
        member = await scene.member("1", **KAFKA_ONLY, **BY_HAND)
        await read(await only(member), 1)
        await member.commit()
        await member.commit()
        assert group.commits == [{T0: 1}]


async def test_an_expired_session_commits_nothing_to_the_coordinator() -> None:
    async with stage(t=1) as scene:
        group = FakeGroup(scene.broker).attach()
        scene.append("t", 0, b"a")
        coord = await scene.session()
        member = await scene.member("1", coord=coord, **KAFKA_ONLY, **BY_HAND)
        await read(await only(member), 1)
        coord.suspend()
        scene.tree.end_session(coord.session_id)
        with pytest.raises(CoordError):
            await member.commit()
        await only(await scene.member("0", **KAFKA_ONLY, **BY_HAND))
        before = coord.session_id
        coord.resume()
        await until(lambda: coord.session_id not in (0, before))
        with pytest.raises(NotOwned):
            await member.commit({T0: 1})
        assert group.commits == []


async def test_a_member_without_its_owner_node_commits_nothing_to_the_coordinator() -> None:
    async with stage(t=1) as scene:
        group = FakeGroup(scene.broker).attach()
        scene.append("t", 0, b"a")
        member = await scene.member("1", **KAFKA_ONLY, **BY_HAND)
        await read(await only(member), 1)
        scene.apply(DeleteOp("/consumers/g/owners/t/0"))
        with pytest.raises(NotOwned):
            await member.commit()
        assert group.commits == []


async def test_a_refused_commit_raises_and_the_next_commit_stores_the_offset() -> None:
    async with stage(t=1) as scene:
        group = FakeGroup(scene.broker).attach()
        scene.append("t", 0, b"a")
        member = await scene.member("1", **BOTH, **BY_HAND)
        await read(await only(member), 1)
        group.will(ApiKey.OFFSET_COMMIT, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        with pytest.raises(ResponseError, match="GROUP_AUTHORIZATION_FAILED"):
            await member.commit()
        assert scene.offset("t", 0) is None
        await member.commit()
        assert (group.committed[T0], scene.offset("t", 0)) == (1, 1)
