"""Tests of the list of tools, and of the code that turns an error into one line."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

from pybroker import __version__
from pybroker.__main__ import main
from pybroker.client.errors import ResponseError
from pybroker.errors import ConfigError, ErrorCode
from pybroker.records.builder import BatchBuilder
from pybroker.tool_list import TOOLS, tool_name
from pybroker.tools import _cli
from pybroker.tools._cli import Failure, Tool, client_options
from unit_tests.patience import PATIENCE_S

NOWHERE = ["--bootstrap-server", "127.0.0.1:1"]


@click.command("example", cls=Tool, error_prefix="Error : ")
@click.option("--how", required=True)
def example(how: str) -> int:
    """An example of a tool."""
    match how:
        case "fail":
            raise Failure("it cannot be done")
        case "config":
            raise ConfigError(["one", "two"])
        case "\udcff":
            return len(how.encode())
        case "place":
            raise ResponseError(ErrorCode.CORRUPT_MESSAGE, place="offset 4001 of t-0")
        case "broker":
            raise ResponseError(ErrorCode.INVALID_CONFIG, broker_sentence="It is no number.")
        case "mistake":
            raise ZeroDivisionError("division by zero")
        case "interrupt":
            raise KeyboardInterrupt
        case _:
            return int(how)


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["--how", "0"], 0, ""),
        (["--how", "3"], 3, ""),
        (["--how", "fail"], 1, "Error : it cannot be done\n"),
        (["--how", "config"], 1, "Error : one\nError : two\n"),
        (
            ["--how", "place"],
            1,
            f"Error : CORRUPT_MESSAGE: {ErrorCode.CORRUPT_MESSAGE.text} (offset 4001 of t-0)\n",
        ),
        (["--how", "broker"], 1, "Error : It is no number.\n"),
        (
            ["--how", "mistake"],
            1,
            "Error : ZeroDivisionError: division by zero\n"
            "example failed with an unexpected error; --debug prints the stack trace.\n",
        ),
        (["--how", "interrupt"], 130, ""),
        (
            ["--how", "\udcff"],
            1,
            "Error : an argument contains '\\udcff', which is not valid Unicode and cannot be"
            " sent\n",
        ),
        ([], 1, 'Missing required argument "[how]"\nTry example --help.\n'),
        (["--version"], 0, ""),
        (["--nosuch"], 1, "No such option '--nosuch'.\nTry example --help.\n"),
    ],
)
def test_exit_code_and_error_lines_of_a_tool(
    capsys: pytest.CaptureFixture[str], words: list[str], code: int, error: str
) -> None:
    assert _cli.run(example, words, "example") == code
    assert capsys.readouterr().err == error


def test_an_unexpected_error_of_the_broker_is_printed_with_its_stack_trace() -> None:
    @click.command("start")
    def broker() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _cli.run(broker, [], "pybroker start")


def test_stack_traces_are_shown_on_demand_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert _cli.run(example, ["--how", "fail", "--debug"], "example") == 1
    assert "Traceback" in capsys.readouterr().err


def test_options_of_a_client_come_from_flags_then_the_file_then_words(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("config") / "client.properties"
    path.write_text("linger.ms=2\nbatch.size=3\nbootstrap.servers=elsewhere:1\n")
    options = client_options(
        "h:1", str(path), ["batch.size=4"], linger_ms=1, acks=None, client_id="c"
    )
    assert options == {
        "linger_ms": "2",
        "batch_size": "4",
        "client_id": "c",
        "bootstrap_servers": "h:1",
        "leaderless_timeout_ms": 3_000,
    }


@pytest.mark.parametrize("word", ["topics", "kafka-topics", "kafka-topics.sh", "topics.sh"])
def test_tool_is_found_by_each_of_kafkas_command_names(word: str) -> None:
    assert tool_name(word) == "topics"


def test_help_names_every_tool(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text and tool.summary in text for name, tool in TOOLS.items())
    assert main([]) == 1
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.endswith(f"pybroker {__version__}\n")


def test_unknown_tool_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic"]) == 1
    assert "there is no tool topic" in capsys.readouterr().err


@pytest.mark.parametrize("name", list(TOOLS))
def test_every_listed_tool_prints_its_help(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert isinstance(importlib.import_module(TOOLS[name].module).command, click.Command)
    assert main([name, "--help"]) == 0
    assert f"Usage: pybroker {name}" in capsys.readouterr().out


def test_unreachable_cluster_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    properties = "bootstrap.timeout.ms=0"
    assert (
        main(["console-consumer", *NOWHERE, "--topic", "t", "--consumer-property", properties]) == 1
    )
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith(
        "Error: no broker could be reached (127.0.0.1:1: connection refused"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["preferred-replica-election", "--zookeeper", "ZOOKEEPER"],
        ["configs", "--describe", "--topic", "t", "--zookeeper", "ZOOKEEPER"],
        ["zookeeper-shell", "ZOOKEEPER", "ls", "/"],
    ],
    ids=lambda words: words[0],
)
def test_refused_zookeeper_connection_is_reported_at_once(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{closed.getsockname()[1]}"
        assert main([word.replace("ZOOKEEPER", place) for word in words]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert place in line and "refused" in line.lower() and "that the server runs" in line


def test_only_the_module_of_the_tool_is_loaded() -> None:
    code = (
        "import sys; from pybroker.__main__ import main; main(['--version']);"
        "assert not {'click', 'asyncio', 'pybroker.tools'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(("tool", "wait"), [("start", True), ("topics", False)])
def test_signals_are_blocked_while_start_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tool: str, wait: bool
) -> None:
    ends = {signal.SIGTERM, signal.SIGINT}
    held: list[bool] = []
    load = importlib.import_module

    def loading(name: str) -> ModuleType:
        held.append(ends <= signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        return load(name)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with monkeypatch.context() as patched:
        patched.setattr(importlib, "import_module", loading)
        assert main([tool, "--help"]) == 0
    assert held == [wait, wait]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def ended_tool(words: list[str], *, stdout: int, stderr: int = subprocess.PIPE) -> tuple[int, str]:
    """Run a tool whose standard output is the descriptor. Return its exit code and standard
    error."""
    done = subprocess.run(
        [sys.executable, "-m", "pybroker", *words],
        stdout=stdout,
        stderr=stderr,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr or ""


@pytest.fixture
def unread() -> Iterator[int]:
    """Return the write end of a pipe whose read end is closed."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["topics", "--help"],
        ["topics", "--version"],
        ["etl", "gc", "JOB", "--dry-run"],
    ],
    ids=lambda words: words[0],
)
def test_a_tool_ends_silently_when_its_output_pipe_is_closed(
    tmp_path: Path, unread: int, words: list[str]
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: j\nsource: {bootstrap.servers: 'h:1', topics: [t]}\n"
        f"decode: {{value: {{format: raw}}}}\nsink: {{path: {tmp_path / 'out'}}}\n"
    )
    words = [str(job) if word == "JOB" else word for word in words]
    assert ended_tool(words, stdout=unread) == (0, "")


def test_a_tool_ends_silently_in_the_middle_of_a_file(tmp_path: Path) -> None:
    log = tmp_path / f"{0:020}.log"
    builder = BatchBuilder()
    for _ in range(5000):
        builder.append(5, b"key", b"value", ())
    log.write_bytes(builder.build())
    words = ["dump-log", "--files", str(log), "--print-data-log"]
    with subprocess.Popen(
        [sys.executable, "-m", "pybroker", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as tool:
        assert tool.stdout is not None and tool.stderr is not None
        assert tool.stdout.readline() == f"Dumping {log}\n".encode()
        tool.stdout.close()  # the rest of the output does not fit into the pipe
        assert tool.stderr.read() == b""
        assert tool.wait(PATIENCE_S) == 0


_IN_A_TASK = """
import asyncio, sys
from pybroker.host.standard_output import ended_by_its_reader

async def work():
    try:
        print("words", flush=True)
    finally:
        print("the end", file=sys.stderr)

async def main():
    await asyncio.ensure_future(work())

with ended_by_its_reader():
    asyncio.run(main())
"""


def test_a_task_that_writes_to_a_closed_pipe_ends_the_tool_silently(unread: int) -> None:
    """asyncio logs an error for a task whose exception was never retrieved; the tool must retrieve
    it."""
    done = subprocess.run(
        [sys.executable, "-c", _IN_A_TASK], stdout=unread, stderr=subprocess.PIPE, check=True
    )
    assert done.stderr == b""


def test_a_tool_continues_when_its_standard_error_is_closed(unread: int) -> None:
    code, _ = ended_tool(["topics", "--nosuch"], stdout=subprocess.DEVNULL, stderr=unread)
    assert code == 1


@pytest.mark.parametrize("words", [["--help"], ["topics", "--help"]])
def test_full_disk_at_standard_output_gives_one_error_line(words: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        code, error = ended_tool(words, stdout=full.fileno())
    assert code == 1
    sentence = (
        "standard output cannot be written: No space left on device; send the output to another"
        " file, or free disk space if the disk is full\n"
    )
    assert error.endswith(sentence) and error.count("\n") == 1
