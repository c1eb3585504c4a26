"""The format of log lines, and their destinations: standard output, and Kafka's files `server.log`,
`controller.log` and `state-change.log`.

Text from a peer can neither imitate a log line nor move the cursor of a terminal.
"""

from __future__ import annotations

import datetime
import importlib
import json
import logging
import logging.handlers
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from pybroker.applog.log_levels import ROOT, parse_level
from pybroker.errors import StartupError

log = logging.getLogger(__name__)

STATE_CHANGE: Final = "pybroker.state_change"
"""The logger of changes of single partitions: their leaders, ISRs, states and epochs. On standard
output only its warnings appear, unless its level is DEBUG."""
CONTROLLER: Final = "pybroker.coordinator.controller"
"""The name of the logger above all loggers of the controller's decisions."""
COMPONENTS: Final[Mapping[str, str]] = {STATE_CHANGE: "state-change", CONTROLLER: "controller"}
"""The name of the file, without .log, to which a logger and all loggers below it write, by the
logger's name. All other loggers write to `server`."""
SERVER: Final = "server"

MESSAGE_CHARS_MAX: Final = 8_192
"""The maximum length of a message in characters. The rest of a longer message is cut off, so that
no peer can fill the disk with one line."""
TRACE_CHARS_MAX: Final = 65_536
_QUIET_LIBRARIES: Final[Mapping[str, str]] = {"kazoo": "ERROR"}
_COMPLAINT_INTERVAL_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The values of the options `pybroker.log.*`."""

    directory: str | None = None
    """The directory of the three log files; None if lines go to standard output only."""
    as_json: bool = False
    level: str = "INFO"
    levels: Mapping[str, str] = field(default_factory=dict)
    """The levels of single loggers, by the logger's name. All other loggers have the level `level`.
    """
    file_bytes_max: int = 100 * 1024 * 1024
    """The maximum size of a log file (bytes). A line that would exceed it goes to a new file, and
    the old file is renamed to NAME.1."""
    files_kept: int = 10
    """How many renamed files (NAME.1, NAME.2, ...) of each log file are kept."""
    config_file: str | None = None
    """The path of a configuration file of Python's logging.config. If it is set, all other options
    have no effect."""


def start_logging(options: LogOptions, stream: IO[str] | None = None) -> None:
    """Write all log lines of the process as `options` say. `stream` replaces standard output. Raise
    StartupError if a log file cannot be written or the configuration file is invalid."""
    if options.config_file is not None:
        _configure(options.config_file)
        return
    formatter = JsonFormatter() if options.as_json else TextFormatter()
    console = sys.stdout if stream is None else stream
    reconfigure = getattr(console, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    handlers: list[logging.Handler] = [_Console(console)]
    if options.directory is not None:
        handlers += _files(options, options.directory)
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    for handler in handlers:
        handler.setFormatter(formatter)
        root.addHandler(handler)
    for name, level in {ROOT: options.level, **_QUIET_LIBRARIES, **options.levels}.items():
        logging.getLogger(None if name == ROOT else name).setLevel(parse_level(level))


def _configure(path: str) -> None:
    try:
        if not Path(path).is_file():
            raise FileNotFoundError("no such file")
        # Imported here, because few starts need it. The file may name any class, so any error may
        # occur.
        importlib.import_module("logging.config").fileConfig(path, disable_existing_loggers=False)
    except Exception as error:
        log.error(
            "the logging configuration cannot be used, the start fails file=%s error=%r",
            path,
            error,
        )
        raise StartupError(
            f"pybroker.log.config={path} cannot be used: "
            f"{type(error).__name__}: {' '.join(str(error).split())}; "
            "expected a file in the format of config/logging.ini"
        ) from error


def component_of(logger: str) -> str:
    """Return the file, without .log, to which a logger writes: `server`, `controller` or
    `state-change`."""
    for parent, component in COMPONENTS.items():
        if logger == parent or logger.startswith(parent + "."):
            return component
    return SERVER


def visible(text: str) -> str:
    """Return the text with every non-printable character written as an escape."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )


class TextFormatter(logging.Formatter):
    """Formats a line as Kafka does: `[time] LEVEL message (logger)`, in local time. The lines of a
    stack trace follow, each after a tab."""

    def format(self, record: logging.LogRecord) -> str:
        line = (
            f"[{self._time(record)}] {_level(record)} {visible(_message(record))} ({record.name})"
        )
        trace = _trace(self, record)
        return line + "".join(f"\n\t{visible(part)}" for part in trace.splitlines())

    @staticmethod
    def _time(record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        return f"{seconds},{int(record.msecs):03d}"


class JsonFormatter(logging.Formatter):
    """Formats a line as a JSON object: `time` (UTC), `level`, `component`, `logger`, `message`, and
    `exception` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        entry = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": _level(record),
            "component": component_of(record.name),
            "logger": record.name,
            "message": _message(record),
        }
        trace = _trace(self, record)
        if trace:
            entry["exception"] = trace
        return json.dumps(entry)


def _level(record: logging.LogRecord) -> str:
    return {"WARNING": "WARN", "CRITICAL": "FATAL"}.get(record.levelname, record.levelname)


def _message(record: logging.LogRecord) -> str:
    return _cut(record.getMessage(), MESSAGE_CHARS_MAX)


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if record.exc_info and record.exc_info[0] is not None:
        return _cut(formatter.formatException(record.exc_info), TRACE_CHARS_MAX)
    return ""


def _cut(text: str, chars_max: int) -> str:
    if len(text) <= chars_max:
        return text
    return f"{text[:chars_max]}... ({len(text) - chars_max} characters left out)"


class _Complaining:
    """A log handler that reports failed writes on standard error, at most once a minute."""

    _complained_at = -_COMPLAINT_INTERVAL_S

    def handleError(self, record: logging.LogRecord) -> None:
        del record
        now = time.monotonic()
        if now - self._complained_at < _COMPLAINT_INTERVAL_S:
            return
        self._complained_at = now
        try:
            sys.stderr.write(
                f"pybroker: log lines cannot be written and are lost: {sys.exc_info()[1]!r}\n"
            )
        except OSError:
            pass  # standard error fails, too: nothing is left to report to


class _Console(_Complaining, logging.StreamHandler[IO[str]]):
    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for a line below WARNING of the logger STATE_CHANGE, unless the logger's
        level is DEBUG or lower."""
        if record.name != STATE_CHANGE or record.levelno >= logging.WARNING:
            return True
        return logging.getLogger(STATE_CHANGE).isEnabledFor(logging.DEBUG)


class _File(_Complaining, logging.handlers.RotatingFileHandler):
    def __init__(self, path: Path, component: str, options: LogOptions) -> None:
        super().__init__(
            path,
            maxBytes=options.file_bytes_max,
            backupCount=options.files_kept,
            encoding="utf-8",
            errors="backslashreplace",
        )
        self._component = component

    def filter(self, record: logging.LogRecord) -> bool:
        return component_of(record.name) == self._component


def _files(options: LogOptions, directory: str) -> list[logging.Handler]:
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        return [
            _File(Path(directory) / f"{component}.log", component, options)
            for component in (SERVER, *COMPONENTS.values())
        ]
    except OSError as error:
        raise StartupError(
            f"log files cannot be written in {directory}: {error.strerror or error}; "
            "change pybroker.log.dir (--log-dir)"
        ) from error
