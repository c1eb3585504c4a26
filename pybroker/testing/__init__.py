"""Helpers that users' own tests may use too: `Cluster`, and the stand-ins behind our ports.

`Cluster` is loaded when it is asked for: pytest loads this package with every run of whoever has
pybroker installed.
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
