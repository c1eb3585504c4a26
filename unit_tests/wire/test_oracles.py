"""The codec's bytes mean the same to other codecs, and theirs to it, in every version they know."""

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
    sayable,
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
def test_other_codecs_agree_with_ours(case: Case, oracle: Oracle) -> None:
    for message in map(sayable, case.samples()):
        encoded = case.encode(message)
        theirs, write = oracle(encoded)
        assert differences(plain_message(message, case.version), theirs) == []
        returned = plain_message(case.decode(write()), case.version)
        assert returned == plain_message(message, case.version)


def test_every_version_has_an_oracle_but_those_checked_by_hand() -> None:
    covered_cases = {row[1] for row in COVERED}
    assert {case.name for case in CASES if case not in covered_cases} == {
        "WriteTxnMarkersRequest-v0",
        "WriteTxnMarkersResponse-v0",
        "AlterReplicaLogDirsRequest-v0",
        "AlterReplicaLogDirsResponse-v0",
        "DescribeLogDirsRequest-v0",
        *(  # integration_tests/test_control_messages.py asks Kafka's own classes
            f"{name}{side}"
            for name, version in BETWEEN_BROKERS.items()
            for side in (f"Request-v{version}", f"Response-v{version}")
        ),
    }
