"""Reads the output of a job: all committed rows, and no others."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from pybroker.spark.etl import layout
from pybroker.spark.etl.files import OutputError
from pybroker.spark.etl.manifest import Commit
from pybroker.spark.etl.sink import FOLDERS_TIME_ZONE, uri
from pybroker.spark.etl.store import Store

LETTER_COLUMNS = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, error STRING"
)


def output_commits(path: str | Path, since_seq: int = 0) -> list[Commit]:
    """Return the commits of the output, from run `since_seq` on. Needs no Spark. Raises OutputError
    if `path` is no job's output, or if a run before the newest run has no commit."""
    store = Store(Path(path))
    names = store.commit_names()
    if not names and store.owner() is None:
        raise OutputError(f"{path} is not the output of a job: it has no folder {layout.STORE}")
    if names and store.commit(names[-1]).mode == "latest":
        names = names[-1:]
    return [store.commit(name) for name in names if name.seq >= since_seq]


def output_files(path: str | Path, since_seq: int = 0) -> list[Path]:
    """Return the paths of the output's Parquet files. Needs no Spark."""
    return [
        Path(path) / file.path
        for commit in output_commits(path, since_seq)
        for file in commit.files
    ]


def read_output(
    spark: SparkSession, path: str | Path, *, since_seq: int = 0, with_seq: bool = False
) -> DataFrame:
    """Return the table of a job, from run `since_seq` on. `with_seq` adds the run's number as the
    column `pybroker_seq`.

    Raises the errors of `output_commits`, and OutputError if no run from `since_seq` on is
    committed.
    """
    commits = output_commits(path, since_seq)
    if not commits:
        raise OutputError(
            f"{path}: no run with the number {since_seq} or above is committed; run the job first"
        )
    schema = _columns(commits)
    files = [Path(path) / file.path for commit in commits for file in commit.files]
    frame = _read(spark, Path(path) / layout.DATA, files, schema)
    return frame if with_seq else frame.drop(layout.SEQ_COLUMN)


def read_dead_letters(
    spark: SparkSession, path: str | Path, *, since_seq: int = 0, with_seq: bool = False
) -> DataFrame:
    """Return the records that could not be decoded, with the reason in the column `error`.
    `since_seq` and `with_seq` are as in `read_output`. Raises the errors of `output_commits`."""
    frames = []
    commits = output_commits(path, since_seq)
    letters = [commit.dead_letters for commit in commits if commit.dead_letters is not None]
    for folder in sorted({each.folder for each in letters}):
        root = Path(path) / folder
        files = [
            root / file.path for each in letters if each.folder == folder for file in each.files
        ]
        frames.append(_read(spark, root, files, _letters()))
    if not frames:
        frames = [_read(spark, Path(path), [], _letters())]
    found = frames[0]
    for frame in frames[1:]:
        found = found.unionByName(frame)
    return found if with_seq else found.drop(layout.SEQ_COLUMN)


def _columns(commits: Iterable[Commit]) -> StructType:
    """Return the columns of the newest commit, followed by columns that only other commits have."""
    found: dict[str, StructField] = {}
    for commit in reversed([*commits]):
        for field in StructType.fromJson(dict(commit.schema)).fields:
            found.setdefault(field.name, field)
    return StructType([*found.values()])


def _letters() -> StructType:
    found = StructType.fromDDL(LETTER_COLUMNS)
    assert isinstance(found, StructType)
    return found


def _read(spark: SparkSession, root: Path, files: Iterable[Path], schema: StructType) -> DataFrame:
    """Return the rows of files below `root`. The column SEQ_COLUMN has the number of the run that
    wrote the row."""
    whole = StructType([*schema.fields]).add(layout.SEQ_COLUMN, "long")
    names = [uri(file) for file in files]
    if not names:
        return spark.createDataFrame([], whole)
    whole = whole.add(layout.ATTEMPT_COLUMN, "string")
    reader = spark.read.schema(whole).option("basePath", uri(root))
    reader = reader.option("timeZone", FOLDERS_TIME_ZONE)
    return reader.parquet(*names).drop(layout.ATTEMPT_COLUMN)
