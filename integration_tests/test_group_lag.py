"""Tests of the lag of groups on the metrics pages of two brokers that both coordinate groups and
lead partitions: exactly one page shows each group, even if the other broker leads its partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration_tests.apache import ApacheZooKeeper
from integration_tests.broker import PybrokerProcess
from integration_tests.process import free_port
from integration_tests.site import Site
from pybroker.client import (
    Admin,
    CommittedOffset,
    Consumer,
    GroupLag,
    NewTopic,
    PartitionLag,
    Producer,
    TopicPartition,
)
from unit_tests.patience import wait_until

pytestmark = pytest.mark.ours

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
GROUPS = [f"group-{number}" for number in range(6)]
OPTIONS = {
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two brokers and their metrics pages."""

    bootstrap: str
    sites: tuple[Site, Site]

    def told(self, name: str, **labels: str) -> list[float]:
        """Return the values of a metric on the pages that show it."""
        key = (name, frozenset(labels.items()))
        pages = (site.samples() for site in self.sites)
        return [page[key] for page in pages if key in page]

    def wait_for_lags(self) -> None:
        """Wait until the pages show the lag of all groups. At the first request a broker searches
        the data for two seconds only.
        """

        def told() -> bool:
            names = [name for site in self.sites for name, _ in site.samples()]
            return names.count("kafka_consumergroup_lag") == 2 * len(GROUPS)

        wait_until(told, what="the lags of all groups")


@pytest.fixture
def pair(zookeeper: ApacheZooKeeper, tmp_path: Path) -> Iterator[Pair]:
    sites = (Site(free_port()), Site(free_port()))
    brokers = [
        PybrokerProcess(
            tmp_path / f"broker-{number}" / "data",
            overrides={
                **OPTIONS,
                "broker.id": str(number),
                "pybroker.http.listener": f"127.0.0.1:{site.port}",
            },
            zookeeper=zookeeper.connect,
        )
        for number, site in enumerate(sites, 1)
    ]
    try:
        for broker in brokers:
            broker.start()
        yield Pair(",".join(broker.bootstrap for broker in brokers), sites)
    finally:
        for broker in brokers:
            broker.close()


async def groups_with_lag(bootstrap: str) -> dict[str, GroupLag]:
    """Write ten records of the year 2001 to each of two partitions with different leaders. Group N
    has committed N records of the first and all records of the second partition. Return the lag as
    the client computes it.
    """
    async with Admin(bootstrap) as admin:
        wanted = NewTopic("a", assignments={0: [1], 1: [2]})
        for made in await admin.create_topics([wanted]):
            made.check()
        async with Producer(bootstrap) as producer:
            for key in (A0, A1):
                for number in range(10):
                    await producer.send(
                        "a", b"v", partition=key.partition, timestamp_ms=10**12 + number
                    )
        for number, group in enumerate(GROUPS):
            outcomes = await admin.alter_offsets(
                group, {A0: CommittedOffset(number), A1: CommittedOffset(10)}
            )
            assert not any(outcomes.values()), outcomes
        return await admin.group_lag(GROUPS)


def test_lag_on_the_pages_of_two_brokers(pair: Pair) -> None:
    seen = asyncio.run(groups_with_lag(pair.bootstrap))
    pair.wait_for_lags()
    coordinators: set[int] = set()
    for number, group in enumerate(GROUPS):
        lags = seen[group].check().partitions
        assert lags[A1] == PartitionLag(10, 0, 10, 10, 0, 0, 0, 0.0)
        behind = lags[A0]
        assert (behind.records, behind.stable_records) == (10 - number, 10 - number)
        assert behind.bytes is not None and behind.bytes > 0
        assert behind.seconds is not None and behind.seconds > 20 * 365 * 86_400
        where = {"consumergroup": group, "topic": "a"}
        for partition, committed, lag in ((0, number, 10 - number), (1, 10, 0)):
            one = {**where, "partition": str(partition)}
            assert pair.told("kafka_consumergroup_current_offset", **one) == [committed]
            assert pair.told("kafka_consumergroup_lag", **one) == [lag]
        assert pair.told("kafka_consumergroup_lag_sum", **where) == [10 - number]
        assert pair.told("kafka_consumergroup_members", consumergroup=group) == [0]
        first = {**where, "partition": "0"}
        assert pair.told("pybroker_group_lag_bytes", **first) == [behind.bytes]
        (age_s,) = pair.told("pybroker_group_lag_seconds", **first)
        assert age_s >= behind.seconds
        key = ("kafka_consumergroup_members", frozenset({("consumergroup", group)}))
        coordinators.update(site.port for site in pair.sites if key in site.samples())
    assert len(coordinators) == 2, "one broker coordinates no group"


async def consumed(bootstrap: str, pair: Pair) -> None:
    """Check that the page counts a member while it is in the group, and shows its committed
    offset.
    """
    async with Consumer(bootstrap, group_id=GROUPS[0], auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["a"])
        read = 0
        while read < 10:
            read += sum(map(len, (await consumer.getmany(timeout_ms=1_000)).values()))
        await consumer.commit()
        where = {"consumergroup": GROUPS[0], "topic": "a"}

        def told() -> bool:
            members = pair.told("kafka_consumergroup_members", consumergroup=GROUPS[0])
            return members == [1] and pair.told("kafka_consumergroup_lag_sum", **where) == [0]

        await asyncio.to_thread(wait_until, told, what="the page shows the member and its commit")


def test_members_and_their_commits_are_on_the_page(pair: Pair) -> None:
    asyncio.run(groups_with_lag(pair.bootstrap))
    asyncio.run(consumed(pair.bootstrap, pair))
