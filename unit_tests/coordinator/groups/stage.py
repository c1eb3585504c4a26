"""A group that runs a script: the requests of clients, their answers, and the stored records.

Clients have names. Their member ids read `name#1`, `name#2`, ... in the order in which they were
seen. Commands (`=` sets a value other than the default):

    join a [id=a#1] [instance=i] [protocols=range:meta,sticky] [session=10] [rebalance=60]
           [type=consumer] [old] [skip] `old`: before error 79, `skip`: KIP-814. Times in seconds
    sync a [id=] [instance=] [generation=1] [give=a:0,b:1] [type=] [protocol=]
    heartbeat a [id=] [instance=] [generation=1]
    leave a b [instance=i]
    commit a [id=] [instance=] [generation=1] [transaction]
    describe | list | delete | facts | log
    wait 10                time passes
    late 10                time passes while the broker's process is paused
    hold | release         appends are not committed from now on | all are committed
    give-up [CODE]         calls that wait for commits time out, or end with this error
    cut-off | reached      ZooKeeper cannot be reached: another broker may be the coordinator
    refuse CODE            the next append fails
    fail-over              the next leader takes over, with the same log
    offsets | forget-offsets               whether the group has committed offsets
    slow-offsets | failing-offsets | quick-offsets    how they are deleted
    classic | no-classic   whether classic consumers use the group id

A trace has the answers, the stored records, the calls of the mirror, and the group if it changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.groups.calls import (
    GroupView,
    Identity,
    Join,
    Joined,
    Sync,
    Synced,
)
from pybroker.coordinator.groups.coordinator import GroupCoordinator
from pybroker.coordinator.groups.dependencies import GroupDependencies
from pybroker.coordinator.groups.records import GroupKey, decode_group_value, decode_key
from pybroker.coordinator.groups.states import GroupState
from pybroker.coordinator.runtime.shard import ShardContext, StoredRecord
from pybroker.errors import BrokerError, ErrorCode
from unit_tests.coordinator.groups.memory_offsets import MemoryOffsets
from unit_tests.coordinator.runtime.vocabulary import MemoryShard
from unit_tests.idle_loop import idle, loop_turns

GROUP = "g"
UUID_LENGTH = 36
STEP_S = 0.125
"""The step in which time passes. Floats can add it without a rounding error."""


class Mirror:
    """A `Membership` that records its calls."""

    def __init__(self, note: Callable[[GroupView], None]) -> None:
        self._note = note
        self.has_classic = False

    def members_changed(self, group: GroupView) -> None:
        self._note(group)

    async def may_begin(self, group_id: str) -> ErrorCode:
        await asyncio.sleep(0)
        if self.has_classic:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE


class TimingOut:
    """A shard whose waits for commits can time out: their outcome is then unknown."""

    def __init__(self, shard: MemoryShard) -> None:
        self._shard = shard
        self._waits: set[asyncio.Task[None]] = set()
        self._timed_out: dict[asyncio.Task[None], ErrorCode] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(self._shard, name)

    def time_out(self, code: ErrorCode) -> None:
        for wait in self._waits:
            self._timed_out[wait] = code
            wait.cancel()

    async def committed(self, offset: int) -> None:
        wait = asyncio.ensure_future(self._shard.committed(offset))
        self._waits.add(wait)
        try:
            await wait
        except asyncio.CancelledError:
            if wait not in self._timed_out:
                raise
            raise BrokerError(self._timed_out[wait], "the test lets the commit time out") from None
        finally:
            self._waits.discard(wait)


class Words:
    """The words of a command: `key=value`, or a value alone."""

    def __init__(self, words: list[str]) -> None:
        self.plain = [word for word in words if "=" not in word]
        self._set = dict(word.split("=", 1) for word in words if "=" in word)

    def get(self, key: str, otherwise: str) -> str:
        return self._set.get(key, otherwise)

    def find(self, key: str) -> str | None:
        return self._set.get(key)


class Stage:
    """Runs commands. `options` are those of the broker."""

    def __init__(self, options: BrokerConfig | None = None) -> None:
        self.offsets = MemoryOffsets()
        self.mirror = Mirror(self._note_view)
        self.options = options or BrokerConfig(group_max_size=3)
        self.shard = MemoryShard()
        self.coordinator = self._host()
        self._names: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._generations: dict[str, int] = {}
        self._lines: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._stored = 0
        self._shown = ""

    def _host(self) -> GroupCoordinator:
        around = GroupDependencies(self.options)
        self._timing_out = TimingOut(self.shard)
        context = cast("ShardContext", self._timing_out)
        return self.shard.host(
            lambda _: GroupCoordinator(context, self.offsets, self.mirror, around)
        )

    async def prepare(self) -> None:
        await self.shard.load()

    async def close(self) -> None:
        self.shard.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def play(self, command: str) -> list[str]:
        name, *rest = command.split()
        commands: dict[str, Callable[[Words], Awaitable[None]]] = {
            each.removeprefix("_on_").replace("_", "-"): getattr(self, each)
            for each in dir(self)
            if each.startswith("_on_")
        }
        if name not in commands:
            raise ValueError(f"{name!r} is none of {', '.join(commands)}")
        self._lines = []
        await commands[name](Words(rest))
        await self._settle()
        return self._lines

    async def _settle(self) -> None:
        await idle()
        self._show_stored()
        shown = await self._group()
        if shown != self._shown:
            self._shown = shown
            self._lines.append(shown)

    # requests

    async def _on_join(self, words: Words) -> None:
        (who, *flags) = words.plain
        protocols = tuple(
            (name, meta.encode())
            for name, _, meta in (
                each.partition(":") for each in words.get("protocols", "range").split(",") if each
            )
        )
        instance = words.find("instance")
        call = Join(
            member_id=self._id_of(who, words),
            session_timeout_ms=int(float(words.get("session", "10")) * 1000),
            rebalance_timeout_ms=int(float(words.get("rebalance", "60")) * 1000),
            protocol_type=words.get("type", "consumer"),
            protocols=protocols,
            instance_id=instance,
            client_id=who,
            client_host="/127.0.0.1",
            requires_known_id="old" not in flags and instance is None,
            may_skip="skip" in flags,
        )
        self._begin(self._join(who, call))

    async def _join(self, who: str, call: Join) -> None:
        try:
            joined = await self.coordinator.join(GROUP, call)
        except BrokerError as error:
            joined = Joined(error.code, call.member_id)
        member = self._name(joined.member_id)
        if joined.member_id:
            self._ids[who] = joined.member_id
        if joined.error is not ErrorCode.NONE:
            self._lines.append(f"{who} < {_error(joined.error)} id={member}")
            return
        self._generations[who] = joined.generation
        members = ",".join(
            f"{self._name(each.member_id)}:{each.metadata.decode()}" for each in joined.members
        )
        self._lines.append(
            f"{who} < joined generation={joined.generation} id={member} {joined.protocol_type}"
            f" {joined.protocol} leader={self._name(joined.leader)}"
            + (f" members={members}" if members else "")
            + (" skips" if joined.skips else "")
        )

    async def _on_sync(self, words: Words) -> None:
        who = words.plain[0]
        pairs = (each.partition(":") for each in words.get("give", "").split(",") if each)
        call = Sync(
            member_id=self._id_of(who, words),
            generation=self._generation_of(who, words),
            instance_id=words.find("instance"),
            protocol_type=words.find("type"),
            protocol=words.find("protocol"),
            assignments={self._ids.get(to, to): what.encode() for to, _, what in pairs},
        )
        self._begin(self._sync(who, call))

    async def _sync(self, who: str, call: Sync) -> None:
        try:
            synced = await self.coordinator.sync(GROUP, call)
        except BrokerError as error:
            synced = Synced(error.code)
        if synced.error is not ErrorCode.NONE:
            self._lines.append(f"{who} < {_error(synced.error)}")
            return
        self._lines.append(
            f"{who} < synced {synced.protocol_type} {synced.protocol}"
            f" assignment={synced.assignment.decode() or '-'}"
        )

    async def _on_heartbeat(self, words: Words) -> None:
        who = words.plain[0]
        identity = Identity(self._id_of(who, words), words.find("instance"))
        code = self.coordinator.heartbeat(GROUP, identity, self._generation_of(who, words))
        self._lines.append(f"{who} < {_error(code)}")

    async def _on_leave(self, words: Words) -> None:
        leaving = [Identity(self._id_of(who, words)) for who in words.plain]
        instance = words.find("instance")
        if instance is not None:
            leaving.append(Identity(words.get("id", ""), instance))
        try:
            codes = self.coordinator.leave(GROUP, leaving)
        except BrokerError as error:
            codes = [error.code]
        self._lines.append(f"< {', '.join(_error(code) for code in codes)}")

    async def _on_commit(self, words: Words) -> None:
        who = words.plain[0]
        code = self.coordinator.may_commit(
            GROUP,
            Identity(self._id_of(who, words), words.find("instance")),
            self._generation_of(who, words),
            in_transaction="transaction" in words.plain,
        )
        self._lines.append(f"{who} < {_error(code)}")

    # operators

    async def _on_describe(self, words: Words) -> None:
        view = await self.coordinator.describe(GROUP)
        self._lines.append(
            f"< {view.state.value} type={view.protocol_type or '-'} protocol={view.protocol or '-'}"
        )
        self._lines += (
            f"< {self._name(each.member_id)} instance={each.instance_id or '-'}"
            f" client={each.client_id} host={each.client_host}"
            f" metadata={each.metadata.decode() or '-'}"
            f" assignment={each.assignment.decode() or '-'}"
            for each in view.members
        )

    async def _on_list(self, words: Words) -> None:
        found = await self.coordinator.overviews()
        self._lines += (
            f"< {each.group_id} {each.state.value} type={each.protocol_type or '-'}"
            for each in found
        )

    async def _on_delete(self, words: Words) -> None:
        self._begin(self._delete())

    async def _delete(self) -> None:
        try:
            code = await self.coordinator.delete(GROUP)
        except BrokerError as error:
            code = error.code
        self._lines.append(f"< {_error(code)}")

    async def _on_facts(self, words: Words) -> None:
        facts = self.coordinator.facts(GROUP)
        if facts is None:
            self._lines.append("< none")
            return
        topics = "unknown" if facts.topics is None else ",".join(sorted(facts.topics)) or "-"
        self._lines.append(f"< {facts.state.value} {facts.protocol_type} topics={topics}")

    async def _on_log(self, words: Words) -> None:
        self._lines += (self._record(record) for record in self.shard.log.records())

    # the world

    async def _on_wait(self, words: Words) -> None:
        for _ in range(round(float(words.plain[0]) / STEP_S)):
            self.shard.advance(STEP_S)
            await loop_turns(1)

    async def _on_late(self, words: Words) -> None:
        self.shard.clock.advance(float(words.plain[0]))
        self.shard.advance(0)

    async def _on_hold(self, words: Words) -> None:
        self.shard.log.holds = True

    async def _on_release(self, words: Words) -> None:
        self.shard.log.holds = False
        self.shard.log.commit()

    async def _on_cut_off(self, words: Words) -> None:
        self.shard.log.is_connected = False

    async def _on_reached(self, words: Words) -> None:
        self.shard.log.is_connected = True

    async def _on_give_up(self, words: Words) -> None:
        code = words.plain[0] if words.plain else "COORDINATOR_NOT_AVAILABLE"
        self._timing_out.time_out(ErrorCode[code])

    async def _on_refuse(self, words: Words) -> None:
        self.shard.log.refuse(ErrorCode[words.plain[0]])

    async def _on_fail_over(self, words: Words) -> None:
        self.shard = self.shard.fail_over()
        self.coordinator = self._host()
        await self._settle()
        await self.shard.load()

    async def _on_offsets(self, words: Words) -> None:
        self.offsets.groups.add(GROUP)

    async def _on_pending_offsets(self, words: Words) -> None:
        self.offsets.pending.add(GROUP)

    async def _on_end_transaction(self, words: Words) -> None:
        self.offsets.pending.clear()

    async def _on_slow_offsets(self, words: Words) -> None:
        self.offsets.go_on.clear()

    async def _on_failing_offsets(self, words: Words) -> None:
        self.offsets.fails = True

    async def _on_quick_offsets(self, words: Words) -> None:
        self.offsets.fails = False
        self.offsets.go_on.set()

    async def _on_forget_offsets(self, words: Words) -> None:
        self.offsets.groups.clear()

    async def _on_classic(self, words: Words) -> None:
        self.mirror.has_classic = True

    async def _on_no_classic(self, words: Words) -> None:
        self.mirror.has_classic = False

    # the trace

    def _begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _id_of(self, who: str, words: Words) -> str:
        said = words.find("id")
        if said is None:
            return self._ids.get(who, "")
        return next((each for each, name in self._names.items() if name == said), said)

    def _generation_of(self, who: str, words: Words) -> int:
        return int(words.get("generation", str(self._generations.get(who, -1))))

    def _name(self, member_id: str) -> str:
        """Return `name#1` for an id that begins with that name."""
        if not member_id:
            return "-"
        if len(member_id) < UUID_LENGTH:
            return member_id
        if member_id not in self._names:
            prefix = member_id[: -UUID_LENGTH - 1]
            self._counts[prefix] = self._counts.get(prefix, 0) + 1
            self._names[member_id] = f"{prefix}#{self._counts[prefix]}"
        return self._names[member_id]

    def _note_view(self, view: GroupView) -> None:
        if view.state is GroupState.STABLE:
            self._show_stored()
        members = ",".join(
            f"{self._name(each.member_id)}:{each.assignment.decode() or '-'}"
            for each in view.members
        )
        self._lines.append(f"mirror {view.state.value} {members or '-'}")

    def _show_stored(self) -> None:
        records = self.shard.log.records()
        self._lines += (f"stored {self._record(record)}" for record in records[self._stored :])
        self._stored = len(records)

    def _record(self, record: StoredRecord) -> str:
        key = decode_key(record.key or b"")
        assert isinstance(key, GroupKey)
        if record.value is None:
            return f"{key.group_id} tombstone"
        group = decode_group_value(record.value)
        members = ",".join(
            f"{self._name(each.member_id)}:{each.assignment.decode() or '-'}"
            for each in group.members
        )
        return (
            f"{key.group_id} generation={group.generation} {group.protocol or '-'}"
            f" leader={self._name(group.leader or '')} members={members or '-'}"
        )

    async def _group(self) -> str:
        """Return the state of the coordinator's group as text."""
        group = self.coordinator._groups.get(GROUP)
        if group is None:
            return "no group"
        members = ",".join(self._name(member_id) for member_id in group.members)
        pending = ",".join(self._name(member_id) for member_id in group.pending)
        leader = self._name(group.leader or "")
        return (
            f"{group.state.value} generation={group.generation} leader={leader}"
            f" members={members or '-'}" + (f" pending={pending}" if pending else "")
        )


def _error(code: ErrorCode) -> str:
    return "0" if code is ErrorCode.NONE else f"{int(code)} {code.name}"
