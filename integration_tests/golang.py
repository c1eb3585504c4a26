"""Go programs of the tests, built once by `go` into a cache outside the repository.

This module alone obtains franz-go, a client; the Go module proxy and `go.sum` give its versions.

`python -m integration_tests.golang` fills the cache and prints where it is.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from integration_tests.maven import cache_dir
from unit_tests.patience import WORK_S

FOLDER: Final = Path(__file__).parent / "go"
PROGRAMS: Final = ("copier",)


class GoUnavailable(Exception):
    """The error for programs that cannot be built on this machine. The message is the reason for
    the skipped test.
    """


def program(name: str) -> str:
    """Return the path of a Go program of the tests, built from `go/NAME`.

    Raises GoUnavailable with the reason if `go` is missing, or if the module proxy does not answer.
    """
    go = shutil.which("go")
    if go is None:
        raise GoUnavailable("no go on PATH (install golang-go)")
    source = FOLDER / name
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(source.iterdir())))
    built = cache_dir() / "go" / digest.hexdigest()[:16] / name
    if not built.exists():
        _build(go, source, built)
    return str(built)


def _build(go: str, source: Path, built: Path) -> None:
    """Build into a temporary folder, then rename the program, so that it is complete or absent."""
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent) as work:
        output = Path(work) / source.name
        # The programs are built with the Go that is there: another one would be downloaded.
        environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
        try:
            fetched = _run([go, "mod", "download"], source, environment)
            if fetched.returncode != 0:
                reason = fetched.stderr.strip()[-500:]
                raise GoUnavailable(f"go could not fetch the modules: {reason}")
            done = _run([go, "build", "-o", str(output), "."], source, environment)
        except subprocess.TimeoutExpired as error:
            raise GoUnavailable(f"go did not finish in {WORK_S} s") from error
        assert done.returncode == 0, f"go build of {source.name}: {done.stderr}"
        output.rename(built)


def _run(
    command: list[str], folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WORK_S,
        check=False,
    )


def main() -> int:
    """Fill the cache. Exit with code 1 and the reason if that is not possible."""
    for name in PROGRAMS:
        try:
            print(f"go: {program(name)}")
        except GoUnavailable as error:
            print(f"go: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
