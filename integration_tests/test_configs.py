"""Tests of the configuration of a running broker: Apache's tools and libraries describe and change
options, which take effect at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import kazoo.client  # type: ignore[import-untyped]
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from integration_tests.apache import ApacheKafka, ApacheZooKeeper
from integration_tests.apache_tools import ApacheTools
from integration_tests.broker import Broker
from integration_tests.conftest import ON_APACHE, BrokerMaker
from integration_tests.wire_client import (
    Connection,
    batch_of,
    create_topic,
    list_offsets_request,
    metadata,
    produce,
    wait_for_leader,
)
from pybroker.errors import ErrorCode
from pybroker.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from pybroker.wire.messages.list_offsets import ListOffsetsResponse
from unit_tests.patience import PATIENCE_S, wait_until

BROKER_OVERRIDES = {"log.retention.check.interval.ms": "200", "log.initial.task.delay.ms": "0"}
EARLIEST: Final = -2
SET, DELETE = AlterConfigOpType.SET, AlterConfigOpType.DELETE


def topic_resource(name: str) -> ConfigResource:
    return ConfigResource(ConfigResource.Type.TOPIC, name)


def change_all_brokers(connection: Connection, operation: int, name: str, value: str = "") -> None:
    """Change the cluster-wide default options (an empty broker id), which librdkafka cannot do."""
    entry = IncrementalAlterableConfig(name=name, config_operation=operation, value=value)
    all_brokers = IncrementalAlterConfigsResource(
        resource_type=4, resource_name="", configs=[entry]
    )
    request = IncrementalAlterConfigsRequest(resources=[all_brokers])
    answer = connection.ask(1, request, IncrementalAlterConfigsResponse)
    assert answer.responses[0].error_code == 0, answer


class Admin:
    """confluent-kafka's admin client, with the operations of these tests."""

    def __init__(self, bootstrap: str) -> None:
        self._client = AdminClient({"bootstrap.servers": bootstrap})

    def change(self, resource: ConfigResource, operation: Any, name: str, value: str = "") -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        asked = ConfigResource(resource.restype, resource.name, incremental_configs=[entry])
        for answer in self._client.incremental_alter_configs([asked]).values():
            answer.result(PATIENCE_S)

    def describe(self, resource: ConfigResource) -> Mapping[str, Any]:
        (answer,) = self._client.describe_configs([resource]).values()
        found: Mapping[str, Any] = answer.result(PATIENCE_S)
        return found


@pytest.fixture
def admin(broker: Broker) -> Admin:
    return Admin(broker.bootstrap)


@pytest.fixture
def connection(broker: Broker) -> Iterator[Connection]:
    with Connection(broker.bootstrap) as opened:
        yield opened


def refused_as_too_large(connection: Connection, topic: str, size: int = 500) -> bool:
    answer = produce(connection, topic, batch_of(bytes(size)))
    assert answer.error_code in (ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE)
    return answer.error_code == ErrorCode.MESSAGE_TOO_LARGE


def soon(holds: Any, what: str) -> None:
    """Wait until `holds` with Apache, which applies changes a moment after its answer. Check it at
    once with our broker, which applies changes before its answer.
    """
    if ON_APACHE:
        wait_until(holds, what=what)
    else:
        assert holds(), what


def test_a_lower_limit_refuses_the_next_batch(
    admin: Admin, connection: Connection, topic: str
) -> None:
    create_topic(connection, topic)
    assert not refused_as_too_large(connection, topic)
    admin.change(topic_resource(topic), SET, "max.message.bytes", "200")
    soon(lambda: refused_as_too_large(connection, topic), "the limit holds")
    entry = admin.describe(topic_resource(topic))["max.message.bytes"]
    assert (entry.value, entry.source, entry.is_default) == ("200", 1, False)
    admin.change(topic_resource(topic), DELETE, "max.message.bytes")
    soon(lambda: not refused_as_too_large(connection, topic), "the limit is gone")


def test_a_change_for_all_brokers_holds_for_topics_without_a_value(
    admin: Admin, connection: Connection, topic: str
) -> None:
    create_topic(connection, topic)
    change_all_brokers(connection, 0, "message.max.bytes", "200")
    try:
        soon(lambda: refused_as_too_large(connection, topic), "the limit holds")
        entry = admin.describe(topic_resource(topic))["max.message.bytes"]
        assert (entry.value, entry.source) == ("200", 3)
    finally:
        change_all_brokers(connection, 1, "message.max.bytes")
    soon(lambda: not refused_as_too_large(connection, topic), "the limit is gone")


def test_shorter_retention_deletes_old_segments(
    admin: Admin, connection: Connection, topic: str
) -> None:
    create_topic(connection, topic, configs={"segment.bytes": "1000"})
    for _ in range(4):
        assert produce(connection, topic, batch_of(bytes(600))).error_code == 0
    assert start_of(connection, topic) == 0
    admin.change(topic_resource(topic), SET, "retention.ms", "1")
    wait_until(lambda: start_of(connection, topic) >= 3, what="old segments are deleted")


def start_of(connection: Connection, topic: str) -> int:
    answer = connection.ask(5, list_offsets_request(topic, EARLIEST), ListOffsetsResponse)
    offset: int = answer.topics[0].partitions[0].offset
    return offset


def test_a_change_survives_a_restart(new_broker: BrokerMaker, topic: str) -> None:
    broker = new_broker()
    broker.start()
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, topic)
        change_all_brokers(connection, 0, "log.segment.bytes", "123456")
    admin = Admin(broker.bootstrap)
    admin.change(topic_resource(topic), SET, "max.message.bytes", "200")
    broker.stop()
    broker.start()
    with Connection(broker.bootstrap) as connection:
        wait_for_leader(connection, topic)
        assert refused_as_too_large(connection, topic)
    found = Admin(broker.bootstrap).describe(topic_resource(topic))
    assert (found["segment.bytes"].value, found["segment.bytes"].source) == ("123456", 3)


def test_changed_advertised_listeners_are_in_the_metadata_and_survive_a_restart(
    new_broker: BrokerMaker, topic: str
) -> None:
    broker = new_broker()
    broker.start()
    port = broker.bootstrap.rpartition(":")[2]

    def told() -> list[str]:
        with Connection(broker.bootstrap) as connection:
            return [f"{each.host}:{each.port}" for each in metadata(connection).brokers]

    (before,) = told()
    assert before == broker.bootstrap
    with Connection(broker.bootstrap) as connection:
        broker_id = metadata(connection).brokers[0].node_id
    resource = ConfigResource(ConfigResource.Type.BROKER, str(broker_id))
    admin, listener = Admin(broker.bootstrap), f"PLAINTEXT://localhost:{port}"
    admin.change(resource, SET, "advertised.listeners", listener)
    wait_until(lambda: told() == [f"localhost:{port}"], what="the new address in the metadata")
    found = Admin(broker.bootstrap).describe(resource)["advertised.listeners"]
    assert (found.value, found.is_read_only) == (listener, False)
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, topic)
        assert produce(connection, topic, batch_of(b"a")).error_code == 0
    broker.stop()
    broker.start()
    wait_until(lambda: told() == [f"localhost:{port}"], what="the address after the restart")
    Admin(broker.bootstrap).change(resource, DELETE, "advertised.listeners")
    wait_until(lambda: told() == [before], what="the address of the file")


def test_an_option_written_to_zookeeper_is_applied(
    new_broker: BrokerMaker, zookeeper: ApacheZooKeeper, topic: str
) -> None:
    """Old tools write options to ZooKeeper. A broker ignores an invalid value there, also at its
    start.
    """
    broker = new_broker(zookeeper=zookeeper.connect)
    with zookeeper.client() as client:
        client.ensure_path("/config/changes")
        put(client, "brokers/<default>", {"log.segment.bytes": "x", "num.partitions": "7"})
        broker.start()
        with Connection(broker.bootstrap) as connection:
            create_topic(connection, topic)
            put(client, f"topics/{topic}", {"max.message.bytes": "200"})
            wait_until(lambda: refused_as_too_large(connection, topic), what="the limit applies")
            put(client, f"topics/{topic}", {})
            wait_until(
                lambda: not refused_as_too_large(connection, topic), what="the limit is removed"
            )
            client.create("/config/changes/config_change_", b"nonsense", sequence=True)
            put(client, "brokers/<default>", {"message.max.bytes": "200"})
            wait_until(lambda: refused_as_too_large(connection, topic), what="the limit applies")
    assert Admin(broker.bootstrap).describe(topic_resource(topic))["segment.bytes"].source == 5


def put(client: kazoo.client.KazooClient, entity: str, values: Mapping[str, str]) -> None:
    path = f"/config/{entity}"
    client.ensure_path(path)
    client.set(path, json.dumps({"version": 1, "config": values}).encode())
    note = json.dumps({"version": 2, "entity_path": entity}).encode()
    client.create("/config/changes/config_change_", note, sequence=True)


@pytest.fixture(scope="module")
def apache_tools(jars: str, shared_broker: Broker) -> Iterator[ApacheTools]:
    assert jars
    tools = ApacheTools(shared_broker.bootstrap)
    yield tools
    tools.close()


def test_apaches_tool_changes_and_describes_a_topic(
    apache_tools: ApacheTools, connection: Connection, topic: str
) -> None:
    create_topic(connection, topic)
    words = ("--entity-type", "topics", "--entity-name", topic)
    changed = apache_tools(
        "configs", "--alter", "--add-config", "retention.ms=5,cleanup.policy=[compact,delete]",
        *words,
    )  # fmt: skip
    assert changed.out == f"Completed updating config for topic {topic}.\n"
    described = apache_tools("configs", "--describe", *words).lines
    assert described[0] == f"Dynamic configs for topic {topic} are:"
    assert sorted(described[1:]) == [
        "  cleanup.policy=compact,delete sensitive=false synonyms="
        "{DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact,delete, "
        "DEFAULT_CONFIG:log.cleanup.policy=delete}",
        "  retention.ms=5 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5}",
    ]
    deleted = apache_tools("configs", "--alter", "--delete-config", "retention.ms", *words)
    assert deleted.code == 0
    refused = apache_tools("configs", "--alter", "--add-config", "retention.ms=x", *words)
    assert refused.code == 1
    assert "Invalid config value for resource" in refused.complaint


@pytest.mark.parametrize("words", [["--entity-default"], ["--entity-name", "ID"]])
def test_apaches_tool_changes_and_describes_a_broker(
    apache_tools: ApacheTools, connection: Connection, words: list[str]
) -> None:
    broker_id = metadata(connection).brokers[0].node_id
    words = ["--entity-type", "brokers", *(w.replace("ID", str(broker_id)) for w in words)]
    change = ["configs", "--alter", "--add-config", "log.roll.ms=4000000", *words]
    assert apache_tools(*change).code == 0
    try:
        described = apache_tools("configs", "--describe", *words).out
        assert re.search(r"log\.roll\.ms=4000000 sensitive=false synonyms=\{DYNAMIC_", described)
        fixed = apache_tools("configs", "--alter", "--add-config", "num.partitions=3", *words)
        assert fixed.code == 1
        text = "Cannot update these configs dynamically: Set(num.partitions)"
        assert text in fixed.complaint
    finally:
        apache_tools("configs", "--alter", "--delete-config", "log.roll.ms", *words)


@pytest.mark.ours
def test_apaches_tool_changes_levels_of_loggers(
    apache_tools: ApacheTools, connection: Connection
) -> None:
    broker_id = metadata(connection).brokers[0].node_id
    words = ["--entity-type", "broker-loggers", "--entity-name", str(broker_id)]
    name = "pybroker.broker.live_config"
    assert apache_tools("configs", "--alter", "--add-config", f"{name}=DEBUG", *words).code == 0
    described = apache_tools("configs", "--describe", *words).out
    assert f"{name}=DEBUG sensitive=false" in described
    assert apache_tools("configs", "--alter", "--delete-config", name, *words).code == 0


# comparison with Apache's own answer

Described = Mapping[str, DescribeConfigsResourceResult]
NOT_HERE = re.compile(
    r"(ssl|sasl|zookeeper\.ssl|remote|local|controller\.quorum|delegation|group\.(share|consumer)"
    r"|metadata|password\.encoder|telemetry)\..*"
    r"|(alter\.config|create\.topic)\.policy\.class\.name|auto\.include\.jmx\.reporter"
    r"|broker\.(heartbeat|session).*|client\.quota\.callback\.class|control\.plane.*"
    r"|controller\.listener\.names|early\.start\.listeners|eligible\.leader.*|kafka\.metrics.*"
    r"|group\.coordinator\..*|initial\.broker\.registration.*|log\.dir\.failure.*"
    r"|log\.local\.retention.*|node\.id|principal\.builder\.class|process\.roles"
    r"|security\.providers|zookeeper\.(clientCnxnSocket|metadata\.migration\.enable)"
)
"""Patterns of options that Apache describes and pybroker does not have: security, tiered storage,
KRaft, Java classes.
"""
ONLY_OURS = re.compile(
    r"pybroker\..*|producer\.id\.expiration\.check\.interval\.ms"
    r"|unclean\.leader\.election\.interval\.ms|offsets\.storage"
)
"""Options that only pybroker has, or that Apache has and does not describe."""
FIXED_HERE = {"listeners", "advertised.listeners", "listener.security.protocol.map"}
"""Options that only Apache can change while it runs."""
FILE, DEFAULT = 4, 5
SET_ALIKE = {
    "log.retention.hours",
    "log.segment.bytes",
    "segment.bytes",
    "log.message.timestamp.before.max.ms",
    "message.timestamp.before.max.ms",
}
"""The options that the test sets on both brokers. The values of other options depend on how tests
start brokers.
"""


@pytest.mark.ours
def test_names_types_and_defaults_are_apaches(
    new_broker: BrokerMaker, jars: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert jars
    same = {
        "log.retention.hours": "100",
        "log.segment.bytes": "100000000",
        "log.message.timestamp.before.max.ms": "9223372036854775807",
    }
    ours, apache = (
        new_broker(overrides=same),
        ApacheKafka(tmp_path_factory.mktemp("apache"), overrides=same, heap_mib=512),
    )
    ours.start()
    try:
        apache.start()
        for mine, theirs in zip(described(ours), described(apache), strict=True):
            compare(mine, theirs)
    finally:
        apache.close()


def described(broker: Broker) -> list[Described]:
    """Return the options of the topic and of the broker, by name."""
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, "t")
        broker_id = metadata(connection).brokers[0].node_id
        resources = [
            DescribeConfigsResource(resource_type=2, resource_name="t"),
            DescribeConfigsResource(resource_type=4, resource_name=str(broker_id)),
        ]
        request = DescribeConfigsRequest(resources=resources, include_synonyms=True)
        answer = connection.ask(4, request, DescribeConfigsResponse)
    return [{item.name: item for item in result.configs} for result in answer.results]


def compare(mine: Described, theirs: Described) -> None:
    missing = {name for name in theirs.keys() - mine.keys() if not NOT_HERE.fullmatch(name)}
    more = {name for name in mine.keys() - theirs.keys() if not ONLY_OURS.fullmatch(name)}
    assert (missing, more) == (set(), set())
    differing = []
    for name in mine.keys() & theirs.keys() - FIXED_HERE:
        of_one_broker = name not in SET_ALIKE and FILE in (
            mine[name].config_source,
            theirs[name].config_source,
        )
        my, their = (facts(item[name], only_default=of_one_broker) for item in (mine, theirs))
        if my != their:
            differing.append((name, my, their))
    assert differing == []


def facts(entry: DescribeConfigsResourceResult, *, only_default: bool) -> tuple[object, ...]:
    """Return the facts that must be equal on both brokers. For options with different values only
    the default is compared.
    """
    synonyms = [(item.name, item.value, item.source) for item in entry.synonyms]
    values: tuple[object, ...] = (entry.value, entry.config_source, synonyms)
    if only_default:
        values = ([item for item in synonyms if item[2] == DEFAULT],)
    return (entry.read_only, entry.is_sensitive, entry.config_type, values)
