"""The connections of a client to the brokers of a cluster, and the cluster metadata. This module
refreshes the metadata, and selects the broker for a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from pybroker.background import TaskOwner
from pybroker.client.addresses import format_address
from pybroker.client.backoff import Deadline, backoff_s
from pybroker.client.connection import Connection
from pybroker.client.errors import (
    Attempt,
    ClientError,
    Closed,
    ConnectFailed,
    NoBrokers,
    NotConnected,
    TopicUnavailable,
)
from pybroker.client.metadata import ClusterView, Node, TopicInfo, newer, view_of
from pybroker.client.options import ClientOptions
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import Clock, Rng
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

log = logging.getLogger(__name__)

Address = tuple[str, int]
HOPELESS = frozenset({ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED})


class Connector(Protocol):
    """A function that opens a connection to a broker, such as `Connection.open`."""

    def __call__(
        self,
        host: str,
        port: int,
        *,
        client_id: str,
        timeout_s: float,
        response_max_bytes: int,
    ) -> Awaitable[Connection]: ...


@dataclass(slots=True)
class _Link:
    """The connection to one address. `failures` counts failed attempts since the last success. No
    attempt starts before `next_try` (monotonic seconds)."""

    connection: Connection | None = None
    opening: asyncio.Task[None] | None = None
    failures: int = 0
    was_lost: bool = False
    """Whether the last connection was lost, and no attempt to connect has ended since."""
    last_request: int = 0
    """The number of the last metadata request that the client sent to this address; 0 for none. The
    client counts its metadata requests to all addresses together, from 1."""
    next_try: float = 0.0
    last_failure: Attempt | None = None


class Cluster:
    """A client's connections to the brokers, and the latest metadata (`view`). Listeners are called
    after each metadata refresh or connection attempt, and must not block."""

    def __init__(
        self,
        options: ClientOptions,
        *,
        clock: Clock,
        rng: Rng,
        auto_create_topics: bool = False,
        is_idle: Callable[[str], bool] = lambda _: False,
        connector: Connector = Connection.open,
    ) -> None:
        """`is_idle` returns whether metadata requests may omit a watched topic from now on.
        `auto_create_topics` lets brokers create missing watched topics."""
        self.options = options
        self.clock = clock
        self.rng = rng
        self.view = ClusterView()
        self._auto_create_topics = auto_create_topics
        self._is_idle = is_idle
        self._connector = connector
        self._links: dict[tuple[Address, str], _Link] = {}
        self._topics: set[str] = set()
        self._all_topics = False
        self._listeners: list[Callable[[], None]] = []
        self._wanted = asyncio.Event()
        self._asked = 0
        """The number of metadata requests that the client has sent."""
        self._was_no_help = False
        """Whether the last refresh that `request_refresh` caused returned the metadata that was
        known before."""
        self._refreshes: list[asyncio.Future[None]] = []
        self._tasks = TaskOwner()
        self._closed = False

    async def start(self) -> None:
        """Connect to one of the bootstrap brokers and get the metadata. Raises NoBrokers after
        bootstrap.timeout.ms."""
        deadline = Deadline(self.clock, self.options.bootstrap_timeout_ms)
        failures = 0
        while True:
            try:
                await self._refresh()
                break
            except ClientError:
                failures += 1
                pause = self.pause_s(failures)
                if deadline.remaining_s() <= pause:
                    raise
                await asyncio.sleep(pause)
        self._tasks.start(self._maintain(), "metadata").add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Called when the metadata task ends. If the task was cancelled and `close` was not called,
        the program ended without closing the client: log a warning."""
        if task.cancelled() and not self._closed:
            log.warning(
                "client was not closed client_id=%s remedy=%s",
                self.options.client_id, "use async with, or await close()",
            )  # fmt: skip

    async def close(self) -> None:
        """Close the connections to all brokers. Idempotent."""
        self._closed = True
        try:
            await self._tasks.close()
        finally:
            self._tell(self._refreshes, _closed())
            connections = [link.connection for link in self._links.values() if link.connection]
            await asyncio.gather(*(connection.close() for connection in connections))

    def add_listener(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def pause_s(self, failures: int) -> float:
        """Return the retry backoff in seconds after this number of consecutive failures."""
        options = self.options
        return backoff_s(
            failures,
            first_ms=options.retry_backoff_ms,
            max_ms=options.retry_backoff_max_ms,
            rng=self.rng,
        )

    # Metadata

    def watch(self, topics: Iterable[str]) -> None:
        """Include these topics in metadata requests from now on."""
        fresh = set(topics) - self._topics
        if fresh:
            self._topics |= fresh
            self.request_refresh()

    def watch_all(self, wanted: bool) -> None:
        """Set whether metadata requests ask for all topics, or only for the watched topics."""
        if wanted and not self._all_topics:
            self.request_refresh()
        self._all_topics = wanted

    def request_refresh(self) -> None:
        """Refresh the metadata soon, in the background."""
        self._wanted.set()

    async def refreshed(self, timeout_s: float) -> None:
        """Refresh the metadata and wait until it has arrived. Raises TimeoutError after
        `timeout_s`. Raises Closed if the client is closed. Raises the error of the refresh if the
        refresh fails."""
        if self._closed:
            raise _closed()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._refreshes.append(waiter)
        self.request_refresh()
        async with asyncio.timeout(timeout_s):
            await waiter

    async def topic(self, name: str, deadline: Deadline) -> TopicInfo:
        """Wait until the topic exists, and return its metadata. Raises TopicUnavailable after the
        deadline, or at once if no retry can help. Raises Closed if the client is closed."""
        self.watch([name])
        problem = "no answer"
        while True:
            topic = self.view.topics.get(name)
            if topic is not None and topic.error == ErrorCode.NONE and topic.partitions:
                return topic
            if topic is not None:
                problem = f"{topic.error.name}: {topic.error.text}"
                if topic.error in HOPELESS:
                    raise TopicUnavailable(f"topic {name}: {problem}", retriable=False)
            if deadline.passed:
                raise TopicUnavailable(
                    f"topic {name} did not appear in the cluster metadata within the time "
                    f"limit (last problem: {problem})"
                )
            try:
                await self.refreshed(deadline.remaining_s())
            except TimeoutError:
                continue
            except Closed:
                raise
            except ClientError as error:
                problem = str(error)

    async def metadata(
        self, topics: Iterable[str] | None, *, auto_create: bool = False, timeout_s: float
    ) -> ClusterView:
        """Return the metadata of `topics` (None: all topics) from one Metadata request. The
        attribute `view` is not updated. Raises ClientError."""
        names = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=names, allow_auto_topic_creation=auto_create)
        connection = await self.any_connection()
        self._asked += 1
        for link in self._links.values():
            if link.connection is connection:
                link.last_request = self._asked
        answer = await connection.send(
            ApiKey.METADATA, request, MetadataResponse, timeout_s=timeout_s
        )
        return view_of(answer, complete=topics is None)

    async def _refresh(self, *, was_wanted: bool = False) -> None:
        self._topics = {name for name in self._topics if not self._is_idle(name)}
        asked = set(self._topics), self._all_topics
        view = await self.metadata(
            None if self._all_topics else sorted(self._topics),
            auto_create=self._auto_create_topics,
            timeout_s=self.options.request_timeout_ms / 1_000,
        )
        before, self.view = self.view, newer(self.view, view)
        self._was_no_help = was_wanted and self.view == before
        if asked != (self._topics, self._all_topics):
            self._wanted.set()

    async def _maintain(self) -> None:
        failures = 0
        while True:
            try:
                async with asyncio.timeout(self.options.metadata_max_age_ms / 1_000):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            was_wanted = self._wanted.is_set()
            self._wanted.clear()
            waiters, self._refreshes = self._refreshes, []
            problem: ClientError | None = _closed()  # for waiters, if this task is cancelled
            try:
                await self._refresh(was_wanted=was_wanted)
                problem, failures = None, 0
            except ClientError as error:
                problem = error
                failures += 1
                self._wanted.set()
                log.warning("metadata refresh failed, the client repeats it reason=%s", error)
            finally:
                self._tell(waiters, problem)
            self._notify()
            await asyncio.sleep(self.pause_s(failures))

    @staticmethod
    def _tell(waiters: Iterable[asyncio.Future[None]], problem: ClientError | None) -> None:
        for waiter in waiters:
            if not waiter.done():
                if problem is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(problem)

    # Connections

    def connected(self, node_id: int, lane: str = "") -> Connection | None:
        """Return the open connection to the broker. If none is open, return None, and connect in
        the background unless the backoff runs.

        A request that may wait long needs its own `lane`: a broker responds in order.
        """
        node = self.view.nodes.get(node_id)
        if node is None:
            self.request_refresh()
            return None
        address = (node.host, node.port)
        link = self._link(address, lane)
        if link.connection is not None:
            return link.connection
        if link.opening is None and self.clock.monotonic() >= link.next_try and not self._closed:
            link.opening = self._tasks.start(
                self._open_quietly(address, link), f"connect {format_address(*address)}"
            )
        return None

    async def connection(self, node_id: int) -> Connection:
        """Return the connection to the broker; open it if needed. Raises ConnectFailed if it cannot
        be opened; NotConnected if the broker is not in the metadata."""
        node = self.view.nodes.get(node_id)
        if node is None:
            raise NotConnected(f"broker {node_id} is not in the cluster metadata: is it running?")
        try:
            return await self.connect((node.host, node.port))
        except ConnectFailed as error:
            failure = _advertised(node, error.attempt)
            raise ConnectFailed(failure.address, failure.reason) from error

    async def any_connection(self, *, last: Address | None = None) -> Connection:
        """Return a connection to the first reachable broker. The address `last` is tried after all
        other addresses. Raises NoBrokers."""
        attempts = []
        for address in sorted(self._addresses(), key=lambda each: each == last):
            try:
                return await self.connect(address)
            except ConnectFailed as error:
                attempts.append(error.attempt)
        raise NoBrokers(attempts)

    def last_failures(self) -> list[Attempt]:
        """Return one failure for each address whose last attempt to connect failed."""
        return [
            self._named(address, link.last_failure)
            for (address, _), link in self._links.items()
            if link.last_failure
        ]

    def _named(self, address: Address, failure: Attempt) -> Attempt:
        """Return `failure`, changed to name the broker with this address. If the metadata has no
        such broker, return `failure` unchanged."""
        for node in self.view.nodes.values():
            if (node.host, node.port) == address:
                return _advertised(node, failure)
        return failure

    def _addresses(self) -> list[Address]:
        """Return all addresses in the order in which to try them. Connected addresses come first.
        Among equals, the address with the oldest metadata request comes first. If a requested
        refresh changed nothing, the connected broker may be isolated, with outdated metadata. Then
        addresses with no connection attempt so far rank like connected ones."""

        def order(address: Address) -> tuple[bool, int]:
            link = self._link(address)
            is_new = link.opening is None and not (link.failures or link.was_lost)
            is_in_turn = link.connection is not None or (self._was_no_help and is_new)
            return not is_in_turn, link.last_request

        nodes = [(node.host, node.port) for node in self.view.nodes.values()]
        return sorted(dict.fromkeys([*nodes, *self.options.bootstrap_servers]), key=order)

    def _link(self, address: Address, lane: str = "") -> _Link:
        link = self._links.setdefault((address, lane), _Link())
        if link.connection is not None and not link.connection.usable:
            link.connection = None
            link.was_lost = True
        return link

    async def connect(self, address: Address, lane: str = "") -> Connection:
        """Return the connection named `lane` to the address; open it if needed. Raises
        ConnectFailed, Closed."""
        if self._closed:
            raise _closed()
        link = self._link(address, lane)
        if link.opening is not None:
            await asyncio.wait([link.opening])
        elif link.connection is None:
            link.opening = self._tasks.start(
                self._open_quietly(address, link), f"connect {format_address(*address)}"
            )
            await asyncio.wait([link.opening])
        if link.connection is not None:
            return link.connection
        failure = link.last_failure or Attempt(
            format_address(*address), "the client stopped this connection attempt"
        )
        raise ConnectFailed(failure.address, failure.reason)

    async def _open_quietly(self, address: Address, link: _Link) -> None:
        options = self.options
        try:
            link.connection = await self._connector(
                *address,
                client_id=options.client_id,
                timeout_s=options.socket_connection_setup_timeout_ms / 1_000,
                response_max_bytes=options.receive_message_max_bytes,
            )
            link.failures = 0
            link.last_failure = None
        except ConnectFailed as error:
            link.failures += 1
            link.last_failure = error.attempt
            link.next_try = self.clock.monotonic() + backoff_s(
                link.failures,
                first_ms=options.reconnect_backoff_ms,
                max_ms=options.reconnect_backoff_max_ms,
                rng=self.rng,
            )
            failure = self._named(address, error.attempt)
            level = logging.WARNING if link.failures == 1 else logging.DEBUG
            log.log(level, "connect failed address=%s reason=%s", failure.address, failure.reason)
            self.request_refresh()
        finally:
            link.opening = None
            link.was_lost = False
            self._notify()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()


def _closed() -> Closed:
    return Closed("the client has been closed")


def leaders(
    view: ClusterView, partitions: Iterable[TopicPartition]
) -> tuple[dict[int, list[TopicPartition]], list[TopicPartition]]:
    """Return (broker id -> the partitions that it leads, partitions without a known leader)."""
    by_node: dict[int, list[TopicPartition]] = {}
    rest = []
    for topic_partition in partitions:
        leader = view.leader(topic_partition)
        if leader is None:
            rest.append(topic_partition)
        else:
            by_node.setdefault(leader, []).append(topic_partition)
    return by_node, rest


def _advertised(node: Node, failure: Attempt) -> Attempt:
    """Return `failure` with a text that names the broker `node`, and says that the failed address
    comes from the advertised.listeners of this broker."""
    return Attempt(
        f"broker {node.id} at {failure.address} (from its advertised.listeners)", failure.reason
    )
