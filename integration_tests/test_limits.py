"""Tests of clients that send huge requests, connect often, or act as a broker: their effect is
bounded, and other clients are served. A test of the memory of an idle broker.
"""

from __future__ import annotations

import contextlib
import re
import resource
import selectors
import signal
import socket
import struct
import threading
from pathlib import Path
from typing import Final

import psutil
import pytest

from integration_tests.broker import Broker
from integration_tests.conftest import BrokerMaker
from integration_tests.wire_client import (
    Connection,
    ConnectionClosed,
    batch_of,
    create_topic,
    fetch_one,
    frame_of,
    produce,
)
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.cluster import ApiVersionsRequest
from pybroker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from unit_tests.host.test_huge_pages import refusal
from unit_tests.patience import PATIENCE_S, wait_until

BROKER_OVERRIDES: Final = {"auto.create.topics.enable": "false"}
MANY_CONNECTIONS: Final = 500
OTHERS_WAIT_SECONDS_MAX: Final = 2.0
RSS_BYTES_MAX: Final = 300 * 1024 * 1024
API_VERSIONS_0: Final = frame_of(0, ApiVersionsRequest())


def connect_all_at_once(port: int, count: int) -> list[socket.socket]:
    """Open `count` connections at once."""
    opened: list[socket.socket] = []
    with selectors.DefaultSelector() as selector:
        for _ in range(count):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
            selector.register(one, selectors.EVENT_WRITE)
            opened.append(one)
        waiting = count
        while waiting:
            ready = selector.select(PATIENCE_S)
            assert ready, f"{waiting} of {count} are not connected"
            for key, _ in ready:
                selector.unregister(key.fileobj)
                waiting -= 1
    return opened


def ask_and_close(peers: list[socket.socket]) -> int:
    """Send a request on each connection and close it. Return the number of clients that get an
    answer.
    """
    answered = 0
    for one in peers:
        one.settimeout(PATIENCE_S)
        one.sendall(struct.pack(">i", len(API_VERSIONS_0)) + API_VERSIONS_0)
    for one in peers:
        with one:
            answered += len(one.recv(4)) == 4
    return answered


@pytest.mark.ours  # Apache's accept queue holds 50 connections, and the rest try again later
def test_many_concurrent_clients_connect_without_retry(broker: Broker) -> None:
    """All clients are connected by the kernel while the broker accepts no connection."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(MANY_CONNECTIONS, soft // 2)
    broker.process.signal(signal.SIGSTOP)
    try:
        peers = connect_all_at_once(broker.port, count)
    finally:
        broker.process.signal(signal.SIGCONT)
    assert ask_and_close(peers) == count


@pytest.mark.ours
def test_without_file_descriptors_clients_wait_and_are_served_later(
    new_broker: BrokerMaker,
) -> None:
    broker = new_broker()
    broker.start()
    process = psutil.Process(broker.process.pid)
    _, hard = process.rlimit(psutil.RLIMIT_NOFILE)
    with Connection(broker.bootstrap) as early:
        create_topic(early, "t")
        process.rlimit(psutil.RLIMIT_NOFILE, (2 * process.num_fds(), hard))
        peers = connect_all_at_once(broker.port, 100)
        wait_until(
            lambda: "no connection can be accepted" in broker.log_text, what="the line in the log"
        )
        assert produce(early, "t", batch_of(b"x")).error_code == 0
        assert ask_and_close_in_turn(peers) == 100
        wait_until(
            lambda: "accepting connections again" in broker.log_text, what="the line in the log"
        )
    assert broker.log_text.count("no connection can be accepted") == 1
    with Connection(broker.bootstrap) as late:
        assert fetch_one(late, "t", 0).high_watermark == 1


def ask_and_close_in_turn(peers: list[socket.socket]) -> int:
    """Do the same as `ask_and_close`, if later connections are accepted only after earlier
    connections have ended.
    """
    return sum(ask_and_close([one]) for one in peers)


class Beside:
    """Another client, which sends requests continuously, and the maximum CPU time of the broker
    while this client waited for an answer. CPU time does not depend on other load on the machine.
    """

    def __init__(self, broker: Broker, topic: str) -> None:
        self._bootstrap = broker.bootstrap
        self._process = psutil.Process(broker.process.pid)
        self._topic = topic
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._error: BaseException | None = None
        self.seconds = 0.0

    def _run(self) -> None:
        try:
            with Connection(self._bootstrap) as connection:
                while not self._end.is_set():
                    begin = self._computed_s()
                    assert produce(connection, self._topic, batch_of(b"x")).error_code == 0
                    self.seconds = max(self.seconds, self._computed_s() - begin)
        except BaseException as error:  # told to the test, in whose thread it can fail
            self._error = error

    def _computed_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def __enter__(self) -> Beside:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if self._error is not None:
            raise self._error


def test_a_request_with_a_hundred_thousand_partitions_delays_no_client_for_long(
    broker: Broker,
) -> None:
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, "many-asked")
        partitions = [
            ListOffsetsPartition(partition_index=number, timestamp=-1) for number in range(100_000)
        ]
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name="many-asked", partitions=partitions)]
        )
        with Beside(broker, "many-asked") as beside:
            answer = connection.ask(5, request, ListOffsetsResponse)
    assert len(answer.topics[0].partitions) == 100_000
    assert beside.seconds < OTHERS_WAIT_SECONDS_MAX


@pytest.mark.ours  # Apache takes gigabytes for it
@pytest.mark.parametrize("key", [ApiKey.METADATA, ApiKey.DELETE_TOPICS])
def test_fifty_megabytes_of_empty_names_close_the_connection_at_once(
    broker: Broker, key: ApiKey
) -> None:
    count = 25_000_000
    head = struct.pack(">hhih", key, 1, 1, -1)
    frame = head + struct.pack(">i", count) + bytes(2 * count + 4 * (key is ApiKey.DELETE_TOPICS))
    with Connection(broker.bootstrap) as other:
        create_topic(other, f"beside-{key.name}")
    with Beside(broker, f"beside-{key.name}") as beside, Connection(broker.bootstrap) as connection:
        with contextlib.suppress(OSError):
            connection.send_frame(frame)
        with pytest.raises((ConnectionClosed, OSError)):
            connection.receive_frame()
    assert beside.seconds < OTHERS_WAIT_SECONDS_MAX
    assert broker.process.rss_bytes() < RSS_BYTES_MAX
    wait_until(lambda: "too many elements" in broker.log_text, what="the line in the log")


def test_the_heap_of_a_broker_is_in_huge_pages(broker: Broker) -> None:
    text = Path(f"/proc/{broker.process.pid}/smaps_rollup").read_text()
    (huge_kb,) = map(int, re.findall(r"AnonHugePages: +(\d+) kB", text))
    if not huge_kb and (reason := refusal()) is not None:
        pytest.skip(reason)
    if not huge_kb and "heap not completely moved" in broker.log_text:
        pytest.skip("the kernel refused huge pages")
    assert huge_kb >= 4 * 1024
