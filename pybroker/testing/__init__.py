"""Helpers for tests: a real cluster (`Cluster`), a simulated cluster (`simulation`), and checks of
what Kafka clients observed (`history`).

Every pytest run imports this package. So the package imports `Cluster` only when a test uses the
name.
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
