"""The coordinator of one shard's groups. A shard is a partition of __consumer_offsets that this
broker leads. The coordinator carries out the effects of the decision functions (`join.py`,
`sync.py`, ...).

Every decision and its appends run in one step of the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from pybroker.applog.rate_limit import LogLimit
from pybroker.coordinator.groups import (
    delete,
    expiry,
    heartbeat,
    join,
    leave,
    overview,
    rebalance,
    sync,
)
from pybroker.coordinator.groups.calls import (
    NO_MEMBER_ID,
    GroupOverview,
    GroupView,
    Identity,
    Join,
    Joined,
    Sync,
    Synced,
    Ticket,
)
from pybroker.coordinator.groups.dependencies import GroupDependencies, GroupFacts, Membership
from pybroker.coordinator.groups.effects import Effects, Store, StoreAssignment, StoreReplacement
from pybroker.coordinator.groups.group import Group, from_record
from pybroker.coordinator.groups.member import MEMBER_BYTES
from pybroker.coordinator.groups.offset_store import OffsetStore
from pybroker.coordinator.groups.options import NAME_PREFIX_MAX, PENDING_MAX
from pybroker.coordinator.groups.records import (
    GroupKey,
    RecordedGroup,
    decode_group_value,
    decode_key,
    encode_group_key,
    encode_group_value,
    is_offset_key,
)
from pybroker.coordinator.groups.states import GroupState
from pybroker.coordinator.runtime.shard import ShardContext, StoredMarker, StoredRecord, Timer
from pybroker.errors import BrokerError, CoordError, ErrorCode, MalformedInput
from pybroker.ports import KeyValue

log = logging.getLogger(__name__)

LATE_S: Final = 2.0
"""If a timer fires this long (s) after its time, the broker's process was paused. The broker
handled no heartbeats during the pause, so it must not expire group members because of it."""


NOTES_MAX: Final = 100
"""The maximum number of log lines in ten seconds about the groups of one shard. A rebalance of many
members logs dozens."""


class GroupCoordinator:
    """The groups of one shard."""

    def __init__(
        self,
        context: ShardContext,
        offsets: OffsetStore,
        membership: Membership,
        dependencies: GroupDependencies,
    ) -> None:
        self.offsets = offsets
        self.context = context
        self._membership = membership
        self._config = dependencies.config
        self._counters = dependencies.counters
        self.take_memory = dependencies.take_memory
        self._log_limit = LogLimit(context.clock, lines=NOTES_MAX)
        self._recorded: dict[str, RecordedGroup] = {}
        """The replayed groups; empty once the shard is loaded."""
        self._in_log: set[str] = set()
        """The groups with a record in the log."""
        self._groups: dict[str, Group] = {}
        self._timers: dict[str, tuple[float, Timer]] = {}
        self._given_out: dict[tuple[str, str], None] = {}
        """The latest member ids that were sent to clients (KIP-394), as (group id, member id),
        oldest first. An id stays here after its client has joined."""
        self._waiting: dict[Ticket, asyncio.Future[Any]] = {}
        self._tickets = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_loaded = False
        self._has_ended = False

    # called by the runtime

    def replay(self, record: StoredRecord) -> None:
        """Replay a group record, or pass an offset record to the offset store. A record that cannot
        be decoded is logged and skipped."""
        if record.key is None:
            return
        try:
            if is_offset_key(record.key):
                self.offsets.replay(record)
            elif isinstance(key := decode_key(record.key), GroupKey):
                self._replay_group(key.group_id, record.value)
        except MalformedInput as error:
            log.error(
                "group record ignored partition=%d offset=%d reason=%s",
                self.context.partition,
                record.offset,
                error,
            )

    def _replay_group(self, group_id: str, value: bytes | None) -> None:
        if value is None:
            self._in_log.discard(group_id)
            self._recorded.pop(group_id, None)
            return
        self._in_log.add(group_id)
        if not self._is_loaded:
            self._recorded[group_id] = decode_group_value(value)

    def replay_marker(self, marker: StoredMarker) -> None:
        self.offsets.replay_marker(marker)

    async def loaded(self) -> None:
        await self.offsets.loaded()
        self._is_loaded = True
        recorded, self._recorded = self._recorded, {}
        now = self.context.clock.monotonic()
        for group_id, stored in recorded.items():
            group = self._groups[group_id] = from_record(group_id, stored, now)
            effects = self._turn()
            if len(group.members) > self._config.group_max_size:
                rebalance.prepare(group, effects, "more members than group.max.size")
            effects.has_new_members = True
            self._carry_out(group, effects)
        self.context.call_later(
            self._config.offsets_retention_check_interval_ms / 1000, self._sweep_soon
        )

    def ended(self) -> None:
        self._has_ended = True
        self.offsets.ended()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(
                    BrokerError(ErrorCode.NOT_COORDINATOR, "the group has another coordinator now")
                )
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()
        self._groups.clear()
        self._timers.clear()

    # called by members

    async def join(self, group_id: str, call: Join) -> Joined:
        """Wait until the group answers the request, and return the answer. Raises BrokerError."""
        fault = join.fault_of(call, self._config)
        if fault is not ErrorCode.NONE:
            return Joined(fault, call.member_id)
        group = self._groups.get(group_id)
        if group is None and call.member_id != NO_MEMBER_ID:
            return Joined(ErrorCode.UNKNOWN_MEMBER_ID, call.member_id)
        size = MEMBER_BYTES + call.size()
        comes_in = not join.only_wants_an_id(call)
        if comes_in:
            self.take_memory(size)
        is_nobody_there = group is None or not group.members
        if is_nobody_there and comes_in and join.may_be_first(call):
            fault = await self._membership.may_begin(group_id)
            self._check_not_ended()
            if fault is not ErrorCode.NONE:
                return Joined(fault, call.member_id)
            self.take_memory(size)  # other members may have taken it during the wait
        group = self._groups.setdefault(group_id, Group(group_id))
        effects = self._turn()
        ticket, future = self._wait()
        join.join(group, call, ticket, effects)
        self._carry_out(group, effects)
        joined: Joined = await self._answer(ticket, future)
        if joined.error is ErrorCode.MEMBER_ID_REQUIRED:
            self._remember_given_out(group_id, joined.member_id)
        return joined

    async def sync(self, group_id: str, call: Sync) -> Synced:
        """Wait until the group answers the request, and return the answer. Raises BrokerError."""
        group = self._groups.get(group_id)
        if group is None:
            return Synced(ErrorCode.UNKNOWN_MEMBER_ID)
        self.take_memory(sum(map(len, call.assignments.values())))
        effects = self._turn()
        ticket, future = self._wait()
        sync.sync(group, call, ticket, effects)
        self._carry_out(group, effects)
        synced: Synced = await self._answer(ticket, future)
        return synced

    def heartbeat(self, group_id: str, identity: Identity, generation: int) -> ErrorCode:
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return heartbeat.heartbeat(group, identity, generation, self.context.clock.monotonic())

    def leave(self, group_id: str, leaving: Sequence[Identity]) -> list[ErrorCode]:
        """Remove these members. Return one error code for each. Raises BrokerError if the whole
        request fails."""
        group = self._groups.get(group_id)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID for _ in leaving]
        if group.state is GroupState.DEAD:
            raise BrokerError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the group {group_id} is being deleted"
            )
        effects = self._turn()
        answers = leave.leave(group, leaving, effects)
        self._carry_out(group, effects)
        return answers

    def may_commit(
        self, group_id: str, identity: Identity, generation: int, *, in_transaction: bool = False
    ) -> ErrorCode:
        """Return NONE if this member may commit offsets now, else the error code. The result is
        valid until the next await. `in_transaction`: whether the request is a TxnOffsetCommit."""
        group = self._groups.get(group_id)
        if group is None and not in_transaction:
            return heartbeat.commit_without_group(generation)
        group = Group(group_id) if group is None else group
        now = self.context.clock.monotonic()
        return heartbeat.commit(group, identity, generation, now, in_transaction=in_transaction)

    # called by operators

    def facts(self, group_id: str) -> GroupFacts | None:
        """Return the facts that decide when the group's offsets expire; None if the group is not in
        memory."""
        group = self._groups.get(group_id)
        if group is None:
            return None
        topics = overview.subscribed_topics(group)
        return GroupFacts(group.state, group.protocol_type or "", group.state_ms, topics)

    async def has_offsets(self, group_id: str) -> bool:
        """Whether the group has committed offsets, or offsets of an open transaction. Raises
        BrokerError."""
        return bool(self.offsets.undecided(group_id) or await self.offsets.fetch(group_id, None))

    async def describe(self, group_id: str) -> GroupView:
        """Return the group's description: Dead if unknown, Empty if the group has only offsets.
        Raises BrokerError."""
        group = self._groups.get(group_id)
        if group is None and await self.has_offsets(group_id):
            return GroupView(group_id, GroupState.EMPTY)
        return GroupView(group_id, GroupState.DEAD) if group is None else overview.describe(group)

    async def overviews(self) -> list[GroupOverview]:
        """Return all groups of the shard, including those that have only offsets. Raises
        BrokerError."""
        with_offsets = await self.offsets.group_ids()
        found = [overview.overview(group) for group in self._groups.values()]
        found += (
            GroupOverview(group_id, GroupState.EMPTY)
            for group_id in with_offsets
            if group_id not in self._groups
        )
        return found

    def size(self) -> int:
        """Return the approximate memory, in bytes, of all groups with their members, and of the
        offsets in open transactions."""
        groups = sum(group.size() for group in self._groups.values())
        return groups + self.offsets.undecided_bytes()

    def states(self) -> list[GroupState]:
        """Return the state of each group in memory. Groups that never had members are not in
        memory."""
        return [group.state for group in self._groups.values()]

    async def delete(self, group_id: str) -> ErrorCode:
        """Delete the group and its offsets, and wait until the deletion is replicated. Return NONE
        or the error code. After a BrokerError some of the offsets may be deleted."""
        group = self._groups.get(group_id)
        if group is None:
            if not await self.has_offsets(group_id):
                return ErrorCode.GROUP_ID_NOT_FOUND
            self._check_not_ended()
            group = self._groups.setdefault(group_id, Group(group_id))
        fault = delete.fault_of(group)
        if fault is not ErrorCode.NONE:
            return fault
        delete.delete(group, self.context.clock.wall_ms())
        try:
            answers = await self.offsets.delete(group_id, None)
            self._check_not_ended()
            failed = [code for code in answers.values() if code is not ErrorCode.NONE]
            if failed:
                raise BrokerError(
                    failed[0], f"some offsets of group {group_id} could not be deleted; try again"
                )
            end = self._append_tombstone(group_id)
        except BaseException:
            delete.survive(group, self.context.clock.wall_ms())
            raise
        self._forget(group)
        log.info("group deleted group=%s", group_id)
        if end is not None:
            await self.context.committed(end)
        return ErrorCode.NONE

    # steps

    def _turn(self) -> Effects:
        clock = self.context.clock
        return Effects(clock.monotonic(), clock.wall_ms(), self._config, self._new_id)

    def _new_id(self, prefix: str) -> str:
        suffix = uuid.UUID(bytes=self.context.rng.randbytes(16), version=4)
        return f"{prefix[:NAME_PREFIX_MAX]}-{suffix}"

    def _wait(self) -> tuple[Ticket, asyncio.Future[Any]]:
        ticket = next(self._tickets)
        future = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        return ticket, future

    async def _answer(self, ticket: Ticket, future: asyncio.Future[Any]) -> Any:
        try:
            return await future
        finally:
            self._waiting.pop(ticket, None)

    def _carry_out(self, group: Group, effects: Effects) -> None:
        while effects.stores:
            self._store(group, effects.stores.pop(0), effects)
        for note in effects.notes:
            self._log_limited(logging.INFO, note)
        self._counters.completed_rebalances += effects.rebalances
        for ticket, answer in effects.answers:
            future = self._waiting.get(ticket)
            if future is not None and not future.done():
                future.set_result(answer)
        if effects.has_new_members:
            self._membership.members_changed(overview.describe(group))
        if group.is_forgettable and group.group_id not in self._in_log:
            self._forget(group)
        else:
            self._set_timer(group)

    def _log_limited(self, level: int, text: str) -> None:
        left_out = self._log_limit.allow(logging.getLevelName(level))
        if left_out:
            log.log(level, "%s lines_left_out=%d", text, left_out)
        elif left_out == 0:
            log.log(level, "%s", text)

    def _store(self, group: Group, store: Store, effects: Effects) -> None:
        record = KeyValue(encode_group_key(group.group_id), encode_group_value(store.record))
        try:
            end = self.context.append([record])
        except BrokerError as error:
            self._log_limited(
                logging.WARNING, f"group_not_stored group={group.group_id} error={error}"
            )
            if isinstance(store, StoreAssignment):
                sync.appended_or_not(group, store, error.code, effects)
            elif isinstance(store, StoreReplacement):
                join.refused(group, store, error.code, effects)
            return
        self._begin(self._when_committed(group, store, end))

    async def _when_committed(self, group: Group, store: Store, end: int) -> None:
        code = ErrorCode.NONE
        try:
            await self.context.committed(end)
        except BrokerError as error:
            # A coordinator that has not ended continues after any error: a broker whose connection
            # to ZooKeeper was lost for a moment may still be the leader.
            if self._has_ended:
                return
            self._log_limited(
                logging.WARNING, f"group_not_committed group={group.group_id} error={error}"
            )
            code = self._code_of_unreplicated()
        effects = self._turn()
        if isinstance(store, StoreAssignment):
            sync.appended_or_not(group, store, code, effects)
        elif isinstance(store, StoreReplacement):
            join.stored(group, store, code, effects)
        self._carry_out(group, effects)

    def _code_of_unreplicated(self) -> ErrorCode:
        """Return the members' error code after a record of their group was not replicated:
        NOT_COORDINATOR if another broker may be the coordinator, otherwise
        REBALANCE_IN_PROGRESS."""
        try:
            self.context.require_current()
        except BrokerError as error:
            return error.code
        return ErrorCode.REBALANCE_IN_PROGRESS

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _append_tombstone(self, group_id: str) -> int | None:
        """Append a tombstone for the group's record. Return the offset after the tombstone. If the
        log has no record of the group, append nothing and return None."""
        if group_id not in self._in_log:
            return None
        return self.context.append([KeyValue(encode_group_key(group_id), None)])

    def _forget(self, group: Group) -> None:
        self._groups.pop(group.group_id, None)
        _, timer = self._timers.pop(group.group_id, (0.0, None))
        if timer is not None:
            timer.cancel()

    def _remember_given_out(self, group_id: str, member_id: str) -> None:
        """Remember a member id that was sent to a client. Of all groups together, keep only the
        newest PENDING_MAX ids."""
        self._given_out[(group_id, member_id)] = None
        while len(self._given_out) > PENDING_MAX:
            oldest = next(iter(self._given_out))
            del self._given_out[oldest]
            group = self._groups.get(oldest[0])
            if group is not None and oldest[1] in group.pending:
                group.remove(oldest[1])
                effects = self._turn()
                rebalance.try_complete(group, effects)
                self._carry_out(group, effects)

    def _check_not_ended(self) -> None:
        if self._has_ended:
            raise BrokerError(ErrorCode.NOT_COORDINATOR, "the group has another coordinator now")

    # time

    def _set_timer(self, group: Group) -> None:
        """Set a timer for the group's next deadline, unless the group has a timer that fires
        earlier."""
        due = group.next_deadline()
        known = self._timers.get(group.group_id)
        if known is not None:
            if due is not None and known[0] <= due:
                return
            known[1].cancel()
            del self._timers[group.group_id]
        if due is None:
            return
        delay_s = max(due - self.context.clock.monotonic(), 0.0)
        timer = self.context.call_later(delay_s, lambda: self._look_at(group, due))
        self._timers[group.group_id] = (due, timer)

    def _look_at(self, group: Group, due: float) -> None:
        del self._timers[group.group_id]
        effects = self._turn()
        if effects.now - due > LATE_S:
            expiry.restart_deadlines(group, effects)
        expiry.expire(group, effects)
        self._carry_out(group, effects)

    def _sweep_soon(self) -> None:
        self._begin(self._sweep())
        self.context.call_later(
            self._config.offsets_retention_check_interval_ms / 1000, self._sweep_soon
        )

    async def _sweep(self) -> None:
        """Delete groups without members and without offsets."""
        try:
            with_offsets = set(await self.offsets.group_ids())
            for group in [*self._groups.values()]:
                is_over = group.state is GroupState.EMPTY and not group.pending
                if is_over and group.group_id not in with_offsets:
                    self._append_tombstone(group.group_id)
                    delete.delete(group, self.context.clock.wall_ms())
                    self._forget(group)
                    self._membership.members_changed(overview.describe(group))
                    log.info("group ended group=%s reason=no members, no offsets", group.group_id)
        except (BrokerError, CoordError) as error:
            log.info("empty groups not deleted error=%s: the coordinator tries again later", error)
