"""Tests of small batches that decompress to a very large size: the broker's memory stays
bounded.
"""

from __future__ import annotations

import threading
from typing import Final

import pytest

from integration_tests.broker import Broker
from integration_tests.wire_client import (
    Connection,
    batch_of,
    create_topic,
    fetch_one,
    list_offsets_request,
    produce,
)
from pybroker.records.compression import Codec
from pybroker.wire.messages.list_offsets import ListOffsetsResponse

pytestmark = pytest.mark.ours

RSS_BYTES_MAX: Final = 300 * 1024 * 1024
BOMB_CODECS: Final = (Codec.GZIP, Codec.LZ4, Codec.ZSTD)  # snappy does not compress enough
BOMB_BYTES: Final = 150_000_000


class Peak:
    """The maximum resident memory of the broker while the block runs."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.bytes = 0

    def _run(self) -> None:
        while not self._end.wait(0.005):
            self.bytes = max(self.bytes, self._broker.process.rss_bytes())

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


@pytest.mark.parametrize("codec", BOMB_CODECS)
def test_a_decompression_bomb_is_refused_when_it_is_decompressed(
    broker: Broker, codec: Codec
) -> None:
    topic = f"bomb-compacted-{codec.name.lower()}"
    bomb = batch_of(bytes(BOMB_BYTES), codec=codec)
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, topic, configs={"cleanup.policy": "compact"})
        with Peak(broker) as peak:
            assert produce(connection, topic, bomb).error_code != 0
        assert fetch_one(connection, topic, 0).high_watermark == 0
    assert peak.bytes < RSS_BYTES_MAX


@pytest.mark.parametrize("codec", BOMB_CODECS)
def test_a_decompression_bomb_is_not_decompressed_to_find_a_timestamp(
    broker: Broker, codec: Codec
) -> None:
    topic = f"bomb-{codec.name.lower()}"
    bomb = batch_of(b"x", bytes(BOMB_BYTES), timestamps=[1000, 2000], codec=codec)
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, topic, configs={"retention.ms": "-1"})
        assert produce(connection, topic, bomb).error_code == 0
        with Peak(broker) as peak:
            for _ in range(3):
                connection.ask(7, list_offsets_request(topic, 1500), ListOffsetsResponse)
        assert peak.bytes < RSS_BYTES_MAX
        assert fetch_one(connection, topic, 0).high_watermark == 2
