"""Tests of the topics in the constructor of a consumer."""

from __future__ import annotations

from typing import Any

import pytest

from pybroker.client import ConfigError, Consumer, SubscriptionConflict
from unit_tests.client.fake_broker import FakeBroker
from unit_tests.client.group_readers import QUICKLY, a_group, first, member, tp
from unit_tests.client.held_logs import batch, holding


async def test_topics_of_the_constructor_are_subscribed_at_the_start() -> None:
    async with a_group(t=1, u=1) as group:
        holding(group.broker.partition(), batch(b"a"))
        target = member(group, topics=(name for name in ["t", "u"]))
        assert target.subscription() == frozenset()
        async with target as consumer:
            assert consumer.subscription() == {"t", "u"}
            assert await first(consumer) == b"a"
            assert consumer.assignment() == {tp(0), tp(0, "u")}
        assert not group.members


async def test_a_subscription_before_the_start_replaces_the_topics() -> None:
    async with a_group(t=1, u=1) as group:
        assigned: list[object] = []
        target = member(group, topics=["t"])
        target.subscribe(["u"], on_assigned=assigned.extend)
        holding(group.broker.partition("u"), batch(b"b"))
        async with target as consumer:
            assert await first(consumer) == b"b"
            assert consumer.subscription() == {"u"}
        assert assigned == [tp(0, "u")]


async def test_topics_and_assigned_partitions_exclude_each_other() -> None:
    async with a_group(t=1) as group:
        target = member(group, topics=["t"])
        target.assign([tp(0)])
        with pytest.raises(SubscriptionConflict, match=r"assigned by assign\(\)"):
            await target.start()
        async with member(group, topics=["t"]) as consumer:
            with pytest.raises(SubscriptionConflict, match="subscribed to topics"):
                consumer.assign([tp(0)])
            await consumer.unsubscribe()
            consumer.assign([tp(0)])


WRONG: list[tuple[Any, str]] = [
    ("orders", r"must be a list of names, not 'orders': write \['orders'\]"),
    (b"orders", "must be a list of names, not b'orders'"),
    (3, "must be a list of names, not 3"),
    ([b"orders"], "must be a name, not b'orders'"),
    ([tp(0)], r"must be a name, not TopicPartition"),
    ([""], "must be a name, not ''"),
]


@pytest.mark.parametrize(("topics", "words"), WRONG)
async def test_topics_that_are_no_list_of_names_are_refused(topics: Any, words: str) -> None:
    async with FakeBroker({"t": 1}) as broker:
        with pytest.raises(ConfigError, match=words):
            Consumer(broker.address, topics=topics, **QUICKLY)
        with pytest.raises(ValueError, match=words):
            Consumer(broker.address, **QUICKLY).subscribe(topics)


def test_no_topics_and_topics_without_a_group_are_refused() -> None:
    with pytest.raises(ConfigError, match="must name at least one topic"):
        Consumer(topics=[], group_id="g")
    with pytest.raises(ConfigError, match=r"needs a group_id; without a group, call assign\(\)"):
        Consumer(topics=["orders"])
