"""Tests of FindCoordinator."""

from __future__ import annotations

from typing import Any, Final

import pytest

from integration_tests.broker import Broker
from integration_tests.wire_client import Connection, batch_of, metadata, produce
from pybroker.errors import ErrorCode
from pybroker.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from unit_tests.patience import wait_until

TOPIC: Final = "__consumer_offsets"
GROUPS: Final = ["", "g", "group-1", "äöü", "𝄞", "a/b", ".."]


def find(connection: Connection, key: str, *, key_type: int = 0, version: int = 3) -> Any:
    """Return the answer of FindCoordinator for one key."""
    request = FindCoordinatorRequest(key=key, key_type=key_type)
    if version >= 4:
        request = FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type)
    answer = connection.ask(version, request, FindCoordinatorResponse)
    return answer.coordinators[0] if version >= 4 else answer


@pytest.mark.parametrize("version", range(5))
def test_every_group_id_has_a_coordinator(
    broker: Broker, connection: Connection, version: int
) -> None:
    """Apache answers COORDINATOR_NOT_AVAILABLE (15) while the topic is being created."""
    wait_until(lambda: find(connection, "g").error_code == 0, what="there are coordinators")
    for group in GROUPS:
        found = find(connection, group, version=version)
        assert found.error_code == 0
        assert found.error_message == {0: None, 4: ""}.get(version, "NONE")
        assert (found.host, found.port) == ("127.0.0.1", broker.port)
    assert metadata(connection, TOPIC).topics[0].is_internal
    written = produce(connection, TOPIC, batch_of(b"x"))
    assert written.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_one_request_finds_the_coordinators_of_many_groups(connection: Connection) -> None:
    wait_until(lambda: find(connection, "g").error_code == 0, what="there are coordinators")
    request = FindCoordinatorRequest(coordinator_keys=GROUPS)
    answer = connection.ask(4, request, FindCoordinatorResponse)
    assert {each.key: each.error_code for each in answer.coordinators} == dict.fromkeys(GROUPS, 0)


@pytest.mark.parametrize("key_type", [2, -1])
def test_other_types_of_keys_get_error_42(connection: Connection, key_type: int) -> None:
    assert find(connection, "g", key_type=key_type).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(1, 5))
def test_every_transactional_id_has_a_coordinator(
    broker: Broker, connection: Connection, version: int
) -> None:
    """Apache answers COORDINATOR_NOT_AVAILABLE (15) while the topic is being created."""
    wait_until(lambda: find(connection, "tx", key_type=1).error_code == 0, what="a coordinator")
    for transactional_id in GROUPS:
        found = find(connection, transactional_id, key_type=1, version=version)
        assert found.error_code == 0
        assert (found.host, found.port) == ("127.0.0.1", broker.port)
    assert metadata(connection, "__transaction_state").topics[0].is_internal
