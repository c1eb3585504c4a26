"""The valid inputs with which the fuzzers begin: requests of real clients, batches, and compressed
data of each codec."""

from __future__ import annotations

from pybroker.records.batch import read_header
from pybroker.records.compression import Codec, compress
from pybroker.records.record import records_payload
from unit_tests.coordinator.groups.test_records import (
    APACHE_EMPTY_GROUP,
    APACHE_GROUP,
    APACHE_GROUP_KEY,
    APACHE_OFFSET_KEY,
    GROUPS,
    OFFSETS,
)
from unit_tests.fuzzing.recorded import recorded_requests
from unit_tests.records.vocabulary import LIMIT, TRICKY, batch_of


def seeds(target: str) -> list[bytes]:
    """Return valid inputs of a target (see `targets.TARGETS`). Raises ValueError for an unknown
    target."""
    match target:
        case "requests":
            return [one.frame for one in recorded_requests()]
        case "batches":
            whole = [bytes(batch_of(*TRICKY[:5], codec=codec)) for codec in Codec]
            return [*whole, b"".join(whole)]
        case "records" | "columns":
            return [bytes((5,)) + _payload()]
        case "compressed":
            return [bytes((codec,)) + compress(codec, _payload() * 9) for codec in Codec]
        case "group_keys":
            return [bytes.fromhex(key) for key in (APACHE_GROUP_KEY, APACHE_OFFSET_KEY)]
        case "group_values":
            values = [APACHE_GROUP, APACHE_EMPTY_GROUP, *GROUPS.values(), *OFFSETS.values()]
            return [bytes.fromhex(value) for value in values]
    raise ValueError(f"no such target: {target}")


def _payload() -> bytes:
    batch = batch_of(*TRICKY[:5])
    return records_payload(batch, read_header(batch), LIMIT)
