"""Tests that compare our codec with other codecs, in both directions and in all versions that
they have."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from unit_tests.wire.oracles import (
    Oracle,
    differences,
    former_kafka_python,
    kafka_python,
    kio,
    plain_message,
    without_own_fields,
)
from unit_tests.wire.vocabulary import CASES, Case


def covered(oracle: Callable[[Case], Oracle | None]) -> list[tuple[str, Case, Oracle]]:
    found = [(case, oracle(case)) for case in CASES]
    return [(f"{oracle.__name__}-{case.name}", case, read) for case, read in found if read]


BETWEEN_BROKERS = {
    "LeaderAndIsr": 5,
    "StopReplica": 3,
    "UpdateMetadata": 7,
    "ControlledShutdown": 3,
}
COVERED = [row for oracle in (kafka_python, former_kafka_python, kio) for row in covered(oracle)]


@pytest.mark.parametrize(
    ("case", "oracle"), [row[1:] for row in COVERED], ids=[row[0] for row in COVERED]
)
def test_other_codecs_agree_with_our_codec(case: Case, oracle: Oracle) -> None:
    for message in map(without_own_fields, case.samples()):
        encoded = case.encode(message)
        theirs, write = oracle(encoded)
        assert differences(plain_message(message, case.version), theirs) == []
        returned = plain_message(case.decode(write()), case.version)
        assert returned == plain_message(message, case.version)


def test_only_versions_with_known_bytes_lack_an_oracle() -> None:
    covered_cases = {row[1] for row in COVERED}
    assert {case.name for case in CASES if case not in covered_cases} == {
        "WriteTxnMarkersRequest-v0",
        "WriteTxnMarkersResponse-v0",
        "AlterReplicaLogDirsRequest-v0",
        "AlterReplicaLogDirsResponse-v0",
        "DescribeLogDirsRequest-v0",
        *(  # integration_tests/test_control_messages.py uses Kafka's classes
            f"{name}{side}"
            for name, version in BETWEEN_BROKERS.items()
            for side in (f"Request-v{version}", f"Response-v{version}")
        ),
    }
