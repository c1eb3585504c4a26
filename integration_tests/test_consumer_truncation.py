"""Tests of our consumer when an unclean election truncates records that it has read: it goes back
to the offset of divergence and reads the new records from there, instead of skipping them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pybroker.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from pybroker.client.errors import LogTruncated
from pybroker.testing.cluster import Cluster
from unit_tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.ours

T0 = TopicPartition("t", 0)
COMMON, LOST, NEW = 10, 10, 15
CONFIG = {
    "unclean.leader.election.enable": True,
    "auto.leader.rebalance.enable": False,
    "min.insync.replicas": 1,
    "offsets.topic.num.partitions": 1,
}


async def write(cluster: Cluster, word: str, count: int) -> None:
    async with Producer(cluster.bootstrap, acks="all") as producer:
        for number in range(count):
            await producer.send("t", f"{word} {number}".encode(), partition=0)


async def read(consumer: Consumer, count: int) -> list[str]:
    found: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                found += [(record.value or b"").decode() for record in records]
    return found


def words(word: str, count: int) -> list[str]:
    return [f"{word} {number}" for number in range(count)]


async def test_a_consumer_rereads_after_an_unclean_election_truncated_its_records(
    tmp_path: Path,
) -> None:
    with Cluster(2, config=CONFIG, data=tmp_path) as cluster:
        consumers = {
            policy: Consumer(cluster.bootstrap, auto_offset_reset=policy)
            for policy in ("latest", "none")
        }
        async with Admin(cluster.bootstrap) as admin, consumers["latest"], consumers["none"]:
            for result in await admin.create_topics([NewTopic("t", 1, 2)]):
                result.check()
            for consumer in consumers.values():
                consumer.assign([T0])
                consumer.seek(T0, 0)
            await lose_records(cluster, consumers)
            assert await read(consumers["latest"], NEW) == words("new", NEW)
            with pytest.raises(LogTruncated) as caught:
                await read(consumers["none"], 1)
            assert (caught.value.position, caught.value.offset) == (COMMON + LOST, COMMON)
        async with Consumer(
            cluster.bootstrap, group_id="g", auto_offset_reset="latest", enable_auto_commit=False
        ) as late:
            late.subscribe(["t"])
            assert await read(late, NEW) == words("new", NEW), (
                "the consumer begins at the committed offset"
            )


async def lose_records(cluster: Cluster, consumers: dict[str, Consumer]) -> None:
    """Let consumers read, and a group commit, records that only the leader has. Then kill the
    leader. The other replica, which was out of sync, leads and gets new records.
    """
    common, lost = words("common", COMMON), words("lost", LOST)
    await write(cluster, "common", COMMON)
    async with Consumer(
        cluster.bootstrap,
        group_id="g",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=6_000,  # the records of its leaving are lost, too
    ) as member:
        member.subscribe(["t"])
        assert await read(member, COMMON) == common
        leader = await asyncio.to_thread(cluster.leader, "t", 0)
        (other,) = (broker for broker in cluster.ids if broker != leader)
        cluster.kill(other)

        def is_alone() -> bool:
            state = cluster.partition("t", 0)
            return state is not None and set(state.isr) == {leader}

        await asyncio.to_thread(wait_until, is_alone, what="the leader is alone in sync")
        await write(cluster, "lost", LOST)
        assert await read(member, LOST) == lost
        await member.commit()
    for consumer in consumers.values():
        assert await read(consumer, COMMON + LOST) == common + lost
    cluster.kill(leader)
    await asyncio.to_thread(cluster.restart, other)
    await asyncio.to_thread(cluster.leader, "t", 0, other_than=leader)
    await write(cluster, "new", NEW)
