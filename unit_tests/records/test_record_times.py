"""Times are read without keeping records, and equal those of decoded records."""

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
def test_times_are_those_of_the_decoded_records(codec: Codec) -> None:
    data = batch(codec)
    decoded = decode_records(data, decompressed_bytes_max=LIMIT)
    assert list(record_times(data, decompressed_bytes_max=LIMIT)) == [
        (record.offset, record.timestamp) for record in decoded
    ]


def test_with_log_append_time_all_have_the_time_of_the_batch() -> None:
    data = bytearray(batch(Codec.NONE))
    restamp_log_append_time(data, 0, len(data), 77)
    assert {time for _, time in record_times(data, decompressed_bytes_max=LIMIT)} == {77}


def test_too_much_is_not_unpacked() -> None:
    with pytest.raises(BrokerError) as raised:
        list(record_times(batch(Codec.GZIP), decompressed_bytes_max=10))
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_record_that_is_cut_off_is_corruption() -> None:
    data = bytearray(batch(Codec.NONE))
    data[60] += 1  # one more record than there is
    with pytest.raises(CorruptionError):
        list(record_times(data, decompressed_bytes_max=LIMIT))
