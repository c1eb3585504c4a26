"""Tests of `pybroker start --brokers 3`: one command starts three brokers and one ZooKeeper, and
leaves no process behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

import pytest

from integration_tests.apache import ApacheZooKeeper
from integration_tests.broker import PybrokerProcess, pybroker_command
from integration_tests.process import ChildProcess, processes_using
from integration_tests.wire_client import Connection, metadata
from pybroker.client import Admin, Consumer, Producer, TopicPartition
from pybroker.host.process import READY_VARIABLE, ReadySocket
from pybroker.testing import sockets
from unit_tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.ours

ALL_STARTED: Final = "all 3 brokers started"


class Starter(Protocol):
    """A function that starts the command, which is killed after the test."""

    def __call__(self, *words: str, environment: dict[str, str] | None = None) -> ChildProcess: ...


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def port() -> int:
    """Return the first of three consecutive free ports."""
    return sockets.free_row(3)


@pytest.fixture
def start(data: Path, port: int) -> Iterator[Starter]:
    started: list[ChildProcess] = []

    def run(*words: str, environment: dict[str, str] | None = None) -> ChildProcess:
        command = pybroker_command(
            "start", "--brokers", "3", "--data", str(data), "--port", str(port),
            "--override", "pybroker.http.listener=", *words,
        )  # fmt: skip
        started.append(ChildProcess(command, environment={**os.environ, **(environment or {})}))
        return started[-1]

    yield run
    for process in started:
        process.close()
    wait_until(lambda: not processes_using(data), what="all processes of the command have ended")


def known_brokers(port: int) -> set[int]:
    """Return the ids of the brokers in a broker's metadata."""
    with Connection(f"127.0.0.1:{port}") as connection:
        return {broker.node_id for broker in metadata(connection).brokers}


def pid_of(process: ChildProcess, broker: int, *, launch: int = 1) -> int:
    """Return the pid of a broker's process number `launch`."""
    pattern = rf"launched broker={broker} pid=(\d+)"
    wait_until(
        lambda: len(re.findall(pattern, process.output)) >= launch, what=f"broker {broker} runs"
    )
    return int(re.findall(pattern, process.output)[launch - 1])


def order_of(text: str, *patterns: str) -> None:
    """Check that the first matches of the patterns are in this order."""
    found = [re.search(pattern, text) for pattern in patterns]
    assert None not in found, f"not all of {patterns} in {text}"
    places = [match.start() for match in found if match is not None]
    assert places == sorted(places), text


def test_three_brokers_know_each_other_and_end_in_order(
    start: Starter, port: int, data: Path
) -> None:
    process = start()
    process.wait_for_line(ALL_STARTED)
    wait_until(
        lambda: all(known_brokers(port + each) == {0, 1, 2} for each in range(3)),
        what="each broker has all brokers in its metadata",
    )
    assert sorted(path.name for path in data.iterdir()) == [
        "broker-0",
        "broker-1",
        "broker-2",
        "zookeeper",
    ]
    assert process.stop() == 0, process.output
    order_of(
        process.output,
        "stopping broker=2",
        r"broker-2 \| .* shut down",
        "stopping broker=1",
        r"broker-1 \| .* shut down",
        "stopping broker=0",
        r"broker-0 \| .* shut down",
        r"shut down \(pybroker.host.supervisor\)",
    )
    assert processes_using(data) == []


def test_the_brokers_start_again_with_the_same_data(start: Starter, port: int) -> None:
    first = start()
    first.wait_for_line(ALL_STARTED)
    with Connection(f"127.0.0.1:{port}") as connection:
        cluster = metadata(connection).cluster_id
    assert first.stop() == 0
    start().wait_for_line(ALL_STARTED)
    with Connection(f"127.0.0.1:{port + 2}") as connection:
        assert metadata(connection).cluster_id == cluster


def test_a_killed_broker_is_started_again(start: Starter, port: int) -> None:
    process = start()
    process.wait_for_line(ALL_STARTED)
    os.kill(pid_of(process, 1), signal.SIGKILL)
    process.wait_for_line("ended broker=1 .*exit_code=-9")
    process.wait_for_line("restarting broker=1 pause_s=1")
    pid_of(process, 1, launch=2)
    wait_until(
        lambda: process.output.count("[KafkaServer id=1] started") == 2,
        what="the killed broker serves again",
    )
    assert process.output.count("launched broker=0") == 1
    assert process.stop() == 0


async def test_records_survive_the_broker_that_accepted_them(start: Starter, port: int) -> None:
    """Topics have three replicas by default, and acks=all needs two in-sync replicas."""
    process = start("--override", "zookeeper.session.timeout.ms=3000")
    await asyncio.to_thread(process.wait_for_line, ALL_STARTED)
    servers = ",".join(f"127.0.0.1:{port + broker}" for broker in range(3))
    values = [b"%d" % number for number in range(300)]
    async with Producer(servers, acks="all", linger_ms=5) as producer:
        deliveries = [await producer.send("orders", value, partition=0) for value in values[:150]]
        for delivery in deliveries:
            await delivery
        async with Admin(servers) as admin:
            topic = (await admin.describe_topics(["orders"]))["orders"]
        leader = topic.partitions[0].leader
        assert sorted(topic.partitions[0].replicas) == [0, 1, 2]
        os.kill(pid_of(process, leader), signal.SIGKILL)
        deliveries = [await producer.send("orders", value, partition=0) for value in values[150:]]
        for delivery in deliveries:
            await delivery
    await asyncio.to_thread(pid_of, process, leader, launch=2)
    partition = TopicPartition("orders", 0)
    found: list[bytes | None] = []
    async with Consumer(servers) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning()
        async with asyncio.timeout(PATIENCE_S):
            async for record in consumer:
                found.append(record.value)
                if record.value == values[-1]:
                    break
    assert found == values
    assert await asyncio.to_thread(process.stop) == 0


def test_a_second_signal_stops_the_remaining_brokers_at_once(start: Starter, data: Path) -> None:
    process = start()
    process.wait_for_line(ALL_STARTED)
    process.signal(signal.SIGTERM)
    process.signal(signal.SIGINT)
    assert process.wait() == 0, process.output
    for broker in range(3):
        assert re.search(rf"broker-{broker} \| .* shut down", process.output)
        assert (data / f"broker-{broker}" / ".kafka_cleanshutdown").exists()


def test_a_signal_during_the_start_ends_it_in_order(start: Starter, data: Path) -> None:
    process = start()
    process.wait_for_line("launched broker=2")
    assert process.stop() == 0, process.output
    assert processes_using(data) == []


def test_no_process_survives_a_killed_supervisor(start: Starter, data: Path) -> None:
    process = start()
    process.wait_for_line(ALL_STARTED)
    assert len(processes_using(data)) == 5
    process.kill9()
    wait_until(lambda: not processes_using(data), what="brokers and ZooKeeper gone")
    start().wait_for_line(ALL_STARTED)


def test_a_used_port_of_one_broker_fails_the_start_before_any_change(
    start: Starter, port: int, data: Path
) -> None:
    with socket.create_server(("127.0.0.1", port + 1)):
        process = start()
        assert process.wait() == 1
    (line,) = process.output.splitlines()
    assert line.startswith("pybroker start: broker 1: ")
    assert str(port + 1) in line
    assert not data.exists()


def test_a_broker_that_cannot_start_stops_all_with_its_message(start: Starter, data: Path) -> None:
    data.mkdir()
    (data / "broker-1").write_text("not a directory")
    process = start()
    assert process.wait() == 1
    last = process.output.splitlines()[-1]
    assert last.startswith("pybroker start: broker 1: ")
    assert str(data / "broker-1") in last
    assert "Traceback" not in process.output
    assert processes_using(data) == []


def test_the_data_of_a_single_broker_are_refused_and_those_of_several_too(
    start: Starter, data: Path
) -> None:
    several = start()
    several.wait_for_line(ALL_STARTED)
    assert several.stop() == 0
    single = PybrokerProcess(data)
    refused = single.launch()
    assert refused.wait() == 1
    assert "contains the data of several brokers" in refused.output
    (data / "meta.properties").write_text("version=0\nbroker.id=1001\ncluster.id=x\n")
    refused = start()
    assert refused.wait() == 1
    assert "contains the data of a single broker" in refused.output


def test_an_external_ensemble_is_used_and_ids_are_generated(
    start: Starter, port: int, data: Path, zookeeper: ApacheZooKeeper
) -> None:
    process = start("--zookeeper", f"{zookeeper.connect}/ours")
    process.wait_for_line(ALL_STARTED)
    wait_until(
        lambda: known_brokers(port) == {1001, 1002, 1003},
        what="the brokers are in each other's metadata",
    )
    assert not (data / "zookeeper").exists()
    assert process.stop() == 0


def test_the_readiness_of_all_brokers_is_reported(start: Starter) -> None:
    listener = ReadySocket()
    try:
        process = start(environment={READY_VARIABLE: listener.address})
        process.wait_for_line(ALL_STARTED)
        wait_until(listener.received_ready, what="readiness is told")
        assert not listener.received_ready()
    finally:
        listener.close()


def test_lines_of_brokers_stay_json_and_name_their_broker(start: Starter) -> None:
    process = start("--override", "pybroker.log.format=json")
    process.wait_for_line(ALL_STARTED)
    lines = [json.loads(line) for line in process.output.splitlines()]
    assert {line.get("broker") for line in lines} == {None, 0, 1, 2}
