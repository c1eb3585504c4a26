"""Shared fixtures of the tests of logs and their directories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit_tests.storage.test_manager import Host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.release()
