"""Helpers for tests of this project and of its users: a real cluster (`Cluster`), a simulated one
(`simulation`), and the check of what clients saw (`history`).

`Cluster` is imported only at its first use, to keep the import of this package fast: it contains
pybroker's pytest plugin, which every run of pytest imports if pybroker is installed.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybroker.testing.cluster import Cluster, ClusterError

__all__ = ["Cluster", "ClusterError"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("pybroker.testing.cluster"), name)
