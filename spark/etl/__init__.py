"""Jobs: each job reads the records of topics, transforms them, and writes a table exactly once.

A program reads the output of a job with `read_output` and `read_dead_letters`. For a reader other
than Spark, `output_files` returns the paths of the Parquet files. This package imports PySpark only
when one of its functions is used.
"""

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
