"""Tests of the rules of the protocol guide for headers, versions and tagged fields, and of the
requests that real clients send."""

from __future__ import annotations

import pytest

from pybroker.errors import ErrorCode, MalformedInput
from pybroker.wire.api import APIS, ApiKey, api_versions_rows
from pybroker.wire.codec import (
    decode_message,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from pybroker.wire.frame import framed
from pybroker.wire.headers import (
    RequestHeader,
    encode_request_header,
    encode_response_header,
    parse_request_header,
)
from pybroker.wire.messages.cluster import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from pybroker.wire.messages.fetch import FetchResponse, PartitionData
from pybroker.wire.messages.metadata import MetadataRequest, MetadataResponse
from pybroker.wire.messages.produce import ProduceRequest, ProduceResponse
from pybroker.wire.schema import wire_fields
from unit_tests.wire.vocabulary import CASES, Case, case_name

API_VERSIONS = APIS[ApiKey.API_VERSIONS]
METADATA = APIS[ApiKey.METADATA]
FETCH = APIS[ApiKey.FETCH]
PRODUCE = APIS[ApiKey.PRODUCE]


def sent(api_key: ApiKey, version: int, body: bytes) -> bytes:
    """Return the frame of a request, with size prefix and header."""
    header_version = APIS[api_key].request_header_version(version)
    header = encode_request_header(RequestHeader(api_key, version, 1, "c"), header_version)
    return b"".join(framed([header, body]))


def test_a_frame_is_a_32_bit_size_then_header_then_body() -> None:
    frame = sent(ApiKey.METADATA, 1, b"\xff\xff\xff\xff")
    assert frame.hex() == "0000000f" + "0003" + "0001" + "00000001" + "000163" + "ffffffff"


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.key.name)
def test_flexible_versions_have_headers_with_tagged_fields(api: object) -> None:
    for case in CASES:
        if case.api is api:
            expected = 2 if case.flexible else 1
            assert case.api.request_header_version(case.version) == expected
            if case.api is not API_VERSIONS:
                assert case.api.response_header_version(case.version) == expected - 1


def test_the_client_id_keeps_its_16_bit_length_in_flexible_headers() -> None:
    assert sent(ApiKey.METADATA, 9, b"")[12:16].hex() == "00016300"


def test_the_response_header_of_api_versions_is_always_version_0() -> None:
    for version in range(5):
        assert API_VERSIONS.response_header_version(version) == 0
    assert encode_response_header(1, API_VERSIONS.response_header_version(3)).hex() == "00000001"


def test_header_of_an_unknown_api_versions_version_is_decoded() -> None:
    header = encode_request_header(RequestHeader(ApiKey.API_VERSIONS, 99, 5, "c"), 2)
    parsed, _ = parse_request_header(memoryview(header + b"\xff whatever may come"))
    assert (parsed.version, parsed.correlation_id) == (99, 5)
    assert not API_VERSIONS.supports(parsed.version)


def test_unsupported_version_error_of_api_versions_has_version_0() -> None:
    refusal = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)],
    )
    assert encode_response(API_VERSIONS, 0, refusal).hex() == "002300000001001200000004"


def test_api_versions_3_and_4_omit_default_tagged_fields() -> None:
    for version in (3, 4):
        body = encode_response(API_VERSIONS, version, ApiVersionsResponse())
        assert body.hex() == "0000010000000000"
        decoded = decode_response(API_VERSIONS, version, body)
        assert decoded == ApiVersionsResponse(finalized_features_epoch=-1)


def test_older_api_versions_drop_newer_fields() -> None:
    response = ApiVersionsResponse(finalized_features_epoch=3, throttle_time_ms=5)
    assert encode_response(API_VERSIONS, 0, response).hex() == "000000000000"
    request = ApiVersionsRequest(client_software_name="me", client_software_version="1")
    assert encode_request(API_VERSIONS, 0, request) == b""


@pytest.mark.parametrize("case", [case for case in CASES if case.flexible], ids=case_name)
def test_flexible_message_ends_with_tagged_fields_and_unknown_tags_are_skipped(
    case: Case,
) -> None:
    message = case.message_class()
    encoded = case.encode(message)
    assert encoded.endswith(b"\0")
    unknown = b"\x01" + b"\xce\x0f" + b"\x03" + b"new"
    assert case.decode(encoded[:-1] + unknown) == message


def test_array_elements_end_with_tagged_fields() -> None:
    body = bytes.fromhex("02 02 74 01 63 02 6162 01 00 00 00")
    request = decode_request(METADATA, 9, body)
    assert isinstance(request, MetadataRequest)
    assert [topic.name for topic in request.topics or []] == ["t"]


def test_compact_length_is_the_length_plus_one_and_0_for_null() -> None:
    everything = encode_request(METADATA, 9, MetadataRequest(topics=None))
    nothing = encode_request(METADATA, 9, MetadataRequest(topics=[]))
    assert (everything[0], nothing[0]) == (0, 1)


def test_records_of_flexible_versions_have_a_compact_length() -> None:
    body = bytes.fromhex("00 ffff 00000000 02 02 74 02 00000000 8101") + b"r" * 128 + bytes(3)
    request = decode_request(PRODUCE, 9, body)
    assert isinstance(request, ProduceRequest)
    assert request.topic_data[0].partition_data[0].records == b"r" * 128


def test_the_throttle_time_is_last_in_produce_and_first_elsewhere() -> None:
    assert encode_response(PRODUCE, 1, ProduceResponse(throttle_time_ms=7)).endswith(b"\0\0\0\7")
    assert encode_response(FETCH, 4, FetchResponse(throttle_time_ms=7)).startswith(b"\0\0\0\7")
    metadata = encode_response(METADATA, 3, MetadataResponse(throttle_time_ms=7))
    assert metadata.startswith(b"\0\0\0\7")


def test_topics_of_metadata_may_be_null_since_version_1() -> None:
    with pytest.raises(ValueError, match="topics must not be null in version 0"):
        encode_request(METADATA, 0, MetadataRequest(topics=None))
    with pytest.raises(MalformedInput):
        decode_request(METADATA, 0, b"\xff\xff\xff\xff")
    decoded = decode_request(METADATA, 1, b"\xff\xff\xff\xff")
    assert decoded == MetadataRequest(topics=None)


def test_metadata_below_4_implies_automatic_creation() -> None:
    request = decode_request(METADATA, 3, bytes(4))
    assert request == MetadataRequest(topics=[], allow_auto_topic_creation=True)


def test_defaults_are_preferred_replica_minus_1_and_empty_records() -> None:
    assert PartitionData().preferred_read_replica == -1
    assert PartitionData().records == b""


def test_only_aborted_transactions_are_null_in_a_fetched_partition_by_default() -> None:
    fields = wire_fields(PartitionData)
    null = {field.name for field in fields if field.default is None and not field.is_fresh_list}
    tagged = {field.name for field in fields if field.wire.tag is not None}
    assert null - tagged == {"aborted_transactions"}


def test_advertised_versions_are_those_of_kafka_3_0() -> None:
    rows = {key: (low, high) for key, low, high in api_versions_rows()}
    assert list(rows) == sorted(rows)
    assert [rows[key] for key in range(4)] == [(0, 9), (4, 12), (0, 7), (0, 12)]
    assert {4, 5, 6, 7, 68, 71, 72, 75}.isdisjoint(rows)


def test_version_of_add_partitions_to_txn_for_brokers_is_not_advertised() -> None:
    rows = {key: (low, high) for key, low, high in api_versions_rows()}
    assert rows[ApiKey.ADD_PARTITIONS_TO_TXN] == (0, 3)
    assert APIS[ApiKey.ADD_PARTITIONS_TO_TXN].supports(4)


def test_versions_that_old_librdkafka_requires_start_at_0() -> None:
    rows = {key: low for key, low, _ in api_versions_rows()}
    for key in (
        ApiKey.PRODUCE,
        ApiKey.JOIN_GROUP,
        ApiKey.OFFSET_FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.INIT_PRODUCER_ID,
    ):
        assert rows[key] == 0


def test_messages_are_named_after_their_api() -> None:
    for api in APIS.values():
        words = "".join(word.capitalize() for word in api.key.name.split("_"))
        assert api.request.__name__ == f"{words}Request"
        assert api.response.__name__ == f"{words}Response"


def test_every_version_decodes_to_the_same_class() -> None:
    for case in CASES:
        body = case.encode(case.message_class())
        decoded = decode_message(case.message_class, case.version, case.flexible, body)
        assert type(decoded) is case.message_class
