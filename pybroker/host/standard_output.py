"""The standard streams of a tool. If the program that reads the output ends (`| head`), the tool
ends, too, without an error message. A write then raises OutputGone. It does not raise
BrokenPipeError: the tool could mistake that OSError for an error of a file that it reads or
writes."""

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
    """The program that read standard output has ended. As a SystemExit, it also ends the event loop
    when raised in a task."""


class OutputFailed(PybrokerError):
    """A write to standard output failed, for instance because the disk is full. If the program that
    reads standard output has ended, OutputGone is raised instead."""


class _Output(io.FileIO):
    """Standard output. After a failed write, the stream discards all later output. If the reader of
    the output has ended, standard error is discarded, too."""

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
                f"standard output cannot be written: {error.strerror}; send the output to another"
                " file, or free disk space if the disk is full"
            ) from error


class _Complaints(io.FileIO):
    """A tool's standard error stream. If the write of a message fails, the stream discards the
    message and all later messages."""

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
    """Return a context in which a tool may write to standard output. In the context, `sys.stdout`
    and `sys.stderr` are replaced. If the program that reads the output ends, the context ends
    early, without an error."""
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
