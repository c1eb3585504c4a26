"""Tests of an expired ZooKeeper session: the broker registers and is elected again, and producers
observe only a pause.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import kazoo.exceptions  # type: ignore[import-untyped]
import pytest

from integration_tests.apache import ApacheZooKeeper, end_session
from integration_tests.broker import Broker
from integration_tests.conftest import BrokerMaker
from integration_tests.python_clients import ConfluentKafka
from integration_tests.wire_client import Connection, batch_of, create_topic, produce
from unit_tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.ours

SESSION_FILE: Final = "zookeeper.session"


def sessions_of(data: Path) -> list[dict[str, Any]]:
    """Return the keys of the broker's sessions, oldest first."""
    (path,) = data.rglob(SESSION_FILE)
    assert path.stat().st_mode & 0o777 == 0o600, "the keys are nobody else's business"
    sessions: list[dict[str, Any]] = json.loads(path.read_text())["sessions"]
    return sessions


def expire_session(broker: Broker, zookeeper: ApacheZooKeeper) -> None:
    """Close the broker's session from outside, as ZooKeeper does after the session timeout."""
    end_session(zookeeper.connect, sessions_of(broker.data)[-1])


class Registration:
    """The nodes of the only broker, and of the controller, in ZooKeeper."""

    def __init__(self, zookeeper: ApacheZooKeeper) -> None:
        with zookeeper.client() as client:
            (self.id,) = client.get_children("/brokers/ids")
            self.text, stat = client.get(f"/brokers/ids/{self.id}")
            self.owner, self.czxid = int(stat.ephemeralOwner), int(stat.czxid)
            self.controller_owner = int(client.get("/controller")[1].ephemeralOwner)
            self.controller_epoch = int(client.get("/controller_epoch")[0])


def new_registration(zookeeper: ApacheZooKeeper, before: Registration) -> Registration:
    """Wait until the broker has registered, and is the controller, in another session."""
    found: list[Registration] = []

    def is_there() -> bool:
        try:
            found.append(Registration(zookeeper))
        except (ValueError, kazoo.exceptions.NoNodeError):
            return False
        return found[-1].owner not in (before.owner, 0) and (
            found[-1].controller_owner == found[-1].owner
        )

    wait_until(is_there, what="a registration in a new session")
    return found[-1]


class SteadyProducer:
    """An idempotent producer that sends one record after the other with acks=all, until it is
    stopped.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1}
        )
        self._topic = topic
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent = 0
        self.acknowledged = 0
        self.errors: list[object] = []

    def _run(self) -> None:
        while not self._end.wait(0.005):
            value = b"%d" % self.sent
            self._producer.produce(self._topic, value, on_delivery=self._delivered)
            self.sent += 1
            self._producer.poll(0)
        self._producer.flush(PATIENCE_S)

    def _delivered(self, error: object, _: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(error)

    def wait_for_progress(self) -> None:
        """Wait until some more records are acknowledged."""
        enough = self.acknowledged + 20
        wait_until(lambda: self.acknowledged > enough, what="records are acknowledged")

    def __enter__(self) -> SteadyProducer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def test_an_expired_session_is_replaced_while_producers_go_on(
    new_broker: BrokerMaker, zookeeper: ApacheZooKeeper
) -> None:
    broker = new_broker(zookeeper=zookeeper.connect)
    broker.start()
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, "steady")
    with SteadyProducer(broker.bootstrap, "steady") as producer:
        for _ in range(10):
            producer.wait_for_progress()
            before = Registration(zookeeper)
            expire_session(broker, zookeeper)
            after = new_registration(zookeeper, before)
            assert after.id == before.id and after.czxid > before.czxid
            assert after.controller_epoch > before.controller_epoch
            producer.wait_for_progress()
    assert producer.errors == [] and producer.acknowledged == producer.sent
    read = ConfluentKafka(broker.bootstrap).read("steady")
    assert [record.value for record in read] == [b"%d" % n for n in range(producer.sent)]
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, "made-afterwards")
        assert produce(connection, "made-afterwards", batch_of(b"x")).error_code == 0


def test_a_broker_that_stops_leaves_no_registration(
    new_broker: BrokerMaker, zookeeper: ApacheZooKeeper
) -> None:
    broker = new_broker(zookeeper=zookeeper.connect)
    broker.start()
    assert Registration(zookeeper).controller_epoch >= 1
    assert broker.stop() == 0
    with zookeeper.client() as client:
        assert client.get_children("/brokers/ids") == []
        assert client.exists("/controller") is None
    assert sessions_of(broker.data) == []
