"""One Spark session for a whole run of tests, because a JVM takes seconds to start and half a
gigabyte of memory. The session has Apache's connector if its jars are available.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from integration_tests import maven
from pybroker.spark import spark_session

LOCAL: Final = "local[2]"
"""Spark's master: two tasks at a time, even if the machine has more cores."""


def settings(folder: Path, jars: str = "") -> dict[str, str]:
    """Return Spark's settings in tests: only loopback addresses, only files in `folder`, and no web
    UI. `jars` is a class path.
    """
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **({"spark.jars": ",".join(jars.split(os.pathsep))} if jars else {}),
    }


def connector_or_reason() -> tuple[str, str]:
    """Return (class path, reason): the connector's class path, or the reason why there is none. The
    other text is empty.
    """
    try:
        return maven.spark_connector(), ""
    except maven.MavenUnavailable as error:
        return "", str(error)


@contextlib.contextmanager
def session(
    folder: Path, *, master: str = LOCAL, jars: str = "", conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield a Spark session of this process, and stop it at the end. A process has one session at a
    time.
    """
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    made = spark_session.session(
        "pybroker-tests", master=master, conf={**settings(folder, jars), **(conf or {})}
    )
    made.sparkContext.setLogLevel("ERROR")
    try:
        yield made
    finally:
        made.stop()
