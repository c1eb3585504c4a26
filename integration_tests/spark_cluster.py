"""A standalone Spark cluster on loopback: one master and two workers, from PySpark's own jars.

All processes are children of the test in separate process groups: executors and their Python
workers end with the worker that started them.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

import psutil
import pyspark

from integration_tests.process import ChildProcess, free_port
from integration_tests.spark_session import settings

SPARK_HOME: Final = Path(pyspark.__file__).parent
WORKERS: Final = 2
EXECUTOR_MEMORY: Final = "512m"
_HOST: Final = "127.0.0.1"
_PYTHON_WORKERS: Final = ("pyspark.daemon", "pyspark.worker")


def reason_to_skip() -> str | None:
    """Return why a cluster cannot be started on this machine; None if it can."""
    if shutil.which("java") is None:
        return "no java on PATH (install openjdk-17-jre-headless)"
    return None


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of every Spark process of a test: this Python, and loopback
    addresses.
    """
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_LOCAL_IP": _HOST,
    }


def submitted(
    folder: Path,
    master: str,
    program: Sequence[str],
    *,
    conf: Mapping[str, str] | None = None,
    more_environment: Mapping[str, str] | None = None,
) -> ChildProcess:
    """Start a driver: pass `program` (a file and its arguments) to spark-submit, as users do."""
    words = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master]
    memory = {"spark.executor.memory": EXECUTOR_MEMORY}
    for name, value in {**settings(folder), **memory, **(conf or {})}.items():
        words += ["--conf", f"{name}={value}"]
    variables = {**environment(folder), **(more_environment or {})}
    return ChildProcess([*words, *program], environment=variables)


def python_workers_of(driver_or_executor: int) -> list[psutil.Process]:
    """Return the descendants of a process in which Spark runs Python code; the daemon comes
    first.
    """
    found = []
    for process in psutil.Process(driver_or_executor).children(recursive=True):
        try:
            if any(name in word for word in process.cmdline() for name in _PYTHON_WORKERS):
                found.append(process)
        except psutil.Error:
            continue
    return found


class SparkCluster:
    """A Spark cluster for a `with` statement, with one core and one executor per worker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._children: list[ChildProcess] = []

    @property
    def master(self) -> str:
        """Return the value of `--master`."""
        return f"spark://{_HOST}:{self._port}"

    @property
    def output(self) -> str:
        """Return the output of master, workers and executors."""
        executors = [path.read_text() for path in sorted(self._folder.glob("worker-*/*/*/stderr"))]
        return "\n".join([*(child.output for child in self._children), *executors])

    def __enter__(self) -> SparkCluster:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill all processes. Idempotent."""
        for child in reversed(self._children):
            child.close()

    def executors(self) -> list[psutil.Process]:
        """Return the running executor processes."""
        workers = [psutil.Process(child.pid) for child in self._children[1:]]
        return [child for worker in workers for child in worker.children()]

    def _start(self) -> None:
        self._daemon("master.Master", "--port", str(self._port)).wait_for_line(
            "I have been elected leader"
        )
        workers = [self._worker(number) for number in range(WORKERS)]
        for worker in workers:
            worker.wait_for_line("Successfully registered with master")

    def _worker(self, number: int) -> ChildProcess:
        place = self._folder / f"worker-{number}"
        size = ("--cores", "1", "--memory", "1g")
        return self._daemon("worker.Worker", *size, "--work-dir", str(place), self.master)

    def _daemon(self, name: str, *arguments: str) -> ChildProcess:
        program = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
        common = ("--host", _HOST, "--webui-port", "0")
        command = [*program, *common, *arguments]
        self._children.append(ChildProcess(command, environment=environment(self._folder)))
        return self._children[-1]
