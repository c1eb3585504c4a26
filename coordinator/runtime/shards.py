"""The shards of one internal topic on this broker. A shard lasts as long as the broker leads the
partition, even if the leader epoch changes. `resign` ends the shard earlier."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from pybroker.applog.rate_limit import LogLimit
from pybroker.coordinator.runtime.live_shard import Fence, LiveShard, Phase, ShardDependencies
from pybroker.coordinator.runtime.refusals import not_coordinator
from pybroker.coordinator.runtime.replay import Replay
from pybroker.coordinator.runtime.shard import Coordinator, ShardContext, StoredMarker
from pybroker.errors import BrokerError, ErrorCode
from pybroker.ports import Blocking, Clock, PartitionLog, Rng

log = logging.getLogger(__name__)

C = TypeVar("C", bound=Coordinator)

LOADS_AT_A_TIME: Final = 4
_BEGIN_AGAIN_S: Final = 1.0
_BEGIN_AGAIN_S_MAX: Final = 30.0


@dataclass(slots=True)
class LoadTimes:
    """The loading of shards since the broker's start: the number of loaded partitions, and the
    total and the longest time in seconds."""

    partitions: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0


class Shards(Generic[C]):
    """Runs one shard for each partition that this broker leads. No shard runs before `start` or
    after `stop`. Partitions that the broker already leads get their shards at `start`."""

    def __init__(
        self,
        *,
        topic: str,
        make: Callable[[ShardContext], C],
        open_log: Callable[[int], PartitionLog],
        fence: Fence,
        commit_timeout_s: Callable[[], float],
        bytes_per_read: Callable[[], int],
        clock: Clock,
        rng: Rng,
        blocking: Blocking,
        log_limit: LogLimit,
        is_fenced: Callable[[], bool] = lambda: False,
    ) -> None:
        """`make` creates a shard's coordinator. `open_log` returns the log of a partition that this
        broker leads, or raises BrokerError. `commit_timeout_s` limits the wait for the replication
        of a record. `is_fenced`: whether the broker must not answer as a leader."""
        self.topic = topic
        self.load_times = LoadTimes()
        self._open_log = open_log
        self._is_fenced = is_fenced
        self._dependencies = ShardDependencies(
            make=make,
            fence=fence,
            clock=clock,
            rng=rng,
            blocking=blocking,
            loads=asyncio.Semaphore(LOADS_AT_A_TIME),
            log_limit=log_limit,
            commit_timeout_s=commit_timeout_s,
            bytes_per_read=bytes_per_read,
            loaded=self._loaded,
            resigned=self._resigned,
        )
        self._led: dict[int, int] = {}
        """Partition -> the leader epoch since which this broker leads it."""
        self._shards: dict[int, LiveShard[C]] = {}
        self._pauses_s: dict[int, float] = {}
        """Partition -> the pause (s) before its shard, which has resigned, is started again."""
        self._beginning: dict[int, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._runs = False

    def start(self) -> None:
        self._runs = True
        for partition in list(self._led):
            self._begin(partition)

    async def stop(self) -> None:
        """End all shards. Idempotent."""
        self._runs = False
        shards = list(self._shards.values())
        for partition in list(self._shards):
            self._end(partition)
        for handle in self._beginning.values():
            handle.cancel()
        self._beginning.clear()
        for shard in shards:
            await shard.settled()

    # calls of the replica manager

    def led(self, partition: int, leading_since: int) -> None:
        """Begin the partition's shard. `leading_since`: the leader epoch since which this broker
        leads without interruption."""
        shard = self._shards.get(partition)
        is_alive = shard is not None and shard.phase is not Phase.ENDED
        if is_alive and self._led.get(partition) == leading_since:
            return
        self._led[partition] = leading_since
        self._pauses_s.pop(partition, None)
        if self._runs:
            self._begin(partition)

    def resigned(self, partition: int) -> None:
        """End the partition's shard, because this broker no longer leads the partition."""
        if self._led.pop(partition, None) is not None:
            self._end(partition)

    def marker_written(self, partition: int, marker: StoredMarker) -> None:
        """Tell the partition's shard that this marker was just appended to the log."""
        shard = self._shards.get(partition)
        if shard is not None:
            shard.marker_written(marker)

    # for requests

    def shard_for(self, partition: int) -> C:
        """Return the coordinator of the partition. Raises BrokerError: COORDINATOR_NOT_AVAILABLE if
        the broker is stopping, COORDINATOR_LOAD_IN_PROGRESS during loading, NOT_COORDINATOR if this
        broker does not coordinate the partition."""
        shard = self._shards.get(partition)
        if shard is not None and shard.phase is Phase.SERVING and not self._is_fenced():
            return shard.coordinator
        if not self._runs:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this broker is stopping")
        if shard is None or shard.phase is not Phase.LOADING:
            raise not_coordinator(
                f"this broker does not coordinate {self.topic}-{partition} at the moment"
            )
        raise BrokerError(
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            f"this broker is still loading {self.topic}-{partition}",
        )

    def may_be_elsewhere(self, partition: int) -> bool:
        """Return whether another broker may coordinate the partition, because this broker's shard
        has ended or has no ZooKeeper lease. False is no proof: perhaps the partition has a new
        leader that this broker does not know yet."""
        shard = self._shards.get(partition)
        return shard is not None and not shard.is_current

    def serving(self) -> Mapping[int, C]:
        """Return partition -> coordinator, for the loaded shards."""
        return {
            partition: shard.coordinator
            for partition, shard in self._shards.items()
            if shard.phase is Phase.SERVING
        }

    @property
    def loading(self) -> list[int]:
        return [each for each, shard in self._shards.items() if shard.phase is Phase.LOADING]

    async def settled(self) -> None:
        """Wait until all current shards are loaded or have ended."""
        for shard in list(self._shards.values()):
            await shard.settled()

    # private

    def _begin(self, partition: int) -> None:
        self._end(partition)
        try:
            source = self._open_log(partition)
        except BrokerError as error:
            # After a pause of its process the broker may not answer as a leader for a moment.
            log.info(
                "shard not started topic=%s partition=%d error=%s", self.topic, partition, error
            )
            self._begin_later(partition)
            return
        shard = self._shards[partition] = LiveShard(source, self._dependencies)
        shard.start()

    def _end(self, partition: int) -> None:
        waiting = self._beginning.pop(partition, None)
        if waiting is not None:
            waiting.cancel()
        shard = self._shards.pop(partition, None)
        if shard is not None:
            shard.end()

    def _loaded(self, partition: int, seconds: float, replay: Replay) -> None:
        self._pauses_s.pop(partition, None)
        times = self.load_times
        times.partitions += 1
        times.total_s += seconds
        times.longest_s = max(times.longest_s, seconds)

    def _resigned(self, partition: int, reason: str) -> None:
        self._begin_later(partition)

    def _begin_later(self, partition: int) -> None:
        if not self._runs or partition not in self._led:
            return
        pause_s = self._pauses_s.get(partition, _BEGIN_AGAIN_S)
        self._pauses_s[partition] = min(2 * pause_s, _BEGIN_AGAIN_S_MAX)
        loop = asyncio.get_running_loop()
        self._beginning[partition] = loop.call_later(pause_s, self._begin_again, partition)

    def _begin_again(self, partition: int) -> None:
        self._beginning.pop(partition, None)
        self._begin(partition)
