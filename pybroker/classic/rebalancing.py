"""How a member gets its partitions: every member computes alone who gets what, gives up what is not
its own any more, and takes what is.

The owner nodes are what keeps two from reading the same: nothing is read before its node was
created, and no node is removed before the offset of what was read is stored. Differences from the
Scala consumer, which works with it: what stays ours is read on through a rebalance, offsets are
read after the partitions were claimed (their last owner has written by then), and a failed try is
repeated as soon as who stood in its way has gone.
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

logger = logging.getLogger(__name__)

_MAY_PASS = (CoordError, ClientError, MalformedNode, NoRoundRobin)
"""What another try, or another member, may cure."""


class RebalanceListener(Protocol):
    """Hears what a member loses and gets. All are awaited, so they delay the rebalance."""

    async def before_release(self, partitions: Collection[TopicPartition]) -> None:
        """These are still ours, but give no more records: the moment to commit."""

    async def after_claim(self, partitions: Collection[TopicPartition]) -> None:
        """These are ours now; records follow."""

    async def after_loss(self, partitions: Collection[TopicPartition]) -> None:
        """The session with ZooKeeper has expired, and with it these are gone: others may have read
        them on since. What was not committed is read again by whoever owns them next."""


class Streams(Protocol):
    """Where records go."""

    def attach(self, owned: OwnedPartition) -> None: ...

    def detach(self, owned: OwnedPartition) -> None: ...


class Rebalancer:
    """Owns what this member owns. `run` is its task; `rebalance` one whole attempt with its
    retries."""

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
        """What is ours and read."""
        self._leaving: dict[TopicPartition, OwnedPartition] = {}
        """What is ours, but not to be: its offset is stored next, then its node goes."""
        self._uncertain: dict[TopicPartition, None] = {}
        """What may have a node of ours that nobody asked to stay."""
        self._is_member = False
        """Whether a rebalance of ours has ever come to its end."""
        self._lost: list[TopicPartition] = []
        """What went with a session, and the listener has not been told."""

    # ---- called by the consumer

    def wake(self) -> None:
        """Something may have changed."""
        self._wake.set()

    def forget(self) -> None:
        """The session is over, and with it all that was ours."""
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
        """The owner nodes of these are gone: owned them again."""
        for owned in owned_partitions:
            if self.held.get(owned.topic_partition) is owned:
                owned.shut()
                self._streams.detach(owned)
                del self.held[owned.topic_partition]
                self._uncertain[owned.topic_partition] = None
        self._reader.read(self.held, ())
        self._wake.set()

    def owned_partitions(self) -> list[OwnedPartition]:
        """What offsets may be committed for."""
        return [*self.held.values(), *self._leaving.values()]

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            try:
                await self.rebalance()
            except RebalanceFailed as error:
                logger.error("event=rebalance-failed consumer=%s %s", self._consumer_id, error)
                self._on_outcome(error)
            except GroupIsCoordinated as error:
                logger.error("event=group-is-coordinated consumer=%s", self._consumer_id)
                self._on_outcome(error)
                return
            else:
                self._on_outcome(None)

    async def rebalance(self) -> None:
        """Own exactly what is ours as the nodes are now. Raises RebalanceFailed when
        rebalance.max.retries x rebalance.backoff.ms have passed, GroupIsCoordinated."""
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
                # Brokers show themselves first and look then, too: who was here before them stays
                # until it is certain that they are not just about to be refused.
                if not self._is_member or deadline.passed:
                    await self.withdraw()
                    raise
                obstacle, cause = str(error), error
            except _MAY_PASS as error:
                obstacle, cause = str(error) or repr(error), error
                logger.info(
                    "event=rebalance-try-failed consumer=%s reason=%s", self._consumer_id, obstacle
                )
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
        """Give everything back and leave the group; what was consumed is stored first. Raises
        CoordError, ClientError."""
        await self._part_with(list(self.held.values()), patience_ms=0)
        await self._let_go()
        await self._nodes.unregister(self._consumer_id)

    # ---- one try

    async def _try(self) -> str | None:
        """What stands in the way, None if nothing."""
        era = self._validity.era
        if self._lost:
            lost, self._lost = self._lost, []
            await self._tell("after_loss", lost)
        await self._let_go()
        await self._nodes.register(self._consumer_id, self._registration())
        strategy = self._options.partition_assignment_strategy
        view = await self._nodes.look(
            self._consumer_id, self._on_watch, all_topics=strategy == "roundrobin"
        )
        if not view.has_brokers:
            logger.warning("event=no-brokers consumer=%s", self._consumer_id)
            return None
        if not self._reader.is_started:
            await self._reader.start(await self._nodes.broker_addresses())
        wanted = own_part(strategy, view, self._consumer_id)
        foreign = [owned for owned in self.held.values() if _is_foreign(owned, view, wanted)]
        await self._part_with(foreign, patience_ms=self._options.rebalance_backoff_ms)
        await self._let_go()
        missing = {key: thread for key, thread in wanted.items() if key not in self.held}
        self._expect(era)
        return await self._take(era, view, missing) if missing else None

    async def _take(
        self, era: int, view: GroupView, missing: Mapping[TopicPartition, ThreadId]
    ) -> str | None:
        self._uncertain.update(dict.fromkeys(missing))
        obstacle = await self._nodes.claim(missing)
        self._expect(era)
        if obstacle is not None:
            for key in missing:
                self._uncertain.pop(key, None)
            owner = await self._coord.exists(obstacle, self._on_watch)
            if owner is None:
                self._wake.set()
            return f"{obstacle} belongs to somebody else"
        progress = await self._offsets.read(list(missing))
        self._expect(era)
        new = [
            OwnedPartition(
                topic_partition=key,
                thread=thread,
                era=era,
                topic_czxid=view.topics[key.topic].czxid,
                stored=progress[key].stored,
                consumed=progress[key].start,
                on_settled=self._settled.set,
            )
            for key, thread in missing.items()
        ]
        logger.info("event=claimed consumer=%s partitions=%s", self._consumer_id, names(missing))
        for owned in new:
            self._uncertain.pop(owned.topic_partition, None)
            self.held[owned.topic_partition] = owned
        await self._tell("after_claim", list(missing))
        self._expect(era)
        for owned in new:
            self._streams.attach(owned)
        self._reader.read(self.held, new)
        return None

    # ---- giving up

    async def _part_with(
        self, owned_partitions: Collection[OwnedPartition], *, patience_ms: int
    ) -> None:
        """Stop reading these, and let streams come back from what they have in hand."""
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
        await self._tell("before_release", [owned.topic_partition for owned in owned_partitions])

    async def _let_go(self) -> None:
        """Store the offsets of what is leaving, then remove its nodes. Raises CoordError or
        ClientError, and may then be called again."""
        if self._leaving and self._options.auto_commit_enable:
            await self._offsets.write(self._leaving.values())
        gone = [*self._leaving, *self._uncertain]
        if not gone:
            return
        for owned in self._leaving.values():
            owned.released = True
        await self._nodes.release(gone)
        logger.info("event=released consumer=%s partitions=%s", self._consumer_id, names(gone))
        for key in gone:
            self._leaving.pop(key, None)
            self._uncertain.pop(key, None)

    async def withdraw(self) -> None:
        """As `leave`; what cannot be done now ends with the session."""
        try:
            await self.leave()
        except (CoordError, ClientError) as error:
            logger.warning("event=not-left consumer=%s reason=%r", self._consumer_id, error)

    # ---- inside

    def _expect(self, era: int) -> None:
        if self._validity.era != era:
            raise SessionExpired("the session has expired in the middle of a rebalance")

    def _on_watch(self, event: WatchEvent) -> None:
        self._wake.set()

    async def _pause(self) -> None:
        """Until something changes, for rebalance.backoff.ms at most."""
        await _wait(self._wake, Deadline(self._clock, self._options.rebalance_backoff_ms))

    async def _tell(self, what: str, partitions: Collection[TopicPartition]) -> None:
        if self._listener is None:
            return
        told: Callable[[Collection[TopicPartition]], Awaitable[None]]
        told = getattr(self._listener, what)
        try:
            await told(partitions)
        except Exception:
            logger.exception("event=rebalance-listener-failed method=%s", what)


def own_part(strategy: str, view: GroupView, consumer_id: str) -> Assignment:
    """What the nodes say is this member's. Raises NoRoundRobin."""
    topics = {topic for counts in view.streams.values() for topic in counts} | view.topics.keys()
    partitions = {
        topic: view.topics[topic].partitions if topic in view.topics else ()
        for topic in sorted(topics)
    }
    assignment = STRATEGIES[strategy](view.streams, partitions)
    return {key: thread for key, thread in assignment.items() if thread.consumer == consumer_id}


def _is_foreign(owned: OwnedPartition, view: GroupView, wanted: Assignment) -> bool:
    """Whether it has to be given up. What belongs to a topic that is gone stores no offset any
    more: a later topic of the same name would begin there."""
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
