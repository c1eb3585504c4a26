"""Tests of the committed offsets for reports: a report reads only the nodes that have changed since
the last one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pybroker.coordinator.offsets.nodes import OffsetNodes
from pybroker.coordinator.offsets.watched_offsets import WatchedOffsets
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.registry import ensure
from pybroker.errors import MalformedNode
from pybroker.model import TopicPartition
from pybroker.ports import NodeStat, Watch
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.idle_loop import idle

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class Recorded(MemoryCoord):
    """A client that records the last name of each path that it reads."""

    reads: list[str]

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]:
        self.reads.append(path.rpartition("/")[2])
        return await super().get(path, watch)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        self.reads.append(path.rpartition("/")[2])
        return await super().children(path, watch)


class Reports:
    """The reports of one coordinator, and a tool that writes offsets in its own session."""

    def __init__(self) -> None:
        tree = MemoryTree()
        self.coord = Recorded(tree, name="coordinator")
        self.coord.reads = []
        self.tool = MemoryCoord(tree, name="tool")
        self.offsets = WatchedOffsets(self.coord, OffsetNodes(self.coord))

    async def write(self, key: TopicPartition, offset: bytes, group: str = "g") -> None:
        path = paths.offset(group, key)
        await ensure(self.tool, path)
        await self.tool.set(path, offset)

    async def report(self, group: str = "g") -> tuple[dict[TopicPartition, int], list[str]]:
        """Return the positions of the group, and the names of the nodes that were read."""
        await idle()
        self.coord.reads.clear()
        return dict(await self.offsets.positions(group)), list(self.coord.reads)


@pytest.fixture
async def reports() -> AsyncIterator[Reports]:
    made = Reports()
    await made.coord.start()
    await made.tool.start()
    await made.write(A0, b"5")
    await made.write(A1, b"6")
    assert await made.report() == ({A0: 5, A1: 6}, ["offsets", "a", "0", "1"])
    yield made
    await made.coord.close()
    await made.tool.close()


async def test_a_second_report_of_an_unchanged_group_reads_nothing(reports: Reports) -> None:
    await reports.write(B0, b"1", group="another")
    assert await reports.report() == ({A0: 5, A1: 6}, [])


async def test_only_the_changed_offset_is_read_again(reports: Reports) -> None:
    for offset in (7, 8):
        await reports.write(A1, b"%d" % offset)
        assert await reports.report() == ({A0: 5, A1: offset}, ["1"])
    assert await reports.report() == ({A0: 5, A1: 8}, [])


async def test_new_and_removed_partitions_and_topics_are_found(reports: Reports) -> None:
    await reports.write(TopicPartition("a", 2), b"9")
    assert await reports.report() == ({A0: 5, A1: 6, TopicPartition("a", 2): 9}, ["a", "2"])
    await reports.write(B0, b"1")
    found, _ = await reports.report()
    assert found == {A0: 5, A1: 6, TopicPartition("a", 2): 9, B0: 1}
    await reports.tool.delete(paths.offset("g", A0))
    assert await reports.report() == ({A1: 6, TopicPartition("a", 2): 9, B0: 1}, ["a"])
    assert (await reports.report())[1] == []


async def test_a_deleted_group_is_forgotten_and_a_new_one_is_found(reports: Reports) -> None:
    for path in (
        paths.offset("g", A0),
        paths.offset("g", A1),
        f"{paths.group_offsets('g')}/a",
        paths.group_offsets("g"),
    ):
        await reports.tool.delete(path)
    await idle()
    assert not reports.offsets._groups and not reports.offsets._watched
    assert (await reports.report())[0] == {}
    await reports.write(A0, b"3")
    assert (await reports.report())[0] == {A0: 3}


async def test_a_change_during_the_read_is_in_the_next_report(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports.offsets.clear()
    original = Recorded.children

    async def change_first(self: Recorded, path: str, watch: Watch | None = None) -> list[str]:
        names = await original(self, path, watch)
        await reports.write(A0, b"7")
        await reports.write(B0, b"1")
        await idle()
        return names

    monkeypatch.setattr(Recorded, "children", change_first)
    await reports.report()
    monkeypatch.undo()
    assert (await reports.report())[0] == {A0: 7, A1: 6, B0: 1}
    assert (await reports.report())[1] == []


async def test_a_new_session_reads_all_nodes_again(reports: Reports) -> None:
    reports.coord.expire()
    await idle()
    await reports.write(A0, b"7")
    found, read = await reports.report()
    assert found == {A0: 7, A1: 6} and len(read) == 4


async def test_changes_during_a_lost_connection_are_found(reports: Reports) -> None:
    reports.coord.suspend()
    await reports.write(A0, b"7")
    reports.coord.resume()
    assert await reports.report() == ({A0: 7, A1: 6}, ["0"])


async def test_an_offset_that_is_no_number_is_read_until_it_is_one(reports: Reports) -> None:
    await reports.write(A0, b"many")
    for _ in range(2):
        with pytest.raises(MalformedNode):
            await reports.report()
    await reports.write(A0, b"7")
    assert (await reports.report())[0] == {A0: 7, A1: 6}
    assert (await reports.report())[1] == []


async def test_nodes_above_the_limit_of_watches_are_read_for_each_report(reports: Reports) -> None:
    few = WatchedOffsets(reports.coord, OffsetNodes(reports.coord), watches_max=3)
    reports.offsets = few
    await reports.report()
    for offset in (7, 8):
        await reports.write(A1, b"%d" % offset)
        assert await reports.report() == ({A0: 5, A1: offset}, ["1"])


async def test_the_empty_group_id_has_no_offsets(reports: Reports) -> None:
    assert (await reports.report(""))[0] == {}
