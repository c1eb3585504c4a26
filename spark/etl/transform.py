"""The transform of a job: the user's SQL over the view `records`, or a function of a DataFrame."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pybroker.errors import ConfigError, PybrokerError
from pybroker.spark.etl.decode import first_line
from pybroker.spark.etl.job_model import Transform
from pybroker.spark.etl.manifest import Json

VIEW = "records"


class TransformFailed(PybrokerError):
    """The user's SQL or function did not return a table. The message gives the reason."""


@dataclass(frozen=True)
class RunContext:
    """The second argument of the user's function. `seq` is the number of the run, `attempt` the
    unique name of the attempt, and `snapshot` the snapshot as JSON values."""

    spark: SparkSession
    job: str
    seq: int
    attempt: str
    snapshot: Json


Function = Callable[..., Any]

_LOADING = threading.Lock()
_BESIDE_JOBS: dict[Path, frozenset[str]] = {}
"""Folder of the last loaded job -> the names of the modules that were loaded before the job."""


def load(transform: Transform | None, where: str) -> Function | None:
    """Return the imported function that the job names; None if the job names no function. Raises
    ConfigError."""
    if transform is None or transform.function is None:
        return None
    module_name, _, name = transform.function.partition(":")
    try:
        module = _module(module_name, transform.folder)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise ConfigError(
            [f"{where}: transform: {module_name} cannot be imported: {reason}"]
        ) from error
    found = getattr(module, name, None)
    if not callable(found):
        raise ConfigError([f"{where}: transform: {module_name} has no function {name}"])
    function: Function = found
    return function


def apply(
    frame: DataFrame, transform: Transform | None, function: Function | None, context: RunContext
) -> DataFrame:
    """Return the table that the transform makes from the records. Raises TransformFailed."""
    if transform is None:
        return frame
    if transform.sql is not None:
        return _sql(frame, transform.sql, context.spark)
    assert function is not None
    try:
        wants_context = len(inspect.signature(function).parameters) > 1
        result = function(frame, context) if wants_context else function(frame)
    except (
        Exception,
        SystemExit,
    ) as error:  # SystemExit too: sys.exit(0) in the user's function would look like success
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise TransformFailed(f"transform {transform.function}: {reason}") from error
    if not isinstance(result, DataFrame):
        raise TransformFailed(
            f"transform {transform.function}: returned {type(result).__name__}, expected a"
            " DataFrame"
        )
    return result


def _module(name: str, folder: Path | None) -> Any:
    """Import a module from the job file's folder, or else an installed one. Functions from `folder`
    are pickled by value, because Spark's workers cannot import the module."""
    file = None if folder is None else folder.joinpath(*name.split(".")).with_suffix(".py")
    if folder is None or file is None or not file.is_file():
        return importlib.import_module(name)
    with _LOADING:
        _forget()
        _BESIDE_JOBS[folder] = frozenset(sys.modules)
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        module = importlib.import_module(name)
    found = getattr(module, "__file__", None)
    if found is None or not file.samefile(found):
        raise ImportError(
            f"another module with the name {name} is already loaded from {found}: "
            "rename the module of the job"
        )
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module


def _forget() -> None:
    """Unload the modules of the last loaded job, because another job may have modules with the same
    names."""
    for folder, before in _BESIDE_JOBS.items():
        with suppress(ValueError):
            sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if _is_below(sys.modules[name], folder):
                del sys.modules[name]
    _BESIDE_JOBS.clear()


def _is_below(module: Any, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve().is_relative_to(folder.resolve())


def _sql(frame: DataFrame, sql: str, spark: SparkSession) -> DataFrame:
    """Return the result of the user's SQL. The name `records` stands for a view with a unique name,
    so that two jobs in one session do not collide."""
    text = sql.strip().rstrip(";")
    try:
        # The user's text is parsed alone first: the text around it could close its open bracket.
        spark._jsparkSession.sessionState().sqlParser().parseQuery(text)
    except PySparkException as error:
        raise TransformFailed(f"transform.sql: {first_line(error)}") from error
    name = f"pybroker_records_{uuid.uuid4().hex}"
    frame.createTempView(name)
    try:
        return spark.sql(f"WITH {VIEW} AS (SELECT * FROM {name}) SELECT * FROM (\n{text}\n)")
    except PySparkException as error:
        raise TransformFailed(f"transform.sql: {_with_user_lines(first_line(error))}") from error
    finally:
        spark.catalog.dropTempView(name)


def _with_user_lines(message: str) -> str:
    """Return Spark's message with the line numbers reduced by one. Spark counts the lines of the
    whole query, in which the user's text begins in line 2."""
    message = re.sub(r"\bline (\d+)", lambda found: f"line {int(found[1]) - 1}", message)
    return message.rstrip("; ")
