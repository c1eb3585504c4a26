"""`offsets.storage=zookeeper`: who may tell what is committed."""

from __future__ import annotations

import pytest

from pybroker.coordinator.groups.zookeeper_offsets import ZookeeperOffsets
from pybroker.errors import BrokerError, ErrorCode
from unit_tests.coordinator.groups.offset_stage import FENCE, GROUP, Stage


async def test_who_was_replaced_tells_nothing_although_its_zookeeper_lags() -> None:
    """Nobody has told it, and it has just heard of all its followers."""
    stage = await Stage.begin(ZookeeperOffsets)
    await stage.commit(GROUP, a=5)
    assert await stage.fetch() == {"a-0": 5}
    stage.coord.lag()
    await stage.tool.set(FENCE, b"another")
    await stage.edit("a-0", b"8")
    assert stage.shard.log.is_surely_led
    with pytest.raises(BrokerError) as caught:
        await stage.fetch()
    assert caught.value.code is ErrorCode.NOT_COORDINATOR
    assert "version 1, not 0" in stage.shard.reasons[0]


async def test_offsets_are_told_while_only_the_session_of_the_broker_is_silent() -> None:
    """The fence says who coordinates, and is read in the session that has the offsets."""
    stage = await Stage.begin(ZookeeperOffsets)
    await stage.commit(GROUP, a=5)
    stage.shard.log.is_heard = False
    assert await stage.fetch() == {"a-0": 5}
