"""The fixtures of all conformance tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration_tests.broker import Broker
from integration_tests.conftest import running
from integration_tests.transaction_requests import Producer, started
from integration_tests.wire_client import Connection, create_topic
from pybroker.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from unit_tests.patience import wait_until


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Return one broker for all conformance tests. Each test uses its own topic and group names."""
    with running(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def connection(broker: Broker) -> Iterator[Connection]:
    with Connection(broker.bootstrap) as opened:
        yield opened


@pytest.fixture
def producer(connection: Connection, topic: str) -> Producer:
    """Return a producer whose transactional id is the name of its topic, which has three
    partitions."""
    create_topic(connection, topic, partitions=3)
    return started(connection, topic)


@pytest.fixture
def group(connection: Connection, topic: str) -> str:
    """Return the id of a new group that has a coordinator."""
    request = FindCoordinatorRequest(key=topic)
    wait_until(
        lambda: connection.ask(3, request, FindCoordinatorResponse).error_code == 0,
        what="a group coordinator",
    )
    return topic
