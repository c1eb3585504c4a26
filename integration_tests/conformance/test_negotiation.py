"""Tests of framing, headers and version negotiation."""

from __future__ import annotations

import struct
from typing import Final

import pytest

from integration_tests.broker import Broker
from integration_tests.wire_client import (
    Connection,
    batch_of,
    create_topic,
    fetch_request,
    frame_of,
    metadata,
    produce_request,
)
from pybroker.errors import ErrorCode
from pybroker.wire.api import APIS, BETWEEN_BROKERS, CLIENT_VERSION_MAX, ApiKey
from pybroker.wire.codec import decode_response
from pybroker.wire.headers import RequestHeader, encode_request_header
from pybroker.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from pybroker.wire.messages.fetch import FetchResponse
from pybroker.wire.messages.metadata import MetadataRequest, MetadataResponse
from pybroker.wire.messages.produce import ProduceResponse

TLS_HELLO: Final = bytes.fromhex("16030100c8010000c40303") + bytes(200)
HTTP: Final = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def ask_versions(
    connection: Connection, version: int, name: str = "test", software_version: str = "1.0"
) -> ApiVersionsResponse:
    request = ApiVersionsRequest(
        client_software_name=name, client_software_version=software_version
    )
    return connection.ask(version, request, ApiVersionsResponse)


@pytest.mark.parametrize("version", range(5))
def test_api_versions_is_answered_with_header_0_in_every_version(
    connection: Connection, version: int
) -> None:
    answer = ask_versions(connection, version)
    assert answer.error_code == 0
    assert {ApiKey.PRODUCE, ApiKey.FETCH} <= {row.api_key for row in answer.api_keys}


@pytest.mark.ours
@pytest.mark.parametrize("version", range(5))
def test_the_whole_profile_is_advertised_and_nothing_else(
    connection: Connection, version: int
) -> None:
    answer = ask_versions(connection, version)
    advertised = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
    assert len(advertised) == len(answer.api_keys)
    assert advertised == {
        key: (api.min_version, CLIENT_VERSION_MAX.get(key, api.max_version))
        for key, api in APIS.items()
        if key not in BETWEEN_BROKERS
    }


@pytest.mark.ours
def test_no_feature_is_advertised(connection: Connection) -> None:
    answer = ask_versions(connection, 3)
    assert answer.supported_features == [] and answer.finalized_features == []


@pytest.mark.parametrize("version", [5, 99, 32_767, -1])
@pytest.mark.parametrize("body", [b"\0", b"\0" + b"\xff" * 40], ids=["no body", "garbage"])
def test_api_versions_of_an_unknown_version_gets_error_35_in_the_first_layout(
    connection: Connection, version: int, body: bytes
) -> None:
    connection.send_frame(struct.pack(">hhih", ApiKey.API_VERSIONS, version, 7, -1) + body)
    frame = connection.receive_frame()
    assert frame[:4] == struct.pack(">i", 7)
    answer = decode_response(APIS[ApiKey.API_VERSIONS], 0, frame[4:])
    assert isinstance(answer, ApiVersionsResponse)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    (row,) = answer.api_keys
    assert (row.api_key, row.min_version, row.max_version) == (ApiKey.API_VERSIONS, 0, 4)
    assert ask_versions(connection, 3).error_code == 0, "the connection goes on"


@pytest.mark.parametrize(
    ("name", "software_version"),
    [(each, "1.0") for each in ("", " ", "bad name", "-begins", "ends.", "ünicode")]
    + [("name", each) for each in ("", "1.", "1_2")],
)
def test_a_malformed_name_or_version_of_the_software_gets_error_42_from_version_3_on(
    connection: Connection, name: str, software_version: str
) -> None:
    for version in range(5):
        code = ErrorCode.INVALID_REQUEST if version >= 3 else ErrorCode.NONE
        assert ask_versions(connection, version, name, software_version).error_code == code


@pytest.mark.parametrize(
    ("name", "software_version"),
    [("a", "1"), ("apache-kafka-java", "3.0.12-SNAPSHOT"), ("lib.rd-kafka.2", "2.16.1")],
)
def test_a_well_formed_software_name_is_accepted(
    connection: Connection, name: str, software_version: str
) -> None:
    assert ask_versions(connection, 3, name, software_version).error_code == 0


def test_an_unsupported_version_closes_the_connection(broker: Broker) -> None:
    for key in set(ApiKey) - {ApiKey.API_VERSIONS}:
        for version in (-1, 99, 32_767):
            with Connection(broker.bootstrap) as connection:
                connection.send_frame(struct.pack(">hhih", key, version, 1, -1))
                assert connection.is_closed_by_broker(), (key, version)


@pytest.mark.ours
def test_the_versions_next_to_those_we_speak_close_the_connection(broker: Broker) -> None:
    """Apache supports some of them."""
    for key in set(ApiKey) - {ApiKey.API_VERSIONS}:
        for version in (APIS[key].min_version - 1, APIS[key].max_version + 1):
            with Connection(broker.bootstrap) as connection:
                connection.send_frame(struct.pack(">hhih", key, version, 1, -1))
                assert connection.is_closed_by_broker(), (key, version)


@pytest.mark.parametrize("key", [-1, 999, 32767])
def test_an_unknown_api_closes_the_connection(connection: Connection, key: int) -> None:
    connection.send_frame(struct.pack(">hhih", key, 0, 1, -1))
    assert connection.is_closed_by_broker()


def test_a_body_that_ends_early_closes_the_connection(broker: Broker) -> None:
    for key, api in APIS.items():
        version = api.max_version
        header = RequestHeader(key, version, 1, "cut")
        with Connection(broker.bootstrap) as connection:
            connection.send_frame(
                encode_request_header(header, api.request_header_version(version))
            )
            assert connection.is_closed_by_broker(), key


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">i", 0), id="size 0"),
        pytest.param(struct.pack(">i", -1), id="size -1"),
        pytest.param(struct.pack(">i", 2**31 - 1), id="size 2 GiB"),
        pytest.param(struct.pack(">i", 3) + b"abc", id="no whole header"),
        pytest.param(TLS_HELLO, id="TLS"),
        pytest.param(HTTP, id="HTTP"),
        pytest.param(
            struct.pack(">ihhih", 12, ApiKey.METADATA, 1, 1, -1) + b"\x7f\xff", id="body cut"
        ),
        pytest.param(
            struct.pack(">ihhihi", 14, ApiKey.METADATA, 1, 1, -1, 2**31 - 1), id="array length lies"
        ),
    ],
)
def test_a_frame_that_is_not_a_request_closes_the_connection(
    connection: Connection, data: bytes
) -> None:
    connection.send_bytes(data)
    assert connection.is_closed_by_broker()


@pytest.mark.ours
def test_bytes_after_the_body_are_ignored(connection: Connection) -> None:
    """Some clients send fields that the version does not have."""
    connection.send_frame(frame_of(1, MetadataRequest(topics=[]), correlation_id=7) + b"\0")
    assert connection.receive(1, MetadataResponse, 7).topics == []


def test_a_frame_may_come_byte_by_byte(connection: Connection) -> None:
    frame = frame_of(1, MetadataRequest(topics=[]), 5)
    for byte in struct.pack(">i", len(frame)) + frame:
        connection.send_bytes(bytes([byte]))
    assert connection.receive(1, MetadataResponse, 5).topics == []


def test_unknown_tagged_fields_are_skipped(connection: Connection) -> None:
    some_tags = b"\x02" + b"\x63\x03abc" + b"\xe7\x07\x00"  # 2 fields: 99 "abc", 999 ""
    header = encode_request_header(RequestHeader(ApiKey.METADATA, 9, 3, "tags"), 2)
    assert header.endswith(b"\0")
    body = b"\x01" + b"\0" + b"\0\0"  # no topics, three booleans
    connection.send_frame(header[:-1] + some_tags + body + some_tags)
    assert connection.receive(9, MetadataResponse, 3).topics == []


def test_a_client_id_may_be_null(broker: Broker) -> None:
    with Connection(broker.bootstrap, client_id=None) as connection:
        assert metadata(connection, version=1).topics == []
        assert metadata(connection, version=9).topics == []


def test_answers_come_in_the_order_of_the_requests(connection: Connection, topic: str) -> None:
    create_topic(connection, topic)
    slow = fetch_request(topic, {0: 0}, min_bytes=1, max_wait_ms=100)
    first = connection.send(12, slow)
    others = [connection.send(1, MetadataRequest(topics=[])) for _ in range(50)]
    connection.receive(12, FetchResponse, first)
    for other in others:
        connection.receive(1, MetadataResponse, other)


def test_throttle_times_are_0(connection: Connection, topic: str) -> None:
    create_topic(connection, topic)
    assert metadata(connection, topic, version=6).throttle_time_ms == 0
    request = produce_request(topic, batch_of(b"x"))
    assert connection.ask(9, request, ProduceResponse).throttle_time_ms == 0
    request_to_read = fetch_request(topic, {0: 0})
    assert connection.ask(12, request_to_read, FetchResponse).throttle_time_ms == 0
