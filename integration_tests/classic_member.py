"""A classic consumer as a separate process, which tests kill and pause:

    python -m integration_tests.classic_member ZOOKEEPER GROUP NAME TOPIC [OPTION=VALUE...]

The process prints a line of JSON for each event before it continues: assigned and revoked
partitions, and records that it reads, with the time in seconds of the machine's monotonic clock. On
SIGTERM it leaves the group cleanly.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Collection
from typing import Any

from pybroker.classic import ClassicConsumer
from pybroker.model import TopicPartition


def tell(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, "at": time.monotonic(), **facts}), flush=True)


class Diary:
    """A rebalance listener that prints assigned and revoked partitions. A revocation is printed
    before another member may own the partition.
    """

    async def before_release(self, partitions: Collection[TopicPartition]) -> None:
        tell("lost", partitions=sorted(key.partition for key in partitions))

    async def after_claim(self, partitions: Collection[TopicPartition]) -> None:
        tell("got", partitions=sorted(key.partition for key in partitions))

    async def after_loss(self, partitions: Collection[TopicPartition]) -> None:
        tell("expired", partitions=sorted(key.partition for key in partitions))


async def run(zookeeper: str, group: str, name: str, topic: str, *options: str) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    given: dict[str, Any] = dict(option.split("=", 1) for option in options)
    async with ClassicConsumer(
        zookeeper, group_id=group, consumer_id=name, listener=Diary(), **given
    ) as consumer:
        (stream,) = (await consumer.subscribe({topic: 1}))[topic]
        tell("joined")
        async for record in stream:
            value = int(record.value or b"-1")
            tell("record", partition=record.partition, offset=record.offset, value=value)


if __name__ == "__main__":
    try:
        asyncio.run(run(*sys.argv[1:]))
    except asyncio.CancelledError:
        tell("left")
