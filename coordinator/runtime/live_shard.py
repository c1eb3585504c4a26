"""One shard (the coordinator of one partition) on the broker that leads the partition.

    LOADING -> SERVING          the log is replayed, the in-sync replicas have all of it, and this
                                broker owns the fence
    LOADING, SERVING -> ENDED   another broker leads, the partition is deleted, `resign`, or stop

Only shards of groups have a fence, a ZooKeeper node (`groups/fence.py`).
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from pybroker.applog.rate_limit import LogLimit
from pybroker.background import BackgroundTask
from pybroker.coordinator.runtime.refusals import (
    Superseded,
    client_error,
    not_coordinator,
    transactional_error,
)
from pybroker.coordinator.runtime.replay import Replay
from pybroker.coordinator.runtime.shard import (
    Coordinator,
    ShardContext,
    StoredMarker,
    StoredRecord,
)
from pybroker.errors import BrokerError, CoordError, ErrorCode, MalformedNode
from pybroker.ports import Blocking, Clock, KeyValue, PartitionLog, Producer, Rng

log = logging.getLogger(__name__)

C = TypeVar("C", bound=Coordinator)

_RETRY_S: Final = 0.1
_RETRY_S_MAX: Final = 5.0
HAND_OVER_S: Final = 30.0
"""The longest time (s) that a shard with a damaged log waits for another replica to become the
leader. Afterwards it assumes that no other replica can lead, and serves the undamaged records."""


class Phase(enum.Enum):
    LOADING = "loading"
    SERVING = "serving"
    ENDED = "ended"


class Fence(Protocol):
    """The fence that prevents writes by earlier coordinators of a partition."""

    async def take(self, source: PartitionLog, token: str) -> int | None:
        """Stop the writes of earlier coordinators of the partition. Write this broker's id and
        `token` (unique to this shard) to the fence node, and return the version of the fence node.
        A transaction coordinator has no fence node: return 0.

        Return None if another client changed a node of the partition. Then call again at once.
        Raises Superseded if another broker leads the partition, or if the topic was deleted. After
        BrokerError, CoordError or MalformedNode, a later call can succeed.
        """


@dataclass(frozen=True, slots=True)
class ShardDependencies(Generic[C]):
    """The collaborators that all shards of a broker share."""

    make: Callable[[ShardContext], C]
    """Creates a new, empty coordinator."""
    fence: Fence
    clock: Clock
    rng: Rng
    blocking: Blocking
    loads: asyncio.Semaphore
    """Limits the number of logs that are read at a time."""
    log_limit: LogLimit
    commit_timeout_s: Callable[[], float]
    bytes_per_read: Callable[[], int]
    loaded: Callable[[int, float, Replay], None]
    """Called when a partition has been loaded, with the duration in seconds."""
    resigned: Callable[[int, str], None]
    """Called when the shard of a partition has resigned."""


class LiveShard(Generic[C]):
    """The `ShardContext` of a broker that leads the partition."""

    def __init__(self, source: PartitionLog, dependencies: ShardDependencies[C]) -> None:
        self._source = source
        self._dependencies = dependencies
        self._key = source.topic_partition
        self._token = dependencies.rng.randbytes(8).hex()
        self._fence_version = -1
        self._is_open = False
        self._is_replayed = False
        """Whether the coordinator has every record of the log. From then on it gets each new
        record."""
        self._timers: set[_Timer] = set()
        self._committing: set[asyncio.Timeout] = set()
        self._task = BackgroundTask(f"load {self._key}")
        self._damaged_since: float | None = None
        self.phase = Phase.LOADING
        self.coordinator = dependencies.make(self)

    def start(self) -> None:
        self._task.start(self._load)

    def end(self) -> None:
        """End the shard: no more writes or callbacks, and waiting callers get an error.
        Idempotent."""
        if self.phase is Phase.ENDED:
            return
        self.phase = Phase.ENDED
        self._task.cancel()
        for timer in list(self._timers):
            timer.cancel()
        now = asyncio.get_running_loop().time()
        for waiting in self._committing:
            if not waiting.expired():
                waiting.reschedule(now)
        try:
            self.coordinator.ended()
        except Exception:
            log.exception("coordinator not ended cleanly partition=%s", self._key)

    async def settled(self) -> None:
        """Wait until the shard is loaded or has ended."""
        await self._task.finish()

    def marker_written(self, marker: StoredMarker) -> None:
        """Let the coordinator replay a marker that was just appended. While the shard replays the
        log, do nothing: the replay will read the marker."""
        if self.phase is Phase.ENDED or not self._is_replayed:
            return
        try:
            self.coordinator.replay_marker(marker)
        except Exception as error:
            log.exception("replay failed partition=%s", self._key)
            self.resign(f"a marker that was appended cannot be replayed: {error!r}")

    # the ShardContext

    @property
    def partition(self) -> int:
        return self._key.partition

    @property
    def leader_epoch(self) -> int:
        return self._source.leader_epoch

    @property
    def log_end(self) -> int:
        return self._source.end_offset

    @property
    def fence_version(self) -> int:
        return self._fence_version

    @property
    def clock(self) -> Clock:
        return self._dependencies.clock

    @property
    def rng(self) -> Rng:
        return self._dependencies.rng

    @property
    def is_current(self) -> bool:
        """Whether the shard has not ended, and this broker has the ZooKeeper lease (a recently
        confirmed session). Even then, the controller may already have elected another leader."""
        return self.phase is not Phase.ENDED and self._source.has_zookeeper_lease

    def require_current(self) -> None:
        self._check()
        if not self.is_current:
            raise self._maybe_elsewhere()

    async def confirm_current(self) -> None:
        self._check()
        if not await self._source.is_led_now():
            raise self._maybe_elsewhere()
        self._check()

    @property
    def is_certainly_current(self) -> bool:
        return self.phase is not Phase.ENDED and self._source.has_leader_lease

    async def followed(self) -> None:
        await self._source.followed()
        self._check()

    async def verified(self, transactional_id: str, producer: Producer) -> Producer:
        self._check()
        try:
            producer = await self._source.verified(transactional_id, producer)
        except BrokerError as error:
            raise transactional_error(error) from error
        self._check()
        return producer

    def append(
        self,
        records: Sequence[KeyValue],
        producer: Producer | None = None,
        *,
        is_awaited: bool = True,
    ) -> int:
        self._check()
        if not records:
            return self._source.end_offset
        now_ms = self._dependencies.clock.wall_ms()
        try:
            end = self._source.append(records, now_ms, producer, is_awaited=is_awaited)
        except BrokerError as error:
            translated = client_error if producer is None else transactional_error
            raise translated(error) from error
        owner = (-1, -1) if producer is None else (producer.producer_id, producer.epoch)
        try:
            for offset, record in enumerate(records, end - len(records)):
                self.coordinator.replay(
                    StoredRecord(offset, now_ms, record.key, record.value, *owner)
                )
        except Exception as error:
            # The state in memory differs from the log; the shard has to be loaded again.
            log.exception("replay failed partition=%s", self._key)
            self.resign(f"a record that was appended cannot be replayed: {error!r}")
            raise BrokerError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"a record that was just appended to {self._key} cannot be replayed, so this broker"
                f" loads the partition again ({error!r})",
            ) from error
        return end

    async def committed(self, offset: int) -> None:
        self._check()
        try:
            async with asyncio.timeout(self._dependencies.commit_timeout_s()) as limit:
                self._committing.add(limit)
                await self._source.committed(offset)
        except TimeoutError as error:
            self._check()
            raise BrokerError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"the followers have not replicated {self._key} up to offset {offset} "
                f"within {self._dependencies.commit_timeout_s():g} s",
            ) from error
        except BrokerError as error:
            raise client_error(error) from error
        finally:
            self._committing.discard(limit)
        self._check()

    def is_committed(self, offset: int) -> bool:
        self._check()
        return self._source.high_watermark >= offset

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> _Timer:
        self._check()
        timer = _Timer(self._timers, callback, self._key)
        timer.handle = asyncio.get_running_loop().call_later(delay_s, timer.fire)
        self._timers.add(timer)
        return timer

    def resign(self, reason: str) -> None:
        if self.phase is not Phase.ENDED:
            log.warning(
                "coordinator resigns partition=%s leader_epoch=%d reason=%s",
                self._key,
                self.leader_epoch,
                reason,
            )
            self.end()
            self._dependencies.resigned(self.partition, reason)

    def _maybe_elsewhere(self) -> BrokerError:
        return not_coordinator(f"another broker may lead {self._key} and be its coordinator now")

    def _check(self) -> None:
        if self.phase is Phase.ENDED:
            raise not_coordinator(f"this broker is not the coordinator of {self._key} any more")
        if not self._is_open:
            raise BrokerError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"this broker is the new coordinator of {self._key}, and is still loading it",
            )

    # loading

    async def _load(self) -> None:
        """Load the shard. Repeat failed steps while the broker leads the partition."""
        begun = self._dependencies.clock.monotonic()
        replay = Replay(
            self._source,
            self.coordinator,
            self._dependencies.blocking,
            self._dependencies.bytes_per_read(),
            self._may_leave_out,
        )
        try:
            await self._repeat_until_done("read", lambda: self._replay(replay))
            await self._repeat_until_done("fence", self._take_fence)
            self._is_open = True
            await self._repeat_until_done("finish", self.coordinator.loaded)
        except Superseded as error:
            if self.phase is not Phase.ENDED:
                self.resign(str(error))
            return
        self.phase = Phase.SERVING
        seconds = self._dependencies.clock.monotonic() - begun
        log.info(
            "coordinator loaded partition=%s leader_epoch=%d fence=%d records=%d bytes=%d"
            " skipped=%d seconds=%.3f",
            self._key,
            self.leader_epoch,
            self._fence_version,
            replay.records,
            replay.bytes_read,
            replay.left_out,
            seconds,
        )
        self._dependencies.loaded(self.partition, seconds, replay)

    async def _repeat_until_done(self, what: str, step: Callable[[], Awaitable[object]]) -> None:
        """Call `step` until it succeeds. Raises Superseded."""
        pause_s = _RETRY_S
        while self.phase is not Phase.ENDED:
            try:
                await step()
                return
            except BrokerError as error:
                if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    raise Superseded(error.detail) from error
                self._log_failure(what, error)
            except (CoordError, MalformedNode) as error:
                self._log_failure(what, error)
            except Superseded:
                raise
            except Exception:
                log.exception("loading %s failed partition=%s", what, self._key)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_S_MAX)
        raise Superseded(f"the shard of {self._key} has ended")

    def _log_failure(self, what: str, error: Exception) -> None:
        left_out = self._dependencies.log_limit.allow(f"loading {what}")
        if left_out is not None:
            log.warning(
                "coordinator loading failed step=%s partition=%s error=%r lines_left_out=%d: the"
                " coordinator tries again after a pause",
                what,
                self._key,
                error,
                left_out,
            )

    async def _replay(self, replay: Replay) -> None:
        """Replay the log to its end, and wait until the in-sync replicas have all of it."""
        source = self._source
        while replay.offset < source.end_offset:
            async with self._dependencies.loads:
                await replay.run()
            await source.committed(source.end_offset)
        self._is_replayed = True

    def _may_leave_out(self) -> bool:
        if not self._source.has_other_copies:
            return True
        now = self._dependencies.clock.monotonic()
        if self._damaged_since is None:
            self._damaged_since = now
        return now - self._damaged_since >= HAND_OVER_S

    async def _take_fence(self) -> None:
        version = None
        while version is None:
            version = await self._dependencies.fence.take(self._source, self._token)
        self._fence_version = version


class _Timer:
    """A `Timer` of a shard. The shard tracks the timer until the timer has run or is cancelled."""

    __slots__ = ("_callback", "_key", "_known", "handle")

    def __init__(self, known: set[_Timer], callback: Callable[[], None], key: object) -> None:
        self._known = known
        self._callback = callback
        self._key = key
        self.handle: asyncio.TimerHandle | None = None

    def fire(self) -> None:
        self._known.discard(self)
        try:
            self._callback()
        except Exception:
            log.exception("timer of a coordinator failed partition=%s", self._key)

    def cancel(self) -> None:
        self._known.discard(self)
        if self.handle is not None:
            self.handle.cancel()
