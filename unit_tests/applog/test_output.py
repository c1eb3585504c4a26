"""Tests of log lines: an event is one line whatever its text, as text and as JSON, in the right
file."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.applog.output import (
    MESSAGE_CHARS_MAX,
    STATE_CHANGE,
    JsonFormatter,
    LogOptions,
    TextFormatter,
    component_of,
    start_logging,
)
from pybroker.errors import StartupError

LINE = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\] INFO "
HOSTILE = {
    "a second line": ("a\nINFO [KafkaServer id=1] started", r"a\nINFO [KafkaServer id=1] started"),
    "a return": ("a\rb", r"a\rb"),
    "an escape sequence": ("\x1b[2Jcleared", r"\x1b[2Jcleared"),
    "a bell and a null": ("\x07\x00", r"\x07\x00"),
    "C1 control characters": ("\x9b31m", r"\x9b31m"),
    "separators of lines": ("a\u2028b\u2029c\x85d", r"a\u2028b\u2029c\x85d"),
    "turned direction": ("\u202egpj", r"\u202egpj"),
    "a lone surrogate": ("\udcff", r"\udcff"),
}


@pytest.fixture(autouse=True)
def _loggers_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {
        name: logger.level
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger)
    }
    yield
    for handler in root.handlers[:]:
        if handler not in handlers:
            root.removeHandler(handler)
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, was in levels.items():
        logging.getLogger(name).setLevel(was)


def record(
    message: str, *args: object, logger: str = "pybroker.server", error: BaseException | None = None
) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord(logger, logging.INFO, "file.py", 1, message, args, info)


def printed(options: LogOptions) -> io.StringIO:
    stream = io.StringIO()
    start_logging(options, stream)
    return stream


@pytest.mark.parametrize(("sent", "shown"), HOSTILE.values(), ids=HOSTILE)
def test_text_of_a_peer_stays_in_its_line(sent: str, shown: str) -> None:
    hostile = record("connection closed client=%s", sent)
    text = TextFormatter().format(hostile)
    assert re.fullmatch(
        LINE + re.escape(f"connection closed client={shown} (pybroker.server)"), text
    )
    encoded = JsonFormatter().format(hostile)
    assert encoded.isprintable() and encoded.isascii()
    assert json.loads(encoded)["message"] == f"connection closed client={sent}"


def test_ordinary_text_is_left_as_it_is() -> None:
    assert "topic=grüße-日本 [x]" in TextFormatter().format(record("topic=%s", "grüße-日本 [x]"))


def test_the_started_line_equals_kafkas() -> None:
    line = TextFormatter().format(record("[KafkaServer id=%d] started", 7))
    assert re.fullmatch(r".*\[KafkaServer id=\d+\] started.*", line)


def test_a_very_long_message_is_cut() -> None:
    line = TextFormatter().format(record("x" * (MESSAGE_CHARS_MAX + 5)))
    assert len(line) < MESSAGE_CHARS_MAX + 200 and "5 characters left out" in line


def fault() -> BaseException:
    try:
        raise ValueError("bad\n[2026-01-01 00:00:00,000] INFO forged (pybroker.server)\x1b[0m")
    except ValueError as error:
        return error


def test_a_stack_trace_cannot_begin_a_line_of_its_own() -> None:
    first, *trace = TextFormatter().format(record("failed", error=fault())).split("\n")
    assert re.match(LINE, first)
    assert trace and all(line.startswith("\t") and line[1:].isprintable() for line in trace)


def test_json_keeps_an_exception_inside_its_object() -> None:
    line = JsonFormatter().format(record("failed", error=fault()))
    assert "\n" not in line
    entry = json.loads(line)
    assert entry["exception"].startswith("Traceback") and "forged" in entry["exception"]
    assert set(entry) == {"time", "level", "component", "logger", "message", "exception"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry["time"])


@pytest.mark.parametrize(
    ("logger", "component"),
    [
        ("pybroker.server.connection", "server"),
        ("kazoo.client", "server"),
        ("pybroker.coordinator.controller.term", "controller"),
        ("pybroker.coordinator.controllers", "server"),
        ("pybroker.state_change", "state-change"),
    ],
)
def test_each_logger_has_its_log(logger: str, component: str) -> None:
    assert component_of(logger) == component


def test_lines_of_single_partitions_are_in_their_file_and_not_on_the_console(
    tmp_path: Path,
) -> None:
    console = printed(LogOptions(directory=str(tmp_path), levels={STATE_CHANGE: "INFO"}))
    logger = logging.getLogger(STATE_CHANGE)
    logger.info("partition=%s", "orders-1")
    logger.warning("partition=%s", "orders-2")
    logger.setLevel(logging.DEBUG)  # as kafka-configs does while the broker runs
    logger.info("partition=%s", "orders-3")
    told = re.findall(r"orders-\d", console.getvalue())
    kept = re.findall(r"orders-\d", (tmp_path / "state-change.log").read_text())
    assert told == ["orders-2", "orders-3"]
    assert kept == ["orders-1", "orders-2", "orders-3"]


def test_files_take_their_lines_and_the_console_all(tmp_path: Path) -> None:
    console = printed(LogOptions(directory=str(tmp_path / "logs")))
    logging.getLogger("pybroker.broker.app").info("one")
    logging.getLogger("pybroker.coordinator.controller.term").info("two")
    logging.getLogger("pybroker.state_change").warning("three")
    for handler in logging.getLogger().handlers:
        handler.flush()
    assert [word in console.getvalue() for word in ("one", "two", "three")] == [True] * 3
    for name, word in (("server", "one"), ("controller", "two"), ("state-change", "three")):
        lines = (tmp_path / "logs" / f"{name}.log").read_text().splitlines()
        assert len(lines) == 1 and word in lines[0]


def test_a_full_file_is_rotated_and_the_oldest_are_deleted(tmp_path: Path) -> None:
    printed(LogOptions(directory=str(tmp_path), file_bytes_max=4096, files_kept=2))
    for number in range(400):
        logging.getLogger("pybroker.broker.app").info("line=%d", number)
    names = sorted(path.name for path in tmp_path.glob("server.log*"))
    assert names == ["server.log", "server.log.1", "server.log.2"]
    assert all(path.stat().st_size <= 4096 for path in tmp_path.glob("server.log*"))


def test_levels_apply_to_all_and_to_single_loggers() -> None:
    console = printed(LogOptions(level="WARN", levels={"pybroker.broker.app": "DEBUG"}))
    logging.getLogger("pybroker.broker.app").debug("heard")
    logging.getLogger("pybroker.other").info("not heard")
    logging.getLogger("pybroker.other").warning("heard, too")
    words = [line.split("] ", 1)[1] for line in console.getvalue().splitlines()]
    assert words == ["DEBUG heard (pybroker.broker.app)", "WARN heard, too (pybroker.other)"]


def test_every_line_can_be_json() -> None:
    console = printed(LogOptions(as_json=True))
    logging.getLogger("pybroker.state_change").warning("partition=%s", "t-0")
    entry = json.loads(console.getvalue())
    assert (entry["level"], entry["component"]) == ("WARN", "state-change")
    assert entry["message"] == "partition=t-0"


def test_a_log_directory_that_cannot_be_created_fails_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match=r"pybroker\.log\.dir"):
        start_logging(LogOptions(directory=str(tmp_path / "file" / "logs")), io.StringIO())


@pytest.mark.parametrize("content", [None, "no sections", "[loggers]\nkeys = root\n"])
def test_an_invalid_configuration_file_fails_the_start(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "logging.ini"
    if content is not None:
        path.write_text(content)
    with pytest.raises(StartupError, match=r"pybroker\.log\.config=.*cannot be used") as refused:
        start_logging(LogOptions(config_file=str(path)), io.StringIO())
    assert "\n" not in str(refused.value)


def test_the_sample_file_writes_kafkas_three_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = Path("config/logging.ini").absolute()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    start_logging(LogOptions(config_file=str(sample)))
    try:
        logging.getLogger("pybroker.broker.app").info("one\ntwo")
        logging.getLogger("pybroker.state_change").info("three")
        logging.getLogger("pybroker.coordinator.controller.controller").info("four")
        found = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    finally:
        for name in ("pybroker.state_change", "pybroker.coordinator.controller"):
            logger = logging.getLogger(name)
            logger.propagate = True
            for handler in logger.handlers[:]:
                logger.removeHandler(handler)
                handler.close()
    assert re.fullmatch(LINE + r"one\\ntwo \(pybroker.broker.app\)\n", found["server.log"])
    assert "three" in found["state-change.log"] and "four" in found["controller.log"]
