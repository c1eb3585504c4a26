"""Gates in the run of an ETL job, at which a test can hold a process and kill it.

    python -m integration_tests.faults.job_gate FOLDER JOB.yaml [words of job.py...]

runs the job like `pybroker etl run`. If a file FOLDER/MOMENT.hold exists, a process that reaches
the moment creates FOLDER/MOMENT.reached.PID and waits until the first file is removed. Moments of
the driver are the creation of plans and commits by hard links, and the beginnings of a run's
stages (see `GatedStages`). Those of Spark's Python processes are the search for data sources (see
`search_gate`), the making of the source, its division into tasks and the end of the first batch
that a task reads (see `gated_read`), and that of a transform (see `gated`).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Final, Protocol

if __name__ == "__main__" and Path(sys.path[0]).resolve() == Path(__file__).parent:
    # Run as a script: the modules beside this one must not be importable by their bare names.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pybroker.spark import job
from pybroker.spark.etl import command, store
from pybroker.spark.etl.files import RealFiles
from pybroker.spark.etl.job_model import JobFile
from pybroker.spark.etl.progress import Silent
from pybroker.spark.etl.run import Read, source_options
from pybroker.spark.reading import FrozenRead, FrozenReader
from pybroker.spark.snapshot_model import Snapshot
from pybroker.spark.source import PybrokerDataSource
from unit_tests.patience import WaitFailed, wait_until

BEFORE_PLAN: Final = "before-plans"
AFTER_PLAN: Final = "after-plans"
WORKER: Final = "worker"
BEFORE_COMMIT: Final = "before-commits"
AFTER_COMMIT: Final = "after-commits"
MOMENTS: Final = (BEFORE_PLAN, AFTER_PLAN, WORKER, BEFORE_COMMIT, AFTER_COMMIT)
SEARCH: Final = "search"
MAKE: Final = "make"
DIVIDE: Final = "divide"
READ: Final = "read"
STAGE_DECODE: Final = "stage read and decode"
STAGE_LETTERS: Final = "stage write dead letters"
STAGE_TABLE: Final = "stage transform and write"
PYTHON_MOMENTS: Final = (MAKE, DIVIDE, READ, STAGE_LETTERS, WORKER)
"""Moments at which a Python process of Spark works for a run. Dead letters are made from the
decoded records: there is such a moment only if those were lost."""
BETWEEN: Final = (BEFORE_PLAN, STAGE_DECODE, STAGE_LETTERS, STAGE_TABLE, BEFORE_COMMIT)
"""Moments at which only the driver works, and no Python process of Spark."""
BETWEEN_PYTHON: Final = (STAGE_DECODE, STAGE_LETTERS, BEFORE_COMMIT)
"""The moments of BETWEEN after work in Python, whose processes then wait for more."""
_LOOK_AGAIN_S: Final = 0.02
_SEARCH: Final = """
from pathlib import Path
from integration_tests.faults.job_gate import SEARCH, stand_still

stand_still(Path({folder!r}), SEARCH)
"""


class Run(Protocol):
    """The interface of a run that is expected to reach a gate."""

    @property
    def running(self) -> bool: ...

    @property
    def output(self) -> str: ...


class Gate:
    """The test's control of the gates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def hold(self, moment: str) -> None:
        """Hold every process that reaches the gate."""
        _hold(self.folder, moment).touch()

    def reached(self, moment: str, run: Run) -> int:
        """Wait for a process held at the gate, and return it; each arrival is returned once. Raises
        WaitFailed if the run ends before.
        """
        there: list[Path] = []

        def anyone() -> bool:
            was_running = run.running
            there[:] = self.folder.glob(f"{moment}.reached.*")
            if not there and not was_running:
                raise WaitFailed(
                    f"the run ended without reaching the gate {moment}; output:\n{run.output}"
                )
            return bool(there)

        wait_until(anyone, what=f"the run reaches the gate {moment}")
        there[0].unlink()
        return int(there[0].suffix[1:])

    def release(self, moment: str = "*") -> None:
        """Release the processes at the gate, and hold no more processes there."""
        for hold in self.folder.glob(f"{moment}.hold"):
            hold.unlink()


class GatedFiles(RealFiles):
    """A file system whose caller is held before and after the creation of a link."""

    folder: Path

    def link(self, source: Path, target: Path) -> None:
        stand_still(self.folder, f"before-{target.parent.name}")
        super().link(source, target)
        stand_still(self.folder, f"after-{target.parent.name}")


def gated(frame: DataFrame, folder: str) -> DataFrame:
    """Return the same rows, passed through Python workers that are held after their first batch."""

    def passed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            stand_still(Path(folder), WORKER)

    return frame.mapInArrow(passed, frame.schema)


class GatedStages(Silent):
    """A progress reporter that holds the driver where it begins a stage."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def stage(self, text: str) -> None:
        stand_still(self._folder, f"stage {text.partition(': ')[2]}")


class GatedSource(PybrokerDataSource):
    """A data source that is held where Spark creates it, and whose reader is held where it is
    divided into tasks and where it reads.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._folder = Path(options.pop("gate"))
        stand_still(self._folder, MAKE)
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "gated"

    def reader(self, schema: StructType) -> FrozenReader:
        return _GatedReader(self._frozen, schema, self._folder)


class _GatedReader(FrozenReader):
    def __init__(self, frozen: FrozenRead, schema: StructType, folder: Path) -> None:
        super().__init__(frozen, schema)
        self._folder = folder

    def partitions(self) -> list[InputPartition]:
        stand_still(self._folder, DIVIDE)
        return super().partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            yield batch
            stand_still(self._folder, READ)


def gated_read(folder: Path) -> Read:
    """Return the read function of a job in this process that uses a `GatedSource`."""

    def read(spark: SparkSession, job: JobFile, snapshot: Snapshot) -> DataFrame:
        spark.dataSource.register(GatedSource)
        options = source_options(job, snapshot)
        return spark.read.format(GatedSource.name()).options(**options, gate=str(folder)).load()

    return read


def search_gate(folder: Path) -> None:
    """Create a module in `folder` for PYTHONPATH, which holds Spark when it searches for data
    sources.
    """
    (folder / "pyspark_gate.py").write_text(_SEARCH.format(folder=str(folder)))


def _hold(folder: Path, moment: str) -> Path:
    return folder / f"{moment}.hold"


def stand_still(folder: Path, moment: str) -> None:
    """Pass the gate of that moment. If a test holds it, report the arrival and wait."""
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
    setattr(command, "for_stream", lambda _: GatedStages(Path(folder)))  # noqa: B010
    return job.main(others)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
