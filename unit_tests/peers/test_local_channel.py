"""Tests of the log lines of commands that a broker carries out: one line for each command, not
for each partition."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pybroker.wire.api import ApiKey
from unit_tests.handlers.bench import Bench
from unit_tests.patience import until


@pytest.mark.parametrize("partitions", [3, 30])
async def test_a_command_logs_one_line_for_all_its_partitions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, partitions: int
) -> None:
    caplog.set_level(logging.INFO)
    async with Bench(tmp_path) as bench:
        await bench.create("t", partitions)
        await until(lambda: len(bench.app.replicas.partitions) == partitions)
        await bench.ask(ApiKey.DELETE_TOPICS, 5, bench.delete_request("t"))
        await until(lambda: not bench.app.replicas.partitions)
    lines = [
        record.getMessage()
        for record in caplog.records
        if record.name
        in (
            "pybroker.peers.local_channel",
            "pybroker.coordinator.controller.partition_state_machine",
        )
    ]
    assert f"become leader partitions={partitions} controller_epoch=1" in lines
    assert f"partitions deleted partitions={partitions} controller_epoch=1" in lines
    assert [line for line in lines if line.startswith("states stored")] == [
        f"states stored partitions={partitions} reason=new-partition epoch=1"
    ]
    assert len(lines) == 3, lines
