"""A cluster that follows a script: commands in, a trace of the controller's actions out.

A trace has first, in their order, the changes of nodes by brokers and controllers (`made`, `set`,
`removed`, and `stored` for the state of a partition) and the lines of the journal. Then it has the
commands that each broker received. Changes of nodes by the script itself are not in the trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby

from pybroker.clock import ManualClock
from pybroker.coordinator.controller.events import Election, ElectionType
from pybroker.coordinator.controller.services import RebalanceSettings
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import (
    Broker,
    Extent,
    LeaderAndIsr,
    PartitionFacts,
    StopReplica,
    TopicPartition,
    UpdateMetadata,
)
from pybroker.ports import CoordOp, CreateOp, DeleteOp, NodeStat, OpResult, SetOp
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.controller.cluster import Cluster, Member, Note, NotingChannel, key

CALM_S = 1.0
"""A time longer than the pauses between attempts: after it the controller has done all its work."""
REBALANCE = RebalanceSettings(imbalance_percentage=0, interval_s=300.0, first_check_s=30.0)
Result = Awaitable[object]


class TracedTree(MemoryTree):
    """A tree that records each change and its session."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.lines: list[str] = []
        self.silent_sessions: set[int] = set()

    def apply(self, ops: Sequence[CoordOp], session_id: int) -> list[OpResult]:
        results = super().apply(ops, session_id)
        if session_id not in self.silent_sessions:
            found = (_change(op, result) for op, result in zip(ops, results, strict=True))
            self.lines.extend(sorted(line for line in found if line))
        return results

    def end_session(self, session_id: int) -> None:
        before = set(self.paths())
        super().end_session(session_id)
        self.lines.extend(f"removed {path} (session)" for path in sorted(before - {*self.paths()}))


def _change(op: CoordOp, result: OpResult) -> str:
    match op:
        case CreateOp(path=path) | SetOp(path=path):
            version = result.version if isinstance(result, NodeStat) else 0
            name = paths.parse_partition_state(path)
            if name is not None:
                return f"stored {name} {_state(path, op.data)} version={version}"
            return f"set {path}" if version else f"made {path}"
        case DeleteOp(path=path):
            return f"removed {path}"
    return ""


def _state(path: str, data: bytes) -> str:
    state = schemas.decode_state(path, data)
    return (
        f"leader={state.leader} epoch={state.leader_epoch} isr={_numbers(state.isr)}"
        f"{_unless_empty('eligible', state.eligible)} controller_epoch={state.controller_epoch}"
    )


def _unless_empty(name: str, items: Sequence[int]) -> str:
    return f" {name}={_numbers(items)}" if items else ""


def _numbers(items: Sequence[int]) -> str:
    return ",".join(map(str, items)) or "-"


class JournalLines(list[dict[str, object]]):
    """A journal whose lines are between the changes of nodes in the trace."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def append(self, entry: dict[str, object]) -> None:
        super().append(entry)
        words = [f"journal {entry['controller']} {entry['event']}: {entry['what']}"]
        for name, value in entry.items():
            if name in ("time", "controller", "controller_epoch", "event", "what", "from", "to"):
                continue  # the trace already has the states as `stored` lines
            shown = _numbers(value) if isinstance(value, list) else str(value)
            words.append(f"{name}={shown}")
        self._lines.append(" ".join(words))


class MutedChannel(NotingChannel):
    """A channel to a broker that a script can keep from answering."""

    def __init__(self, stage: Stage, broker: Broker) -> None:
        super().__init__(stage.cluster, broker)
        self._may_answer = stage.may_answer.setdefault(broker.id, asyncio.Event())

    async def leader_and_isr(self, command: LeaderAndIsr) -> Mapping[TopicPartition, ErrorCode]:
        await self._may_answer.wait()
        return await super().leader_and_isr(command)

    async def update_metadata(self, command: UpdateMetadata) -> None:
        await self._may_answer.wait()
        await super().update_metadata(command)

    async def stop_replica(self, command: StopReplica) -> Mapping[TopicPartition, ErrorCode]:
        await self._may_answer.wait()
        return await super().stop_replica(command)


class Stage:
    """Runs one script. A command is a line: its name and words."""

    def __init__(self) -> None:
        self.tree = TracedTree(ManualClock())
        self.cluster = Cluster(self.tree)
        self.cluster.journal = JournalLines(self.tree.lines)
        self.cluster.channels = lambda broker: MutedChannel(self, broker)
        self.may_answer: dict[int, asyncio.Event] = {}
        self._members: dict[int, Member] = {}
        self._said: list[str] = []
        self._verbs: dict[str, Callable[..., Result]] = {
            "start": self._start,
            "kill": self._kill,
            "bounce": self._bounce,
            "mute": self._mute,
            "unmute": self._unmute,
            "topic": self._topic,
            "grow": self._grow,
            "delete": self._delete,
            "isr": self._isr,
            "config": self._config,
            "preferred": self._preferred,
            "elect": self._elect,
            "shutdown": self._shutdown,
            "depose": self._depose,
            "lose-zookeeper": self._lose_zookeeper,
            "find-zookeeper": self._find_zookeeper,
            "lose-reply": self._lose_reply,
            "expire": self._expire,
            "wait": self._wait,
        }

    async def prepare(self) -> None:
        await self.cluster.prepare()
        self.tree.silent_sessions.add(self.cluster.tool.session_id)
        self.tree.lines.clear()

    async def close(self) -> None:
        for gate in self.may_answer.values():
            gate.set()
        await self.cluster.close()

    async def play(self, command: str) -> list[str]:
        """Return the trace of the command, from its start until the cluster is calm again."""
        verb, *words = command.split()
        if verb not in self._verbs:
            raise ValueError(f"{verb!r} is none of {sorted(self._verbs)}")
        self.cluster.notes.clear()
        await self._verbs[verb](*words)
        await asyncio.sleep(CALM_S)
        self._collect()
        said, self._said = self._said, []
        for broker_id in sorted({note.broker_id for note in self.cluster.notes}):
            for note in self.cluster.notes:
                if note.broker_id == broker_id:
                    said.extend(f"{broker_id} < {line}" for line in _lines_of(note))
        return said

    def _collect(self) -> None:
        self._said += self.tree.lines
        self.tree.lines.clear()

    # ---- brokers

    async def _start(self, *broker_ids: str) -> None:
        for broker_id in map(int, broker_ids):
            self.may_answer.setdefault(broker_id, asyncio.Event()).set()
            member = self._members[broker_id] = self._new(broker_id)
            await member.coord.start()
            await member.register()
            member.controller.start()
            await asyncio.sleep(CALM_S)

    def _new(self, broker_id: int) -> Member:
        member = Member(self.cluster, broker_id, delete_topic_enable=True, rebalance=REBALANCE)
        self.cluster.members.append(member)
        return member

    async def _kill(self, *broker_ids: str) -> None:
        for broker_id in map(int, broker_ids):
            member = self._members.pop(broker_id)
            self.tree.end_session(member.coord.session_id)
            await member.kill()

    async def _bounce(self, broker_id: str) -> None:
        """Register the broker again before the controller can notice that it was gone."""
        before, after = self._members[int(broker_id)], self._new(int(broker_id))
        await after.coord.start()
        self.tree.end_session(before.coord.session_id)
        registration = CreateOp(paths.broker(after.id), before.registration, ephemeral=True)
        self.tree.apply([registration], after.coord.session_id)
        self._members[after.id] = after
        after.controller.start()
        await before.kill()

    async def _mute(self, broker_id: str) -> None:
        self.may_answer[int(broker_id)].clear()

    async def _unmute(self, broker_id: str) -> None:
        self.may_answer[int(broker_id)].set()

    # ---- topics

    async def _topic(self, name: str, *words: str) -> None:
        """`topic orders 3x2`, or with the replicas of each partition: `topic orders 1,2 2,1`."""
        await self.cluster.create(name, dict(enumerate(self._replicas(words, first=0))))

    async def _grow(self, name: str, *words: str) -> None:
        """As `topic`, with the partitions to add."""
        path = paths.topic(name)
        content = self.cluster.json(path)
        partitions = content["partitions"]
        assert isinstance(partitions, dict)
        first = len(partitions)
        for number, replicas in enumerate(self._replicas(words, first=first), first):
            partitions[str(number)] = replicas
        await self.cluster.write_json(path, content)

    def _replicas(self, words: Sequence[str], *, first: int) -> list[tuple[int, ...]]:
        if "x" not in words[0]:
            return [tuple(map(int, word.split(","))) for word in words]
        count, factor = map(int, words[0].split("x"))
        ids = sorted(self._members)
        return [
            tuple(ids[(number + place) % len(ids)] for place in range(factor))
            for number in range(first, first + count)
        ]

    async def _delete(self, name: str) -> None:
        await self.cluster.delete(name)

    async def _isr(self, name: str, isr: str, *names: str) -> None:
        """Change the ISR of the partition and write the notice, as its leader does."""
        path = paths.partition_state(key(name))
        changed = {**self.cluster.json(path), "isr": [int(word) for word in isr.split(",")]}
        await self.cluster.write_json(path, changed)
        notice = schemas.encode_partitions([key(name)])
        await self.cluster.tool.create(paths.ISR_CHANGE_PREFIX, notice, sequence=True)

    async def _config(self, topic: str, *settings: str) -> None:
        await self.cluster.set_options(topic, **dict(word.split("=") for word in settings))

    # ---- elections

    async def _preferred(self, *names: str) -> None:
        data = schemas.encode_partitions([key(name) for name in names])
        await self.cluster.tool.create(paths.PREFERRED_ELECTION, data)

    async def _elect(self, kind: str, *names: str) -> None:
        held = await self._controller.controller.elect_leaders(
            ElectionType[kind.upper()], [key(name) for name in names]
        )
        self._collect()
        self._said += [f"answer {name} {_outcome(election)}" for name, election in held.items()]

    async def _shutdown(self, broker_id: str) -> None:
        """Send the controller a ControlledShutdown request of the broker. The broker does not
        stop."""
        try:
            remaining = await self._controller.controller.controlled_shutdown(int(broker_id), -1)
        except BrokerError as error:
            self._said.append(f"answer {error.code.name}")
        else:
            self._collect()
            self._said.append(f"answer remaining={','.join(map(str, remaining)) or '-'}")

    # ---- the controller and its service

    @property
    def _controller(self) -> Member:
        return next(each for each in self._members.values() if each.controller.is_active)

    async def _depose(self) -> None:
        await self.cluster.tool.delete(paths.CONTROLLER)

    async def _lose_zookeeper(self) -> None:
        """Break the controller's connection to ZooKeeper."""
        self._controller.coord.suspend()

    async def _find_zookeeper(self, broker_id: str) -> None:
        self._members[int(broker_id)].coord.resume()

    async def _lose_reply(self, count: str, applied: str) -> None:
        """Lose the answer of the controller's request number `count`, counted from now (1 is the
        next). ZooKeeper has `applied` or `dropped` the request."""
        assert applied in ("applied", "dropped")
        self._controller.lose_request(int(count) - 1, applied=applied == "applied")

    async def _expire(self, broker_id: str) -> None:
        """End the broker's session; its process goes on."""
        member = self._members[int(broker_id)]
        member.coord.expire()
        member.controller.session_expired()
        await member.renew()

    async def _wait(self, seconds: str) -> None:
        await asyncio.sleep(float(seconds))


def _lines_of(note: Note) -> list[str]:
    """Return a command as lines, sorted, because the order of the partitions in a command has no
    meaning."""
    kinds: list[str] = []
    command = note.command
    if isinstance(command, LeaderAndIsr | UpdateMetadata) and command.extent is not Extent.SOME:
        kinds = [f"{type(command).__name__} {command.extent.name.lower()}"]
    lines = note.lines
    if isinstance(command, UpdateMetadata):
        known = zip(lines[1:], command.partitions, strict=True)
        lines = lines[:1] + [f"{line} {_more(facts)}" for line, facts in known]
    runs = groupby(lines, lambda line: line.split()[0])
    return kinds + [line for _, run in runs for line in sorted(run)]


def _more(facts: PartitionFacts) -> str:
    """Return the other facts of metadata, as words."""
    offline = _unless_empty("offline", facts.offline_replicas)
    return f"isr={_numbers(facts.state.isr)}{offline}"


def _outcome(election: Election) -> str:
    return f"{election.code.name} leader={election.leader}"
