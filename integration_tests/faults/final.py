"""The final reads of a run: all records are read by two clients from the leaders, and from the
files of every replica.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException, TopicPartition

from integration_tests.faults import replicas
from integration_tests.faults.consumers import confluent_consumer
from pybroker.client import Consumer
from pybroker.client import TopicPartition as OurPartition
from pybroker.testing.history.ops import OpsLog
from unit_tests.patience import ATTEMPT_S, PATIENCE_S, WaitFailed

_SETTLE_STEP_S: Final = 0.1

Rows = list[list[object]]


def read_all(bootstrap: str, topic: str, partitions: int, log: OpsLog) -> dict[int, int]:
    """Write two `final` operations per partition. Return the log end offset of each partition.
    Raises WaitFailed for a partition that cannot be read to its end.
    """
    ends = {}
    for partition in range(partitions):
        start, rows, end = _by_librdkafka(bootstrap, topic, partition)
        # A record acknowledged only by its leader may not be committed yet when the end is read.
        ends[partition] = max([end, *(int(str(row[0])) + 1 for row in rows)])
        log.write(
            "final", "final", "ok",
            tp=[topic, partition], source="librdkafka", start=start, recs=rows,
        )  # fmt: skip
    for partition, (start, rows) in asyncio.run(_by_our_client(bootstrap, topic, ends)).items():
        log.write(
            "final", "final", "ok", tp=[topic, partition], source="ours", start=start, recs=rows
        )
    return ends


def _by_librdkafka(bootstrap: str, topic: str, partition: int) -> tuple[int, Rows, int]:
    consumer = confluent_consumer(bootstrap, "final")
    place = TopicPartition(topic, partition)
    deadline = time.monotonic() + PATIENCE_S
    rows: Rows = []
    try:
        while True:
            try:
                start, end = consumer.get_watermark_offsets(place, timeout=ATTEMPT_S)
                break
            except KafkaException as error:
                if time.monotonic() > deadline:
                    raise WaitFailed(f"{place}: {error}") from error
        consumer.assign([TopicPartition(topic, partition, start)])
        position = start
        while position < end:
            if time.monotonic() > deadline:
                raise WaitFailed(
                    f"partition {place} was read only up to offset {position}; its log end offset"
                    f" is {end}"
                )
            for message in consumer.consume(1000, 0.5):
                if message.error() is not None:
                    continue
                offset, value, epoch = message.offset(), message.value(), message.leader_epoch()
                assert offset is not None and value is not None
                text = bytes(value).decode(errors="replace")
                rows.append([offset, text, -1 if epoch is None else epoch])
                position = offset + 1
    finally:
        consumer.close()
    return start, rows, end


async def _by_our_client(
    bootstrap: str, topic: str, ends: Mapping[int, int]
) -> dict[int, tuple[int, Rows]]:
    found: dict[int, tuple[int, Rows]] = {}
    async with asyncio.timeout(PATIENCE_S), Consumer(bootstrap, client_id="final") as reader:
        places = [OurPartition(topic, partition) for partition in ends]
        starts = await reader.beginning_offsets(places)
        reader.assign(places)
        for place in places:
            reader.seek(place, starts[place])
            found[place.partition] = (starts[place], [])
        left = {place for place in places if ends[place.partition] > starts[place]}
        while left:
            for place, records in (await reader.getmany(timeout_ms=1000)).items():
                found[place.partition][1].extend(
                    [r.offset, (r.value or b"").decode(errors="replace"), r.leader_epoch]
                    for r in records
                )
                if records[-1].offset >= ends[place.partition] - 1:
                    left.discard(place)
    return found


def read_files(
    log_dirs: Mapping[int, Path],
    topic: str,
    ends: Mapping[int, int],
    log: OpsLog,
    *,
    stopped: bool = False,
) -> None:
    """Write a `files` operation for each replica, and its records as a `final` operation. If the
    brokers run, wait until followers reach the log end.
    """
    for partition, end in ends.items():
        deadline = time.monotonic() + PATIENCE_S
        while True:
            is_over = stopped or time.monotonic() > deadline
            try:
                found = {
                    broker: replicas.files_of(log_dir, (topic, partition), stopped=stopped)
                    for broker, log_dir in log_dirs.items()
                }
            except (replicas.DamagedFile, FileNotFoundError):
                if is_over:
                    raise
            else:
                first, *others = (row["batches"] for row in found.values())
                if is_over or all(other == first for other in others):
                    break
            time.sleep(_SETTLE_STEP_S)
        for broker, row in found.items():
            log.write("final", "files", "ok", broker=broker, **{**row, "hw": end})
            start, rows = replicas.records_of(log_dirs[broker], (topic, partition), end)
            log.write(
                "final", "final", "ok",
                tp=[topic, partition], source=f"files of broker {broker}", start=start, recs=rows,
            )  # fmt: skip
