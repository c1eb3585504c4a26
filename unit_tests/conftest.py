"""Settings of every unit test: the event loop, and the generated examples of hypothesis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

from unit_tests.idle_loop import IdleLoop, JumpingLoop

# The same examples on every run of the same code. Other code may get other examples, because
# hypothesis also draws from the constants of all modules. `--hypothesis-profile=explore` looks for
# further ones.
settings.register_profile("pybroker", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("pybroker")


HERE: Final = Path(__file__).parent
JUMPING: Final = tuple(
    str(HERE / name)
    for name in (
        "coordinator/controller",
        "coordinator/groups",
        "coordinator/runtime",
        "replication",
    )
)
"""The folders whose tests run on the jumping clock without a mark, because they keep everything in
memory and start no threads.
"""


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    is_marked = item.get_closest_marker("jumping_clock") is not None
    if is_marked or str(item.path).startswith(JUMPING):
        return {"jumping": JumpingLoop}
    return {"idle": IdleLoop}
