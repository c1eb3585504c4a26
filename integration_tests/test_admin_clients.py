"""Tests of the admin clients of the common libraries against our broker: each operation that a
library supports.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import pybroker.client
from integration_tests.admin_clients import (
    AioKafkaAdmin,
    ConfluentAdmin,
    KafkaPythonAdmin,
    OwnAdmin,
    Refused,
)
from integration_tests.broker import Broker
from integration_tests.conftest import BrokerMaker, or_skip
from integration_tests.java_admin import JavaAdmin
from pybroker.errors import ErrorCode
from unit_tests.patience import PATIENCE_S, wait_until

CLIENTS: Final[dict[str, Callable[[str], Any]]] = {
    "pybroker": OwnAdmin,
    "kafka-python": KafkaPythonAdmin,
    "aiokafka": AioKafkaAdmin,
    "confluent-kafka": ConfluentAdmin,
    "java": JavaAdmin,
}


class Admins:
    """The admin clients of a module, each created at its first use."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = or_skip(lambda: CLIENTS[name](self._bootstrap))
        return self._made[name]

    def close(self) -> None:
        for admin in self._made.values():
            admin.close()


@pytest.fixture(scope="module")
def admins(shared_broker: Broker) -> Iterator[Admins]:
    with contextlib.closing(Admins(shared_broker.bootstrap)) as made:
        yield made


@pytest.fixture
def admin(request: pytest.FixtureRequest, admins: Admins, broker: Broker) -> Any:
    return admins[request.param]


def clients_with(*operations: str) -> pytest.MarkDecorator:
    """Return a test case for each client that has these operations."""
    names = [
        name
        for name, kind in CLIENTS.items()
        if all(hasattr(kind, operation) for operation in operations)
    ]
    return pytest.mark.parametrize("admin", names, indirect=True)


def fill(broker: Broker, topic: str, count: int = 10) -> None:
    """Write `count` records to partition 0, by an idempotent producer."""

    async def send() -> None:
        async with pybroker.client.Producer(broker.bootstrap) as producer:
            for number in range(count):
                await producer.send(topic, value=b"%d" % number, partition=0)

    asyncio.run(send())


def broker_id(admin: Any) -> int:
    (found,) = admin.cluster()[1]
    return int(found)


def refused(code: ErrorCode, work: Callable[[], object]) -> None:
    with pytest.raises(Refused) as caught:
        work()
    assert caught.value.code == code


@clients_with()
def test_topics_are_created_extended_and_deleted(admin: Any, topic: str) -> None:
    admin.create(topic, 2, {"retention.ms": "7000"})
    refused(ErrorCode.TOPIC_ALREADY_EXISTS, lambda: admin.create(topic, 2, {}))
    assert topic in admin.topics()
    assert admin.partitions(topic) == 2
    admin.grow(topic, 5)
    wait_until(lambda: admin.partitions(topic) == 5, what="the new partitions are in the metadata")
    refused(ErrorCode.INVALID_PARTITIONS, lambda: admin.grow(topic, 5))
    refused(ErrorCode.INVALID_PARTITIONS, lambda: admin.grow(topic, 1))
    admin.delete(topic)
    wait_until(
        lambda: topic not in admin.topics(), what="the topic is not in the metadata any more"
    )
    refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, lambda: admin.delete(topic))
    refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, lambda: admin.grow(f"{topic}-no", 9))


@clients_with()
def test_records_are_deleted(admin: Any, broker: Broker, topic: str) -> None:
    admin.create(topic, 1, {})
    fill(broker, topic)
    assert admin.delete_records(topic, 0, 4) == 4
    refused(ErrorCode.OFFSET_OUT_OF_RANGE, lambda: admin.delete_records(topic, 0, 11))
    if hasattr(admin, "offsets"):
        assert admin.offsets(topic, 0) == (4, 10)
    assert admin.delete_records(topic, 0, -1) == 10
    if hasattr(admin, "offsets"):
        assert admin.offsets(topic, 0) == (10, 10)


@clients_with()
def test_records_of_a_compacted_topic_are_not_deleted(admin: Any, topic: str) -> None:
    admin.create(topic, 1, {"cleanup.policy": "compact"})
    refused(ErrorCode.POLICY_VIOLATION, lambda: admin.delete_records(topic, 0, 0))


@clients_with()
def test_the_cluster_is_described(admin: Any) -> None:
    cluster_id, brokers = admin.cluster()
    assert cluster_id
    assert len(brokers) == 1


@clients_with()
def test_options_are_described(admin: Any, topic: str) -> None:
    admin.create(topic, 1, {"retention.ms": "7000"})
    found = admin.configs(topic)
    assert found["retention.ms"] == "7000"
    assert found["cleanup.policy"] == "delete"
    assert admin.broker_configs(broker_id(admin))["log.retention.hours"] == "168"
    refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, lambda: admin.configs(f"{topic}-no"))


@clients_with("change")
def test_single_options_are_changed(admin: Any, topic: str) -> None:
    admin.create(topic, 1, {"retention.ms": "7000"})
    admin.change(topic, {"segment.ms": "9000"})
    found = admin.configs(topic)
    assert (found["retention.ms"], found["segment.ms"]) == ("7000", "9000")
    refused(ErrorCode.INVALID_CONFIG, lambda: admin.change(topic, {"segment.ms": "x"}))
    assert admin.configs(topic)["segment.ms"] == "9000"


@clients_with("replace")
def test_all_options_are_replaced(admin: Any, topic: str) -> None:
    admin.create(topic, 1, {"retention.ms": "7000"})
    admin.replace(topic, {"segment.ms": "9000"})
    found = admin.configs(topic)
    assert (found["retention.ms"], found["segment.ms"]) == ("604800000", "9000")


@clients_with("directories")
def test_log_directories_are_described(admin: Any, topic: str) -> None:
    admin.create(topic, 2, {})
    broker = broker_id(admin)
    found = admin.log_dirs(broker, topic)
    assert set(found) == {0, 1}
    assert set(found.values()) <= set(admin.directories(broker))


@clients_with("move")
def test_a_move_to_an_unknown_directory_is_refused(admin: Any, topic: str) -> None:
    admin.create(topic, 1, {})
    broker = broker_id(admin)
    refused(ErrorCode.LOG_DIR_NOT_FOUND, lambda: admin.move(topic, 0, broker, "/nosuch"))
    admin.move(topic, 0, broker, admin.log_dirs(broker, topic)[0])


@clients_with("producers")
def test_producers_are_described(admin: Any, broker: Broker, topic: str) -> None:
    admin.create(topic, 1, {})
    assert admin.producers(topic, 0) == []
    fill(broker, topic)
    assert admin.producers(topic, 0) == [(0, 9)]


@pytest.mark.parametrize("admin", ["java"], indirect=True)
def test_java_shows_the_source_of_each_option(admin: Any, topic: str) -> None:
    """Only Java's DescribeConfigs shows sources, synonyms, types and documentation."""
    admin.create(topic, 1, {"retention.ms": "7000"})
    rows = admin.ask("configs", topic=topic)["found"]
    assert rows["retention.ms"] | {"synonyms": None} == {
        "value": "7000",
        "source": "DYNAMIC_TOPIC_CONFIG",
        "type": "LONG",
        "documented": True,
        "synonyms": None,
    }
    assert rows["retention.ms"]["synonyms"][0] == "DYNAMIC_TOPIC_CONFIG"
    assert rows["cleanup.policy"]["source"] == "DEFAULT_CONFIG"
    assert rows["cleanup.policy"]["type"] == "LIST"


_ASK_FOR_CREDENTIALS: Final = """
import sys
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
bootstrap, patience_s = sys.argv[1], float(sys.argv[2])
admin = AdminClient({"bootstrap.servers": bootstrap})
for user, answer in admin.describe_user_scram_credentials(["ann", "bob"]).items():
    try:
        print(user, answer.result(patience_s))
    except KafkaException as error:
        print(user, error.args[0].code())
print(admin.describe_user_scram_credentials().result(patience_s))
"""


def test_librdkafka_learns_that_users_have_no_scram_credentials(broker: Broker) -> None:
    """The client runs in a separate process, because librdkafka 2.15 and 2.16 abort on an error
    that concerns no single user.
    """
    command = [sys.executable, "-c", _ASK_FOR_CREDENTIALS, broker.bootstrap, str(PATIENCE_S)]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    missing = ErrorCode.RESOURCE_NOT_FOUND.value
    assert ran.stdout.splitlines() == [f"ann {missing}", f"bob {missing}", "{}"]


def test_replicas_move_between_log_directories(
    new_broker: BrokerMaker, tmp_path: Path, topic: str
) -> None:
    """Each client that supports the request moves the replica, and no record is lost."""
    broker = new_broker(overrides={"log.dirs": f"{tmp_path}/one,{tmp_path}/two"})
    broker.start()
    with contextlib.closing(Admins(broker.bootstrap)) as admins:
        for name in [name for name, kind in CLIENTS.items() if hasattr(kind, "move")]:
            admin, moving = admins[name], f"{topic}-{name}"
            admin.create(moving, 1, {})
            fill(broker, moving)
            admin.delete_records(moving, 0, 4)
            number = broker_id(admin)
            (before,) = admin.log_dirs(number, moving).values()
            (after,) = set(admin.directories(number)) - {before}
            admin.move(moving, 0, number, after)
            wait_until(
                functools.partial(lies_in, admin, number, moving, after),
                what=f"{moving} is in the directory {after}",
            )
            assert admin.offsets(moving, 0) == (4, 10)


def lies_in(admin: Any, broker: int, topic: str, path: str) -> bool:
    return bool(admin.log_dirs(broker, topic) == {0: path})
