"""Tests of the HTTP pages of a running broker, and of its log files."""

from __future__ import annotations

import json
import re
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration_tests.broker import PybrokerProcess
from integration_tests.process import free_port
from integration_tests.site import Site
from integration_tests.wire_client import (
    Connection,
    batch_of,
    create_topic,
    fetch_one,
    produce,
    wait_for_leader,
)
from pybroker.admin.families import FAMILIES
from pybroker.testing.sockets import free_ports
from unit_tests.patience import wait_until

pytestmark = pytest.mark.ours

FREE_BYTES = "pybroker_log_directory_free_bytes"


class Observed:
    """A broker with its HTTP pages and its log files."""

    def __init__(self, folder: Path) -> None:
        self.site = Site(free_port())
        self.logs = folder / "logs"
        self.broker = PybrokerProcess(
            folder / "data",
            overrides={
                "pybroker.http.listener": f"127.0.0.1:{self.site.port}",
                "zookeeper.session.timeout.ms": "6000",
            },
            arguments=["--log-dir", str(self.logs)],
        )
        self.broker.start()


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    made = Observed(tmp_path_factory.mktemp("observed"))
    yield made
    made.broker.close()


@pytest.fixture
def new_topic(observed: Observed) -> str:
    name = f"seen-{uuid.uuid4().hex[:8]}"
    with Connection(observed.broker.bootstrap) as connection:
        create_topic(connection, name)
        wait_for_leader(connection, name)
    return name


def test_a_broker_that_serves_is_alive_and_ready(observed: Observed) -> None:
    assert observed.site.ask("/healthz") == (200, "ok\n")
    status, conditions = observed.site.ready()
    assert status == 200
    assert list(conditions) == [
        "started",
        "zookeeper_session",
        "registered",
        "controller",
        "log_directories",
        "replicas",
        "transactions",
    ]
    assert observed.site.ask("/no-such")[0] == 404


def test_the_free_space_of_each_log_directory_is_shown(observed: Observed) -> None:
    samples = observed.site.samples()
    told = [size for (name, _), size in samples.items() if name == FREE_BYTES]
    assert len(told) == 1 and told[0] > 0
    assert samples["pybroker_full_log_directories", frozenset()] == 0


def test_all_documented_metrics_exist_and_prometheus_parses_the_page(
    observed: Observed, new_topic: str
) -> None:
    page = observed.site.ask("/metrics")[1]
    declared = set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))
    assert declared >= FAMILIES.keys()
    samples = observed.site.samples()
    name, where = "kafka_topic_partition_leader_is_preferred", {"topic": new_topic}
    assert samples[name, frozenset({**where, "partition": "0"}.items())] == 1
    assert samples["kafka_topic_partitions", frozenset(where.items())] == 1
    assert samples["process_resident_memory_bytes", frozenset()] > 0


def test_counters_move_as_records_are_written_and_read(observed: Observed, new_topic: str) -> None:
    start, site = "kafka_server_brokertopicmetrics_", observed.site
    before = site.value(f"{start}messagesin_total")
    requests = site.value("kafka_network_requestmetrics_requests_total", request="Produce")
    with Connection(observed.broker.bootstrap) as connection:
        for number in range(3):
            assert produce(connection, new_topic, batch_of(b"value-%d" % number)).error_code == 0
        data = fetch_one(connection, new_topic, 0)
        assert data.records is not None
        assert produce(connection, "no-such-topic-here", batch_of(b"lost")).error_code == 3
    samples = site.samples()

    def of_topic(word: str) -> float:
        return samples[f"{start}{word}_total", frozenset({("topic", new_topic)})]

    assert of_topic("messagesin") == 3
    assert of_topic("totalproducerequests") == 3
    assert of_topic("totalfetchrequests") >= 1
    assert of_topic("bytesout") == len(data.records)
    assert of_topic("bytesin") == of_topic("bytesout"), "stored as it came"
    assert samples[f"{start}messagesin_total", frozenset()] == before + 3
    assert samples[f"{start}failedproducerequests_total", frozenset()] >= 1
    request = frozenset({("request", "Produce")})
    assert samples["kafka_network_requestmetrics_requests_total", request] == requests + 4
    where = frozenset({("topic", new_topic), ("partition", "0")})
    assert samples["kafka_log_log_logendoffset", where] == 3
    assert samples["kafka_topic_partition_current_offset", where] == 3
    assert "no-such-topic-here" not in site.ask("/metrics")[1]


def test_connections_are_counted_while_they_are_open(observed: Observed) -> None:
    before = observed.site.value("pybroker_connections", listener="PLAINTEXT")
    with Connection(observed.broker.bootstrap):
        wait_until(
            lambda: observed.site.value("pybroker_connections", listener="PLAINTEXT") == before + 1,
            what="the connection is counted",
        )
    wait_until(
        lambda: observed.site.value("pybroker_connections", listener="PLAINTEXT") == before,
        what="its end is counted",
    )
    assert observed.site.value("pybroker_connections_closed_total", reason="peer") >= 1


def test_the_options_in_force_are_shown(observed: Observed) -> None:
    document = json.loads(observed.site.ask("/config")[1])
    found = {option["name"]: option for option in document["options"]}
    assert found["zookeeper.session.timeout.ms"]["value"] == "6000"
    assert found["zookeeper.session.timeout.ms"]["source"] == "given at the start"
    assert found["num.partitions"] == {
        "name": "num.partitions",
        "value": "1",
        "source": "default",
        "default": "1",
        "type": "int",
        "update": found["num.partitions"]["update"],
    }


def test_the_three_log_files_of_kafka_are_written(observed: Observed, new_topic: str) -> None:
    server, controller, changes = (
        (observed.logs / name).read_text().splitlines()
        for name in ("server.log", "controller.log", "state-change.log")
    )
    assert any("[KafkaServer id=" in line and "] started " in line for line in server)
    assert any("controller elected" in line for line in controller)
    stored = [line for line in changes if f"partition={new_topic}-0" in line]
    assert len(stored) == 2, "what the controller stored, and what the broker became"
    assert all("leader_epoch=0" in line and "controller_epoch=" in line for line in stored)
    for line in [*server, *controller, *changes]:
        assert re.match(r"\[[-0-9]{10} [:0-9]{8},\d{3}\] (INFO|WARN|ERROR) .* \(\S+\)$", line), line
    assert not any("state_change" in line for line in server)


def test_a_broker_without_zookeeper_is_alive_but_not_ready(observed: Observed) -> None:
    """This is the last test of the module, because it pauses ZooKeeper for a while."""
    (zookeeper,) = observed.broker.zookeepers()
    expired = "kafka_server_sessionexpirelistener_zookeeperexpires_total"
    epochs = observed.broker.log_text.count("controller elected")
    zookeeper.send_signal(signal.SIGSTOP)
    try:
        wait_until(
            lambda: observed.site.ready()[0] == 503, what="the broker reports that it is not ready"
        )
        conditions = observed.site.ready()[1]
        assert not conditions["zookeeper_session"]["ok"]
        assert conditions["started"]["ok"] and conditions["replicas"]["ok"]
        assert observed.site.ask("/healthz")[0] == 200
        assert observed.site.value("pybroker_zookeeper_connected") == 0
    finally:
        zookeeper.send_signal(signal.SIGCONT)
    wait_until(lambda: observed.site.ready()[0] == 200, what="the broker is ready again")
    samples = observed.site.samples()
    assert samples["kafka_server_sessionexpirelistener_zookeeperdisconnects_total", frozenset()] > 0
    if samples[expired, frozenset()]:
        assert observed.broker.log_text.count("controller elected") > epochs


def test_health_can_be_asked_before_the_broker_serves(tmp_path: Path) -> None:
    """ZooKeeper does not run, so the start of the broker waits for it."""
    port, nobody = free_ports(2)
    broker = PybrokerProcess(
        tmp_path / "data",
        overrides={"pybroker.http.listener": f"127.0.0.1:{port}"},
        zookeeper=f"127.0.0.1:{nobody}",
    )
    broker.launch()
    try:
        site = Site(port)
        wait_until(lambda: _asked(site), what="health is told")
        status, conditions = site.ready()
        assert status == 503 and conditions == {
            "started": {"ok": False, "reason": "the broker is starting"}
        }
        assert site.value("kafka_server_kafkaserver_brokerstate") == 1
        assert broker.stop() == 0
    finally:
        broker.close()


def _asked(site: Site) -> bool:
    try:
        return site.ask("/healthz")[0] == 200
    except ConnectionRefusedError:
        return False


def test_a_second_broker_on_the_http_port_is_refused(observed: Observed, tmp_path: Path) -> None:
    taken = f"127.0.0.1:{observed.site.port}"
    broker = PybrokerProcess(tmp_path / "data", overrides={"pybroker.http.listener": taken})
    process = broker.launch()
    try:
        assert process.wait() == 1
        complaint = [line for line in process.output.splitlines() if "http.listener" in line]
        assert len(complaint) == 1 and taken in complaint[0]
        assert "Traceback" not in process.output
        assert not broker.data.exists()
    finally:
        broker.close()


def test_a_start_may_log_in_json(tmp_path: Path) -> None:
    broker = PybrokerProcess(tmp_path / "data", overrides={"pybroker.log.format": "json"})
    try:
        broker.start()
        assert broker.stop() == 0
        lines = [json.loads(line) for line in broker.log_text.splitlines()]
        assert any(
            re.fullmatch(r"\[KafkaServer id=\d+\] started", line["message"]) for line in lines
        )
        assert {"server", "controller"} <= {line["component"] for line in lines}
    finally:
        broker.close()
