"""The Spark pipeline over topic snapshots: `from pybroker.spark import snapshot, session, Job`.
PySpark is imported only when a name that needs it is used."""

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pybroker.spark.etl.job import Job
    from pybroker.spark.spark_session import session

__all__ = ["Job", "session"]

_HOMES: Final = {"Job": "pybroker.spark.etl.job", "session": "pybroker.spark.spark_session"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
