"""Helpers for tests: a real cluster (`Cluster`), a simulated cluster (`simulation`), and checks of
what Kafka clients observed (`history`).

`Cluster` is imported at first use only, because every pytest run imports this package."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybroker.testing.cluster import Cluster, ClusterError

__all__ = ["Cluster", "ClusterError"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("pybroker.testing.cluster"), name)
