"""Tests that decoding returns the encoded message, for every API and version."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies

from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.codec import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from pybroker.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from unit_tests.wire.vocabulary import CASES, Case, case_name, messages

few_examples = settings(
    max_examples=6,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("case", CASES, ids=case_name)
@few_examples
@given(data=strategies.data())
def test_decoding_returns_the_encoded_message(case: Case, data: strategies.DataObject) -> None:
    message = data.draw(messages(case.message_class, case.version))
    assert case.decode(case.encode(message)) == message


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_large_messages_are_decoded_as_encoded(case: Case) -> None:
    for message in case.samples():
        encoded = case.encode(message)
        decoded = case.decode(encoded)
        assert decoded == message
        assert case.encode(decoded) == encoded


def test_response_is_not_encoded_as_a_request() -> None:
    api = APIS[ApiKey.API_VERSIONS]
    assert decode_request(api, 0, encode_request(api, 0, ApiVersionsRequest())) is not None
    assert decode_response(api, 0, encode_response(api, 0, ApiVersionsResponse())) is not None
    with pytest.raises(ValueError, match="expected a ApiVersionsRequest"):
        encode_request(api, 0, ApiVersionsResponse())
    with pytest.raises(ValueError, match="expected a ApiVersionsResponse"):
        encode_response(api, 0, ApiVersionsRequest())


def test_unsupported_versions_are_rejected() -> None:
    for api in APIS.values():
        for version in (api.min_version - 1, api.max_version + 1):
            assert not api.supports(version)
            with pytest.raises(
                ValueError, match=f"version {version} of {api.key.name} is not supported"
            ):
                decode_request(api, version, b"")
            with pytest.raises(
                ValueError, match=f"version {version} of {api.key.name} is not supported"
            ):
                encode_response(api, version, api.response())
