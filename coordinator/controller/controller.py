"""The controller part of a broker: one queue of events and one consumer task. `term.py` handles the
events of an elected controller."""

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

log = logging.getLogger(__name__)

T = TypeVar("T")

NO_CONTROLLER_EPOCH = -1


class Controller:
    """The controller part of one broker. The broker calls `start` after its registration,
    `session_expired` when its ZooKeeper session is lost, `session_renewed` after its next
    registration, and `stop` before it removes its registration."""

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
        self._won: Won | None = None
        self._won_generation = 0
        self._controller_id: int | None = None
        self.looked = asyncio.Event()
        """Set once this broker has read which broker is the controller. If this broker is the
        controller, set once its term has begun."""
        self._session_lost = False
        self._stopping = False
        self._task = BackgroundTask("controller")
        self._failures = 0
        self._unclean_before = 0
        self._awaited: set[asyncio.Future[Any]] = set()

    # ---- state that other parts of the broker read

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, as last read from ZooKeeper."""
        return self._term is not None and not self._session_lost and not self._stopping

    @property
    def epoch(self) -> int:
        """The controller epoch; NO_CONTROLLER_EPOCH if this broker is not the controller."""
        return self._term.won.epoch if self._term is not None else NO_CONTROLLER_EPOCH

    @property
    def controller_id(self) -> int | None:
        """The id of the controller, as last read. None if there is no controller, or if it is
        unknown."""
        return self._controller_id

    @property
    def unclean_elections(self) -> int:
        """The number of unclean leader elections by this broker, in all its terms as the
        controller."""
        term = self._term
        return self._unclean_before + (0 if term is None else term.context.unclean_elections)

    # ---- requests from other parts of the broker

    async def elect_leaders(
        self, election_type: ElectionType, topic_partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Election]:
        """Hold leader elections. Return one result for each partition. Raises BrokerError
        NOT_CONTROLLER; even then, some of the elections may have been held."""
        reply: asyncio.Future[Mapping[TopicPartition, Election]]
        reply = asyncio.get_running_loop().create_future()
        return await self._ask(ElectionAsked(election_type, tuple(topic_partitions), reply), reply)

    async def controlled_shutdown(
        self, broker_id: int, broker_epoch: int
    ) -> tuple[TopicPartition, ...]:
        """Elect other leaders for the partitions of a broker that is about to stop. Return the
        replicated partitions that the broker still leads. Raises BrokerError: NOT_CONTROLLER,
        STALE_BROKER_EPOCH, BROKER_NOT_AVAILABLE."""
        reply: asyncio.Future[tuple[TopicPartition, ...]]
        reply = asyncio.get_running_loop().create_future()
        return await self._ask(HandoverAsked(broker_id, broker_epoch, reply), reply)

    def policies_changed(self, topics: Collection[str] | None) -> None:
        """Elect leaders again for the partitions of these topics (None: all), because
        unclean.leader.election.enable or min.insync.replicas may have changed."""
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
        """Stand for election from now on. Requires a running event loop, a ZooKeeper session, and
        the parent nodes that Kafka's brokers create at their start, such as /brokers/topics."""
        if not self._task.runs:
            self._task.start(self._consume)
            self._enqueue(ControllerChanged())

    def session_expired(self) -> None:
        """Record that the session has ended, so that this broker is not the controller any more."""
        self._session_lost = True
        self._controller_id = None
        self._enqueue(ControllerChanged())

    def session_renewed(self) -> None:
        """Stand for election again in a new session."""
        self._session_lost = False
        self._enqueue(ControllerChanged())

    async def stop(self) -> None:
        """Stop handling events. If this broker is the controller, resign. Wait at most
        `stop_timeout_s` until ZooKeeper has applied the resignation. Idempotent."""
        self._stopping = True
        await self._task.stop()
        won = None if self._is_over() else self._won
        await self._step_down()
        if won is None:
            return
        try:
            async with asyncio.timeout(self._settings.stop_timeout_s):
                await election.resign(self._coord, won)
        except TimeoutError:
            log.warning("resignation timed out epoch=%d", won.epoch)

    # ---- the consumer

    def _enqueue(self, event: Event) -> None:
        """Put the event into the queue, unless the queue has an equal event."""
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
                log.warning("controller deposed reason=%s", error)
                await self._step_down()
                self._enqueue(ControllerChanged())
            except SessionExpired:
                await self._step_down()
            except ConnectionLoss as error:
                log.warning(
                    "event not handled event=%s reason=%r: the controller handles it again after"
                    " a pause",
                    event,
                    error,
                )
                await self._pause()
                self._enqueue(event)
            except PybrokerError as error:
                log.error(
                    "event failed event=%s reason=%r: the controller reads the cluster again",
                    event,
                    error,
                )
                await self._begin_anew()
            except Exception:
                # The handler may have failed after a part of its changes: the context may be wrong.
                log.exception(
                    "event failed event=%s: the controller reads the cluster again", event
                )
                await self._begin_anew()

    async def _handle(self, event: Event) -> None:
        if self._is_over():
            await self._step_down()
        if self._session_lost:
            return
        if isinstance(event, ControllerChanged):
            await self._look()
        elif isinstance(event, Deposed):
            await self._check_controller()
        elif self._term is not None:
            await self._term.handle(event)

    async def _look(self) -> None:
        """Read which broker is the controller; stand for election if there is none."""
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

    async def _check_controller(self) -> None:
        """Read /controller again, because a broker reported a newer controller. Do nothing if the
        node still belongs to this broker."""
        if self._term is not None:
            await self._look()

    async def _begin(self, won: Won) -> None:
        log.info("controller elected broker=%d epoch=%d", won.broker_id, won.epoch)
        self._won, self._won_generation = won, self._coord.generation
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
        """Whether the session in which this broker was elected has ended."""
        return self._session_lost or (
            self._won is not None and self._won_generation != self._coord.generation
        )

    async def _step_down(self) -> None:
        """Close the `ControllerTerm` and fail the waiting requests. The node /controller stays
        unchanged."""
        self._won = None
        for reply in self._awaited:
            if not reply.done():
                reply.set_exception(_not_controller())
        term, self._term = self._term, None
        if term is not None:
            self._unclean_before += term.context.unclean_elections
            log.info("controller steps down epoch=%d", term.won.epoch)
            await term.close()

    async def _begin_anew(self) -> None:
        won = self._won
        await self._step_down()
        if won is not None:
            await election.resign(self._coord, won)
        await self._pause()
        self._enqueue(ControllerChanged())

    async def _pause(self) -> None:
        pause_s = self._settings.backoff.pause_s(self._failures)
        self._failures += 1
        await asyncio.sleep(pause_s)


def _not_controller() -> BrokerError:
    return BrokerError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")
