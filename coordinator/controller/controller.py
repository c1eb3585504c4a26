"""The controller of a broker: one queue, one consumer task. The broker stands for election, is the
controller once it has won, and steps down when it must.

Watches and answers only put events into the queue. What an elected controller does with them is in
`term.py`; here is only which broker is the controller, and when.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pybroker.background import BackgroundTask
from pybroker.coordinator.controller import election
from pybroker.coordinator.controller.broker_notifier import ChannelFactory
from pybroker.coordinator.controller.election import Won
from pybroker.coordinator.controller.events import (
    ControllerChanged,
    Deposed,
    Election,
    ElectionAsked,
    ElectionType,
    Event,
    HandoverAsked,
    PoliciesChanged,
)
from pybroker.coordinator.controller.services import ControllerSettings
from pybroker.coordinator.controller.term import ControllerTerm
from pybroker.coordinator.controller.writes import ControllerMoved
from pybroker.errors import (
    BrokerError,
    ConnectionLoss,
    ErrorCode,
    PybrokerError,
    SessionExpired,
)
from pybroker.model import TopicPartition
from pybroker.ports import Clock, Coord, Rng, WatchEvent

logger = logging.getLogger(__name__)

T = TypeVar("T")

NO_CONTROLLER_EPOCH = -1


class Controller:
    """Every broker runs one; at most one of the cluster is active.

    Life: `start` once the broker is registered. `session_expired` when the session with ZooKeeper
    is lost, `session_renewed` when there is a new one and the broker is registered again. `stop`
    before the registration is removed and the session closed.
    """

    def __init__(
        self,
        *,
        coord: Coord,
        broker_id: int,
        clock: Clock,
        rng: Rng,
        channels: ChannelFactory,
        settings: ControllerSettings | None = None,
    ) -> None:
        self._coord = coord
        self._broker_id = broker_id
        self._clock = clock
        self._rng = rng
        self._channels = channels
        self._settings = settings or ControllerSettings()
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self._queued: set[Event] = set()
        self._term: ControllerTerm | None = None
        self._office: Won | None = None
        self._office_generation = 0
        self._controller_id: int | None = None
        self.looked = asyncio.Event()
        """Set when it is known for the first time who is the controller, and if we are, when the
        term has begun."""
        self._session_lost = False
        self._stopping = False
        self._task = BackgroundTask("controller")
        self._failures = 0
        self._unclean_before = 0
        self._awaited: set[asyncio.Future[Any]] = set()

    # ---- what others may know

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, as far as it can know without asking."""
        return self._term is not None and not self._session_lost and not self._stopping

    @property
    def epoch(self) -> int:
        """Of the current term; NO_CONTROLLER_EPOCH if this broker is not the controller."""
        return self._term.won.epoch if self._term is not None else NO_CONTROLLER_EPOCH

    @property
    def controller_id(self) -> int | None:
        """Who is the controller, as last seen; None if nobody is or nothing is known."""
        return self._controller_id

    @property
    def unclean_elections(self) -> int:
        """Leaders that this controller has chosen outside the in-sync replicas, in all terms."""
        term = self._term
        return self._unclean_before + (0 if term is None else term.context.unclean_elections)

    # ---- what others may ask

    async def elect_leaders(
        self, election_type: ElectionType, topic_partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Election]:
        """Hold elections; one result for each partition. Raises BrokerError NOT_CONTROLLER, also
        when the office is lost meanwhile: then nobody knows what was done."""
        reply: asyncio.Future[Mapping[TopicPartition, Election]]
        reply = asyncio.get_running_loop().create_future()
        return await self._ask(ElectionAsked(election_type, tuple(topic_partitions), reply), reply)

    async def controlled_shutdown(
        self, broker_id: int, broker_epoch: int
    ) -> tuple[TopicPartition, ...]:
        """That broker is about to stop: have others lead what it leads. Gives the replicated
        partitions that it still leads, since nobody else can.

        Raises BrokerError NOT_CONTROLLER, STALE_BROKER_EPOCH or BROKER_NOT_AVAILABLE.
        """
        reply: asyncio.Future[tuple[TopicPartition, ...]]
        reply = asyncio.get_running_loop().create_future()
        return await self._ask(HandoverAsked(broker_id, broker_epoch, reply), reply)

    def policies_changed(self, topics: Collection[str] | None) -> None:
        """The options of these topics (None: of the cluster) have changed: unclean elections may be
        allowed now, or min.insync.replicas may be another."""
        if self.is_active:
            self._enqueue(PoliciesChanged(None if topics is None else frozenset(topics)))

    async def _ask(self, event: Event, reply: asyncio.Future[T]) -> T:
        if not self.is_active:
            raise _not_controller()
        self._awaited.add(reply)
        self._enqueue(event)
        try:
            return await reply
        finally:
            self._awaited.discard(reply)

    # ---- life

    def start(self) -> None:
        """Begin to stand for election. Needs a running loop and a session; the parents of Kafka's
        nodes exist."""
        if not self._task.runs:
            self._task.start(self._consume)
            self._enqueue(ControllerChanged())

    def session_expired(self) -> None:
        """The session is over, and with it our office: nothing of what we know holds any more."""
        self._session_lost = True
        self._controller_id = None
        self._enqueue(ControllerChanged())

    def session_renewed(self) -> None:
        """There is a new session, and the broker is registered in it: stand for election again."""
        self._session_lost = False
        self._enqueue(ControllerChanged())

    async def stop(self) -> None:
        """Resign if this broker is the controller, and end; within `stop_timeout_s`. Idempotent."""
        self._stopping = True
        await self._task.stop()
        office = None if self._is_over() else self._office
        await self._step_down()
        if office is None:
            return
        try:
            async with asyncio.timeout(self._settings.stop_timeout_s):
                await election.resign(self._coord, office)
        except TimeoutError:
            logger.warning("resignation_timed_out epoch=%d", office.epoch)

    # ---- the consumer

    def _enqueue(self, event: Event) -> None:
        """Equal events that wait are one."""
        if event not in self._queued and not self._stopping:
            self._queued.add(event)
            self._queue.put_nowait(event)

    def _node_changed(self, _: WatchEvent) -> None:
        self._enqueue(ControllerChanged())

    async def _consume(self) -> None:
        while True:
            event = await self._queue.get()
            self._queued.discard(event)
            try:
                await self._handle(event)
                self._failures = 0
            except ControllerMoved as error:
                logger.warning("controller_deposed reason=%s", error)
                await self._step_down()
                self._enqueue(ControllerChanged())
            except SessionExpired:
                await self._step_down()
            except ConnectionLoss as error:
                logger.warning("event_postponed event=%s reason=%r", event, error)
                await self._pause()
                self._enqueue(event)
            except PybrokerError as error:
                logger.error("event_failed event=%s reason=%r", event, error)
                await self._begin_anew()
            except Exception:
                # The picture may be half changed: the only safe way on is to build it again.
                logger.exception("event_failed event=%s", event)
                await self._begin_anew()

    async def _handle(self, event: Event) -> None:
        if self._is_over():
            await self._step_down()
        if self._session_lost:
            return
        if isinstance(event, ControllerChanged):
            await self._look()
        elif isinstance(event, Deposed):
            await self._check_office()
        elif self._term is not None:
            await self._term.handle(event)

    async def _look(self) -> None:
        """See who is the controller; stand for election if nobody is."""
        outcome = await election.elect(
            self._coord, self._broker_id, self._clock, self._node_changed
        )
        if isinstance(outcome, Won):
            if self._term is None or self._term.won != outcome:
                await self._step_down()
                await self._begin(outcome)
            self._controller_id = self._broker_id
            self.looked.set()
            return
        await self._step_down()
        self._controller_id = outcome.controller_id
        if outcome.controller_id is None:
            await self._pause()
            self._enqueue(ControllerChanged())
        else:
            self.looked.set()

    async def _check_office(self) -> None:
        """A broker knows a newer controller. If we still hold the office, it is mistaken."""
        if self._term is not None:
            await self._look()

    async def _begin(self, won: Won) -> None:
        logger.info("controller_elected broker=%d epoch=%d", won.broker_id, won.epoch)
        self._office, self._office_generation = won, self._coord.generation
        term = ControllerTerm(
            self._coord,
            won,
            self._channels,
            self._settings,
            self._clock,
            self._rng,
            self._enqueue,
        )
        try:
            await term.begin()
        except BaseException:
            await term.close()
            raise
        self._term = term

    def _is_over(self) -> bool:
        """Whether the session in which we were elected has ended."""
        return self._session_lost or (
            self._office is not None and self._office_generation != self._coord.generation
        )

    async def _step_down(self) -> None:
        """Forget the term; /controller is left alone."""
        self._office = None
        for reply in self._awaited:
            if not reply.done():
                reply.set_exception(_not_controller())
        term, self._term = self._term, None
        if term is not None:
            self._unclean_before += term.context.unclean_elections
            logger.info("controller_steps_down epoch=%d", term.won.epoch)
            await term.close()

    async def _begin_anew(self) -> None:
        office = self._office
        await self._step_down()
        if office is not None:
            await election.resign(self._coord, office)
        await self._pause()
        self._enqueue(ControllerChanged())

    async def _pause(self) -> None:
        pause_s = self._settings.backoff.pause_s(self._failures)
        self._failures += 1
        await asyncio.sleep(pause_s)


def _not_controller() -> BrokerError:
    return BrokerError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")
