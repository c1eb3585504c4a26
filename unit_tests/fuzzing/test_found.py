"""Tests of inputs for which a fuzz target once failed, of the recorded requests, and of a few
random inputs for each target."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.codec import decode_request, encode_request
from pybroker.wire.headers import encode_request_header, parse_request_header
from unit_tests.fuzzing.recorded import FILE, Recorded, recorded_requests
from unit_tests.fuzzing.seeds import seeds
from unit_tests.fuzzing.targets import TARGETS

FOUND = sorted((Path(__file__).parent / "found").glob("*.bin"))
RECORDED = recorded_requests()
CLIENTS = {"aiokafka", "confluent-kafka", "java", "kafka-python", "kafkajs", "kcat"}
FILE_BYTES_MAX = 200_000
ONE_INPUT_SECONDS_MAX = 5


def test_inputs_that_once_failed_pass() -> None:
    for path in FOUND:
        begin = time.process_time()
        TARGETS[path.stem.partition("-")[0]](path.read_bytes())
        assert time.process_time() - begin < ONE_INPUT_SECONDS_MAX, path.name


@pytest.mark.parametrize("target", TARGETS)
def test_mutated_seeds_keep_the_promises(target: str) -> None:
    """A short run with random inputs. `coverage_guided` runs longer and is guided by coverage."""
    source = random.Random(target)
    run, known = TARGETS[target], seeds(target)
    for data in known:
        run(data)
    for _ in range(3000):
        changed = bytearray(source.choice(known))
        for _ in range(source.randrange(1, 5)):
            place = source.randrange(len(changed) + 1)
            changed[place : place + source.randrange(4)] = source.choice(
                [b"", b"\xff", b"\x7f\xff\xff\xff", b"\x80", source.randbytes(3)]
            )
        run(bytes(changed))


@pytest.mark.parametrize(
    "one", RECORDED, ids=lambda one: f"{one.client}-{ApiKey(one.key).name}-{one.version}"
)
def test_requests_of_real_clients_are_encoded_to_the_same_bytes(one: Recorded) -> None:
    header, start = parse_request_header(memoryview(one.frame))
    api = APIS[ApiKey(one.key)]
    assert (header.api_key, header.version) == (one.key, one.version)
    body = memoryview(one.frame)[start:]
    message = decode_request(api, one.version, body)
    assert encode_request(api, one.version, message) == body
    head = encode_request_header(header, api.request_header_version(one.version))
    assert head == one.frame[:start]


def test_every_client_was_recorded() -> None:
    assert {one.client for one in RECORDED} == CLIENTS
    assert len({(one.client, one.key, one.version) for one in RECORDED}) == len(RECORDED)
    assert FILE.stat().st_size < FILE_BYTES_MAX
