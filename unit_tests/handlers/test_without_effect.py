"""Tests that a broker warns once of each option that it accepts but that has no effect."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pybroker.config.without_effect import sentence
from pybroker.errors import ErrorCode
from unit_tests.handlers.bench import Bench
from unit_tests.handlers.config_words import BROKER, ME, SET, TOPIC, change

RATE = "leader.replication.throttled.rate"
THROTTLED = "leader.replication.throttled.replicas"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and "effect" in record.getMessage()
    ]


async def test_a_created_topic_gets_one_warning(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.create("t", 4, {"preallocate": "true", "retention.ms": "5"})
    assert warnings(caplog) == [sentence("t", "preallocate")]
    await change(bench, (TOPIC, "t"), (SET, "retention.ms", "7"))
    await change(bench, (BROKER, ""), (SET, "message.max.bytes", "1000"))
    assert warnings(caplog) == [sentence("t", "preallocate")]


async def test_a_changed_topic_gets_one_warning(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.create("t", 4)
    assert warnings(caplog) == []
    for replicas in ("0:1", "0:1,1:1"):
        answer = await change(bench, (TOPIC, "t"), (SET, THROTTLED, replicas))
        assert answer == (ErrorCode.NONE, None)
    assert warnings(caplog) == [sentence("t", THROTTLED)]


async def test_a_starting_broker_warns_once_of_each_stored_option(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Bench(tmp_path) as bench:
        await bench.create("t", 4, {"preallocate": "true"})
    caplog.clear()
    async with bench.again():
        assert warnings(caplog) == [sentence("t", "preallocate")]


async def test_compacted_topics_cause_no_warning(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.create("t", 2, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"})
    assert warnings(caplog) == []


async def test_a_dynamic_throttle_rate_is_warned_of_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for rate in ("1000", "2000"):
        assert (await change(bench, (BROKER, ME), (SET, RATE, rate)))[0] is ErrorCode.NONE
    assert warnings(caplog) == [f"options without effect in this broker: {RATE}"]
