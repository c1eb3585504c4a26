"""Tests of every advertised API in every version: the answer has the schema of the version, and an
API that is not implemented answers with the right error code.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

import pytest

from integration_tests.broker import Broker
from integration_tests.conftest import running
from integration_tests.sample_requests import valid_frame
from integration_tests.wire_client import Connection
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.codec import decode_request, decode_response
from pybroker.wire.headers import parse_request_header, parse_response_header
from pybroker.wire.messages.produce import ProduceRequest

SAMPLES_PER_VERSION: Final = 8
SEED: Final = 7


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Return a broker for this module only, because its requests change the broker arbitrarily."""
    overrides = {"auto.create.topics.enable": "false"}
    with running(tmp_path_factory.mktemp("broker"), overrides) as broker:
        yield broker


@pytest.mark.ours
@pytest.mark.parametrize("key", APIS, ids=lambda key: key.name)
def test_every_version_is_answered_with_its_schema(broker: Broker, key: ApiKey) -> None:
    api = APIS[key]
    rng = random.Random(SEED)
    said_before = len(broker.log_text)
    with Connection(broker.bootstrap) as connection:
        for version in range(api.min_version, api.max_version + 1):
            for number in range(SAMPLES_PER_VERSION):
                frame = valid_frame(api, rng, version=version, correlation_id=number)
                if key is ApiKey.PRODUCE and wants_no_answer(frame):
                    continue
                connection.send_frame(frame)
                answer = connection.receive_frame()
                found, start = parse_response_header(answer, api.response_header_version(version))
                assert found == number
                decode_response(api, version, answer[start:])
    assert "Traceback" not in broker.log_text[said_before:]


def wants_no_answer(produce_frame: bytes) -> bool:
    """Return whether the request is a Produce with acks=0, which gets no answer and may close the
    connection.
    """
    header, start = parse_request_header(memoryview(produce_frame))
    request = decode_request(APIS[ApiKey.PRODUCE], header.version, produce_frame[start:])
    return isinstance(request, ProduceRequest) and request.acks == 0
