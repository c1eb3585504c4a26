"""The standard streams of a tool. If the reader of its output ends (`| head`), the tool ends
without an error message.

Python raises BrokenPipeError in that case, which is an OSError: code between the write and the end
of the tool would take it for the error of a file, and the flush at the end of the process would
fail, too. So a write to the descriptor raises an exception that such code does not catch.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

from pybroker.errors import PybrokerError

_STDERR: Final = 2


class OutputGone(SystemExit):
    """The reader of standard output has ended. This is a SystemExit, because asyncio passes it on
    from every task."""


class OutputFailed(PybrokerError):
    """A write to standard output failed, for instance because the disk is full."""


class _Output(io.FileIO):
    """Writes to a descriptor, and never closes it. After a failed write all later output is
    discarded. If the reader has ended, output to standard error is discarded, too, as for a program
    that SIGPIPE ends."""

    def write(self, data: Any, /) -> int:
        if not memoryview(data).nbytes:
            return 0  # click tests streams with an empty write, and ignores its exceptions
        try:
            return super().write(data)
        except BrokenPipeError:
            for descriptor in (self.fileno(), _STDERR):
                _discard(descriptor)
            raise OutputGone from None
        except BlockingIOError:
            raise
        except OSError as error:
            _discard(self.fileno())
            raise OutputFailed(
                f"standard output cannot be written: {error.strerror}; free the disk, or send the"
                " output to another file"
            ) from error


class _Complaints(io.FileIO):
    """Standard error of the tool, which continues if nothing reads its messages."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BlockingIOError:
            raise
        except OSError:
            _discard(self.fileno())
            return super().write(data)


@contextmanager
def ended_by_its_reader() -> Iterator[None]:
    """Return a context in which the tool writes to standard output. If the reader ends, the context
    ends without an error. Streams that are not files (in tests) are unchanged."""
    before = sys.stdout, sys.stderr
    sys.stdout = _replaced(sys.stdout, _Output)
    sys.stderr = _replaced(sys.stderr, _Complaints)
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OutputGone:
        pass
    finally:
        sys.stdout, sys.stderr = before


def _replaced(stream: TextIO, kind: type[io.FileIO]) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    try:
        raw = kind(stream.fileno(), "w", closefd=False)
    except OSError:
        return stream
    stream.flush()
    return io.TextIOWrapper(
        raw if stream.write_through else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _discard(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
