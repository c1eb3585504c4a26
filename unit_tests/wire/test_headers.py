"""Tests of headers, against bytes that were derived by hand from the protocol guide."""

from __future__ import annotations

import pytest

from pybroker.errors import MalformedInput
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.headers import (
    RequestHeader,
    encode_request_header,
    encode_response_header,
    parse_request_header,
    parse_response_header,
)

REQUEST_HEADERS = {
    "old, with a client id": (
        1,
        RequestHeader(ApiKey.METADATA, 1, 7, "abc"),
        "0003 0001 00000007 0003 616263",
    ),
    "old, client id null": (
        1,
        RequestHeader(ApiKey.METADATA, 8, -1, None),
        "0003 0008 ffffffff ffff",
    ),
    "old, client id empty": (
        1,
        RequestHeader(ApiKey.PRODUCE, 7, 0, ""),
        "0000 0007 00000000 0000",
    ),
    "old, client id not ASCII": (
        1,
        RequestHeader(ApiKey.FETCH, 11, 1, "é"),
        "0001 000b 00000001 0002 c3a9",
    ),
    "flexible, client id still of 16 bit length": (
        2,
        RequestHeader(ApiKey.METADATA, 9, 7, "abc"),
        "0003 0009 00000007 0003 616263 00",
    ),
    "flexible, client id null": (
        2,
        RequestHeader(ApiKey.PRODUCE, 9, 7, None),
        "0000 0009 00000007 ffff 00",
    ),
    "flexible ApiVersions": (
        2,
        RequestHeader(ApiKey.API_VERSIONS, 3, 1, "x"),
        "0012 0003 00000001 0001 78 00",
    ),
}


@pytest.mark.parametrize("row", REQUEST_HEADERS.values(), ids=REQUEST_HEADERS)
def test_request_headers_are_encoded_and_decoded(row: tuple[int, RequestHeader, str]) -> None:
    header_version, header, text = row
    encoded = bytes.fromhex(text)
    assert encode_request_header(header, header_version) == encoded
    body = b"body"
    assert parse_request_header(memoryview(encoded + body)) == (header, len(encoded))
    assert APIS[ApiKey(header.api_key)].request_header_version(header.version) == header_version


def test_unknown_tags_of_a_request_header_are_skipped() -> None:
    frame = bytes.fromhex("0003 0009 00000007 0001 61 02 05 03 010203 8101 00") + b"body"
    header, position = parse_request_header(memoryview(frame))
    assert header == RequestHeader(ApiKey.METADATA, 9, 7, "a")
    assert frame[position:] == b"body"


UNSUPPORTED = {
    "key that does not exist": "03e7 0000 00000005 0001 61",
    "negative key": "ffff 0000 00000005 0001 61",
    "key of KRaft": "0034 0000 00000005 0001 61",
    "version above ours": "0003 0063 00000005 0001 61",
    "negative version": "0003 ffff 00000005 0001 61",
}


@pytest.mark.parametrize("text", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_header_of_an_unsupported_request_is_decoded_up_to_the_client_id(text: str) -> None:
    known = bytes.fromhex(text)
    header, position = parse_request_header(memoryview(known + b"\xff\xff\xff"))
    assert (header.correlation_id, header.client_id, position) == (5, "a", len(known))


BROKEN_HEADERS = {
    "nothing": "",
    "half a key": "00",
    "no client id": "0003 0001 00000007",
    "half a length": "0003 0001 00000007 00",
    "client id cut off": "0003 0001 00000007 0005 6162",
    "client id of negative length": "0003 0001 00000007 fffe",
    "client id not UTF-8": "0003 0001 00000007 0001 ff 00",
    "client id not UTF-8, nothing after it": "0003 0001 00000007 0001 ff",
    "no tagged section": "0003 0009 00000007 0001 61",
    "tag beyond the end": "0003 0009 00000007 0001 61 01 00 09 01",
    "tag given twice": "0003 0009 00000007 0001 61 02 00 00 00 00",
    "more tags than bytes": "0003 0009 00000007 0001 61 7f 00 00",
    "endless count of tags": "0003 0009 00000007 0001 61 ffffffffff01",
}


@pytest.mark.parametrize("text", BROKEN_HEADERS.values(), ids=BROKEN_HEADERS)
def test_damaged_request_headers_are_rejected(text: str) -> None:
    with pytest.raises(MalformedInput):
        parse_request_header(memoryview(bytes.fromhex(text)))


def test_response_headers_are_encoded_and_decoded() -> None:
    assert encode_response_header(7, 0) == bytes.fromhex("00000007")
    assert encode_response_header(-1, 1) == bytes.fromhex("ffffffff 00")
    assert parse_response_header(memoryview(b"\0\0\0\7body"), 0) == (7, 4)
    assert parse_response_header(memoryview(b"\0\0\0\7\0body"), 1) == (7, 5)
    assert parse_response_header(memoryview(b"\0\0\0\7\1\5\1xbody"), 1) == (7, 8)
    for frame, version in ((b"\0\0\0", 0), (b"\0\0\0\7", 1), (b"\0\0\0\7\1", 1)):
        with pytest.raises(MalformedInput):
            parse_response_header(memoryview(frame), version)


def test_unknown_header_versions_are_rejected() -> None:
    for version in (0, 3):
        with pytest.raises(ValueError, match="header version is"):
            encode_request_header(RequestHeader(3, 1, 7, None), version)
    for version in (-1, 2):
        with pytest.raises(ValueError, match="header version is"):
            encode_response_header(7, version)


def test_client_id_that_is_too_long_is_rejected() -> None:
    with pytest.raises(ValueError, match="at most 32767"):
        encode_request_header(RequestHeader(3, 1, 7, "x" * 32768), 1)
