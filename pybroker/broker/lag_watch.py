"""The lag of the consumer groups that this broker coordinates, for its metrics. The lag is measured
only on request, at most once in `FRESH_S`."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from pybroker.background import BackgroundTask
from pybroker.bounded_gather import bounded_gather
from pybroker.coordinator.groups.calls import GroupOverview, GroupView
from pybroker.coordinator.groups.states import GroupState
from pybroker.errors import BrokerError, ErrorCode, PybrokerError
from pybroker.group_lag import GroupProgress, Lag, ProgressReport
from pybroker.model import Endpoint, TopicPartition
from pybroker.ports import Clock

log = logging.getLogger(__name__)

FRESH_S: Final = 10.0
"""A report younger than this (s) is reused."""
PATIENCE_S: Final = 2.0
"""How long (s) a request waits for a new report. After that it gets the previous report."""
TIMEOUT_MS: Final = 5_000
"""The time limit (ms) of each request to a leader."""
GROUPS_AT_ONCE: Final = 50
"""The number of groups whose offsets are read at the same time. A group whose offsets are in
ZooKeeper needs several answers, so reading one group after the other would be slow."""
POSITIONS_IN_DETAIL_MAX: Final = 1_000
"""The maximum number of committed offsets, of all groups together, for which a report has the lag
in bytes and seconds. With more committed offsets, a report has the lag in records only, because the
lag in seconds costs a fetch of one batch for each committed offset with a lag."""

Position = tuple[TopicPartition, int]
AskLag = Callable[[Sequence[Position], bool], Awaitable[Sequence[Lag | None]]]
"""Called with (partition, committed offset) pairs, and with True if the lag in bytes and seconds is
wanted in addition to the lag in records. Returns the lag of each pair, in the same order; None if
the partition's leader does not answer. Raises PybrokerError or OSError."""


class Offsets(Protocol):
    """The committed offsets of groups."""

    async def positions(self, group_id: str) -> Mapping[TopicPartition, int]: ...


class HasOffsets(Protocol):
    """A shard of `__consumer_offsets` with the committed offsets of its groups."""

    @property
    def offsets(self) -> Offsets: ...


class Groups(Protocol):
    """The groups that this broker coordinates."""

    async def overviews(self) -> tuple[ErrorCode, Sequence[GroupOverview]]: ...

    async def describe(self, group_id: str) -> GroupView: ...

    def shard_of(self, group_id: str, *, may_be_empty: bool = False) -> HasOffsets: ...


@dataclass(frozen=True, slots=True)
class _Taken:
    groups: tuple[GroupProgress, ...] = ()
    moment: float | None = None


class LagWatch:
    """Reports the lag of the groups that this broker coordinates. It owns a task, which `close`
    ends."""

    def __init__(self, groups: Groups, ask: AskLag, clock: Clock) -> None:
        self._groups = groups
        self._ask = ask
        self._clock = clock
        self._taken = _Taken()
        self._task = BackgroundTask("lag of groups")

    async def report(self) -> ProgressReport | None:
        """Return a lag report that is at most `FRESH_S` old. If a new measurement fails or takes
        longer than `PATIENCE_S`, return the last report, or None if there is none."""
        age_s = self._age_s()
        if age_s is None or age_s > FRESH_S:
            self._task.start(self._look)
        await self._task.finish(PATIENCE_S)
        age_s = self._age_s()
        if age_s is None:
            return None
        return ProgressReport(tuple(filter(self._is_here, self._taken.groups)), age_s)

    async def close(self) -> None:
        """Cancel a running measurement and wait until it has ended. Idempotent."""
        await self._task.stop()

    def _age_s(self) -> float | None:
        moment = self._taken.moment
        return None if moment is None else self._clock.monotonic() - moment

    def _is_here(self, group: GroupProgress) -> bool:
        """Whether this broker still coordinates the group."""
        try:
            self._groups.shard_of(group.group_id, may_be_empty=True)
        except BrokerError:
            return False
        return True

    async def _look(self) -> None:
        try:
            moment = self._clock.monotonic()
            self._taken = _Taken(await self._progress(), moment)
        except (PybrokerError, OSError) as error:
            log.warning("group lag unknown, the last report stays in use error=%s", error)
        except Exception:
            log.exception("group lag unknown, the last report stays in use")

    async def _progress(self) -> tuple[GroupProgress, ...]:
        """Return the committed offsets and lags of all groups. The committed offsets are read
        before the end offsets of the logs, so that no lag is negative."""
        _, overviews = await self._groups.overviews()
        found = await bounded_gather(self._committed, overviews, GROUPS_AT_ONCE)
        groups = [group for group in found if group is not None]
        positions = [position for group in groups for position in group.committed.items()]
        if not positions:
            return tuple(groups)
        lags = iter(await self._ask(positions, len(positions) <= POSITIONS_IN_DETAIL_MAX))
        return tuple(
            replace(
                group,
                lags={key: lag for key in group.committed if (lag := next(lags)) is not None},
            )
            for group in groups
        )

    async def _committed(self, overview: GroupOverview) -> GroupProgress | None:
        name = overview.group_id
        try:
            members = 0
            if overview.state not in (GroupState.EMPTY, GroupState.DEAD):
                members = len((await self._groups.describe(name)).members)
            shard = self._groups.shard_of(name, may_be_empty=True)
            committed = await shard.offsets.positions(name)
        except BrokerError:
            return None  # the group is deleted, or has moved
        offsets = {key: committed[key] for key in sorted(committed)}
        return GroupProgress(name, members, offsets)


def ask_leaders(broker_id: int, own_endpoint: Callable[[], Endpoint | None]) -> AskLag:
    """Return an `AskLag` that asks the partitions' leaders for the lag of committed offsets, with
    an admin client. The client bootstraps from `own_endpoint`, this broker's inter-broker endpoint
    (None: unknown)."""

    async def ask(positions: Sequence[Position], details: bool) -> Sequence[Lag | None]:
        endpoint = own_endpoint()
        if endpoint is None:
            return [None] * len(positions)
        # Imported at first use: few brokers need it, and the client would slow down every start.
        client = importlib.import_module("pybroker.client.admin.admin")
        async with client.Admin(
            f"{endpoint.host}:{endpoint.port}",
            client_id=f"broker-{broker_id}-lag",
            request_timeout_ms=TIMEOUT_MS,
            default_api_timeout_ms=TIMEOUT_MS,
            bootstrap_timeout_ms=TIMEOUT_MS,
        ) as admin:
            found = await admin.position_lag(positions, details=details, timeout_ms=TIMEOUT_MS)
        return [
            None if lag.records is None else Lag(lag.records, lag.bytes, lag.seconds)
            for lag in found
        ]

    return ask
