"""Moments of a job's run at which it can be made to stand still, so that something is killed just
then.

    python -m integration_tests.faults.job_gate FOLDER JOB.yaml [words of job.py...]

runs the job like `pybroker etl run`. A file FOLDER/MOMENT.hold makes whoever comes to that moment
leave a file FOLDER/MOMENT.reached.PID, and wait until the first file is gone.
Moments of the driver are the links by which plans and commits come into being; that of a Python
worker is the end of its first batch of rows (see `gated`).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

if __name__ == "__main__" and Path(sys.path[0]).resolve() == Path(__file__).parent:
    # Run as a script: the modules beside this one are no modules of their own.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import pyarrow as pa
from pyspark.sql import DataFrame

from integration_tests.process import wait_until
from pybroker.spark import job
from pybroker.spark.etl import store
from pybroker.spark.etl.files import RealFiles

BEFORE_PLAN: Final = "before-plans"
AFTER_PLAN: Final = "after-plans"
WORKER: Final = "worker"
BEFORE_COMMIT: Final = "before-commits"
AFTER_COMMIT: Final = "after-commits"
MOMENTS: Final = (BEFORE_PLAN, AFTER_PLAN, WORKER, BEFORE_COMMIT, AFTER_COMMIT)
_LOOK_AGAIN_S: Final = 0.02


class Gate:
    """The side of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def hold(self, moment: str) -> None:
        """From now on whoever comes there stands still."""
        _hold(self.folder, moment).touch()

    def reached(self, moment: str) -> int:
        """The process that stands there, as soon as it does; each arrival is told once."""
        there: list[Path] = []

        def anyone() -> bool:
            there[:] = self.folder.glob(f"{moment}.reached.*")
            return bool(there)

        wait_until(anyone, what=f"the run is at {moment}", seconds=120)
        there[0].unlink()
        return int(there[0].suffix[1:])

    def release(self) -> None:
        """Nobody stands still any more."""
        for moment in MOMENTS:
            _hold(self.folder, moment).unlink(missing_ok=True)


class GatedFiles(RealFiles):
    """Stands still around links."""

    folder: Path

    def link(self, source: Path, target: Path) -> None:
        _stand_still(self.folder, f"before-{target.parent.name}")
        super().link(source, target)
        _stand_still(self.folder, f"after-{target.parent.name}")


def gated(frame: DataFrame, folder: str) -> DataFrame:
    """The same rows through Python workers, which stand still after their first batch."""

    def passed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            _stand_still(Path(folder), WORKER)

    return frame.mapInArrow(passed, frame.schema)


def _hold(folder: Path, moment: str) -> Path:
    return folder / f"{moment}.hold"


def _stand_still(folder: Path, moment: str) -> None:
    hold = _hold(folder, moment)
    if not hold.exists():
        return
    (folder / f"{moment}.reached.{os.getpid()}").touch()
    pause = threading.Event()
    while hold.exists():
        pause.wait(_LOOK_AGAIN_S)


def main(words: Sequence[str]) -> int:
    folder, *others = words
    GatedFiles.folder = Path(folder)
    setattr(store, "RealFiles", GatedFiles)  # noqa: B010 (it is no part of its module's face)
    return job.main(others)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
