"""Tests of the tools, run as by an operator, against a running broker."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from dataclasses import dataclass

import pytest

from integration_tests.broker import Broker, pybroker_command
from unit_tests.patience import PATIENCE_S

FIFTY_LINES = b"".join(b"line %d\n" % number for number in range(50))


@dataclass(frozen=True)
class Result:
    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()


class Shell:
    """A shell that runs tools with the broker's address."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def command(self, tool: str, *words: str) -> list[str]:
        return pybroker_command(tool, "--bootstrap-server", self._bootstrap, *words)

    def __call__(self, tool: str, *words: str, stdin: bytes = b"") -> Result:
        done = subprocess.run(
            self.command(tool, *words),
            input=stdin,
            capture_output=True,
            check=False,
            timeout=PATIENCE_S,
        )
        return Result(done.returncode, done.stdout, done.stderr.decode())

    def consume(self, topic: str, *words: str) -> Result:
        return self("console-consumer", "--topic", topic, "--from-beginning", *words)


@pytest.fixture
def shell(broker: Broker) -> Shell:
    return Shell(broker.bootstrap)


def test_a_topic_is_created_changed_and_deleted(shell: Shell, topic: str) -> None:
    options = ["--partitions", "2", "--config", "retention.ms=5000"]
    made = shell("topics", "--create", "--topic", topic, *options)
    assert (made.code, made.lines[-1]) == (0, f"Created topic {topic}.")
    again = shell("topics", "--create", "--topic", topic)
    assert again.code == 1
    assert re.fullmatch(
        rf"Error while executing topic command : Topic '{topic}' already exists\.\n", again.err
    )
    assert shell("topics", "--create", "--topic", topic, "--if-not-exists").code == 0
    assert topic in shell("topics", "--list").lines
    header, first, second = shell("topics", "--describe", "--topic", topic).lines
    assert re.match(
        rf"Topic: {topic}\tTopicId: [\w-]{{22}}\tPartitionCount: 2\tReplicationFactor: 1\t"
        r"Configs: ",
        header,
    )
    for number, line in enumerate([first, second]):
        pattern = (
            rf"\tTopic: {topic}\tPartition: {number}\tLeader: (\d+)\tReplicas: \1\tIsr: \1"
            r"\tElr: N/A\tLastKnownElr: N/A"
        )
        assert re.fullmatch(pattern, line)
    assert shell("topics", "--describe", "--unavailable-partitions").lines == []
    assert shell("topics", "--delete", "--topic", topic).code == 0
    assert topic not in shell("topics", "--list").lines
    gone = shell("topics", "--describe", "--topic", topic)
    assert gone.err == (
        f"Error while executing topic command : Topic '{topic}' does not exist as expected\n"
    )


def test_console_tools_produce_and_consume_lines(shell: Shell, topic: str) -> None:
    shell("topics", "--create", "--topic", topic, "--partitions", "1")
    words = ["--property", "parse.key=true", "--property", "parse.headers=true"]
    sent = shell("console-producer", "--topic", topic, *words, stdin=b"h:1\tk\tv\nh:2\tl\tw \xff\n")
    assert (sent.code, sent.out, sent.err) == (0, b"", "")
    plain = shell.consume(topic, "--max-messages", "2")
    assert (plain.code, plain.out) == (0, b"v\nw \xff\n")
    assert plain.err == "Processed a total of 2 messages\n"
    everything = [
        f"--property=print.{what}=true" for what in ("key", "offset", "partition", "headers")
    ]
    rich = shell.consume(topic, "--timeout-ms", "5000", *everything)
    assert rich.out == b"Partition:0\tOffset:0\th:1\tk\tv\nPartition:0\tOffset:1\th:2\tl\tw \xff\n"
    last = shell("console-consumer", "--topic", topic, "--partition", "0", "--offset", "1",
                 "--max-messages", "1", "--format", "json")  # fmt: skip
    assert json.loads(last.out)["key"] == "l"


@pytest.mark.parametrize(
    "words",
    [
        ["--sync"],
        ["--compression-codec"],
        ["--compression-codec", "zstd", "--request-required-acks", "1"],
        ["--batch-size", "100", "--timeout", "0"],
    ],
)
def test_a_producer_with_options(shell: Shell, topic: str, words: list[str]) -> None:
    shell("topics", "--create", "--topic", topic)
    assert shell("console-producer", "--topic", topic, *words, stdin=FIFTY_LINES).code == 0
    assert shell.consume(topic, "--max-messages", "50") == Result(
        0, FIFTY_LINES, "Processed a total of 50 messages\n"
    )


def test_lines_sent_with_acks_0_are_stored_unless_the_broker_logs_a_refusal(
    shell: Shell, broker: Broker, topic: str
) -> None:
    """A broker whose session has expired does not know whether it still leads. It rejects the
    records and closes the connection, and a producer with acks=0 does not retry.
    """
    shell("topics", "--create", "--topic", topic, "--partitions", "1")
    refusals_before = -1
    while shell("get-offsets", "--topic", topic).lines == [f"{topic}:0:0"]:
        refusals = broker.log_text.count("a Produce request with acks=0 could not be appended")
        assert refusals > refusals_before
        refusals_before = refusals
        words = ["--producer-property", "acks=0"]
        assert shell("console-producer", "--topic", topic, *words, stdin=FIFTY_LINES).code == 0
    assert shell.consume(topic, "--max-messages", "50") == Result(
        0, FIFTY_LINES, "Processed a total of 50 messages\n"
    )


def test_offsets(shell: Shell, topic: str) -> None:
    shell("topics", "--create", "--topic", topic, "--partitions", "2")
    shell("console-producer", "--topic", topic, stdin=b"a\nb\nc\n")
    chosen = ["--topic", topic]
    total = sum(int(line.rpartition(":")[2]) for line in shell("get-offsets", *chosen).lines)
    assert total == 3
    assert shell("get-offsets", *chosen, "--time", "earliest").lines == [
        f"{topic}:0:0",
        f"{topic}:1:0",
    ]
    assert shell("get-offsets", *chosen, "--time", "9999999999999").lines == []
    one = shell("get-offsets", "--topic-partitions", f"{topic}:1", "--time", "-2")
    assert one.lines == [f"{topic}:1:0"]
    none = shell("get-offsets", "--topic", "nosuch")
    assert (none.code, none.err) == (
        1,
        "Error occurred: Could not match any topic-partitions with the specified filters\n",
    )


@pytest.mark.usefixtures("ctrl_c_heeded")
@pytest.mark.parametrize(("tool", "code"), [("console-producer", 130), ("console-consumer", 130)])
def test_ctrl_c_ends_at_once_without_a_trace(
    shell: Shell, topic: str, tool: str, code: int
) -> None:
    shell("topics", "--create", "--topic", topic)
    shell("console-producer", "--topic", topic, stdin=b"first\n")
    words = ["--from-beginning"] if tool == "console-consumer" else []
    process = subprocess.Popen(
        shell.command(tool, "--topic", topic, *words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        if tool == "console-consumer":
            assert process.stdout.readline() == b"first\n"
        else:
            process.stdin.write(b"second\n")
            process.stdin.flush()
            assert shell.consume(topic, "--max-messages", "2").lines == ["first", "second"]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code
        assert b"Traceback" not in err
    finally:
        process.kill()


def test_a_closed_output_pipe_is_not_an_error(shell: Shell, topic: str) -> None:
    shell("topics", "--create", "--topic", topic)
    shell("console-producer", "--topic", topic, stdin=b"x" * 100 + b"\n" + b"y\n" * 100_000)
    process = subprocess.Popen(
        shell.command("console-consumer", "--topic", topic, "--from-beginning"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"xxxxx"
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    finally:
        process.kill()
        if process.stderr is not None:
            process.stderr.close()
