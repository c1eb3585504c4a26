"""Records the requests of real clients, through a proxy whose address the broker advertises.

    python -m integration_tests.fuzzing.record

writes `recorded_requests.txt` anew: kafka-python, aiokafka, confluent-kafka, kcat, kafkajs, the
Java client and Apache's tools, each against our broker, and against Apache's for APIs that ours
does not offer. For a client that is missing on this machine the earlier recordings are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiokafka
import confluent_kafka
import kafka
import kafka.admin

from integration_tests import maven
from integration_tests.apache import ApacheKafka
from integration_tests.broker import Broker, PybrokerProcess
from integration_tests.npm import NpmUnavailable
from integration_tests.outside_clients import JavaClient, KafkaJs, Kcat, KcatUnavailable
from integration_tests.process import free_port
from integration_tests.python_clients import AioKafka, ConfluentKafka, KafkaPython
from pybroker.wire.api import APIS, ApiKey
from unit_tests.fuzzing.recorded import FRAME_BYTES_MAX, Recorded, keep, recorded_requests
from unit_tests.patience import PATIENCE_S

MISSING: Final = (maven.MavenUnavailable, NpmUnavailable, KcatUnavailable)
INTERNAL_TOPICS: Final = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}


class Proxy:
    """A proxy that forwards all bytes between clients and a broker in its own thread, and keeps the
    requests of the client named `client`.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.target_port = 0
        self.client = ""
        self.kept: dict[tuple[str, int, int], bytes] = {}
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()
        self._ready.wait()

    def _run(self) -> None:
        self._loop.run_until_complete(asyncio.start_server(self._connected, "127.0.0.1", self.port))
        self._ready.set()
        self._loop.run_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            onward = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._requests(reader, onward[1]), self._answers(onward[0], writer))

    async def _requests(self, reader: asyncio.StreamReader, onward: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                prefix = await reader.readexactly(4)
                frame = await reader.readexactly(struct.unpack(">i", prefix)[0])
                self._keep(frame)
                onward.write(prefix + frame)
                await onward.drain()
        onward.close()

    async def _answers(self, onward: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await onward.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    def _keep(self, frame: bytes) -> None:
        """Keep a request if it is the longest of its API and version below the size limit, because
        it has the most content.
        """
        key, version = struct.unpack_from(">hh", frame)
        if not self.client:
            return
        if key not in APIS or not APIS[key].supports(version) or len(frame) > FRAME_BYTES_MAX:
            return
        # Apache's broker sends transaction markers to itself, not the client.
        client = "java" if key == ApiKey.WRITE_TXN_MARKERS else self.client
        kind = (client, key, version)
        if len(frame) > len(self.kept.get(kind, b"")):
            self.kept[kind] = frame


# the clients' operations


def by_vocabulary(make: Callable[[str], Any], bootstrap: str) -> Iterator[Callable[[], object]]:
    """Run the operations that every client for tests has."""
    client = make(bootstrap)
    topic = f"recorded-{client.name}"
    samples = client.samples[:3]
    yield lambda: client.create_topic(topic)
    for idempotent, codec in ((False, "none"), (True, "gzip")):
        yield partial(client.produce, topic, samples, codec=codec, idempotent=idempotent)
    if not isinstance(client, KafkaJs):
        yield lambda: client.read(topic)
        yield lambda: client.offset_for_time(topic, 0)
    if isinstance(client, JavaClient | KafkaJs):
        yield client.close


def confluent_group(bootstrap: str) -> Iterator[Callable[[], object]]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g-confluent", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["recorded-confluent-kafka"])
    yield lambda: consumer.consume(3, 15)
    yield lambda: consumer.commit(asynchronous=False)
    yield consumer.close
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": "t-confluent"}
    )
    yield lambda: producer.init_transactions(20)
    yield producer.begin_transaction
    yield lambda: producer.produce("recorded-confluent-kafka", b"in a transaction")
    yield lambda: producer.commit_transaction(20)


def kafka_python_group(bootstrap: str) -> Iterator[Callable[[], object]]:
    consumer = kafka.KafkaConsumer(
        "recorded-kafka-python",
        bootstrap_servers=bootstrap,
        group_id="g-python",
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
    )
    yield lambda: next(iter(consumer))
    yield consumer.commit
    yield consumer.close
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=bootstrap)
    for name, arguments in (
        ("describe_topics", (["recorded-kafka-python"],)),
        ("describe_cluster", ()),
        ("list_consumer_groups", ()),
        ("describe_consumer_groups", (["g-python"],)),
        ("list_consumer_group_offsets", ("g-python",)),
        ("delete_consumer_groups", (["g-python"],)),
        ("describe_log_dirs", ()),
        (
            "describe_configs",
            ([kafka.admin.ConfigResource("TOPIC", "recorded-kafka-python")],),
        ),
        ("create_partitions", ({"recorded-kafka-python": kafka.admin.NewPartitions(2)},)),
        ("delete_topics", (["recorded-kafka-python"],)),
    ):
        yield partial(getattr(admin, name), *arguments)
    yield admin.close


def aiokafka_group(bootstrap: str) -> Iterator[Callable[[], object]]:
    async def consume() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            "recorded-aiokafka",
            bootstrap_servers=bootstrap,
            group_id="g-aio",
            auto_offset_reset="earliest",
        )
        await consumer.start()
        await asyncio.wait_for(consumer.getone(), PATIENCE_S)
        await consumer.commit()
        await consumer.stop()

    async def transact() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="t-aio")
        await producer.start()
        async with producer.transaction():
            await producer.send_and_wait("recorded-aiokafka", b"in a transaction")
        await producer.stop()

    yield lambda: asyncio.run(consume())
    yield lambda: asyncio.run(transact())


TOOLS: Final = """
org.apache.kafka.tools.TopicCommand --create --topic recorded-tools
org.apache.kafka.tools.TopicCommand --describe
org.apache.kafka.tools.TopicCommand --alter --topic recorded-tools --partitions 2
kafka.admin.ConfigCommand --describe --entity-type topics
kafka.admin.ConfigCommand --alter --entity-type topics --entity-name recorded-tools --add-config retention.ms=1000000
kafka.admin.ConfigCommand --describe --entity-type users
org.apache.kafka.tools.DeleteRecordsCommand --offset-json-file RECORDS
org.apache.kafka.tools.LogDirsCommand --describe
org.apache.kafka.tools.GetOffsetShell
org.apache.kafka.tools.LeaderElectionCommand --election-type preferred --all-topic-partitions
org.apache.kafka.tools.reassign.ReassignPartitionsCommand --execute --reassignment-json-file MOVES
org.apache.kafka.tools.reassign.ReassignPartitionsCommand --list
org.apache.kafka.tools.TransactionsCommand WHERE list
org.apache.kafka.tools.TransactionsCommand WHERE describe-producers --topic recorded-tools --partition 0
org.apache.kafka.tools.ClusterTool cluster-id
kafka.admin.AclCommand --list
org.apache.kafka.tools.consumer.ConsoleConsumer --topic recorded-tools --group g-java --timeout-ms 5000
org.apache.kafka.tools.consumer.group.ConsumerGroupCommand --describe --all-groups
org.apache.kafka.tools.consumer.group.ConsumerGroupCommand --delete-offsets --group g-java --topic recorded-tools
org.apache.kafka.tools.consumer.group.ConsumerGroupCommand --delete --group g-java
org.apache.kafka.tools.TopicCommand --delete --topic recorded-tools
"""  # noqa: E501  (one command a line)
"""Apache's programs, which use the Java admin client and group consumer. Without WHERE the
server's address is appended."""


def apache_tools(bootstrap: str) -> Iterator[Callable[[], object]]:
    where = ["--bootstrap-server", bootstrap]
    partition = '"topic":"recorded-tools","partition":0'
    with tempfile.TemporaryDirectory() as folder:
        records, moves = Path(folder, "records.json"), Path(folder, "moves.json")
        records.write_text(f'{{"partitions":[{{{partition},"offset":0}}],"version":1}}')
        moves.write_text(f'{{"partitions":[{{{partition},"replicas":[0]}}],"version":1}}')
        places = {"RECORDS": [str(records)], "MOVES": [str(moves)], "WHERE": where}
        for line in TOOLS.strip().splitlines():
            words = line.split() if "WHERE" in line else [*line.split(), "WHERE"]
            arguments = [part for word in words for part in places.get(word, [word])]
            command = [maven.java(), "-cp", maven.class_path(), *arguments]
            yield partial(
                subprocess.run,
                command,
                capture_output=True,
                timeout=PATIENCE_S,
                check=False,
            )


SESSIONS: Final[dict[str, Callable[[str], Iterator[Callable[[], object]]]]] = {
    "confluent-kafka": lambda bootstrap: by_vocabulary(ConfluentKafka, bootstrap),
    "confluent-kafka-groups": confluent_group,
    "kafka-python": lambda bootstrap: by_vocabulary(KafkaPython, bootstrap),
    "kafka-python-groups": kafka_python_group,
    "aiokafka": lambda bootstrap: by_vocabulary(AioKafka, bootstrap),
    "aiokafka-groups": aiokafka_group,
    "kcat": lambda bootstrap: by_vocabulary(Kcat, bootstrap),
    "java": lambda bootstrap: by_vocabulary(JavaClient, bootstrap),
    "java-tools": apache_tools,
    "kafkajs": lambda bootstrap: by_vocabulary(KafkaJs, bootstrap),
}


def record(proxy: Proxy, *, groups: bool) -> None:
    """Run all operations of every client; errors of the broker are ignored."""
    bootstrap = f"127.0.0.1:{proxy.port}"
    for name, session in SESSIONS.items():
        if name.endswith("-groups") and not groups:
            continue
        proxy.client = name.removesuffix("-groups").removesuffix("-tools")
        try:
            for step in session(bootstrap):
                try:
                    step()
                except Exception as error:
                    print(f"  {name}: {type(error).__name__} {str(error)[:90]}", file=sys.stderr)
        except MISSING as error:
            print(f"{name}: {error}", file=sys.stderr)
        except Exception:
            traceback.print_exc()
        print(f"{name}: {len(proxy.kept)} kept", file=sys.stderr, flush=True)


def main() -> int:
    proxy = Proxy()
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
    with tempfile.TemporaryDirectory() as folder:
        brokers: list[tuple[Broker, bool]] = [
            (PybrokerProcess(Path(folder, "ours"), overrides=advertised), False)
        ]
        with contextlib.suppress(maven.MavenUnavailable):
            overrides = {**advertised, **INTERNAL_TOPICS}
            brokers.append((ApacheKafka(Path(folder, "apache"), overrides=overrides), True))
        for broker, groups in brokers:
            # Brokers, too, connect to themselves by their advertised address.
            proxy.client, proxy.target_port = "", broker.port
            try:
                broker.start()
                record(proxy, groups=groups)
            finally:
                broker.close()
    before = {(one.client, one.key, one.version): one.frame for one in recorded_requests()}
    found = {**before, **proxy.kept}
    count = keep(Recorded(*kind, frame) for kind, frame in found.items())
    print(f"{count} requests of {len({key for _, key, _ in found})} APIs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
