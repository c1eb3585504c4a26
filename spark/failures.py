"""How an error in one of Spark's Python workers reaches the user: as one line.

Spark shows a worker's error with the worker's call stack, which for the errors that we raise on
purpose says nothing that their message does not. So the stack is left out for those, and only for
those: a mistake of ours is still shown with its stack.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Final

from pybroker.errors import PybrokerError

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""PySpark looks for it when it writes the error; the worker ends after that."""
_OURS: Final = re.compile(r"\bpybroker(?:\.\w+)*\.[A-Z]\w*: (.+)")

_BY_JAVA: Final = "An error occurred while calling "
"""So begins an error of Java that PySpark has no name for: with a line that says nothing."""
_BY_PYTHON: Final = "An exception was thrown from the Python worker"
"""So begins an error of the user's own function: with a line that says nothing, and a stack."""
_RAISED: Final = re.compile(r"(?m)^(?!Traceback )([A-Za-z_][\w.]*(?:: .*)?)$")
_CAUSE: Final = re.compile(r"(?m)^Caused by: (?:[\w$]+\.)*([\w$]+: \S.*)$")
_OF_JAVA: Final = re.compile(r"(?m)^: (?:[\w$]+\.)*([\w$]+: \S.*)$")


_WORKER_ENDED: Final = re.compile(
    r"Python worker exited unexpectedly"
    r"|\bjava\.(?:io\.EOFException|io\.IOException: Stream closed|net\.SocketException: .*)\n"
    r"(?:\s+at .*\n)*?\s+at org\.apache\.spark\.api\.python\.PythonWorkerFactory\b"
)
"""So Spark says that a process is gone: with advice on how to debug one's own crash, or, if it was
waiting for work and the one that started it is gone, too, with nothing but how it noticed."""
_WORKER_GONE: Final = (
    "a Python process of Spark has ended unexpectedly (was it killed, is there memory for it?)"
)


class ReadFailed(PybrokerError):
    """A range could not be read because the cluster could not be asked; the same may work later."""


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """For code that runs in a worker: errors of ours leave it without their stack."""
    try:
        yield
    except PybrokerError as error:
        without_stack(error)
        raise


def without_stack(error: PybrokerError) -> PybrokerError:
    """The error, which is about to end this worker."""
    os.environ[_HIDE] = "1"
    return error


def reason(error: BaseException) -> str:
    """What went wrong, in one line: of an error of Spark the message of ours that caused it, if
    there is one; else the first line of the error's own."""
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
