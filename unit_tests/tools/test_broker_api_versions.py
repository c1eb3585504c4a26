"""Tests of `broker-api-versions`: the printed lines."""

from __future__ import annotations

import pytest

from pybroker.client.admin.cluster import BrokerVersions
from pybroker.client.errors import NotConnected
from pybroker.client.metadata import Node
from pybroker.tools.broker_api_versions import (
    APIS_BY_NUMBER,
    NAMES,
    as_json,
    as_text,
    describe_api,
    format_node,
)
from pybroker.wire.api import APIS

NODE = Node(1, "host", 9092)


@pytest.mark.parametrize(
    ("number", "offered", "text"),
    [
        (1, (4, 12), "Fetch(1): 4 to 12 [usable: 12]"),
        (1, (0, 17), "Fetch(1): 0 to 17 [usable: 12]"),
        (1, (0, 3), "Fetch(1): 0 to 3 [unusable: node too old]"),
        (1, (13, 17), "Fetch(1): 13 to 17 [unusable: node too new]"),
        (45, (0, 0), "AlterPartitionReassignments(45): 0 [usable: 0]"),
        (58, (0, 0), "Envelope(58): 0"),
        (68, None, "ConsumerGroupHeartbeat(68): UNSUPPORTED"),
        (999, (0, 2), "UNKNOWN(999): 0 to 2"),
    ],
)
def test_each_api_is_printed_with_its_versions(
    number: int, offered: tuple[int, int] | None, text: str
) -> None:
    assert describe_api(number, offered, APIS_BY_NUMBER.get(number)) == text


def test_all_apis_of_a_broker() -> None:
    offered = {int(key): (api.min_version, api.max_version) for key, api in APIS.items()}
    lines = as_text(BrokerVersions(NODE, offered)).splitlines()
    assert lines[0] == "host:9092 (id: 1 rack: null) -> ("
    assert lines[1] == "\tProduce(0): 0 to 9 [usable: 9],"
    assert lines[-2:] == ["\tReadShareGroupStateSummary(87): UNSUPPORTED", ")"]
    assert not any("Vote(" in line for line in lines)
    assert as_text(BrokerVersions(NODE, {52: (0, 1)})).count("Vote(52): 0 to 1") == 1


def test_api_names_are_those_of_kafka() -> None:
    assert all(
        NAMES[int(key)].upper() == key.name.replace("_", "").upper()
        for key in APIS
    )  # fmt: skip


def test_unreachable_broker_is_printed_with_its_error() -> None:
    answer = BrokerVersions(Node(2, "h", 1, "r"), error=NotConnected("it is gone"))
    assert as_text(answer) == "h:1 (id: 2 rack: r) -> ERROR: it is gone"
    assert as_json(answer) == {"broker": 2, "host": "h", "port": 1, "error": "it is gone"}
    assert format_node(NODE) == "host:9092 (id: 1 rack: null)"
