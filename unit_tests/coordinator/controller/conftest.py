"""The fixture `cluster` of the controller's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from unit_tests.coordinator.controller.cluster import Cluster


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    await cluster.prepare()
    yield cluster
    await cluster.close()
