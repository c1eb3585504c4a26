"""Tests of the form in which a user sees errors of Spark's workers."""

from __future__ import annotations

import os

import pytest

from pybroker.errors import ConfigError, PybrokerError
from pybroker.spark.failures import ReadFailed, in_one_line, reason

JOB_ABORTED = """\
An exception was thrown from the Python worker. Please see the stack trace below.
pybroker.client.ranges.model.RangeFailed: orders-3@1234: the records were deleted: take another
"""
JAVA = """\
An error occurred while calling o55.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "pyspark/worker.py", line 1, in main
pybroker.spark.failures.ReadFailed: orders-0@7: no broker could be reached

\tat org.apache.spark.api.python.BasePythonRunner
"""
BY_A_FUNCTION = """\
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "jobs.py", line 12, in price
    raise KeyError(text)
          ^^^^^^^^^^^^^^
KeyError: 'no price'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "jobs.py", line 14, in price
    raise ValueError("line one\\nline two")
ValueError: line one
line two
"""
DISK_FULL = """\
An error occurred while calling o302.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows
\tat org.apache.spark.sql.execution.datasources.FileFormatWriter
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\t... 25 more
"""
NO_FOLDER = """\
An error occurred while calling o1377.parquet.
: org.apache.hadoop.fs.ParentNotDirectoryException: /lake/file (is not a directory)
\tat org.apache.hadoop.fs.RawLocalFileSystem.mkdirs(RawLocalFileSystem.java:760)
"""
WORKER_KILLED = """\
Job aborted due to stage failure: Task 0 in stage 47.0 failed 1 times, most recent failure: \
Lost task 0.0 in stage 47.0 (TID 87) (localhost executor driver): org.apache.spark.SparkException: \
Python worker exited unexpectedly (crashed). Consider setting \
'spark.python.worker.faulthandler.enabled' configuration to 'true' for the better Python traceback.
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator
Caused by: java.io.EOFException
"""
DAEMON_KILLED = """\
An error occurred while calling o302.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 8.0 failed
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2935)
Caused by: java.io.IOException: Stream closed
\tat java.base/java.lang.ProcessBuilder$NullOutputStream.write(ProcessBuilder.java:445)
\tat java.base/java.io.DataOutputStream.flush(DataOutputStream.java:128)
\tat org.apache.spark.api.python.PythonWorkerFactory.stopWorker(PythonWorkerFactory.scala:523)
\t... 1 more
"""
WORKER_GONE = "a Python process of Spark has ended unexpectedly (was it killed, or out of memory?)"
CANNOT_RUN = 'Cannot run program "python9": error=2, No such file or directory'
NO_PYTHON = """\
An error occurred while calling o302.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 8.0 failed
Caused by: java.io.IOException: Cannot run program "python9": error=2, No such file or directory
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
\tat org.apache.spark.api.python.PythonWorkerFactory.startDaemon(PythonWorkerFactory.scala:240)
"""
AT_LOAD = (
    "[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance:"
    " pybroker.errors.ConfigError: unknown option foo\n SQLSTATE: 38000"
)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConfigError(["a is wrong", "b is, too"]), "a is wrong; b is, too"),
        (RuntimeError(JOB_ABORTED), "orders-3@1234: the records were deleted: take another"),
        (RuntimeError(JAVA), "orders-0@7: no broker could be reached"),
        (RuntimeError(DISK_FULL), "IOException: No space left on device"),
        (RuntimeError(NO_FOLDER), "ParentNotDirectoryException: /lake/file (is not a directory)"),
        (RuntimeError(WORKER_KILLED), WORKER_GONE),
        (RuntimeError(DAEMON_KILLED), WORKER_GONE),
        (RuntimeError(NO_PYTHON), f"IOException: {CANNOT_RUN}"),
        (RuntimeError(AT_LOAD), "unknown option foo"),
        (RuntimeError(BY_A_FUNCTION), "ValueError: line one"),
        (RuntimeError("no module named pybroker.spark: install it"), None),
        (RuntimeError("  \nfirst line\nsecond"), "first line"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_reason_of_an_error_is_one_line(error: Exception, line: str | None) -> None:
    assert reason(error) == (line or str(error))


@pytest.mark.parametrize(
    ("error", "hidden"),
    [(ReadFailed("orders-0@7: gone"), True), (ConfigError(["x"]), True), (KeyError("x"), False)],
)
def test_only_pybroker_errors_are_shown_without_stack_trace(
    error: Exception, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    with pytest.raises(type(error)), in_one_line():
        raise error
    assert ("SPARK_HIDE_TRACEBACK" in os.environ) is hidden


def test_no_variable_is_set_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    with in_one_line():
        pass
    assert os.environ == {}
    assert issubclass(ReadFailed, PybrokerError)
