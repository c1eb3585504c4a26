"""The network namespace or user in which a test starts a process. By default, the process gets the
network namespace and the user of the test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A place where processes run. `prefix` is put before the command of a process. A prefix, such
    as `ip netns exec NAME`, must replace itself by the command (exec), so that signals reach the
    command."""

    host: str = "127.0.0.1"
    """The address at which other processes reach a process at this place."""
    prefix: Sequence[str] = ()
