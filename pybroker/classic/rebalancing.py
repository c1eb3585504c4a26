"""The rebalance of a member. The member computes the assignment, releases partitions, and creates
the owner nodes of its new partitions.

The order matters. The member first creates the owner node, then reads the committed offset, then
reads the partition. With auto.commit.enable, the member commits the consumed offset before it
removes the owner node. During a rebalance, unlike a Scala consumer, the member continues to read
the partitions that it keeps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Protocol

from pybroker.classic.assignment import STRATEGIES, Assignment, NoRoundRobin, ThreadId
from pybroker.classic.commits import OffsetStore
from pybroker.classic.errors import GroupIsCoordinated, RebalanceFailed
from pybroker.classic.nodes import GroupNodes, GroupView
from pybroker.classic.options import ClassicOptions
from pybroker.classic.partition_owners import OwnedPartition
from pybroker.classic.reading import Reader
from pybroker.classic.session_validity import SessionValidity
from pybroker.client.backoff import Deadline
from pybroker.client.errors import ClientError
from pybroker.errors import CoordError, MalformedNode, PybrokerError, SessionExpired
from pybroker.model import TopicPartition
from pybroker.ports import Clock, Coord, WatchEvent

log = logging.getLogger(__name__)

_MAY_PASS = (CoordError, ClientError, MalformedNode, NoRoundRobin)
"""Errors after which another attempt to rebalance may succeed."""


class RebalanceListener(Protocol):
    """The user's callbacks for lost and gained partitions. All calls are awaited, so they delay the
    rebalance."""

    async def before_release(self, partitions: Collection[TopicPartition]) -> None:
        """Called before these partitions are released. At the time of the call, the streams no
        longer return records of these partitions. The callback may commit offsets of these
        partitions."""

    async def after_claim(self, partitions: Collection[TopicPartition]) -> None:
        """Called when the member owns these partitions, before streams return their records."""

    async def after_loss(self, partitions: Collection[TopicPartition]) -> None:
        """Called when these partitions are lost, because the ZooKeeper session has expired. It is
        possible that other members already read the partitions again from the last committed
        offset."""


class Streams(Protocol):
    """The streams, which return the records of the owned partitions."""

    def attach(self, owned: OwnedPartition) -> None: ...

    def detach(self, owned: OwnedPartition) -> None: ...


class Rebalancer:
    """Carries out the rebalances of one member in the task `run`. Holds the partitions that the
    member owns."""

    def __init__(
        self,
        *,
        options: ClassicOptions,
        consumer_id: str,
        coord: Coord,
        clock: Clock,
        nodes: GroupNodes,
        offsets: OffsetStore,
        validity: SessionValidity,
        reader: Reader,
        streams: Streams,
        listener: RebalanceListener | None,
        registration: Callable[[], bytes],
        on_outcome: Callable[[PybrokerError | None], None],
    ) -> None:
        self._options = options
        self._consumer_id = consumer_id
        self._coord = coord
        self._clock = clock
        self._nodes = nodes
        self._offsets = offsets
        self._validity = validity
        self._reader = reader
        self._streams = streams
        self._listener = listener
        self._registration = registration
        self._on_outcome = on_outcome
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self.held: dict[TopicPartition, OwnedPartition] = {}
        """The owned partitions that are read."""
        self._leaving: dict[TopicPartition, OwnedPartition] = {}
        """The owned partitions to release: first the offset is stored, then the owner node is
        removed."""
        self._uncertain: dict[TopicPartition, None] = {}
        """The partitions that may have an unwanted owner node of this member, because a reply was
        lost or an attempt failed. These nodes are to be removed."""
        self._is_member = False
        """Whether this member has completed at least one rebalance."""
        self._lost: list[TopicPartition] = []
        """The partitions lost with a session, for which `after_loss` has not been called yet."""

    # ---- called by the consumer

    def wake(self) -> None:
        """Let the task `run` rebalance again, because a node of the group may have changed."""
        self._wake.set()

    def forget(self) -> None:
        """Forget all owned partitions, because the session has ended."""
        for owned in self.owned_partitions():
            owned.shut()
            self._streams.detach(owned)
            self._lost.append(owned.topic_partition)
        self.held.clear()
        self._leaving.clear()
        self._uncertain.clear()
        self._reader.read({}, ())
        self._settled.set()

    def lost(self, owned_partitions: Collection[OwnedPartition]) -> None:
        """Stop reading these partitions, because their owner nodes or topics were deleted, and
        start a rebalance."""
        for owned in owned_partitions:
            if self.held.get(owned.topic_partition) is owned:
                owned.shut()
                self._streams.detach(owned)
                del self.held[owned.topic_partition]
                self._uncertain[owned.topic_partition] = None
        self._reader.read(self.held, ())
        self._wake.set()

    def owned_partitions(self) -> list[OwnedPartition]:
        """Return all owned partitions, including those that are being released."""
        return [*self.held.values(), *self._leaving.values()]

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            try:
                await self.rebalance()
            except RebalanceFailed as error:
                log.error(
                    "rebalance failed consumer=%s reason=%s: the consumer tries again when a"
                    " node of the group changes",
                    self._consumer_id,
                    error,
                )
                self._on_outcome(error)
            except GroupIsCoordinated as error:
                log.error("rebalancing stopped consumer=%s reason=%s", self._consumer_id, error)
                self._on_outcome(error)
                return
            else:
                self._on_outcome(None)

    async def rebalance(self) -> None:
        """Own exactly the partitions that the assignment gives to this member. Raises
        GroupIsCoordinated if the group has members that use JoinGroup. Raises RebalanceFailed if
        the rebalance takes longer than rebalance.max.retries multiplied by rebalance.backoff.ms."""
        limit_ms = self._options.rebalance_max_retries * self._options.rebalance_backoff_ms
        deadline = Deadline(self._clock, limit_ms)
        cause: PybrokerError | None = None
        while True:
            if not self._validity.is_connected:
                await self._validity.connected()
                deadline = Deadline(self._clock, limit_ms)
            self._wake.clear()
            try:
                obstacle = await self._try()
            except GroupIsCoordinated as error:
                # When a JoinGroup member arrives, the broker first creates a placeholder node, and
                # then looks for members that coordinate through ZooKeeper. So such a member stays
                # in the group until the broker had time to refuse the JoinGroup member.
                if not self._is_member or deadline.passed:
                    await self.withdraw()
                    raise
                obstacle, cause = str(error), error
            except _MAY_PASS as error:
                obstacle, cause = str(error) or repr(error), error
                text = "attempt to rebalance failed consumer=%s reason=%s"
                log.info(text, self._consumer_id, obstacle)
            else:
                if obstacle is None:
                    self._is_member = True
                    return
                cause = None
            if deadline.passed:
                raise RebalanceFailed(
                    f"consumer {self._consumer_id} could not get its partitions within"
                    f" {limit_ms} ms (rebalance.max.retries x rebalance.backoff.ms): {obstacle}"
                ) from cause
            await self._pause()

    async def leave(self) -> None:
        """Store the offsets of consumed records, release all partitions, and leave the group.
        Raises CoordError, ClientError."""
        await self._stop_reading(list(self.held.values()), patience_ms=0)
        await self._release()
        await self._nodes.unregister(self._consumer_id)

    # ---- one try

    async def _try(self) -> str | None:
        """Make one attempt to rebalance. Return None, or the reason if it failed."""
        sessions_ended = self._validity.sessions_ended
        if self._lost:
            lost, self._lost = self._lost, []
            await self._call_listener("after_loss", lost)
        await self._release()
        await self._nodes.register(self._consumer_id, self._registration())
        strategy = self._options.partition_assignment_strategy
        view = await self._nodes.look(
            self._consumer_id, self._on_watch, all_topics=strategy == "roundrobin"
        )
        if not view.has_brokers:
            log.warning(
                "no broker is registered consumer=%s: the assignment stays", self._consumer_id
            )
            return None
        if not self._reader.is_started:
            await self._reader.start(await self._nodes.broker_addresses())
        wanted = own_part(strategy, view, self._consumer_id)
        foreign = [owned for owned in self.held.values() if _must_release(owned, view, wanted)]
        await self._stop_reading(foreign, patience_ms=self._options.rebalance_backoff_ms)
        await self._release()
        missing = {key: thread for key, thread in wanted.items() if key not in self.held}
        self._expect(sessions_ended)
        return await self._take(sessions_ended, view, missing) if missing else None

    async def _take(
        self, sessions_ended: int, view: GroupView, missing: Mapping[TopicPartition, ThreadId]
    ) -> str | None:
        self._uncertain.update(dict.fromkeys(missing))
        obstacle = await self._nodes.create_owners(missing)
        self._expect(sessions_ended)
        if obstacle is not None:
            for key in missing:
                self._uncertain.pop(key, None)
            owner = await self._coord.exists(obstacle, self._on_watch)
            if owner is None:
                self._wake.set()
            return f"the owner node {obstacle} belongs to another member"
        progress = await self._offsets.read(list(missing))
        self._expect(sessions_ended)
        new = [
            OwnedPartition(
                topic_partition=key,
                thread=thread,
                sessions_ended=sessions_ended,
                topic_czxid=view.topics[key.topic].czxid,
                stored=progress[key].stored,
                consumed=progress[key].start,
                on_settled=self._settled.set,
            )
            for key, thread in missing.items()
        ]
        log.info("claimed consumer=%s partitions=%s", self._consumer_id, names(missing))
        for owned in new:
            self._uncertain.pop(owned.topic_partition, None)
            self.held[owned.topic_partition] = owned
        await self._call_listener("after_claim", list(missing))
        self._expect(sessions_ended)
        for owned in new:
            self._streams.attach(owned)
        self._reader.read(self.held, new)
        return None

    # ---- releasing partitions

    async def _stop_reading(
        self, owned_partitions: Collection[OwnedPartition], *, patience_ms: int
    ) -> None:
        """Stop reading these partitions. Wait until all of their records that the application has
        received count as consumed, but at most `patience_ms`. Then call `before_release`."""
        if not owned_partitions:
            return
        for owned in owned_partitions:
            owned.shut()
            self._streams.detach(owned)
            self.held.pop(owned.topic_partition, None)
            self._leaving[owned.topic_partition] = owned
        self._reader.read(self.held, ())
        deadline = Deadline(self._clock, patience_ms)
        while not deadline.passed and any(owned.in_hand is not None for owned in owned_partitions):
            self._settled.clear()
            await _wait(self._settled, deadline)
        await self._call_listener(
            "before_release", [owned.topic_partition for owned in owned_partitions]
        )

    async def _release(self) -> None:
        """With auto.commit.enable, store the offsets of the partitions to release. Then remove the
        owner nodes of these partitions. Raises CoordError or ClientError. The next call then tries
        again."""
        if self._leaving and self._options.auto_commit_enable:
            await self._offsets.write(self._leaving.values())
        gone = [*self._leaving, *self._uncertain]
        if not gone:
            return
        for owned in self._leaving.values():
            owned.released = True
        await self._nodes.release(gone)
        log.info("released consumer=%s partitions=%s", self._consumer_id, names(gone))
        for key in gone:
            self._leaving.pop(key, None)
            self._uncertain.pop(key, None)

    async def withdraw(self) -> None:
        """Leave the group like `leave`, but raise nothing. ZooKeeper deletes remaining nodes at the
        end of the session."""
        try:
            await self.leave()
        except (CoordError, ClientError) as error:
            log.warning("leaving failed consumer=%s reason=%r", self._consumer_id, error)

    # ---- inside

    def _expect(self, sessions_ended: int) -> None:
        if self._validity.sessions_ended != sessions_ended:
            raise SessionExpired("the ZooKeeper session has expired during a rebalance")

    def _on_watch(self, event: WatchEvent) -> None:
        self._wake.set()

    async def _pause(self) -> None:
        """Wait until a watched ZooKeeper node changes, but not longer than rebalance.backoff.ms."""
        await _wait(self._wake, Deadline(self._clock, self._options.rebalance_backoff_ms))

    async def _call_listener(self, what: str, partitions: Collection[TopicPartition]) -> None:
        if self._listener is None:
            return
        method: Callable[[Collection[TopicPartition]], Awaitable[None]]
        method = getattr(self._listener, what)
        try:
            await method(partitions)
        except Exception:
            log.exception("rebalance listener failed method=%s", what)


def own_part(strategy: str, view: GroupView, consumer_id: str) -> Assignment:
    """Return the partitions that the strategy assigns to this member. Raises NoRoundRobin."""
    topics = {topic for counts in view.streams.values() for topic in counts} | view.topics.keys()
    partitions = {
        topic: view.topics[topic].partitions if topic in view.topics else ()
        for topic in sorted(topics)
    }
    assignment = STRATEGIES[strategy](view.streams, partitions)
    return {key: thread for key, thread in assignment.items() if thread.consumer == consumer_id}


def _must_release(owned: OwnedPartition, view: GroupView, wanted: Assignment) -> bool:
    """Return whether the member has to release the partition. If the topic was deleted or
    recreated, also set `owned.released`, so that the member commits no offset of the old topic."""
    key = owned.topic_partition
    topic = view.topics.get(key.topic)
    if topic is None or topic.czxid != owned.topic_czxid:
        owned.released = True
        return True
    return wanted.get(key) != owned.thread


def names(partitions: Collection[TopicPartition]) -> str:
    return ",".join(str(key) for key in sorted(partitions))


async def _wait(event: asyncio.Event, deadline: Deadline) -> None:
    try:
        async with asyncio.timeout(deadline.remaining_s()):
            await event.wait()
    except TimeoutError:
        pass
