"""A broker that leads partitions, for tests of its writes to their state nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from unit_tests.replication.leading import Leading


@pytest.fixture
async def leading(tmp_path: Path) -> AsyncIterator[Leading]:
    scene = Leading(tmp_path)
    await scene.start()
    yield scene
    await scene.stop()


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncIterator[Leading]:
    """Return a leading broker with min.insync.replicas=2."""
    scene = Leading(tmp_path, min_insync_replicas=2)
    await scene.start()
    yield scene
    await scene.stop()
