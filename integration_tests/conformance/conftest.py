"""The words of all tests of conformance."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration_tests.broker import Broker
from integration_tests.wire_client import Connection


@pytest.fixture
def connection(broker: Broker) -> Iterator[Connection]:
    with Connection(broker.bootstrap) as opened:
        yield opened
