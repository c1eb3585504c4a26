"""Packages from the npm registry, installed once by `npm` into a cache outside the repository.

This module alone obtains kafkajs (a client), vega-datasets (real data) and pyright (a type
checker).

`python -m integration_tests.npm` fills the cache and prints where it is.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from integration_tests.maven import cache_dir
from unit_tests.patience import WORK_S

KAFKAJS: Final = ("kafkajs@2.2.4", "kafkajs-snappy@1.1.0")
DATASETS: Final = ("vega-datasets@3.2.1",)
PYRIGHT: Final = ("pyright@1.1.414",)


class NpmUnavailable(Exception):
    """The error for packages that are not available on this machine. The message is the reason for
    the skipped test.
    """


def node() -> str:
    """Return the path of the `node` program.

    Raises NpmUnavailable if there is no `node`.
    """
    found = shutil.which("node")
    if found is None:
        raise NpmUnavailable("no node on PATH (install nodejs)")
    return found


def node_modules(packages: Sequence[str]) -> Path:
    """Return the `node_modules` folder with `packages` ("name@version").

    The packages are cached. Raises NpmUnavailable with the reason if `npm` is missing or the
    registry does not answer. Install scripts of packages are not run.
    """
    name = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:16]
    folder = cache_dir() / "npm" / name
    if not folder.is_dir():
        _install(packages, folder)
    return folder / "node_modules"


def datasets() -> Path:
    """Return the `data` folder of vega-datasets.

    Raises NpmUnavailable like `node_modules`.
    """
    return node_modules(DATASETS) / "vega-datasets" / "data"


def _install(packages: Sequence[str], folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NpmUnavailable("no npm on PATH (install npm)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        target = Path(work) / "packages"
        target.mkdir()
        command = [npm, "install", "--ignore-scripts", "--prefix", str(target), *packages]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=WORK_S,
                check=False,
                cwd=target,
            )
        except subprocess.TimeoutExpired as error:
            raise NpmUnavailable(
                f"npm did not finish in {WORK_S} s; the registry does not answer"
            ) from error
        if done.returncode != 0:
            reason = next((line for line in done.stderr.splitlines() if "error" in line), "?")
            raise NpmUnavailable(f"npm could not install {' '.join(packages)}: {reason}")
        try:
            target.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another run was quicker; its copy is equal
                raise


def main() -> int:
    """Fill the cache. Exit with code 1 and the reason if that is not possible."""
    try:
        for packages in (KAFKAJS, DATASETS, PYRIGHT):
            print(f"npm: {' '.join(packages)} in {node_modules(packages)}")
    except NpmUnavailable as error:
        print(f"npm: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
