"""The steps of the replication model, and its checks.

The product's own functions make the decisions. The model only chooses the order of events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pybroker.model import NO_OFFSET, PartitionState
from pybroker.replication.isr import committed_end, maximal_isr, may_commit, may_join
from unit_tests.replication.model_worlds import (
    BROKERS,
    NOBODY,
    Bounds,
    Change,
    Leadership,
    ModelLog,
    Replica,
    Rules,
    Steps,
    Violation,
    World,
    agreed_end,
    begun,
    changed_isr,
    cut,
    elections,
)


@dataclass(frozen=True)
class Model:
    bounds: Bounds = field(default_factory=Bounds)
    rules: Rules = field(default_factory=Rules)

    def begin(self) -> World:
        state = self._first_state
        replicas = tuple(Replica() for _ in BROKERS)
        return World(replicas, state, 0, frozenset({(state, 0)}), required=self.bounds.required)

    @property
    def _first_state(self) -> PartitionState:
        """Return the state of a new topic's partition."""
        isr = self.bounds.isr
        return PartitionState(isr[0], 0, isr, 1)

    def check(self, world: World) -> None:
        """Raise Violation if an electable replica lacks a committed record."""
        committed = world.committed
        for broker in (*world.state.isr, *world.state.eligible):
            replica = world.replicas[broker]
            held = replica.log if replica.topic == world.topic else ()
            if held[: len(committed)] != committed:
                raise Violation(f"{broker} may be elected and lacks records of {committed}")

    def steps(self, world: World) -> Steps:
        """Yield each step from this world: its text and the next world. Raises Violation."""
        yield from self._controller(world)
        yield from self._restarts(world)
        yield from self._recreation(world)
        for broker in BROKERS:
            yield from self._orders(world, broker)
            replica = world.replicas[broker]
            if replica.leading is not None:
                yield from self._append(world, broker)
                yield from self._fetches(world, broker)
                yield from self._changes(world, broker)
        for change in world.flying:
            yield from self._arrives(world, change)

    # the controller

    def _controller(self, world: World) -> Steps:
        spent = world.spent
        if spent.lowered < self.bounds.lowered:
            spent = spent._replace(lowered=spent.lowered + 1)
            yield "min.insync.replicas goes down to 1", world._replace(required=1, spent=spent)
        if world.spent.epochs >= self.bounds.epochs:
            return
        spent = world.spent._replace(epochs=world.spent.epochs + 1)
        version = world.version + 1
        for label, state in elections(world.state, world.version, world.required):
            outcome = f"leader {state.leader}, isr {state.isr}, eligible {state.eligible}"
            yield (
                f"controller: {label}: {outcome}",
                world._replace(
                    state=state,
                    version=version,
                    orders=world.orders | {(state, version)},
                    spent=spent,
                ),
            )

    def _orders(self, world: World, broker: int) -> Steps:
        replica = world.replicas[broker]
        for state, version in world.orders:
            is_other = replica.topic != world.topic
            if state.leader_epoch <= replica.epoch and not is_other:
                continue
            if is_other:
                replica = Replica(incarnation=replica.incarnation, topic=world.topic)
            epoch, leader = state.leader_epoch, state.leader
            told = replica._replace(epoch=epoch, leader=leader, leading=None)
            if leader == broker:
                start = len(replica.log)
                told = told._replace(
                    history=begun(replica.history, epoch, start),
                    leading=Leadership(start, state, version),
                )
                yield f"{broker} leads epoch {epoch}", self._settled(world, broker, told)
                continue
            if not self.rules.truncate_by_epoch:
                log, history = cut(replica.log, replica.history, replica.high_watermark)
                told = told._replace(log=log, history=history)
            yield f"{broker} follows {leader} in epoch {epoch}", self._with(world, broker, told)

    def _restarts(self, world: World) -> Steps:
        """Yield the restarts of a broker. Its log survives, and its high watermark is an old one.
        It forgets the epochs without a record: opening a log ignores them. It executes no earlier
        command, and does not lead in the same epoch again."""
        spent, state = world.spent, world.state
        for broker in BROKERS:
            replica = world.replicas[broker]
            _, history = cut(replica.log, replica.history, len(replica.log))
            fresh = Replica(
                log=replica.log,
                history=history,
                epoch=state.leader_epoch - (state.leader != broker),
                incarnation=replica.incarnation + 1,
                topic=replica.topic,
            )
            if spent.restarts < self.bounds.restarts:
                counted = world._replace(spent=spent._replace(restarts=spent.restarts + 1))
                yield f"{broker} restarts", self._with(counted, broker, fresh)
            if spent.wipes < self.bounds.wipes and broker not in (*state.isr, *state.eligible):
                counted = world._replace(spent=spent._replace(wipes=spent.wipes + 1))
                fresh = fresh._replace(log=(), history=())
                yield f"{broker} restarts empty", self._with(counted, broker, fresh)

    def _recreation(self, world: World) -> Steps:
        """Yield the recreations of the topic. The new state node also has a new node's version, and
        writes under way still arrive. All brokers have removed their replicas, except for one whose
        session has ended. No deletion waits for that broker, and it acts as before until it
        receives a command for the new topic."""
        if world.spent.recreated >= self.bounds.recreated:
            return
        spent = world.spent._replace(recreated=world.spent.recreated + 1)
        state = self._first_state
        for away in (NOBODY, *BROKERS):
            replicas = tuple(
                each
                if broker == away
                else Replica(incarnation=each.incarnation, topic=spent.recreated)
                for broker, each in enumerate(world.replicas)
            )
            yield (
                f"the topic is recreated, and {away} does not know",
                world._replace(
                    replicas=replicas,
                    state=state,
                    version=0,
                    orders=frozenset({(state, 0)}),
                    committed=(),
                    spent=spent,
                ),
            )

    # leaders and followers

    def _append(self, world: World, leader: int) -> Steps:
        replica = world.replicas[leader]
        if len(replica.log) < self.bounds.records:
            longer = replica._replace(log=(*replica.log, replica.epoch))
            yield f"{leader} appends", self._settled(world, leader, longer)

    def _fetches(self, world: World, leader: int) -> Steps:
        source = world.replicas[leader]
        for broker in BROKERS:
            follower = world.replicas[broker]
            if follower.leader != leader or follower.leading is not None or broker == leader:
                continue
            if follower.topic != source.topic:
                continue
            if self.rules.fence_fetches and follower.epoch != source.epoch:
                continue
            for label, changed in self._fetch(world, leader, broker):
                if changed != world:
                    yield label, changed

    def _fetch(self, world: World, leader: int, broker: int) -> Steps:
        source, follower = world.replicas[leader], world.replicas[broker]
        end = len(follower.log)
        agreed = end
        if self.rules.truncate_by_epoch:
            own = ModelLog(follower.log, follower.history)
            agreed = agreed_end(own, ModelLog(source.log, source.history))
        if agreed == end or not self.rules.diverging_fetch_counts_not:
            world = self._note(world, leader, broker)
            source = world.replicas[leader]
        if agreed < end:
            log, history = cut(follower.log, follower.history, agreed)
            known = min(follower.high_watermark, agreed)
            shorter = follower._replace(log=log, history=history, high_watermark=known)
            yield f"{broker} cuts its log to {agreed}", self._with(world, broker, shorter)
            return
        yield f"{broker} asks {leader} for {end}, and the answer is lost", world
        if end < len(source.log):
            epoch = source.log[end]
            follower = follower._replace(
                log=(*follower.log, epoch), history=begun(follower.history, epoch, end)
            )
        known = min(source.high_watermark, len(follower.log))
        follower = follower._replace(high_watermark=max(follower.high_watermark, known))
        yield f"{broker} fetches at {end} from {leader}", self._with(world, broker, follower)

    def _note(self, world: World, leader: int, broker: int) -> World:
        """Return the world after the leader has noted a follower's log end."""
        source, follower = world.replicas[leader], world.replicas[broker]
        leading, end = source.leading, len(follower.log)
        assert leading is not None
        if end > len(source.log):
            return world
        noted = leading._replace(
            ends=_set(leading.ends, broker, end),
            incarnations=_set(leading.incarnations, broker, follower.incarnation),
        )
        return self._settled(world, leader, source._replace(leading=noted))

    # changes of the ISR

    def _changes(self, world: World, broker: int) -> Steps:
        leading = world.replicas[broker].leading
        assert leading is not None
        if leading.pending is not None:
            if leading.pending not in world.flying:
                flying = world.flying | {leading.pending}
                yield f"{broker} writes the same again", world._replace(flying=flying)
            return
        if world.spent.changes >= self.bounds.changes:
            return
        spent = world.spent._replace(changes=world.spent.changes + 1)
        for label, proposed in self._proposals(world, broker):
            change = proposed._replace(topic=world.replicas[broker].topic)
            asked = world._replace(flying=world.flying | {change}, spent=spent)
            pending = leading._replace(pending=change)
            replica = world.replicas[broker]._replace(leading=pending)
            yield label, self._settled(asked, broker, replica)

    def _proposals(self, world: World, broker: int) -> Iterator[tuple[str, Change]]:
        replica, required = world.replicas[broker], world.required
        leading = replica.leading
        assert leading is not None
        state, version = leading.state, leading.version
        if state.eligible and len(state.isr) >= required:
            cleared = changed_isr(state, state.isr, required)
            yield f"{broker} ends eligibility", Change(cleared, version)
        for other in BROKERS:
            if other == broker:
                continue
            if other in state.isr:
                isr = tuple(member for member in state.isr if member != other)
                change = Change(changed_isr(state, isr, required), version)
                yield f"{broker} takes {other} out", change
            elif leading.ends[other] != NO_OFFSET and may_join(
                leading.ends[other],
                high_watermark=replica.high_watermark if self.rules.join_from_high_watermark else 0,
                epoch_start=leading.start if self.rules.join_from_epoch_start else 0,
            ):
                isr = (*state.isr, other)
                change = Change(
                    changed_isr(state, isr, required), version, other, leading.incarnations[other]
                )
                yield f"{broker} takes {other} in", change

    def _arrives(self, world: World, change: Change) -> Steps:
        """Yield the arrivals of a write at ZooKeeper. Its reply is received at once, or lost."""
        writer = change.state.leader
        landed = world._replace(flying=world.flying - {change})
        joining = None if change.joins == NOBODY else world.replicas[change.joins]
        stale = joining is not None and joining.incarnation != change.incarnation
        is_current = world.version == change.version or not self.rules.writes_are_conditional
        is_gone = self.rules.topic_is_checked and change.topic != world.topic
        if is_gone or not is_current or (stale and self.rules.incarnation_is_checked):
            yield f"the write of {writer} is refused", self._refused(landed, change)
            return
        version = world.version + 1
        stored = landed._replace(state=change.state, version=version)
        isr = change.state.isr
        yield f"isr {isr} is stored", self._adopt(stored, change, change.state, version)
        spent = world.spent
        if spent.lost_replies < self.bounds.lost_replies:
            lost = stored._replace(spent=spent._replace(lost_replies=spent.lost_replies + 1))
            if not self.rules.lost_reply_proves_nothing:
                lost = self._give_up(lost, change)
            yield f"isr {isr} is stored, and the reply is lost", lost

    def _refused(self, world: World, change: Change) -> World:
        """Return the world after a write was refused, and the writer has read the stored state."""
        state = world.state
        meant = change.state
        if change.topic != world.topic:
            return self._give_up(world, change)
        if (state.leader, state.leader_epoch) != (meant.leader, meant.leader_epoch):
            return world
        if world.version == change.version:
            return self._give_up(world, change)
        return self._adopt(world, change, state, world.version)

    def _give_up(self, world: World, change: Change) -> World:
        """Return the world in which the leader has discarded its pending change of the ISR."""
        replica = world.replicas[change.state.leader]
        if replica.leading is None or replica.leading.pending != change:
            return world
        leading = replica.leading._replace(pending=None)
        return self._settled(world, change.state.leader, replica._replace(leading=leading))

    def _adopt(self, world: World, change: Change, state: PartitionState, version: int) -> World:
        replica = world.replicas[change.state.leader]
        if replica.leading is None or replica.leading.pending != change:
            return world
        leading = replica.leading._replace(state=state, version=version, pending=None)
        return self._settled(world, change.state.leader, replica._replace(leading=leading))

    # the high watermark

    def _settled(self, world: World, leader: int, replica: Replica) -> World:
        """Return the world in which this replica has its new values, and its high watermark is as
        high as allowed."""
        before = replica.high_watermark
        end = self._committed_end(world, leader, replica)
        if end == before:
            return self._with(world, leader, replica)
        if replica.topic != world.topic:  # records of a deleted topic may be lost
            return self._with(world, leader, replica._replace(high_watermark=end))
        known, told = world.committed, replica.log[:end]
        if told[: len(known)] != known[: len(told)]:
            raise Violation(f"{leader} commits {told}, and {known} was committed before")
        changed = world._replace(committed=max(known, told, key=len))
        changed = self._with(changed, leader, replica._replace(high_watermark=end))
        having = sum(each.log[:end] == told for each in changed.replicas)
        if having < world.required:
            raise Violation(f"{leader} commits {told}, which only {having} have")
        return changed

    def _committed_end(self, world: World, leader: int, replica: Replica) -> int:
        rules, leading = self.rules, replica.leading
        assert leading is not None
        state, pending = leading.state, leading.pending
        small = not rules.small_isr_commits_nothing
        blind = not rules.eligible_commits_nothing
        seen = PartitionState(state.leader, 0, state.isr, 1, () if blind else state.eligible)
        if not may_commit(seen, 0 if small else world.required):
            return replica.high_watermark
        members = maximal_isr(state.isr, None if pending is None else pending.state.isr)
        if pending is not None and pending.joins != NOBODY and not rules.pending_join_counts:
            members = frozenset(state.isr)
        if pending is not None and pending.joins == NOBODY and not rules.shrink_counts_when_stored:
            members = frozenset(pending.state.isr)
        ends = [leading.ends[member] for member in members if member != leader]
        return committed_end(replica.high_watermark, len(replica.log), ends)

    @staticmethod
    def _with(world: World, broker: int, replica: Replica) -> World:
        """Return the world in which this replica has its new values. Commands that no broker can
        execute any more are removed, because otherwise equal worlds would count as different."""
        replicas = (*world.replicas[:broker], replica, *world.replicas[broker + 1 :])
        oldest = min(each.epoch for each in replicas)
        orders = frozenset(order for order in world.orders if order[0].leader_epoch > oldest)
        return world._replace(replicas=replicas, orders=orders)


def _set(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])
