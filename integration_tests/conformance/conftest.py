"""The fixtures of all conformance tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration_tests.broker import Broker
from integration_tests.conftest import running
from integration_tests.wire_client import Connection


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Return one broker for all conformance tests. Each test uses its own topic and group names."""
    with running(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def connection(broker: Broker) -> Iterator[Connection]:
    with Connection(broker.bootstrap) as opened:
        yield opened
