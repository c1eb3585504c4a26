"""Jobs that read topics, transform the records, and write a table exactly once. PySpark is imported
only when a function that needs it is used."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybroker.spark.etl.output import (
        output_commits,
        output_files,
        read_dead_letters,
        read_output,
    )

__all__ = ["output_commits", "output_files", "read_dead_letters", "read_output"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("pybroker.spark.etl.output"), name)
