"""Where a process of a test runs, if not simply on 127.0.0.1: a network namespace, another user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """`prefix` are the words that run a command there, as `ip netns exec NAME`; they have to become
    that command (exec), or signals would not reach it."""

    host: str = "127.0.0.1"
    """The address under which others reach it."""
    prefix: Sequence[str] = ()
