"""Tests of `record_times`, which returns the same timestamps as `decode_records`."""

from __future__ import annotations

import pytest

from pybroker.errors import BrokerError, CorruptionError, ErrorCode
from pybroker.records.batch import restamp_log_append_time
from pybroker.records.builder import BatchBuilder
from pybroker.records.compression import Codec
from pybroker.records.record import decode_records, record_times

LIMIT = 1 << 20
TIMES = (5000, 4000, 9000, 9000, 1)


def batch(codec: Codec) -> bytes:
    builder = BatchBuilder(codec)
    for time in TIMES:
        builder.append(time, b"k" * (time % 7), b"v" * (time % 300), (("h", None),))
    return builder.build()


@pytest.mark.parametrize("codec", list(Codec))
def test_record_times_equal_those_of_decoded_records(codec: Codec) -> None:
    data = batch(codec)
    decoded = decode_records(data, decompressed_bytes_max=LIMIT)
    assert list(record_times(data, decompressed_bytes_max=LIMIT)) == [
        (record.offset, record.timestamp) for record in decoded
    ]


def test_record_times_of_a_log_append_time_batch_are_its_max_timestamp() -> None:
    data = bytearray(batch(Codec.NONE))
    restamp_log_append_time(data, 0, len(data), 77)
    assert {time for _, time in record_times(data, decompressed_bytes_max=LIMIT)} == {77}


def test_record_times_beyond_the_size_limit_are_rejected() -> None:
    with pytest.raises(BrokerError) as raised:
        list(record_times(batch(Codec.GZIP), decompressed_bytes_max=10))
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_record_times_of_a_record_that_is_cut_off_are_rejected() -> None:
    data = bytearray(batch(Codec.NONE))
    data[60] += 1  # the record count, now one too large
    with pytest.raises(CorruptionError):
        list(record_times(data, decompressed_bytes_max=LIMIT))
