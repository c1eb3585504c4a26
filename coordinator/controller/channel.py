"""The controller's requests to one broker. `PendingWork` has the commands that are not sent yet,
and does no I/O. `BrokerSender` sends the commands, and repeats failed requests until the broker's
registration ends."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pybroker.background import BackgroundTask
from pybroker.coordinator.controller.events import (
    Deposed,
    Event,
    ReplicasAccepted,
    ReplicasDeleted,
    ReplicasRefused,
)
from pybroker.errors import BrokerError, ErrorCode, PybrokerError
from pybroker.model import (
    LEADER_DURING_DELETION,
    Broker,
    Extent,
    LeaderAndIsr,
    PartitionFacts,
    StopReplica,
    StopReplicaPartition,
    TopicPartition,
    UpdateMetadata,
)
from pybroker.ports import BrokerChannel

log = logging.getLogger(__name__)

AnyCommand = LeaderAndIsr | StopReplica | UpdateMetadata
Item = PartitionFacts | StopReplicaPartition

NEWER_IS_KNOWN: Final = frozenset(
    {ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.STALE_BROKER_EPOCH}
)
"""The error codes with which a broker refuses a command for one partition because it has received a
newer command. The refused command is not retried for this partition."""
IS_GONE: Final = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
CLOSE_LIMIT_S: Final = 1.0
"""How long (s) `close` waits for the task to end, at most. The elections for a lost broker's
partitions begin after this wait."""
_CLOSE_PARTS: Final = 20
"""`close` divides its wait of CLOSE_LIMIT_S into this number of parts. A pause of the whole event
loop, in which the task could not run, then uses up only one part, however long it lasts."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between attempts: `initial_s`, doubled each time, at most `max_s`."""

    initial_s: float = 0.1
    max_s: float = 1.0

    def pause_s(self, attempt: int) -> float:
        """Return the pause (s) after the failed attempt number `attempt`, counted from 0."""
        return float(min(self.max_s, self.initial_s * 2 ** min(attempt, 20)))


def _is_logged(attempt: int) -> bool:
    """Return whether a failed attempt (counted from 0) is logged: the attempts 0, 1, 2, 4, 8 and so
    on. The attempts may continue for days."""
    return attempt & (attempt - 1) == 0


class PendingWork:
    """The commands that the controller has not yet sent to one broker. `take` returns the commands
    in this order:

    1. UpdateMetadata with the live brokers, and with the partitions that are being deleted
    2. StopReplica
    3. LeaderAndIsr
    4. UpdateMetadata with all other partitions

    So a broker knows a leader's endpoints before it follows the leader, and leads a partition
    before clients see it as the leader. Before the controller calls the method `complete`, `take`
    returns only the kinds 1 and 2.

    If a command has Extent.ALL, the broker drops every replica or partition that the command does
    not name.

    Invariant: if a partition has both a pending StopReplica and a pending LeaderAndIsr, the
    StopReplica deletes the old replica, and the LeaderAndIsr begins a new one.
    """

    def __init__(self, broker: Broker, controller_id: int, controller_epoch: int) -> None:
        self._broker = broker
        self._controller = (controller_id, controller_epoch, broker.epoch)
        self._brokers: tuple[Broker, ...] = ()
        self._brokers_changed = False
        self._leaders: dict[TopicPartition, PartitionFacts] = {}
        self._metadata: dict[TopicPartition, PartitionFacts] = {}
        self._stops: dict[TopicPartition, StopReplicaPartition] = {}
        self._deferred: dict[TopicPartition, Item] = {}
        self._complete = False
        self._full_roles = self._full_metadata = False
        self._keeps_more = False
        """Whether the broker was asked to stop a replica and keep its log. LeaderAndIsr does not
        name such a replica."""

    @property
    def is_complete(self) -> bool:
        return self._complete

    def complete(self, *, full_roles: bool, full_metadata: bool) -> None:
        """Let `take` return all kinds of commands from now on. `full_roles`: whether the queued
        roles (leader or follower) cover all replicas on the broker. `full_metadata`: whether the
        queued metadata covers all partitions of the cluster."""
        self._complete = True
        self._full_roles, self._full_metadata = full_roles, full_metadata

    def set_brokers(self, brokers: tuple[Broker, ...]) -> None:
        self._brokers_changed = self._brokers_changed or brokers != self._brokers
        self._brokers = brokers

    def lead_or_follow(self, facts: PartitionFacts) -> None:
        topic_partition = facts.topic_partition
        deferred = self._deferred.pop(topic_partition, None)
        waiting = self._stops.get(topic_partition)
        if waiting is not None and not waiting.delete:
            del self._stops[topic_partition]
        replaced = self._leaders.get(topic_partition, deferred)
        if isinstance(replaced, PartitionFacts) and replaced.is_new:
            facts = dataclasses.replace(facts, is_new=True)
        self._leaders[topic_partition] = facts

    def describe(self, facts: PartitionFacts) -> None:
        self._metadata[facts.topic_partition] = facts

    def stop(self, stop: StopReplicaPartition) -> None:
        self._leaders.pop(stop.topic_partition, None)
        self._deferred.pop(stop.topic_partition, None)
        self._stops[stop.topic_partition] = stop
        self._keeps_more = self._keeps_more or not stop.delete

    def take(self) -> AnyCommand | None:
        """Remove and return the next command; None if nothing is pending."""
        forgotten = tuple(
            facts
            for facts in self._metadata.values()
            if facts.state.leader == LEADER_DURING_DELETION
        )
        if self._brokers_changed or forgotten:
            for facts in forgotten:
                del self._metadata[facts.topic_partition]
            self._brokers_changed = False
            return UpdateMetadata(*self._controller, forgotten, self._brokers)
        if self._stops:
            stops, self._stops = self._stops, {}
            return StopReplica(*self._controller, tuple(stops.values()))
        if not self._complete:
            return None
        if self._leaders or self._full_roles:
            leaders, self._leaders = self._leaders, {}
            is_full = self._full_roles and not self._keeps_more
            extent = Extent.ALL if is_full else Extent.SOME
            self._full_roles = False
            return LeaderAndIsr(*self._controller, tuple(leaders.values()), extent)
        if self._metadata or self._full_metadata:
            metadata, self._metadata = self._metadata, {}
            extent = Extent.ALL if self._full_metadata else Extent.SOME
            self._full_metadata = False
            described = tuple(metadata.values())
            return UpdateMetadata(*self._controller, described, self._brokers, extent)
        return None

    def give_back(self, command: AnyCommand) -> None:
        """Make a failed command pending again, except for partitions for which a newer pending
        command replaces the failed command."""
        for item in command.partitions:
            if isinstance(command, UpdateMetadata) and isinstance(item, PartitionFacts):
                self._metadata.setdefault(item.topic_partition, item)
            elif not self._is_replaced(item):
                self._put_back(item)
        if isinstance(command, UpdateMetadata):
            self._brokers_changed = True
            self._full_metadata |= command.extent is Extent.ALL
        elif isinstance(command, LeaderAndIsr):
            self._full_roles |= command.extent is Extent.ALL

    def defer(self, item: Item) -> None:
        """Keep `item` until `resume`. The item is a command for one partition, and the broker has
        refused the command. A newer command for the partition replaces the item."""
        if not self._is_replaced(item):
            self._deferred[item.topic_partition] = item

    def resume(self, topic_partition: TopicPartition) -> None:
        """If `defer` has kept an item for this partition, make the item pending again."""
        item = self._deferred.pop(topic_partition, None)
        if item is not None:
            self._put_back(item)

    def _is_replaced(self, item: Item) -> bool:
        if item.topic_partition in self._stops:
            return True
        opens_again = isinstance(item, StopReplicaPartition) and item.delete
        return item.topic_partition in self._leaders and not opens_again

    def _put_back(self, item: Item) -> None:
        if isinstance(item, StopReplicaPartition):
            self._stops[item.topic_partition] = item
        else:
            self._leaders[item.topic_partition] = item


class BrokerSender:
    """Sends the pending work to one broker, during one registration of the broker. Owns the
    channel, and a task from `start` to `close`. A command without an answer becomes pending again.
    A command that the broker refuses for a partition is sent again later for this partition. After
    an error code in NEWER_IS_KNOWN, only a deletion is sent again."""

    def __init__(
        self,
        broker: Broker,
        channel: BrokerChannel,
        work: PendingWork,
        on_event: Callable[[Event], None],
        backoff: Backoff,
    ) -> None:
        self.broker = broker
        self.work = work
        self._channel = channel
        self._on_event = on_event
        self._backoff = backoff
        self._wake = asyncio.Event()
        self._task = BackgroundTask(f"controller-to-broker-{broker.id}")
        self._later: dict[TopicPartition, asyncio.TimerHandle] = {}
        self._attempts: dict[TopicPartition, int] = {}

    def start(self) -> None:
        self._task.start(self._run)

    def wake(self) -> None:
        """Let the sender's task send the pending work. Call this after every change of `work`."""
        self._wake.set()

    async def move(self, broker: Broker, channel: BrokerChannel) -> None:
        """Send over `channel` from now on, because the broker has new endpoints. A request under
        way fails and is sent again."""
        before, self._channel = self._channel, channel
        self.broker = broker
        if before is not channel:
            await before.close()

    async def close(self) -> None:
        """Stop at once and close the channel. A request under way may or may not reach the broker.
        Idempotent."""
        for handle in self._later.values():
            handle.cancel()
        self._later.clear()
        self._task.cancel()
        for _ in range(_CLOSE_PARTS):
            if self._task.runs:
                await self._task.finish(CLOSE_LIMIT_S / _CLOSE_PARTS)
        if self._task.runs:
            log.error("channel not closed broker=%d waited_s=%g", self.broker.id, CLOSE_LIMIT_S)

    async def _run(self) -> None:
        try:
            await self._send_all()
        finally:
            # The task closes the channel: the caller of `close` may be cancelled while it waits.
            await self._channel.close()

    async def _send_all(self) -> None:
        attempt = 0
        while True:
            command = self.work.take()
            if command is None:
                self._wake.clear()
                await self._wake.wait()
            elif await self._deliver(command, attempt):
                attempt = 0
            else:
                await asyncio.sleep(self._backoff.pause_s(attempt))
                attempt += 1

    async def _deliver(self, command: AnyCommand, attempt: int) -> bool:
        """Send `command`. Return whether the broker answered; if not, the command is pending
        again."""
        try:
            answers = await self._send(command)
        except BrokerError as error:
            if error.code == ErrorCode.STALE_CONTROLLER_EPOCH:
                log.warning(
                    "command refused broker=%d reason=newer_controller: this broker reads"
                    " /controller again",
                    self.broker.id,
                )
                self._on_event(Deposed())
                return True
            if error.code == ErrorCode.STALE_BROKER_EPOCH:
                log.info("command refused broker=%d reason=broker_restarted", self.broker.id)
                return True
            self._warn_of(error, attempt)
        except (PybrokerError, OSError, TimeoutError) as error:
            self._warn_of(error, attempt)
        except Exception:
            # The task must not end after an unexpected error of the channel: the broker would never
            # get another command.
            log.exception("command failed broker=%d", self.broker.id)
        else:
            self._note_answers(command, answers)
            return True
        self.work.give_back(command)
        return False

    def _warn_of(self, error: Exception, attempt: int) -> None:
        if _is_logged(attempt):
            log.warning(
                "command failed broker=%d attempt=%d error=%r: the controller sends it again after"
                " a pause",
                self.broker.id,
                attempt,
                error,
            )

    async def _send(self, command: AnyCommand) -> Mapping[TopicPartition, ErrorCode]:
        match command:
            case LeaderAndIsr():
                return await self._channel.leader_and_isr(command)
            case StopReplica():
                return await self._channel.stop_replica(command)
            case UpdateMetadata():
                await self._channel.update_metadata(command)
        return {}

    def _note_answers(
        self, command: AnyCommand, answers: Mapping[TopicPartition, ErrorCode]
    ) -> None:
        if isinstance(command, UpdateMetadata):
            return  # its answer has no error code for each partition
        deleted, refused, accepted = set(), set(), set()
        for item in command.partitions:
            topic_partition = item.topic_partition
            code = answers.get(topic_partition, ErrorCode.NONE)
            removes = isinstance(item, StopReplicaPartition) and item.delete
            if removes and code in IS_GONE:
                deleted.add(topic_partition)
            elif code is not ErrorCode.NONE and (removes or code not in NEWER_IS_KNOWN):
                self._try_later(item, code)
                if isinstance(command, LeaderAndIsr) and code is ErrorCode.KAFKA_STORAGE_ERROR:
                    refused.add(topic_partition)
                continue
            tried_before = self._attempts.pop(topic_partition, None) is not None
            if tried_before and code is ErrorCode.NONE and isinstance(command, LeaderAndIsr):
                accepted.add(topic_partition)
        for keys, event in (
            (deleted, ReplicasDeleted),
            (refused, ReplicasRefused),
            (accepted, ReplicasAccepted),
        ):
            if keys:
                self._on_event(event(self.broker.id, self.broker.epoch, frozenset(keys)))

    def _try_later(self, item: Item, code: ErrorCode) -> None:
        topic_partition = item.topic_partition
        attempt = self._attempts.get(topic_partition, 0)
        self._attempts[topic_partition] = attempt + 1
        if _is_logged(attempt):
            log.warning(
                "command refused broker=%d partition=%s error=%s attempt=%d",
                self.broker.id,
                topic_partition,
                code.name,
                attempt,
            )
        self.work.defer(item)
        earlier = self._later.pop(topic_partition, None)
        if earlier is not None:
            earlier.cancel()
        self._later[topic_partition] = asyncio.get_running_loop().call_later(
            self._backoff.pause_s(attempt), self._resume, topic_partition
        )

    def _resume(self, topic_partition: TopicPartition) -> None:
        self._later.pop(topic_partition, None)
        self.work.resume(topic_partition)
        self.wake()
