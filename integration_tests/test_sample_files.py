"""Tests that the files of `config/` work together unchanged, except for ports and directories."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from integration_tests.broker import PybrokerProcess, pybroker_command
from integration_tests.process import ChildProcess, answers, free_port
from integration_tests.wire_client import Connection, create_topic, metadata
from unit_tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.ours

CONFIG: Final = Path(__file__).resolve().parent.parent / "config"


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a ZooKeeper server with zookeeper.properties."""
    folder = tmp_path_factory.mktemp("zookeeper")
    port = free_port()
    text = (CONFIG / "zookeeper.properties").read_text()
    text, ports = re.subn("(?m)^clientPort=.*", f"clientPort={port}", text)
    text, directories = re.subn("(?m)^dataDir=.*", f"dataDir={folder}/data", text)
    assert (ports, directories) == (1, 1)
    path = folder / "zookeeper.properties"
    path.write_text(text)
    server = ChildProcess(pybroker_command("kafka-zookeeper-server-start.sh", str(path)))
    try:
        wait_until(lambda: answers(port) or not server.running, what="ZooKeeper answers")
        assert server.running, server.output
        yield f"127.0.0.1:{port}"
    finally:
        server.close()


@pytest.fixture(scope="module")
def broker(zookeeper: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PybrokerProcess]:
    started = PybrokerProcess(
        tmp_path_factory.mktemp("broker") / "data",
        zookeeper=zookeeper,
        arguments=(str(CONFIG / "server.properties"),),
    )
    try:
        started.start()
        yield started
    finally:
        started.close()


def test_the_broker_starts_with_its_sample_file(broker: PybrokerProcess) -> None:
    assert "WARN" not in broker.log_text
    assert broker.zookeepers() == []
    with Connection(broker.bootstrap) as connection:
        assert [node.node_id for node in metadata(connection).brokers] == [0]


def test_the_tools_accept_the_sample_files_of_clients(broker: PybrokerProcess, topic: str) -> None:
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, topic)
    where = ("--bootstrap-server", broker.bootstrap, "--topic", topic)
    producer = str(CONFIG / "producer.properties")
    consumer = str(CONFIG / "consumer.properties")
    run("console-producer", *where, "--producer.config", producer, text="one\ntwo\n")
    read = run(
        "console-consumer", *where, "--partition", "0", "--offset", "earliest",
        "--max-messages", "2", "--consumer.config", consumer,
    )  # fmt: skip
    assert read.splitlines() == ["one", "two"]


def run(tool: str, *words: str, text: str = "") -> str:
    """Run the tool. Return its standard output, and check that it prints no warnings on standard
    error.
    """
    done = subprocess.run(
        pybroker_command(tool, *words),
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARN" not in done.stderr
    return done.stdout
