"""The fixture with the broker whose pages the tests request."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit_tests.admin.vocabulary import Shown


@pytest.fixture
def shown(tmp_path: Path) -> Shown:
    return Shown(tmp_path / "data")
