"""Tests that the fast paths for Produce and Fetch return the same results as the codec."""

from __future__ import annotations

import pytest

from pybroker.errors import MalformedInput
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.codec import encode_parts, encode_request, encode_response
from pybroker.wire.encoder import SCATTER_BYTES_MIN
from pybroker.wire.fetch_path import decode_fetch_request, encode_fetch_response
from pybroker.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from pybroker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from pybroker.wire.primitives import Buffer
from pybroker.wire.produce_path import decode_produce_request
from unit_tests.wire.vocabulary import CASES, Case, case_name


def cases_of(message_class: type) -> list[Case]:
    return [case for case in CASES if case.message_class is message_class]


def produced(*batches: Buffer) -> ProduceRequest:
    partitions = [PartitionProduceData(index=i, records=b) for i, b in enumerate(batches)]
    return ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=partitions)])


def fetched(*batches: Buffer) -> FetchResponse:
    partitions = [PartitionData(partition_index=i, records=b) for i, b in enumerate(batches)]
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])


@pytest.mark.parametrize("case", cases_of(ProduceRequest), ids=case_name)
def test_produce_path_decodes_like_the_codec(case: Case) -> None:
    for message in case.samples(8):
        encoded = case.encode(message)
        for good in (encoded, encoded + b"\0"):
            assert decode_produce_request(case.version, memoryview(good)) == case.decode(encoded)
        for broken in (encoded[:-1], b""):
            with pytest.raises(MalformedInput):
                decode_produce_request(case.version, memoryview(broken))


@pytest.mark.parametrize("case", cases_of(FetchRequest), ids=case_name)
def test_fetch_path_decodes_like_the_codec(case: Case) -> None:
    for message in case.samples(8):
        encoded = case.encode(message)
        for good in (encoded, encoded + b"\0"):
            assert decode_fetch_request(case.version, memoryview(good)) == case.decode(encoded)
        for broken in (encoded[:-1], b""):
            with pytest.raises(MalformedInput):
                decode_fetch_request(case.version, memoryview(broken))


@pytest.mark.parametrize("case", cases_of(FetchResponse), ids=case_name)
def test_fetch_path_encodes_like_the_codec(case: Case) -> None:
    for message in case.samples(8):
        assert isinstance(message, FetchResponse)
        assert b"".join(encode_fetch_response(case.version, message)) == case.encode(message)


def test_large_batches_are_not_copied() -> None:
    large, small = bytes(SCATTER_BYTES_MIN), bytes(SCATTER_BYTES_MIN - 1)
    view = memoryview(bytearray(100_000))[1:]
    for version in (11, 12):
        parts = encode_fetch_response(version, fetched(small, large, view))
        assert [len(part) for part in parts[1::2]] == [len(large), len(view)]
        assert parts[1] is large
        assert parts[3] is view
    parts = encode_parts(produced(large), 9, True)
    assert parts[1] is large


def test_decoded_records_share_the_memory_of_the_frame() -> None:
    frame = bytearray(encode_request(APIS[ApiKey.PRODUCE], 9, produced(b"before")))
    request = decode_produce_request(9, memoryview(frame))
    frame[frame.index(b"before") : frame.index(b"before") + 6] = b"later!"
    assert request.topic_data[0].partition_data[0].records == b"later!"


def test_records_may_be_a_memoryview_of_larger_items() -> None:
    wide = memoryview(bytes(8)).cast("q")
    api = APIS[ApiKey.FETCH]
    assert encode_response(api, 12, fetched(wide)) == encode_response(api, 12, fetched(bytes(8)))


def test_response_with_an_invalid_value_raises_value_error() -> None:
    response = fetched(b"")
    response.session_id = 2**31
    with pytest.raises(ValueError, match="FetchResponse v12"):
        encode_fetch_response(12, response)
    with pytest.raises(ValueError, match=r"FetchResponse\.session_id is set, but version 4"):
        encode_fetch_response(4, FetchResponse(session_id=1))
