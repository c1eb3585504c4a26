"""The fixture `loops`: a test that takes it runs once with each implementation."""

from __future__ import annotations

from types import ModuleType

import pytest

from unit_tests.records.vocabulary import IMPLEMENTATIONS, implementation, use


@pytest.fixture(params=IMPLEMENTATIONS)
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    chosen = implementation(request.param)
    use(monkeypatch, chosen)
    return chosen
