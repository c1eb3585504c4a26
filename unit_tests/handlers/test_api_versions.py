"""ApiVersions, and what happens to requests that no version of any API covers."""

from __future__ import annotations

import struct

import pytest

from pybroker.errors import CloseConnection, ErrorCode, MalformedInput
from pybroker.wire.api import APIS, ApiKey, api_versions_rows
from pybroker.wire.messages.cluster import ApiVersionsRequest
from unit_tests.handlers.bench import CORRELATION_ID, Bench, code

CLIENT = ApiVersionsRequest(client_software_name="a-client", client_software_version="1.2.3")


@pytest.mark.parametrize("version", range(5))
async def test_every_version_lists_the_whole_profile(bench: Bench, version: int) -> None:
    answer = await bench.ask(ApiKey.API_VERSIONS, version, CLIENT)
    assert code(answer) is ErrorCode.NONE
    rows = [(row.api_key, row.min_version, row.max_version) for row in answer.api_keys]
    assert rows == list(api_versions_rows())
    assert answer.supported_features == [] and answer.finalized_features == []


@pytest.mark.parametrize("version", [5, 6, 32_767, -1])
async def test_an_unknown_version_is_answered_with_35_in_the_body_of_version_0(
    bench: Bench, version: int
) -> None:
    unreadable = b"\xff" * 50
    data = await bench.ask_bytes(
        ApiKey.API_VERSIONS, version, unreadable, header_version=1 if version < 0 else 2
    )
    assert data is not None
    assert data == struct.pack(">ihihhh", CORRELATION_ID, 35, 1, 18, 0, 4)


@pytest.mark.parametrize(
    ("name", "software_version", "fits"),
    [
        ("librdkafka", "2.16.1", True),
        ("a", "1", True),
        ("kafka-python", "3.0.12-SNAPSHOT", True),
        ("", "1", False),
        ("name", "", False),
        ("-name", "1", False),
        ("name", "1.", False),
        ("with space", "1", False),
        ("name", "1_2", False),
    ],
)
async def test_software_names_follow_the_rule_from_version_3_on(
    bench: Bench, name: str, software_version: str, fits: bool
) -> None:
    for version in range(5):
        request = ApiVersionsRequest(
            client_software_name=name, client_software_version=software_version
        )
        answer = await bench.ask(ApiKey.API_VERSIONS, version, request)
        accepted = fits or version < 3
        assert code(answer) is (ErrorCode.NONE if accepted else ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize("key", [-1, 56, 68, 75, 1000])
async def test_an_unknown_api_closes_the_connection(bench: Bench, key: int) -> None:
    with pytest.raises(CloseConnection, match=f"unknown API key {key}"):
        await bench.ask_bytes(key, 0, b"", header_version=1)


async def test_an_unsupported_version_closes_the_connection(bench: Bench) -> None:
    for key in [key for key in ApiKey if key is not ApiKey.API_VERSIONS]:
        api = APIS[key]
        for version in (api.max_version + 1, api.min_version - 1, 32_767):
            with pytest.raises(CloseConnection, match=f"{key.name} has no version"):
                await bench.ask_bytes(key, version, b"", header_version=1)


async def test_bytes_behind_the_body_are_let_be(bench: Bench) -> None:
    answer = await bench.ask_bytes(ApiKey.API_VERSIONS, 0, b"x", header_version=1)
    assert answer is not None and answer[:6] == struct.pack(">ih", CORRELATION_ID, 0)


async def test_a_body_that_ends_early_is_malformed(bench: Bench) -> None:
    readable = set()
    for key, api in APIS.items():
        version = api.max_version
        header_version = api.request_header_version(version)
        try:
            await bench.ask_bytes(key, version, b"", header_version=header_version)
        except MalformedInput:
            continue
        readable.add(key)
    assert readable == set()
