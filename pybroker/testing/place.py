"""The place of a test's process, if not simply 127.0.0.1: a network namespace, another user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A place. `prefix` holds the words that run a command there, such as `ip netns exec NAME`.
    They must exec the command, or signals would not reach it.
    """

    host: str = "127.0.0.1"
    """The address at which other processes reach it."""
    prefix: Sequence[str] = ()
