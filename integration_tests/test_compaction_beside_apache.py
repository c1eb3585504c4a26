"""Tests of the log cleaner beside Apache Kafka's: each broker cleans its copy of the same data
directory, and one broker continues the cleaning of a directory where the other one has stopped.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import confluent_kafka
import pytest

from integration_tests.apache import ApacheKafka, ApacheZooKeeper
from integration_tests.broker import Broker, PybrokerProcess
from integration_tests.spark_topics import transactional
from integration_tests.stored import partition_folder, segments
from integration_tests.wire_client import Connection, create_topic
from pybroker.model import TopicPartition
from pybroker.records.batch import BatchHeader, crc_matches, iter_headers
from pybroker.records.compression import Codec
from pybroker.records.record import Record, decode_records
from pybroker.storage.checkpoints import decode_offsets
from pybroker.storage.filename import CLEANER_OFFSETS
from unit_tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.ours

TOPIC: Final = "prices"
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd", "none")
"""The codecs in the order of their records. The last records also fill the active segment, which is
not cleaned."""
KEYS: Final = 50
CONFIGS: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": "16384",
}
AT_REST: Final = {"broker.id": "0", "log.cleaner.enable": "false"}
CLEANING: Final = {"broker.id": "0", "log.cleaner.backoff.ms": "100", "log.cleaner.threads": "1"}


class Stored(NamedTuple):
    """A batch without the fields that may differ: sizes, checksums, and the delete horizon."""

    base_offset: int
    last_offset: int
    codec: int
    producer: tuple[int, int, int]
    kind: tuple[bool, bool]
    max_timestamp: int
    records: tuple[Record, ...]


def stored(folder: Path) -> list[Stored]:
    """Return all batches of a partition's directory."""
    found = []
    for path in sorted(folder.glob("*.log")):
        content, end = path.read_bytes(), 0
        for position, header in iter_headers(content):
            assert crc_matches(content, position, header.size)
            batch = content[position : position + header.size]
            records = decode_records(batch, decompressed_bytes_max=2**30)
            found.append(_outline(header, records))
            end = position + header.size
        assert end == len(content), path
    return found


def _outline(header: BatchHeader, records: list[Record]) -> Stored:
    return Stored(
        header.base_offset,
        header.last_offset,
        header.codec,
        (header.producer_id, header.producer_epoch, header.base_sequence),
        (header.is_transactional, header.is_control),
        header.max_timestamp,
        tuple(records),
    )


def write(bootstrap: str, round_: int) -> None:
    """Write keys and tombstones in each codec, and transactions of both outcomes. Each codec has
    its own keys, so that compaction leaves some records of each codec."""
    for codec in CODECS:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": codec != "none",
                "compression.type": codec,
                "linger.ms": 5,
                "batch.num.messages": 20,
            }
        )
        rng = random.Random(codec)
        for number in range(400):
            key = b"%s %d" % (codec.encode(), rng.randrange(KEYS))
            value = None if number % 7 == 3 else b"%d %s %d" % (round_, codec.encode(), number)
            headers: dict[str, str | bytes | None] = {"codec": codec}
            producer.produce(TOPIC, value, key, partition=0, headers=headers)
        assert producer.flush(PATIENCE_S) == 0
    for name in range(2):
        producer = transactional(bootstrap, f"t{name}")
        for number in range(6):
            producer.begin_transaction()
            for part in range(5):
                producer.produce(TOPIC, b"%d %d" % (round_, number), b"t%d" % part, partition=0)
            assert producer.flush(PATIENCE_S) == 0
            (producer.abort_transaction if number % 3 == 1 else producer.commit_transaction)(60)


def cleaned_to(broker: Broker) -> int:
    """Return the offset in the broker's cleaner checkpoint; -1 without one."""
    path = partition_folder(broker.data, TOPIC).parent / CLEANER_OFFSETS
    content = path.read_bytes() if path.exists() else b""
    if not content:  # Apache's broker creates an empty file
        return -1
    return decode_offsets(content, str(path)).get(TopicPartition(TOPIC, 0), -1)


def clean(broker: Broker) -> None:
    """Let the broker clean all closed segments, and stop it."""
    broker.start()
    active = int(segments(broker.data, TOPIC)[-1].stem)
    wait_until(lambda: cleaned_to(broker) == active, what=f"{TOPIC} is clean up to {active}")
    broker.stop()


def _span(batch: Stored) -> int:
    return batch.last_offset - batch.base_offset + 1


def newest(batches: list[Stored]) -> dict[bytes | None, bytes | None]:
    return {each.key: each.value for batch in batches for each in batch.records}


@pytest.fixture
def zookeeper(jars: str, tmp_path: Path) -> Iterator[str]:
    assert jars
    with closing(ApacheZooKeeper(tmp_path / "zookeeper")) as server:
        server.start()
        yield server.connect


def ours(data: Path, zookeeper: str, overrides: dict[str, str]) -> PybrokerProcess:
    return PybrokerProcess(data, zookeeper=zookeeper, overrides=overrides)


def apache(folder: Path, zookeeper: str) -> ApacheKafka:
    folder.mkdir(exist_ok=True)
    return ApacheKafka(folder, zookeeper=zookeeper, heap_mib=512, overrides=CLEANING)


def test_both_cleaners_leave_the_same_records(zookeeper: str, tmp_path: Path) -> None:
    """Each of them then continues from the checkpoint of the other one."""
    theirs = apache(tmp_path / "apache", zookeeper)
    copy = tmp_path / "copy"
    with closing(theirs):
        with closing(ours(theirs.data, zookeeper, AT_REST)) as writer:
            writer.start()
            with Connection(writer.bootstrap) as connection:
                create_topic(connection, TOPIC, configs=CONFIGS)
            write(writer.bootstrap, 1)
            assert writer.stop() == 0
        shutil.copytree(theirs.data, copy)
        before = stored(partition_folder(copy, TOPIC))
        clean(theirs)
        with closing(ours(copy, zookeeper, CLEANING)) as cleaner:
            clean(cleaner)
        by_theirs = stored(partition_folder(theirs.data, TOPIC))
        by_ours = stored(partition_folder(copy, TOPIC))
        assert (
            sum(len(each.records) for each in by_ours)
            < sum(len(each.records) for each in before) / 2
        )
        assert by_ours == by_theirs
        shrunk = {each.codec for each in by_ours if 0 < len(each.records) < _span(each)}
        assert shrunk == {*Codec}

        other = tmp_path / "other"
        shutil.copytree(theirs.data, other)
        with closing(ours(other, zookeeper, AT_REST)) as writer:
            writer.start()
            write(writer.bootstrap, 2)
            assert writer.stop() == 0
        shutil.rmtree(theirs.data)
        shutil.copytree(other, theirs.data)
        clean(theirs)
        with closing(ours(other, zookeeper, CLEANING)) as cleaner:
            clean(cleaner)
        again = stored(partition_folder(other, TOPIC))
        assert again == stored(partition_folder(theirs.data, TOPIC))
        assert newest(again).keys() == newest(before).keys()
