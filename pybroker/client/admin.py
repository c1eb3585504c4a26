"""The public admin client: topics, offsets, cluster. Every operation answers item by item, so that
one bad name does not hide what became of the others."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

from pybroker.client.backoff import Deadline
from pybroker.client.cluster import Cluster
from pybroker.client.connection import Connection
from pybroker.client.errors import ClientError, Closed, NotConnected, ResponseError
from pybroker.client.metadata import ClusterView, Node, TopicInfo, error_code
from pybroker.client.offset_lookup import OffsetAnswer, list_offsets
from pybroker.client.options import AdminOptions, parse_options
from pybroker.clock import SystemClock
from pybroker.errors import ErrorCode
from pybroker.model import NO_TOPIC_ID, TopicPartition
from pybroker.ports import Clock, Rng
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from pybroker.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

T = TypeVar("T")

TOPIC_RESOURCE = 2
DEFAULT_CONFIG = 5
DEFAULT = -1
DELETE_BY_STATE_VERSION = 6


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 leaves the number to the broker. With `assignments` (partition ->
    brokers, preferred leader first) both numbers stay -1."""

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicResult:
    """What became of one topic of a request. `error` None means that it was done; the rest is
    filled as far as the broker tells."""

    name: str
    error: ResponseError | None
    topic_id: uuid.UUID = NO_TOPIC_ID
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] = field(default_factory=dict)

    def check(self) -> TopicResult:
        """Itself; raises `error` if there is one."""
        if self.error is not None:
            raise self.error
        return self


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """An option that holds for a resource. `is_default`: nobody has set it anywhere."""

    name: str
    value: str | None
    is_default: bool


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """`controller` is None while there is none."""

    cluster_id: str | None
    controller: Node | None
    nodes: tuple[Node, ...]


class Admin:
    """Manages topics.

    async with Admin("localhost:9092") as admin:
        for result in await admin.create_topics([NewTopic("orders", partitions=3)]):
            result.check()
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | None = None,
        *,
        clock: Clock | None = None,
        rng: Rng | None = None,
        **options: object,
    ) -> None:
        """Raises ConfigError."""
        if bootstrap_servers is not None:
            options["bootstrap_servers"] = (
                bootstrap_servers if isinstance(bootstrap_servers, str) else list(bootstrap_servers)
            )
        self.options = parse_options(AdminOptions, options)
        self._clock = clock or SystemClock()
        self._cluster = Cluster(self.options, clock=self._clock, rng=rng or random.Random())
        self._running = False

    async def start(self) -> None:
        """Reach the cluster. Raises NoBrokers."""
        try:
            await self._cluster.start()
        except BaseException:
            await self._cluster.close()
            raise
        self._running = True

    async def close(self) -> None:
        """Idempotent."""
        self._running = False
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def create_topics(
        self,
        topics: Iterable[NewTopic],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> list[TopicResult]:
        """One result a topic. `validate_only` checks what would happen and does nothing. Raises
        ClientError if the controller cannot be asked."""
        limit_ms = timeout_ms or self.options.default_api_timeout_ms
        request = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in topics],
            timeout_ms=min(limit_ms, self.options.request_timeout_ms),
            validate_only=validate_only,
        )

        async def ask(connection: Connection, timeout_s: float) -> CreateTopicsResponse:
            answer = await connection.send(
                ApiKey.CREATE_TOPICS, request, CreateTopicsResponse, timeout_s=timeout_s
            )
            _controller_moved(row.error_code for row in answer.topics)
            return answer

        response = await self._ask_controller(ask, limit_ms)
        return [_created(row) for row in response.topics]

    async def delete_topics(
        self, names: Iterable[str], *, timeout_ms: int | None = None
    ) -> list[TopicResult]:
        """One result a topic. Raises ClientError if the controller cannot be asked."""
        limit_ms = timeout_ms or self.options.default_api_timeout_ms
        topics = list(names)

        async def ask(connection: Connection, timeout_s: float) -> DeleteTopicsResponse:
            by_state = connection.version_of(ApiKey.DELETE_TOPICS) >= DELETE_BY_STATE_VERSION
            request = DeleteTopicsRequest(
                topics=[DeleteTopicState(name=name) for name in topics] if by_state else [],
                topic_names=[] if by_state else topics,
                timeout_ms=min(limit_ms, self.options.request_timeout_ms),
            )
            answer = await connection.send(
                ApiKey.DELETE_TOPICS, request, DeleteTopicsResponse, timeout_s=timeout_s
            )
            _controller_moved(row.error_code for row in answer.responses)
            return answer

        response = await self._ask_controller(ask, limit_ms)
        return [
            TopicResult(row.name or "", _error(row.error_code, row.error_message), row.topic_id)
            for row in response.responses
        ]

    async def list_topics(self) -> list[TopicInfo]:
        """All topics that may be seen, sorted by name, internal ones too. Raises ClientError."""
        view = await self._metadata(None)
        return [view.topics[name] for name in sorted(view.topics)]

    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """What is known of each; `error` tells of those that do not exist. Raises ClientError."""
        wanted = list(names)
        return dict((await self._metadata(wanted)).topics) if wanted else {}

    async def describe_cluster(self) -> ClusterDescription:
        """Raises ClientError."""
        view = await self._metadata([])
        nodes = tuple(view.nodes[number] for number in sorted(view.nodes))
        return ClusterDescription(view.cluster_id, view.nodes.get(view.controller_id), nodes)

    async def topic_configs(self, names: Iterable[str]) -> dict[str, list[ConfigEntry]]:
        """The options of each topic with their values, in the broker's order; an empty list where
        they cannot be read. Raises ClientError if no broker answers."""
        resources = [
            DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None
            )
            for name in names
        ]
        if not resources:
            return {}

        async def ask(connection: Connection, timeout_s: float) -> DescribeConfigsResponse:
            request = DescribeConfigsRequest(resources=resources)
            return await connection.send(
                ApiKey.DESCRIBE_CONFIGS, request, DescribeConfigsResponse, timeout_s=timeout_s
            )

        response = await self._ask(
            self._cluster.any_connection,
            ask,
            self.options.default_api_timeout_ms,
            repeatable=True,
        )
        return {
            result.resource_name: [
                ConfigEntry(row.name, row.value, row.config_source == DEFAULT_CONFIG)
                for row in result.configs
            ]
            for result in response.results
        }

    async def list_offsets(
        self,
        moments: Mapping[TopicPartition, int],
        *,
        isolation_level: str = "read_uncommitted",
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAnswer]:
        """One answer a partition, with its own error. Moments are ms since 1970, or LATEST (-1),
        EARLIEST (-2), MAX_TIMESTAMP (-3)."""
        self._check_running()
        return await list_offsets(
            self._cluster,
            moments,
            isolation_level=isolation_level,
            deadline=Deadline(self._clock, timeout_ms or self.options.default_api_timeout_ms),
        )

    async def _metadata(self, names: Iterable[str] | None) -> ClusterView:
        self._check_running()
        deadline = Deadline(self._clock, self.options.default_api_timeout_ms)
        failures = 0
        while True:
            try:
                return await self._cluster.metadata(
                    names, timeout_s=self.options.request_timeout_ms / 1_000
                )
            except ClientError as error:
                failures += 1
                await self._before_retry(error, failures, deadline, repeatable=True)

    async def _ask_controller(
        self, ask: Callable[[Connection, float], Awaitable[T]], limit_ms: int
    ) -> T:
        async def controller() -> Connection:
            node = self._cluster.view.controller_id
            if node not in self._cluster.view.nodes:
                raise NotConnected("the cluster has no controller at the moment")
            return await self._cluster.connection(node)

        return await self._ask(controller, ask, limit_ms)

    async def _ask(
        self,
        choose: Callable[[], Awaitable[Connection]],
        ask: Callable[[Connection, float], Awaitable[T]],
        limit_ms: int,
        *,
        repeatable: bool = False,
    ) -> T:
        """Ask until there is an answer."""
        self._check_running()
        deadline = Deadline(self._clock, limit_ms)
        failures = 0
        while True:
            try:
                connection = await choose()
                limit_s = min(deadline.remaining_s(), self.options.request_timeout_ms / 1_000)
                return await ask(connection, max(limit_s, 0.001))
            except ClientError as error:
                failures += 1
                await self._before_retry(error, failures, deadline, repeatable=repeatable)

    async def _before_retry(
        self, error: ClientError, failures: int, deadline: Deadline, *, repeatable: bool = False
    ) -> None:
        """Wait as long as is due before another try; raise the error if there shall be none.
        What may have been done is done again only if it is `repeatable`."""
        pause = self._cluster.pause_s(failures)
        may_retry = error.retriable and (error.definite or repeatable)
        if not may_retry or deadline.remaining_s() <= pause:
            raise error
        await asyncio.sleep(pause)
        try:
            await self._cluster.refreshed(deadline.remaining_s())
        except (TimeoutError, ClientError):
            pass

    def _check_running(self) -> None:
        if not self._running:
            raise Closed("the admin client is not running")


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=number, broker_ids=list(brokers))
            for number, brokers in topic.assignments.items()
        ],
        configs=[
            CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()
        ],
    )


def _created(row: CreatableTopicResult) -> TopicResult:
    return TopicResult(
        row.name,
        _error(row.error_code, row.error_message),
        row.topic_id,
        row.num_partitions,
        row.replication_factor,
        {config.name: config.value for config in row.configs or ()},
    )


def _error(number: int, detail: str | None) -> ResponseError | None:
    return ResponseError(error_code(number), detail or "") if number else None


def _controller_moved(codes: Iterable[int]) -> None:
    """All items fail alike when the broker asked is not the controller; nothing was done."""
    if ErrorCode.NOT_CONTROLLER in codes:
        raise ResponseError(ErrorCode.NOT_CONTROLLER)
