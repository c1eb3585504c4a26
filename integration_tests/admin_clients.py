"""The admin clients of Python libraries with one common interface. Java's admin client is in
`java_admin`.

Each operation returns plain values, or raises `Refused` with Kafka's error code, however the
library reports the error. A class lacks the operations that its library does not support.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

import aiokafka.admin
import aiokafka.errors
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
import kafka.errors
from aiokafka.admin.config_resource import ConfigResource as AioResource
from aiokafka.admin.config_resource import ConfigResourceType as AioResourceType
from confluent_kafka.cimpl import NewPartitions as ConfluentPartitions
from confluent_kafka.cimpl import NewTopic as ConfluentTopic

import pybroker.client as own
from pybroker.client.errors import ResponseError
from pybroker.errors import ErrorCode
from unit_tests.patience import PATIENCE_S

T = TypeVar("T")
confluent_admin: Any = confluent_kafka.admin  # half of the library has no types
Configs = Mapping[str, str]


class Refused(Exception):
    """An error code in the broker's answer."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(f"{code} {text}")
        self.code = code


class OwnAdmin:
    """The admin client of pybroker.client."""

    name = "pybroker"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def _do(self, work: Callable[[own.Admin], Coroutine[Any, Any, T]]) -> T:
        async def run() -> T:
            async with own.Admin(self._bootstrap) as admin:
                return await work(admin)

        try:
            return asyncio.run(run())
        except ResponseError as error:
            raise Refused(error.code, str(error)) from error

    def create(self, topic: str, partitions: int, configs: Configs) -> None:
        new = own.NewTopic(topic, partitions, configs=dict(configs))
        (result,) = self._do(lambda admin: admin.create_topics([new]))
        self._check(result.error)

    def delete(self, topic: str) -> None:
        (result,) = self._do(lambda admin: admin.delete_topics([topic]))
        self._check(result.error)

    def topics(self) -> set[str]:
        return {topic.name for topic in self._do(lambda admin: admin.list_topics())}

    def partitions(self, topic: str) -> int:
        return len(self._do(lambda admin: admin.describe_topics([topic]))[topic].partitions)

    def grow(self, topic: str, count: int) -> None:
        new = own.NewPartitions(topic, count)
        (result,) = self._do(lambda admin: admin.create_partitions([new]))
        self._check(result.error)

    def configs(self, topic: str) -> dict[str, str | None]:
        return self._configs(own.ConfigResource.topic(topic))

    def broker_configs(self, broker: int) -> dict[str, str | None]:
        return self._configs(own.ConfigResource.broker(broker))

    def _configs(self, resource: own.ConfigResource) -> dict[str, str | None]:
        found = self._do(lambda admin: admin.describe_configs([resource]))[resource]
        self._check(found.error)
        return {entry.name: entry.value for entry in found.entries}

    def change(self, topic: str, configs: Configs) -> None:
        resource = own.ConfigResource.topic(topic)
        changes = [own.ConfigChange(name, value) for name, value in configs.items()]
        results = self._do(lambda admin: admin.alter_configs({resource: changes}))
        self._check(results[resource].error)

    def replace(self, topic: str, configs: Configs) -> None:
        resource = own.ConfigResource.topic(topic)
        results = self._do(lambda admin: admin.replace_configs({resource: dict(configs)}))
        self._check(results[resource].error)

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        key = own.TopicPartition(topic, partition)
        result = self._do(lambda admin: admin.delete_records({key: before}))[key]
        self._check(result.error)
        return result.low_watermark

    def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        key = own.TopicPartition(topic, partition)

        async def look_up(admin: own.Admin) -> list[int]:
            return [
                (await admin.list_offsets({key: moment}))[key].offset
                for moment in (own.EARLIEST, own.LATEST)
            ]

        earliest, latest = self._do(look_up)
        return earliest, latest

    def cluster(self) -> tuple[str | None, set[int]]:
        found = self._do(lambda admin: admin.describe_cluster())
        return found.cluster_id, {node.id for node in found.nodes}

    def directories(self, broker: int) -> list[str]:
        found = self._do(lambda admin: admin.describe_log_dirs([broker]))[broker]
        self._check(found.error)
        return [directory.path for directory in found.dirs]

    def log_dirs(self, broker: int, topic: str) -> dict[int, str]:
        found = self._do(lambda admin: admin.describe_log_dirs([broker]))[broker]
        self._check(found.error)
        return {
            key.partition: directory.path
            for directory in found.dirs
            for key, replica in directory.replicas.items()
            if key.topic == topic and not replica.future
        }

    def move(self, topic: str, partition: int, broker: int, path: str) -> None:
        replica = own.Replica(own.TopicPartition(topic, partition), broker)
        self._check(self._do(lambda admin: admin.alter_replica_log_dirs({replica: path}))[replica])

    def producers(self, topic: str, partition: int) -> list[tuple[int, int]]:
        key = own.TopicPartition(topic, partition)
        found = self._do(lambda admin: admin.describe_producers([key]))[key]
        self._check(found.error)
        return [(producer.epoch, producer.last_sequence) for producer in found.producers]

    def close(self) -> None: ...

    @staticmethod
    def _check(error: Exception | None) -> None:
        if isinstance(error, ResponseError):
            raise Refused(error.code, str(error)) from error
        if error is not None:
            raise error


class KafkaPythonAdmin:
    """The admin client of kafka-python."""

    name = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        self._admin = kafka.admin.KafkaAdminClient(bootstrap_servers=bootstrap)

    @contextlib.contextmanager
    def _told(self) -> Iterator[kafka.admin.KafkaAdminClient]:
        try:
            yield self._admin
        except kafka.errors.KafkaError as error:
            raise Refused(getattr(error, "errno", -1), str(error)) from error

    def create(self, topic: str, partitions: int, configs: Configs) -> None:
        with self._told() as admin:
            admin.create_topics({topic: {"num_partitions": partitions, "configs": dict(configs)}})

    def delete(self, topic: str) -> None:
        with self._told() as admin:
            admin.delete_topics([topic])

    def topics(self) -> set[str]:
        return set(self._admin.list_topics())

    def partitions(self, topic: str) -> int:
        (found,) = self._admin.describe_topics([topic])
        return len(found["partitions"])

    def grow(self, topic: str, count: int) -> None:
        with self._told() as admin:
            admin.create_partitions({topic: count})

    def configs(self, topic: str) -> dict[str, str | None]:
        return self._configs(kafka.admin.ConfigResource("TOPIC", topic))

    def broker_configs(self, broker: int) -> dict[str, str | None]:
        return self._configs(kafka.admin.ConfigResource("BROKER", str(broker)))

    def _configs(self, resource: Any) -> dict[str, str | None]:
        with self._told() as admin:
            found = admin.describe_configs([resource], config_filter="all")
        (by_name,) = found.values()
        (rows,) = by_name.values()
        if not rows:  # the library hides the error
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return {name: row["value"] for name, row in rows.items()}

    def change(self, topic: str, configs: Configs) -> None:
        with self._told() as admin:
            resource = kafka.admin.ConfigResource("TOPIC", topic, dict(configs))
            (outcome,) = admin.alter_configs([resource])["topic"].values()
        if outcome != "OK":
            found = re.match(r"\[Error (\d+)\]", outcome)
            assert found, outcome
            raise Refused(int(found[1]), outcome)

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        key = kafka.TopicPartition(topic, partition)
        with self._told() as admin:
            found: int = admin.delete_records({key: before})[key]["low_watermark"]
        return found

    def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        key = kafka.TopicPartition(topic, partition)
        with self._told() as admin:
            earliest, latest = (
                admin.list_partition_offsets({key: moment})[key].offset for moment in (-2, -1)
            )
        return earliest, latest

    def cluster(self) -> tuple[str | None, set[int]]:
        found = self._admin.describe_cluster()
        return found["cluster_id"], {broker["broker_id"] for broker in found["brokers"]}

    def directories(self, broker: int) -> list[str]:
        return [row["log_dir"] for row in self._rows(broker)]

    def log_dirs(self, broker: int, topic: str) -> dict[int, str]:
        return {
            replica["partition_index"]: row["log_dir"]
            for row in self._rows(broker)
            for entry in row["topics"]
            for replica in entry["partitions"]
            if entry["name"] == topic and not replica["is_future_key"]
        }

    def _rows(self, broker: int) -> list[dict[str, Any]]:
        with self._told() as admin:
            (found,) = admin.describe_log_dirs(brokers=[broker])
        rows: list[dict[str, Any]] = found["log_dirs"]
        return rows

    def move(self, topic: str, partition: int, broker: int, path: str) -> None:
        with self._told() as admin:
            (error,) = admin.alter_replica_log_dirs({(topic, partition, broker): path}).values()
        if error.errno:
            raise Refused(error.errno)

    def producers(self, topic: str, partition: int) -> list[tuple[int, int]]:
        key = kafka.TopicPartition(topic, partition)
        with self._told() as admin:
            found = admin.describe_producers([key])[key]
        return [(each.producer_epoch, each.last_sequence) for each in found.active_producers]

    def close(self) -> None:
        self._admin.close()


class AioKafkaAdmin:
    """The admin client of aiokafka. Some of its operations return decoded responses."""

    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def _do(self, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        async def run() -> T:
            admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
            await admin.start()
            try:
                return await work(admin)
            finally:
                await admin.close()

        try:
            return asyncio.run(run())
        except aiokafka.errors.KafkaError as error:
            raise Refused(getattr(error, "errno", -1), str(error)) from error

    def create(self, topic: str, partitions: int, configs: Configs) -> None:
        new = aiokafka.admin.NewTopic(topic, partitions, 1, topic_configs=dict(configs))
        answer = self._do(lambda admin: admin.create_topics([new]))
        _refuse_first((row[1], row[2]) for row in answer.topic_errors)

    def delete(self, topic: str) -> None:
        answer = self._do(lambda admin: admin.delete_topics([topic]))
        _refuse_first((row[1], "") for row in answer.topic_error_codes)

    def topics(self) -> set[str]:
        return set(self._do(lambda admin: admin.list_topics()))

    def partitions(self, topic: str) -> int:
        (found,) = self._do(lambda admin: admin.describe_topics([topic]))
        return len(found["partitions"])

    def grow(self, topic: str, count: int) -> None:
        new = aiokafka.admin.NewPartitions(count)
        self._do(lambda admin: admin.create_partitions({topic: new}))

    def configs(self, topic: str) -> dict[str, str | None]:
        return self._configs(AioResource(AioResourceType.TOPIC, topic))

    def broker_configs(self, broker: int) -> dict[str, str | None]:
        return self._configs(AioResource(AioResourceType.BROKER, str(broker)))

    def _configs(self, resource: AioResource) -> dict[str, str | None]:
        (answer,) = self._do(lambda admin: admin.describe_configs([resource]))
        ((code, text, _, _, rows),) = answer.resources
        _refuse_first([(code, text)])
        return {row[0]: row[1] for row in rows}

    def replace(self, topic: str, configs: Configs) -> None:
        resource = AioResource(AioResourceType.TOPIC, topic, dict(configs))
        (answer,) = self._do(lambda admin: admin.alter_configs([resource]))
        _refuse_first((row[0], row[1]) for row in answer.resources)

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        key = aiokafka.TopicPartition(topic, partition)
        wanted = aiokafka.admin.RecordsToDelete(before)
        found: int = self._do(lambda admin: admin.delete_records({key: wanted}))[key]
        return found

    def cluster(self) -> tuple[str | None, set[int]]:
        found = self._do(lambda admin: admin.describe_cluster())
        return found["cluster_id"], {broker["node_id"] for broker in found["brokers"]}

    def close(self) -> None: ...


class ConfluentAdmin:
    """The admin client of confluent-kafka, which uses librdkafka."""

    name = "confluent-kafka"

    def __init__(self, bootstrap: str) -> None:
        self._admin = confluent_admin.AdminClient({"bootstrap.servers": bootstrap})

    @staticmethod
    def _result(answers: Mapping[Any, Any]) -> Any:
        (answer,) = answers.values()
        return ConfluentAdmin._of(answer)

    @staticmethod
    def _of(answer: Any) -> Any:
        try:
            return answer.result(PATIENCE_S)
        except confluent_kafka.KafkaException as error:
            raise Refused(error.args[0].code(), str(error)) from error

    def create(self, topic: str, partitions: int, configs: Configs) -> None:
        new = ConfluentTopic(topic, num_partitions=partitions, config=dict(configs))
        self._result(self._admin.create_topics([new]))

    def delete(self, topic: str) -> None:
        self._result(self._admin.delete_topics([topic]))

    def topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=PATIENCE_S).topics)

    def partitions(self, topic: str) -> int:
        wanted = confluent_kafka.TopicCollection([topic])
        return len(self._result(self._admin.describe_topics(wanted)).partitions)

    def grow(self, topic: str, count: int) -> None:
        self._result(self._admin.create_partitions([ConfluentPartitions(topic, count)]))

    def configs(self, topic: str) -> dict[str, str | None]:
        return self._configs(confluent_admin.ConfigResource(confluent_admin.RESOURCE_TOPIC, topic))

    def broker_configs(self, broker: int) -> dict[str, str | None]:
        return self._configs(
            confluent_admin.ConfigResource(confluent_admin.RESOURCE_BROKER, str(broker))
        )

    def _configs(self, resource: Any) -> dict[str, str | None]:
        found = self._result(self._admin.describe_configs([resource]))
        return {name: entry.value for name, entry in found.items()}

    def change(self, topic: str, configs: Configs) -> None:
        entries = [
            confluent_admin.ConfigEntry(
                name, value, incremental_operation=confluent_admin.AlterConfigOpType.SET
            )
            for name, value in configs.items()
        ]
        resource = confluent_admin.ConfigResource(
            confluent_admin.RESOURCE_TOPIC, topic, incremental_configs=entries
        )
        self._result(self._admin.incremental_alter_configs([resource]))

    def replace(self, topic: str, configs: Configs) -> None:
        resource = confluent_admin.ConfigResource(
            confluent_admin.RESOURCE_TOPIC, topic, set_config=dict(configs)
        )
        self._result(self._admin.alter_configs([resource]))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        wanted = confluent_kafka.TopicPartition(topic, partition, before)
        found: int = self._result(self._admin.delete_records([wanted])).low_watermark
        return found

    def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        key = confluent_kafka.TopicPartition(topic, partition)
        moments = (confluent_admin.OffsetSpec.earliest(), confluent_admin.OffsetSpec.latest())
        earliest, latest = (
            self._result(self._admin.list_offsets({key: moment})).offset for moment in moments
        )
        return earliest, latest

    def cluster(self) -> tuple[str | None, set[int]]:
        found = self._of(self._admin.describe_cluster())
        return found.cluster_id, {node.id for node in found.nodes}

    def close(self) -> None: ...


def _refuse_first(rows: Any) -> None:
    for code, text in rows:
        if code:
            raise Refused(code, text or "")
