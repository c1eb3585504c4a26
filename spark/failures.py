"""Shortens Spark's errors for the user. In a worker, only a PybrokerError loses its stack trace."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Final

from pybroker.errors import PybrokerError

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""The variable that makes PySpark hide stack traces. PySpark reads it when a worker reports its
error; the worker then ends."""
_OURS: Final = re.compile(r"\bpybroker(?:\.\w+)*\.[A-Z]\w*: (.+)")

_BY_JAVA: Final = "An error occurred while calling "
"""The first line of a Java error for which PySpark has no class. The line gives no reason."""
_BY_PYTHON: Final = "An exception was thrown from the Python worker"
"""The first line of an error in the user's own function. The line gives no reason; the stack trace
that follows does."""
_RAISED: Final = re.compile(r"(?m)^(?!Traceback )([A-Za-z_][\w.]*(?:: .*)?)$")
_CAUSE: Final = re.compile(r"(?m)^Caused by: (?:[\w$]+\.)*([\w$]+: \S.*)$")
_OF_JAVA: Final = re.compile(r"(?m)^: (?:[\w$]+\.)*([\w$]+: \S.*)$")


_WORKER_ENDED: Final = re.compile(
    r"Python worker exited unexpectedly"
    r"|\bjava\.(?:io\.EOFException|io\.IOException: Stream closed|net\.SocketException: .*)\n"
    r"(?:\s+at .*\n)*?\s+at org\.apache\.spark\.api\.python\.PythonWorkerFactory\b"
)
"""Spark's messages for a worker process that has ended. The second message appears if the process
that starts workers has ended, too."""
_WORKER_GONE: Final = (
    "a Python process of Spark has ended unexpectedly (was it killed, or out of memory?)"
)


class ReadFailed(PybrokerError):
    """A range could not be read because the cluster did not answer. A repeated read may succeed."""


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """A context manager for code in a Spark worker. If the code raises a PybrokerError, the worker
    ends without printing the stack trace."""
    try:
        yield
    except PybrokerError as error:
        hide_stack_trace(error)
        raise


def hide_stack_trace(error: PybrokerError) -> PybrokerError:
    """Let this worker end without printing the stack trace of `error`. Return `error`."""
    os.environ[_HIDE] = "1"
    return error


def reason(error: BaseException) -> str:
    """Return one line: the message of a PybrokerError in Spark's error, or else the error's most
    specific line."""
    if isinstance(error, PybrokerError):
        return str(error)
    text = str(error)
    ours = _OURS.search(text)
    if ours is not None:
        return ours[1].strip()
    if _WORKER_ENDED.search(text):
        return _WORKER_GONE
    raised = _RAISED.findall(text.rpartition("\nTraceback (most recent call last):\n")[2])
    if raised and _BY_PYTHON in text:
        return str(raised[0])
    causes = _CAUSE.findall(text)
    if causes and text.startswith(_BY_JAVA):
        return str(causes[-1])
    first = _OF_JAVA.search(text)
    if first and text.startswith(_BY_JAVA):
        return first[1]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
