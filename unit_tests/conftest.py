"""What holds for every property: how long an example takes says nothing of the code."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("pybroker", deadline=None)
settings.load_profile("pybroker")
