"""Tests that compare our record batches with those of kafka-python and aiokafka, in both
directions and byte by byte."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any, Protocol

import pytest
from aiokafka.record.default_records import (
    DefaultRecordBatch as AiokafkaBatch,
)
from aiokafka.record.default_records import (
    DefaultRecordBatchBuilder as AiokafkaBuilder,
)
from kafka.record.default_records import (
    DefaultRecordBatch as KafkaPythonBatch,
)
from kafka.record.default_records import (
    DefaultRecordBatchBuilder as KafkaPythonBuilder,
)

from pybroker.records.batch import crc_matches, read_header, restamp_log_append_time, stamp
from pybroker.records.compression import Codec
from pybroker.records.record import Headers
from unit_tests.records.vocabulary import (
    NOW_MS,
    TRICKY,
    Fields,
    batch_of,
    decoded,
    fields_of,
)

LARGE: tuple[Fields, ...] = tuple(
    (NOW_MS + index % 7, b"key %d" % index, b"a value that compresses" * (index % 9), ())
    for index in range(3000)
)
CONTENTS = {"one": TRICKY[:1], "tricky": TRICKY, "large": LARGE}

KNOWN = {
    # One record with key, value and a header, as kafka-python 3.0.12 writes it.
    "plain": (
        "0000000000000000" "0000003e" "00000000" "02" "85d4936f" "0000" "00000000"
        "00000000000003e8" "00000000000003e8" "ffffffffffffffff" "ffff" "ffffffff" "00000001"
        "18" "00" "00" "00" "026b" "0276" "02" "0268" "0278"
    ),
}  # fmt: skip


class Builder(Protocol):
    def append(
        self,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
    ) -> object: ...

    def build(self) -> bytearray: ...


class OtherRecord(Protocol):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Iterable[tuple[str, bytes | None]]


class Other:
    """Another implementation: its builder and its decoder of batches."""

    def __init__(self, builder: Any, batch: Any) -> None:
        self._builder = builder
        self._batch = batch

    def write(
        self, fields: Iterable[Fields], codec: Codec, producer: tuple[int, int, int]
    ) -> bytes:
        builder: Builder = self._builder(
            magic=2,
            compression_type=int(codec),
            is_transactional=0,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
            batch_size=2**30,
        )
        for index, (timestamp, key, value, headers) in enumerate(fields):
            builder.append(index, timestamp, key, value, list(headers))
        return bytes(builder.build())

    def read(self, data: bytes) -> list[tuple[int, Fields]]:
        batch = self._batch(data)
        assert batch.validate_crc()
        found: list[tuple[int, Fields]] = []
        item: OtherRecord
        for item in batch:
            headers: Headers = tuple((name, value) for name, value in item.headers)
            found.append((item.offset, (item.timestamp, item.key, item.value, headers)))
        return found


OTHERS = {
    "kafka-python": Other(KafkaPythonBuilder, KafkaPythonBatch),
    "aiokafka": Other(AiokafkaBuilder, AiokafkaBatch),
}
others = pytest.mark.parametrize("other", OTHERS)
codecs = pytest.mark.parametrize("codec", Codec)
contents = pytest.mark.parametrize("content", CONTENTS)


def test_batch_with_known_bytes_is_built_and_decoded(loops: ModuleType) -> None:
    known = bytes.fromhex(KNOWN["plain"])
    fields: Fields = (1000, b"k", b"v", (("h", b"x"),))
    assert crc_matches(known, 0, len(known))
    assert fields_of(decoded(known)) == [fields]
    ours = batch_of(fields)
    stamp(ours, 0, 0, 0)
    assert ours == known


@others
@codecs
@contents
def test_batches_of_other_implementations_are_decoded(
    loops: ModuleType, other: str, codec: Codec, content: str
) -> None:
    data = OTHERS[other].write(CONTENTS[content], codec, (7, 1, 99))
    header = read_header(data)
    assert crc_matches(data, 0, header.size)
    assert header.size == len(data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 99)
    assert fields_of(decoded(data)) == list(CONTENTS[content])
    if content == "large":
        assert header.codec == codec


@others
@codecs
@contents
def test_other_implementations_decode_our_batches(
    loops: ModuleType, other: str, codec: Codec, content: str
) -> None:
    data = batch_of(*CONTENTS[content], codec=codec)
    stamp(data, 0, 5000, 3)
    expected = [(5000 + index, fields) for index, fields in enumerate(CONTENTS[content])]
    assert OTHERS[other].read(bytes(data)) == expected


@others
@contents
def test_uncompressed_batches_equal_those_of_other_implementations(
    loops: ModuleType, other: str, content: str
) -> None:
    theirs = bytearray(OTHERS[other].write(CONTENTS[content], Codec.NONE, (-1, -1, -1)))
    ours = batch_of(*CONTENTS[content])
    stamp(theirs, 0, 0, 0)
    stamp(ours, 0, 0, 0)
    assert ours == theirs


@others
@codecs
def test_other_implementations_read_the_restamped_timestamp(
    loops: ModuleType, other: str, codec: Codec
) -> None:
    data = batch_of(*TRICKY, codec=codec)
    restamp_log_append_time(data, 0, len(data), 4242)
    assert [fields[0] for _, fields in OTHERS[other].read(bytes(data))] == [4242] * len(TRICKY)
