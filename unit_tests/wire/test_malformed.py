"""Tests that decoding of any bytes returns a message or raises MalformedInput."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest

from pybroker.errors import MalformedInput
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.codec import decode_request, decode_response
from pybroker.wire.messages.list_offsets import ListOffsetsRequest
from pybroker.wire.messages.metadata import MetadataResponse
from pybroker.wire.primitives import (
    REQUEST_ELEMENTS_MAX,
    TAGS_MAX,
    encode_uvarint,
    skip_tagged_fields,
)
from unit_tests.wire.vocabulary import CASES, Case, case_name

_TOO_MANY = REQUEST_ELEMENTS_MAX + 64
# The fields before the tagged fields.
_FETCH = "ffffffff 00000000 00000000 00000000 00 00000000 00000000 01 01 01"
# The fields before the records.
_PRODUCE = "ffff 0001 000003e8 00000001 0001 74 00000001 00000000"

# Name of the fault -> API, version, bytes, and a part of the error message.
MALFORMED: dict[str, tuple[ApiKey, int, str, str]] = {
    "nothing at all": (ApiKey.METADATA, 1, "", "requires a buffer"),
    "count cut off": (ApiKey.METADATA, 1, "0000", "requires a buffer"),
    "null where null is not allowed": (ApiKey.METADATA, 0, "ffffffff", "topics must not be null"),
    "array of negative length": (ApiKey.METADATA, 1, "fffffffe", "topics: the length is below -1"),
    "more elements than bytes": (
        ApiKey.METADATA,
        1,
        "7fffffff 0001 74",
        "topics: the element count",
    ),
    "one element too many": (ApiKey.METADATA, 1, "00000002 0003 616161", "requires a buffer"),
    "element null": (ApiKey.METADATA, 1, "00000001 ffff", "name must not be null"),
    "string beyond the end": (ApiKey.METADATA, 1, "00000001 0005 7475", "name: the length exceeds"),
    "string of negative length": (ApiKey.METADATA, 1, "00000001 8000", "name must not be null"),
    "nullable string of negative length": (
        ApiKey.PRODUCE,
        3,
        "fffe 0001 000003e8 00000000",
        "transactional_id: the length is below -1",
    ),
    "string not UTF-8": (ApiKey.METADATA, 1, "00000001 0001 ff", "codec can't decode"),
    "string with a lone surrogate": (
        ApiKey.METADATA,
        1,
        "00000001 0003 eda080",
        "codec can't decode",
    ),
    "boolean missing": (ApiKey.METADATA, 4, "00000000", "requires a buffer"),
    "compact null where null is not allowed": (
        ApiKey.METADATA,
        9,
        "02 00 00 01 00 00 00",
        "name must not be null",
    ),
    "compact array of more elements than bytes": (
        ApiKey.METADATA,
        9,
        "ffffffff0f 00",
        "topics: the element count",
    ),
    "compact string beyond the end": (ApiKey.METADATA, 9, "02 05 74", "name: the length exceeds"),
    "compact string of 32768 bytes": (
        ApiKey.METADATA,
        9,
        "02 818002" + "61" * 0x8000 + "00 01 00 00 00",
        "name: the string has more than 32767 bytes",
    ),
    "no tagged section": (ApiKey.METADATA, 9, "01 01 00 00", "index out of bounds"),
    "element without tagged section": (ApiKey.METADATA, 9, "02 02 74", "index out of bounds"),
    "varint of six bytes": (ApiKey.METADATA, 9, "808080808000 01 00 00 00", "more than 32 bits"),
    "varint of 35 bits": (ApiKey.METADATA, 9, "8080808010 01 00 00 00", "more than 32 bits"),
    "varint without an end": (ApiKey.METADATA, 9, "8080", "ends inside the varint at byte 0"),
    "more tags than bytes": (
        ApiKey.METADATA,
        9,
        "01 01 00 00 05 00 00",
        "count of tagged fields is 5, but only",
    ),
    "unknown tag beyond the end": (
        ApiKey.METADATA,
        9,
        "01 01 00 00 01 07 05 00",
        "tagged field 7 is 5 bytes, but only 1 bytes",
    ),
    "unknown tag twice": (ApiKey.METADATA, 9, "01 01 00 00 02 07 00 07 00", "tag 7 occurs twice"),
    "size of a tag cut off": (ApiKey.METADATA, 9, "01 01 00 00 01 07 80", "ends inside the varint"),
    "more tags than bytes where some are known": (
        ApiKey.FETCH,
        12,
        _FETCH + "05 00 00",
        "count of tagged fields exceeds",
    ),
    "known tag twice": (
        ApiKey.FETCH,
        12,
        _FETCH + "02 00 02 02 61 00 02 02 62",
        "tag 0 occurs twice",
    ),
    "known tag longer than its value": (
        ApiKey.FETCH,
        12,
        _FETCH + "01 00 03 02 61 00",
        "declared size of the tagged field",
    ),
    "known tag shorter than its value": (
        ApiKey.FETCH,
        12,
        _FETCH + "02 00 02 03 61 05 00",
        "declared size of the tagged field",
    ),
    "known tag beyond the end": (
        ApiKey.FETCH,
        12,
        _FETCH + "01 00 09 02 61",
        "tagged field 0 is 9 bytes",
    ),
    "records beyond the end": (
        ApiKey.PRODUCE,
        3,
        _PRODUCE + "00000009 5252",
        "records: the length exceeds",
    ),
    "records of negative length": (
        ApiKey.PRODUCE,
        3,
        _PRODUCE + "fffffffe",
        "records: the length is below -1",
    ),
    "compact records beyond the end": (
        ApiKey.PRODUCE,
        9,
        "00 0001 000003e8 02 02 74 02 00000000 ffffffff0f 5252 00 00 00",
        "records: the length exceeds",
    ),
    "partitions missing": (
        ApiKey.PRODUCE,
        3,
        "ffff 0001 000003e8 00000001 0005 6162636465",
        "requires a buffer",
    ),
    "a million topics in two bytes": (
        ApiKey.PRODUCE,
        3,
        "ffff 0001 000003e8 000f4240 0001",
        "topic_data: the element count",
    ),
    "a million integers in four bytes": (
        ApiKey.CREATE_TOPICS,
        0,
        "00000001 0000 00000001 0001 00000001 00000000 000f4240 00000000",
        "broker_ids: the element count",
    ),
    "element smaller than any": (ApiKey.METADATA, 12, "02 0000000000", "topics: the element count"),
}


@pytest.mark.parametrize("row", MALFORMED.values(), ids=MALFORMED)
def test_malformed_requests_are_rejected(row: tuple[ApiKey, int, str, str]) -> None:
    key, version, text, complaint = row
    with pytest.raises(MalformedInput, match=complaint):
        decode_request(APIS[key], version, bytes.fromhex(text))


@pytest.mark.parametrize("extra", ["00", "010000"])
def test_bytes_after_a_request_are_ignored(extra: str) -> None:
    """librdkafka sends additional bytes after a Metadata request for all topics, and Kafka accepts
    them."""
    api = APIS[ApiKey.METADATA]
    body = bytes.fromhex("00 00 00 00")
    assert decode_request(api, 12, body + bytes.fromhex(extra)) == decode_request(api, 12, body)


# Requests whose element counts fit into their bytes, but whose elements need far more memory.
TOO_MANY: dict[str, tuple[ApiKey, int, bytes]] = {
    "texts": (ApiKey.METADATA, 1, struct.pack(">i", _TOO_MANY) + bytes(2 * _TOO_MANY)),
    "compact texts": (
        ApiKey.DELETE_TOPICS,
        4,
        encode_uvarint(_TOO_MANY + 1) + b"\1" * _TOO_MANY + bytes(5),
    ),
    "structures in several arrays": (
        ApiKey.LIST_OFFSETS,
        1,
        struct.pack(">ii", -1, 2)
        + 2 * (b"\0\1t" + struct.pack(">i", _TOO_MANY // 2) + bytes(12 * (_TOO_MANY // 2))),
    ),
    "numbers": (
        ApiKey.CREATE_TOPICS,
        0,
        b"\0\0\0\1"
        + b"\0\1t"
        + struct.pack(">ihiii", 1, 1, 1, 0, 16 * _TOO_MANY)
        + bytes(64 * _TOO_MANY + 8),
    ),
    "unknown tags": (
        ApiKey.METADATA,
        9,
        encode_uvarint(_TOO_MANY // 64 + 1)
        + (b"\2t" + b"\x40" + b"".join(bytes((tag, 0)) for tag in range(64))) * (_TOO_MANY // 64)
        + bytes(4),
    ),
}


@pytest.mark.parametrize("row", TOO_MANY.values(), ids=TOO_MANY)
def test_request_with_too_many_elements_is_rejected(row: tuple[ApiKey, int, bytes]) -> None:
    key, version, body = row
    with pytest.raises(MalformedInput, match="too many elements"):
        decode_request(APIS[key], version, body)


def test_request_with_100_000_partitions_is_accepted() -> None:
    body = struct.pack(">ii", -1, 1) + b"\0\1t" + struct.pack(">i", 100_000) + bytes(1_200_000)
    request = decode_request(APIS[ApiKey.LIST_OFFSETS], 1, body)
    assert isinstance(request, ListOffsetsRequest)
    assert len(request.topics[0].partitions) == 100_000


def test_a_response_may_have_any_number_of_elements() -> None:
    brokers = struct.pack(">i", _TOO_MANY) + bytes(10 * _TOO_MANY)
    response = decode_response(APIS[ApiKey.METADATA], 0, brokers + bytes(4))
    assert isinstance(response, MetadataResponse)
    assert len(response.brokers) == _TOO_MANY


def test_number_of_tagged_fields_is_limited() -> None:
    many = b"".join(encode_uvarint(tag) + b"\0" for tag in range(TAGS_MAX + 1))
    with pytest.raises(MalformedInput, match="at most 127"):
        skip_tagged_fields(memoryview(encode_uvarint(TAGS_MAX + 1) + many), 0)
    few = bytes((TAGS_MAX,)) + many[: 2 * TAGS_MAX]
    assert skip_tagged_fields(memoryview(few), 0) == len(few)


def test_malformed_response_is_rejected() -> None:
    with pytest.raises(MalformedInput):
        decode_response(APIS[ApiKey.METADATA], 1, b"\x7f\xff\xff\xff")


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_message_that_is_cut_off_is_rejected(case: Case) -> None:
    for message in case.samples(2):
        encoded = case.encode(message)
        lengths = {*range(min(60, len(encoded))), len(encoded) - 1, len(encoded) // 2}
        for length in lengths - {-1, len(encoded)}:
            with pytest.raises(MalformedInput):
                case.decode(encoded[:length])
        with pytest.raises(MalformedInput):
            case.decode(encoded + b"\0")


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_damaged_message_raises_only_malformed_input(case: Case) -> None:
    source = random.Random(case.name)
    for message in case.samples(2):
        encoded = case.encode(message)[:2000]
        for _ in range(15):
            damaged = bytearray(encoded)
            for _ in range(source.randrange(1, 4)):
                place = source.randrange(len(damaged) + 1)
                damaged[place : place + source.randrange(3)] = source.choice(
                    [b"", b"\xff", b"\x7f\xff\xff\xff", b"\x80", source.randbytes(3)]
                )
            try:
                case.decode(bytes(damaged))
            except MalformedInput:
                continue


def test_small_frame_cannot_allocate_much_memory() -> None:
    tracemalloc.start()
    try:
        for key, version, text, _ in MALFORMED.values():
            with pytest.raises(MalformedInput):
                decode_request(APIS[key], version, bytes.fromhex(text))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
