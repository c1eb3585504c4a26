"""A whole broker for tests, with real logs in a temporary directory and a ZooKeeper in memory,
without sockets and threads. A test passes frames to the dispatcher, as a connection does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from pybroker.broker.app import BrokerApp
from pybroker.broker.environment import BrokerEnvironment
from pybroker.broker.topic_logs import topic_log_config
from pybroker.clock import SystemClock
from pybroker.config.broker_config import BrokerConfig
from pybroker.config.listeners import endpoints
from pybroker.coordinator.zookeeper.registry import cluster_id, create_parents
from pybroker.deferred import Deferred
from pybroker.errors import ErrorCode
from pybroker.handlers.dispatch import Answer
from pybroker.model import Endpoint, TopicPartition, UpdateMetadata
from pybroker.ports import Buffer, Clock, Disk
from pybroker.records.builder import BatchBuilder
from pybroker.records.compression import Codec
from pybroker.records.record import Record, decode_records
from pybroker.replication.purgatory import Purgatory
from pybroker.storage.files import SystemDisk
from pybroker.storage.manager import LogManager
from pybroker.testing.simulation.memory_tree import MemoryTree
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.codec import decode_response, encode_request
from pybroker.wire.headers import RequestHeader, encode_request_header, parse_response_header
from pybroker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from pybroker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from pybroker.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
)
from pybroker.wire.schema import Message
from unit_tests.coordinator.memory_coord import MemoryCoord

T = TypeVar("T")

BROKER_ID = 1
LISTENER = "PLAINTEXT"
NOW_MS = 1_700_000_000_000
CORRELATION_ID = 4711
LATEST_PRODUCE = APIS[ApiKey.PRODUCE].max_version
LATEST_FETCH = APIS[ApiKey.FETCH].max_version
_BYTES_MAX = 64 * 1024 * 1024


class Gate:
    """Delays one piece of blocking work until `open` is set."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()


class ImmediateBlocking:
    """A `Blocking` that does the work at once and records its name."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self._gates: list[tuple[str, Gate]] = []
        self._held: list[Gate] = []

    def hold(self, name: str = "") -> Gate:
        """Return a gate at which the next piece of work waits; with `name`, the next piece of this
        name. Periodic work of other names may come at any time."""
        gate = Gate()
        self._gates.append((name, gate))
        self._held.append(gate)
        return gate

    def give_way(self) -> None:
        """Do nothing: no other thread waits for the processor."""

    def open_all(self) -> None:
        """Open all gates, so that a failed test still ends."""
        self._gates.clear()
        for gate in self._held:
            gate.open.set()

    async def hold_and_pass(self) -> None:
        """Wait until the next piece of work begins, and let it continue."""
        gate = self.hold()
        gate.open.set()
        await gate.reached.wait()

    def run(self, function: Callable[..., T], *args: object) -> Awaitable[T]:
        name = getattr(function, "__name__", repr(function))
        self.done.append(name)
        for number, (wanted, gate) in enumerate(self._gates):
            if wanted in ("", name):
                del self._gates[number]
                return self.run_behind(gate, function, *args)
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            result.set_result(function(*args))
        except Exception as error:
            result.set_exception(error)
        return result

    def close(self) -> None:
        """Do nothing: there is no thread."""

    async def run_behind(self, gate: Gate, function: Callable[..., T], *args: object) -> T:
        gate.reached.set()
        await gate.open.wait()
        return function(*args)


class FixedProc:
    """The `Proc` of a machine that is never rebooted."""

    def boot_id(self) -> str:
        return "00000000-0000-4000-8000-000000000001"

    def pid(self) -> int:
        return 1


class Bench:
    """A broker, from `start` to `stop`. A second Bench with the same `home` and `tree` has the data
    of the first."""

    def __init__(
        self,
        home: Path,
        *,
        properties: dict[str, str] | None = None,
        clock: Clock | None = None,
        tree: MemoryTree | None = None,
        endpoints: tuple[Endpoint, ...] = (Endpoint(LISTENER, "broker.example", 9092),),
        disk: Disk | None = None,
    ) -> None:
        self.home = home
        self.properties = properties or {}
        self.clock: Clock = clock or SystemClock()
        self.disk: Disk = disk or SystemDisk()
        self.tree = tree or MemoryTree(self.clock)
        self.coord = MemoryCoord(self.tree, name="bench")
        self.blocking = ImmediateBlocking()
        self.lost: list[str] = []
        """The reasons why the broker must end; `has_lost` is set with the first."""
        self.has_lost = asyncio.Event()
        self.endpoints = endpoints
        self.cluster_id = ""
        self._others: set[asyncio.Task[Any]] = set()
        self._running = False

    # life

    async def start(self) -> None:
        self._others = asyncio.all_tasks()
        config = BrokerConfig.parse(
            {
                "log.dirs": str(self.home),
                "broker.id": str(BROKER_ID),
                "controlled.shutdown.max.retries": "1",
                **self.properties,
            }
        )
        await self.coord.start()
        await create_parents(self.coord)
        rng = random.Random(len(self.tree.paths()))
        self.cluster_id = await cluster_id(self.coord, rng)
        self.logs = LogManager(
            directories=config.log_directories,
            disk=self.disk,
            clock=self.clock,
            proc=FixedProc(),
            defaults=topic_log_config(config, "", {}),
            rng=rng,
        )
        self.logs.start(BROKER_ID, self.cluster_id)
        self.app = BrokerApp(
            config=config,
            broker_id=BROKER_ID,
            cluster_id=self.cluster_id,
            advertised=self._advertised,
            logs=self.logs,
            env=BrokerEnvironment(
                self.coord,
                self.clock,
                rng,
                self.blocking,
                self.disk,
                self._connect_offsets,
                ImmediateBlocking,
                lambda: self.coord.earlier_session_ids,
            ),
            lost=self._lose,
        )
        self._running = True
        await self.app.start({})

    def _advertised(self, config: BrokerConfig) -> tuple[Endpoint, ...]:
        if config.advertised_listeners is None:
            return self.endpoints
        return endpoints(config.advertised, {}, "broker.example")

    async def stop(self) -> None:
        """Shut the broker down cleanly. Idempotent."""
        if self._running:
            self._running = False
            self.blocking.open_all()
            await self.app.stop()
            await self.coord.close()

    async def _connect_offsets(self) -> MemoryCoord:
        coord = MemoryCoord(self.tree, name="offsets")
        await coord.start()
        return coord

    def _lose(self, reason: str) -> None:
        self.lost.append(reason)
        self.has_lost.set()

    async def crash(self) -> None:
        """End the broker as kill -9 does: nothing more is written, and the session ends."""
        self._running = False
        self.coord.suspend()
        tasks = asyncio.all_tasks() - self._others - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.tree.end_session(self.coord.session_id)
        self.logs.unlock()

    def again(self) -> Bench:
        """Return the next broker with this data in this cluster. The caller has to start it."""
        return Bench(
            self.home,
            properties=self.properties,
            clock=self.clock,
            tree=self.tree,
            endpoints=self.endpoints,
            disk=self.disk,
        )

    async def __aenter__(self) -> Bench:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    # requests

    def dispatch(
        self, key: ApiKey, version: int, request: Message, *, listener: str = LISTENER
    ) -> Answer | Awaitable[Answer]:
        """Return the dispatcher's result without awaiting it."""
        api = APIS[key]
        body = encode_request(api, version, request)
        header = RequestHeader(key, version, CORRELATION_ID, "bench")
        encoded = encode_request_header(header, api.request_header_version(version))
        return self.app.dispatcher.answer(
            memoryview(bytearray(encoded + body)), listener, "127.0.0.1"
        )

    def decode(self, key: ApiKey, version: int, answer: Answer) -> Any:
        """Return the message in the buffers of an answer, or None."""
        data = _joined(answer)
        if data is None:
            return None
        api = APIS[key]
        correlation_id, start = parse_response_header(
            memoryview(data), api.response_header_version(version)
        )
        assert correlation_id == CORRELATION_ID
        return decode_response(api, version, memoryview(data)[start:])

    async def ask(
        self, key: ApiKey, version: int, request: Message, *, listener: str = LISTENER
    ) -> Any:
        """Send a request and return the decoded answer, or None."""
        answer = self.dispatch(key, version, request, listener=listener)
        return self.decode(key, version, await answer if isinstance(answer, Awaitable) else answer)

    # words

    async def create(
        self, name: str, partitions: int = 1, configs: dict[str, str] | None = None
    ) -> None:
        """Create a topic and wait for its leaders."""
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=1,
                    configs=[
                        CreatableTopicConfig(name=key, value=value)
                        for key, value in (configs or {}).items()
                    ],
                )
            ],
            timeout_ms=10_000,
        )
        answer: CreateTopicsResponse = await self.ask(ApiKey.CREATE_TOPICS, 7, request)
        assert answer.topics[0].error_code == 0, answer.topics[0].error_message

    @staticmethod
    def delete_request(*names: str) -> DeleteTopicsRequest:
        """Return a DeleteTopics request for versions up to 5."""
        return DeleteTopicsRequest(topic_names=list(names), timeout_ms=10_000)

    async def produce(
        self,
        topic: str,
        records: Buffer | None,
        *,
        partition: int = 0,
        acks: int = -1,
        version: int = LATEST_PRODUCE,
    ) -> PartitionProduceResponse:
        """Append one batch; return the result of its partition."""
        request = produce_request(topic, {partition: records}, acks=acks)
        answer: ProduceResponse = await self.ask(ApiKey.PRODUCE, version, request)
        return the_only(the_only(answer.responses).partition_responses)

    def store_epoch(self, topic: str) -> None:
        """Write the leader epoch of partition 0 to disk. Otherwise the first produce waits for
        it."""
        self.app.replicas.partition(TopicPartition(topic, 0)).log.persist_epochs()

    async def fetch(
        self, topic: str, offset: int, *, version: int = LATEST_FETCH, **options: Any
    ) -> PartitionData:
        """Read partition 0 without waiting; return its result."""
        request = fetch_request((topic, 0, offset), **options)
        answer: FetchResponse = await self.ask(ApiKey.FETCH, version, request)
        assert answer.error_code == 0
        return the_only(the_only(answer.responses).partitions)

    async def tell(self, *facts: Any) -> None:
        """Apply UpdateMetadata with these PartitionFacts, as the controller sends it."""
        view = self.app.metadata
        view.apply(
            UpdateMetadata(
                BROKER_ID,
                self.app.controller.epoch,
                -1,
                partitions=facts,
                brokers=tuple(view.brokers.values()),
            )
        )

    @staticmethod
    async def waits(purgatory: Purgatory, *requests: asyncio.Future[Any] | Deferred[Any]) -> None:
        """Wait until each of these requests is answered or waits in the purgatory. Each request
        must have one partition."""
        for _ in range(10_000):
            if len(purgatory) + sum(each.done() for each in requests) >= len(requests):
                return
            await asyncio.sleep(0)
        raise AssertionError("the requests are still under way")


def _joined(answer: Answer) -> bytes | None:
    """Return the frame without its size, after a check of the size."""
    if answer is None:
        return None
    data = b"".join(bytes(part) for part in answer)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    return data[4:]


def the_only(items: list[T]) -> T:
    assert len(items) == 1
    return items[0]


def batch(
    *values: bytes,
    key: bytes | None = b"key",
    timestamp: int = NOW_MS,
    codec: Codec = Codec.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
) -> bytes:
    """Return a batch as a client sends it. `producer` is id, epoch and first sequence."""
    builder = BatchBuilder(codec)
    for number, value in enumerate(values or (b"value",)):
        builder.append(timestamp + number, key, value, ())
    return bytes(builder.build(*producer, transactional))


def produce_request(
    topic: str, partitions: Mapping[int, Buffer | None], *, acks: int = -1, timeout_ms: int = 10_000
) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(
                name=topic,
                partition_data=[
                    PartitionProduceData(index=index, records=records)
                    for index, records in partitions.items()
                ],
            )
        ],
    )


def fetch_request(
    *wanted: tuple[str, int, int],
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = _BYTES_MAX,
    partition_max_bytes: int = _BYTES_MAX,
    read_committed: bool = False,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    session: tuple[int, int] = (0, -1),
    replica_id: int = -1,
    incarnation: int = -1,
    log_start_offset: int = -1,
) -> FetchRequest:
    """Return a Fetch request. `wanted` are (topic, partition, offset); each gets its own topic
    entry."""
    return FetchRequest(
        replica_id=replica_id,
        replica_incarnation=incarnation,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=int(read_committed),
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(
                        partition=partition,
                        fetch_offset=offset,
                        current_leader_epoch=current_leader_epoch,
                        last_fetched_epoch=last_fetched_epoch,
                        log_start_offset=log_start_offset,
                        partition_max_bytes=partition_max_bytes,
                    )
                ],
            )
            for topic, partition, offset in wanted
        ],
    )


def records_of(answer: PartitionData) -> list[Record]:
    """Return the values of all records in the answer, in order."""
    assert answer.records is not None
    found: list[Record] = []
    position, data = 0, bytes(answer.records)
    while position < len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        found += decode_records(data[position : position + size], decompressed_bytes_max=_BYTES_MAX)
        position += size
    return found


def values_of(answer: PartitionData) -> list[bytes | None]:
    return [record.value for record in records_of(answer)]


def code(answer: Any) -> ErrorCode:
    """Return the item's error as an ErrorCode, so that a failed assertion shows its name."""
    return _CODES[answer.error_code]


_CODES: Final = {int(each): each for each in ErrorCode}
