"""What holds for every unit test: its event loop, and how long an example of a property takes says
nothing of the code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
from hypothesis import settings

from unit_tests.idle_loop import IdleLoop, JumpingLoop

# The same examples on every run: what has passed passes again. `--hypothesis-profile=explore` looks
# for others.
settings.register_profile("pybroker", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("pybroker")


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    jumps = item.get_closest_marker("jumping_clock") is not None
    return {"jumping": JumpingLoop} if jumps else {"idle": IdleLoop}
