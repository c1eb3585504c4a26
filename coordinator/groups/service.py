"""The groups' interface for request handlers: finds the shard of a group, and turns errors into
codes that clients handle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from pybroker.coordinator.groups.calls import (
    GroupOverview,
    GroupView,
    Identity,
    Join,
    Joined,
    Sync,
    Synced,
)
from pybroker.coordinator.groups.coordinator import GroupCoordinator
from pybroker.coordinator.groups.states import GroupState
from pybroker.coordinator.zookeeper.paths import encode_name
from pybroker.errors import BrokerError, CoordError, ErrorCode

GROUP_ID_LENGTH_MAX: Final = 249
"""The maximum length of a group id, in characters of its ZooKeeper node's name. So a
percent-encoded character counts three times."""


class GroupShards(Protocol):
    """The coordinator shards of this broker."""

    def shard_for(self, partition: int) -> GroupCoordinator:
        """Return the coordinator of this `__consumer_offsets` partition. Raises BrokerError:
        NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE."""

    def may_be_elsewhere(self, partition: int) -> bool:
        """Whether another broker may have taken over this `__consumer_offsets` partition."""

    def serving(self) -> Mapping[int, GroupCoordinator]: ...

    @property
    def loading(self) -> Sequence[int]: ...


class GroupService:
    """The groups of one broker. `partition_of` returns the `__consumer_offsets` partition of a
    group id. While the number of partitions is unknown, `partition_of` raises BrokerError
    COORDINATOR_NOT_AVAILABLE."""

    def __init__(self, shards: GroupShards, partition_of: Callable[[str], int]) -> None:
        self._shards = shards
        self._partition_of = partition_of

    def shard_of(self, group_id: str, *, may_be_empty: bool = False) -> GroupCoordinator:
        """Return the coordinator of a group. `may_be_empty` accepts the empty group id. Raises
        BrokerError INVALID_GROUP_ID, and the errors of `GroupShards.shard_for`."""
        self.check_group_id(group_id, may_be_empty=may_be_empty)
        return self._shards.shard_for(self._partition_of(group_id))

    def check_group_id(self, group_id: str, *, may_be_empty: bool = False) -> None:
        """Raises BrokerError INVALID_GROUP_ID if the id is too long. Also raises it if the id is
        empty, unless `may_be_empty`."""
        size = len(encode_name(group_id))
        if not (group_id or may_be_empty) or size > GROUP_ID_LENGTH_MAX:
            raise BrokerError(
                ErrorCode.INVALID_GROUP_ID,
                f"the group id has {size} characters when encoded as a ZooKeeper node name,"
                f" expected 1 to {GROUP_ID_LENGTH_MAX} (a special character becomes %XX for each"
                " byte)",
            )

    def may_be_elsewhere(self, partition: int) -> bool:
        """Whether another broker may coordinate this `__consumer_offsets` partition now, because
        the ZooKeeper connection is lost or the shard has ended."""
        return self._shards.may_be_elsewhere(partition)

    # members

    async def join(self, group_id: str, call: Join) -> Joined:
        try:
            return await self.shard_of(group_id).join(group_id, call)
        except BrokerError as error:
            return Joined(error.code, call.member_id)

    async def sync(self, group_id: str, call: Sync) -> Synced:
        try:
            return await self.shard_of(group_id).sync(group_id, call)
        except BrokerError as error:
            if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                # The failover lost the rebalance, and old clients do not expect
                # COORDINATOR_LOAD_IN_PROGRESS here.
                return Synced(ErrorCode.REBALANCE_IN_PROGRESS)
            return Synced(error.code)

    def heartbeat(self, group_id: str, identity: Identity, generation: int) -> ErrorCode:
        try:
            return self.shard_of(group_id).heartbeat(group_id, identity, generation)
        except BrokerError as error:
            if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return ErrorCode.NONE
            return error.code

    def leave(self, group_id: str, leaving: Sequence[Identity]) -> list[ErrorCode]:
        """Remove these members. Return one error code for each. Raises BrokerError if the whole
        request fails."""
        return self.shard_of(group_id).leave(group_id, leaving)

    # operators

    async def describe(self, group_id: str) -> GroupView:
        """Return the group's description. Raises BrokerError."""
        with _RetriableErrors():
            return await self.shard_of(group_id).describe(group_id)

    async def overviews(
        self, states: Collection[str] = ()
    ) -> tuple[ErrorCode, list[GroupOverview]]:
        """Return an error code, and this broker's groups whose state is in `states` (empty: all
        groups). Groups may be missing if the code is not NONE."""
        wanted = {state.lower() for state in states}
        error = ErrorCode.NONE
        if self._shards.loading:
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        found: list[GroupOverview] = []
        for shard in [*self._shards.serving().values()]:
            try:
                with _RetriableErrors():
                    found += await shard.overviews()
            except BrokerError as refusal:
                error = refusal.code
        return error, [
            group for group in found if not wanted or group.state.value.lower() in wanted
        ]

    async def delete(self, group_id: str) -> ErrorCode:
        """Delete the group and its offsets. Return NONE or the error code."""
        try:
            with _RetriableErrors():
                return await self.shard_of(group_id).delete(group_id)
        except BrokerError as error:
            return error.code

    # numbers

    def count_by_state(self) -> Mapping[GroupState, int]:
        """Return state -> number of this broker's groups. Groups that have only offsets are not
        counted."""
        counts: Counter[GroupState] = Counter()
        for shard in self._shards.serving().values():
            counts.update(shard.states())
        return counts


class _RetriableErrors:
    """A context that turns a CoordError into BrokerError COORDINATOR_NOT_AVAILABLE."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CoordError):
            raise BrokerError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"the group coordinator's request to ZooKeeper has failed; retry ({error!r})",
            ) from error
