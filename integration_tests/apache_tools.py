"""Apache's command line tools and ours, called with the same arguments. Tests compare the outputs
line by line.

Our tools promise the texts and exit codes of Kafka's tools. The only allowed differences are in
`integration_tests.differences`.

    @pytest.fixture(scope="module")
    def tools(jars: str, shared_broker: Broker) -> Iterator[Tools]:
        with Tools(shared_broker.bootstrap) as tools:
            yield tools

    def test_get_offsets(tools: Tools, topic: str) -> None:
        tools.same("get-offsets", "--topic", topic)               # stdout, exit code, same lines
        tools.same("topics", "--describe", "--topic", "nosuch",   # both fail, and both say this
                   says="does not exist as expected")
        tools.same("topics", "--list", allow=["name of a row of DIFFERENCES"])
        tools.same("log-dirs", "--describe", mask=[r"\\d+ ms"])    # what differs from run to run

For a command that changes something, call the two tools one after the other and compare their
results:

        theirs = tools.apache("topics", "--create", "--topic", "a")
        ours = tools.ours("topics", "--create", "--topic", "b")
        assert_same(theirs, ours, mask=["a|b"])

All calls of one `Tools` share one JVM (about two seconds to start, then some ten milliseconds a
call), so share the object in a module. `--bootstrap-server` is added unless the arguments name a
server or the tool needs none (`dump-log`, `zookeeper-shell`). The jars come from
`integration_tests.maven`; the `jars` fixture skips the test if they are not available.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from integration_tests import maven
from integration_tests.differences import DIFFERENCES
from integration_tests.process import ChildProcess
from pybroker.__main__ import main
from pybroker.tool_list import TOOLS
from unit_tests.patience import PATIENCE_MS, PATIENCE_S, WaitFailed

CLASSES: Final[Mapping[str, str]] = {
    "topics": "org.apache.kafka.tools.TopicCommand",
    "configs": "kafka.admin.ConfigCommand",
    "broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
    "zookeeper-shell": "org.apache.zookeeper.ZooKeeperMainWithTlsSupportForKafka",
    "producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "dump-log": "kafka.tools.DumpLogSegments",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
}
"""Name of our tool -> the class that Apache's script runs."""

WITHOUT_BOOTSTRAP: Final = frozenset({"dump-log", "zookeeper-shell", "producer-perf-test"})
SERVER_FLAGS: Final = ("--bootstrap-server", "--broker-list", "--zookeeper")
_SOURCE: Final = Path(__file__).parent / "java" / "Tools.java"
_TRACE: Final = re.compile(r"\s+at \S+\(.*\)$|\s*\.\.\. \d+ more$|Caused by: |\[.*\] (WARN|ERROR) ")
_MASKED: Final = "#"


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a tool: exit code and output."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Return the lines of standard output, without blank lines at the end."""
        return self.out.splitlines()

    @property
    def complaint(self) -> str:
        """Return standard error without Java's stack traces and log lines, and standard output."""
        kept = [line for line in self.err.splitlines() if not _TRACE.match(line)]
        return "\n".join([*kept, self.out])


PATIENT: Final = {"consumer-groups": ("--timeout", str(PATIENCE_MS))}
"""A longer timeout for Apache's tool, whose default is five seconds."""


class ApacheTools:
    """One JVM that runs Apache's tools in its own process, which `close()` ends."""

    def __init__(self, bootstrap: str | None = None) -> None:
        self._bootstrap = bootstrap
        self._calls = 0
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        self._process = ChildProcess(
            [
                *(maven.java(), "-Xmx512m", "-XX:TieredStopAtLevel=1", quiet),
                *("-cp", maven.class_path(), str(_SOURCE)),
            ],
            interactive=True,
        )

    def __call__(self, tool: str, *words: str, stdin: str = "") -> Ran:
        arguments = with_server(tool, words, self._bootstrap)
        self._calls += 1
        start = f"RESULT {self._calls} "
        command = {
            "id": self._calls,
            "main": CLASSES[tool],
            "arguments": arguments,
            "stdin": stdin,
        }
        answer = self._process.ask(json.dumps(command), f"^{start}")
        result = json.loads(answer.removeprefix(start))
        return Ran((tool, *arguments), result["code"], result["out"], result["err"])

    def close(self) -> None:
        """Idempotent."""
        self._process.close()


class OurTools:
    """Our tools (`pybroker TOOL`). Each call runs in a process that is forked from this process
    with its loaded modules, which saves most of the time. (Other tests start the program itself.)
    """

    def __init__(self, bootstrap: str | None = None) -> None:
        self._bootstrap = bootstrap
        self._processes = multiprocessing.get_context("forkserver")
        modules = ["pytest", __name__, *(tool.module for tool in TOOLS.values())]
        self._processes.set_forkserver_preload(modules)

    def __call__(self, tool: str, *words: str, stdin: str = "") -> Ran:
        arguments = with_server(tool, words, self._bootstrap)
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / name for name in ("in", "out", "err")]
            files[0].write_text(stdin, encoding="utf-8")
            child = self._processes.Process(target=_run, args=([tool, *arguments], files))
            child.start()
            child.join(PATIENCE_S)
            if child.exitcode is None:
                child.kill()
                child.join()
                raise WaitFailed(f"pybroker {tool} {arguments} runs for {PATIENCE_S} s")
            out, err = (file.read_text(encoding="utf-8") for file in files[1:])
        return Ran((tool, *arguments), child.exitcode, out, err)


def _run(words: Sequence[str], files: Sequence[Path]) -> None:
    """Run the tool in the child process, with these files as its standard streams."""
    flags = (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT)
    for number, (file, flag) in enumerate(zip(files, flags, strict=True)):
        os.dup2(os.open(file, flag), number)
    sys.stdin = _text_stream(0, "r")
    sys.stdout = _text_stream(1, "w")
    sys.stderr = _text_stream(2, "w")
    sys.exit(main(words))


def _text_stream(number: int, mode: str) -> io.TextIOWrapper:
    raw = io.FileIO(number, mode, closefd=False)
    buffered = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    return io.TextIOWrapper(buffered, encoding="utf-8")


class Tools:
    """Apache's tools and our tools on one broker (None: only tools that need no broker)."""

    def __init__(self, bootstrap: str | None = None) -> None:
        self.apache = ApacheTools(bootstrap)
        self.ours = OurTools(bootstrap)

    def same(
        self,
        tool: str,
        *words: str,
        stdin: str = "",
        says: str | Collection[str] = (),
        allow: Iterable[str] = (),
        mask: Iterable[str] = (),
        in_any_order: bool = False,
    ) -> Ran:
        """Call both tools with the same arguments, compare the results (`assert_same`), and return
        our result.
        """
        theirs = self.apache(tool, *words, stdin=stdin)
        ours = self.ours(tool, *words, stdin=stdin)
        assert_same(theirs, ours, says=says, allow=allow, mask=mask, in_any_order=in_any_order)
        return ours

    def close(self) -> None:
        self.apache.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def assert_same(
    theirs: Ran,
    ours: Ran,
    *,
    says: str | Collection[str] = (),
    allow: Iterable[str] = (),
    mask: Iterable[str] = (),
    in_any_order: bool = False,
) -> None:
    """Check that the exit codes are equal, and the lines of standard output after removing the
    differences named by `allow` and the matches of `mask`. With `in_any_order` the lines are sorted
    first (for the order of Java's hash maps). Each text in `says` must occur in both outputs, on
    either stream: this compares error messages, to which Java adds stack traces. Our tool must not
    print a stack trace.
    """
    shown = f"\nApache {theirs}\nours   {ours}"
    assert ours.code == theirs.code, shown
    their_lines, our_lines = theirs.lines, ours.lines
    for name in allow:
        their_lines = DIFFERENCES[name].apache(their_lines)
        our_lines = DIFFERENCES[name].ours(our_lines)
    for pattern in mask:
        their_lines = [re.sub(pattern, _MASKED, line) for line in their_lines]
        our_lines = [re.sub(pattern, _MASKED, line) for line in our_lines]
    if in_any_order:
        their_lines, our_lines = sorted(their_lines), sorted(our_lines)
    texts = [says] if isinstance(says, str) else says
    if not texts or ours.code == 0:
        assert our_lines == their_lines, shown
    for text in texts:
        assert text in theirs.complaint, f"Apache does not say {text!r}{shown}"
        assert text in ours.complaint, f"ours does not say {text!r}{shown}"
    assert "Traceback" not in ours.err, shown


def with_server(tool: str, words: Sequence[str], bootstrap: str | None) -> list[str]:
    """Return the arguments, with the broker's address in front unless they name a server."""
    named = any(word.partition("=")[0] in SERVER_FLAGS for word in words)
    if bootstrap is None or named or tool in WITHOUT_BOOTSTRAP:
        return list(words)
    return ["--bootstrap-server", bootstrap, *PATIENT.get(tool, ()), *words]
