"""The membership of a consumer in a group: joining, computing the assignment as the leader,
heartbeats, and leaving. Joining and heartbeats run in background tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from pybroker.background import TaskOwner
from pybroker.client.assignors import Assignments, Assignor, make_assignor
from pybroker.client.cluster import Cluster
from pybroker.client.coordinator_link import GROUP_LANE, CoordinatorLink
from pybroker.client.errors import ClientError, Closed, JoinRefused, UnsupportedByBroker
from pybroker.client.groups import requests
from pybroker.client.groups.decisions import (
    HEARTBEAT,
    JOIN,
    NO_GENERATION,
    SYNC,
    Identity,
    MemberState,
    Next,
    decide,
    forgets_member_id,
    no_member,
    rebalancing,
    refusal,
)
from pybroker.client.groups.topics import TopicMemory
from pybroker.client.metadata import error_code
from pybroker.client.metrics import ConsumerMetrics
from pybroker.client.options import ConsumerOptions
from pybroker.errors import ErrorCode, MalformedInput
from pybroker.model import TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.consumer_protocol import decode_assignment
from pybroker.wire.messages.groups import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)

log = logging.getLogger(__name__)

LEAVE_LIMIT_S: Final = 2.0
JOIN_MARGIN_MS: Final = 5_000
"""The time that the client waits for a JoinGroup response in addition to the rebalance timeout."""


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The generation, the group's assignor, and the partitions assigned to the member."""

    identity: Identity
    assignor: Assignor
    partitions: tuple[TopicPartition, ...]


class Membership:
    """The group membership of a consumer. The membership calls `news` when the application's next
    call has work to do.

    Invariant: `state` is STABLE only while the coordinator's last response confirms the generation
    in `identity`. `rejoin` is the reason to join. `failure` is the error that ended the membership.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        cluster: Cluster,
        link: CoordinatorLink,
        memory: TopicMemory,
        news: Callable[[], None],
        metrics: ConsumerMetrics,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._link = link
        self._memory = memory
        self._news = news
        self._metrics = metrics
        self._began_to_join = 0.0
        self._assignors = [make_assignor(name) for name in options.partition_assignment_strategy]
        self.cooperative = all(assignor.cooperative for assignor in self._assignors)
        self.state = MemberState.OUTSIDE
        self.identity = Identity(instance_id=options.group_instance_id)
        self.rejoin: str | None = None
        self.failure: ClientError | None = None
        self.joined: JoinResult | None = None
        self._divided: tuple[set[str], dict[str, int]] | None = None
        """Only in the leader: the topics of all members, and their partition counts at the last
        assignment."""
        self._withheld_until: float | None = None
        """Only in the leader: the time at which to assign again, because the last assignment left
        partitions without an owner until their previous owner releases them."""
        self.reading = False
        """Whether the application is in a call that reads."""
        self.last_read = cluster.clock.monotonic()
        self._stable = asyncio.Event()
        self._missed = 0
        """The number of consecutive heartbeats without a response from a coordinator."""
        self._heartbeats: asyncio.Task[None] | None = None
        self._tasks = TaskOwner(self._broken)

    # Calls of other modules

    @property
    def in_generation(self) -> bool:
        """Whether the member is in a generation, as far as it knows. Outside a generation, the
        member owns no partitions."""
        return self.identity.generation != NO_GENERATION

    def for_commit(self) -> Identity:
        """Return the identity for a commit. Raises CommitFailed, or the error that makes the
        membership impossible."""
        if self.failure is not None:
            raise self.failure
        if self.state is MemberState.STABLE:
            return self.identity
        if self.state is MemberState.JOINING:
            raise rebalancing(self._link.key)
        raise no_member(self._link.key)

    def commit_refused(self, step: Next, code: ErrorCode, identity: Identity) -> None:
        """React to a commit that the coordinator rejected with `code`."""
        if self.state is MemberState.STABLE and (
            step is not Next.GIVE_UP or code == ErrorCode.FENCED_INSTANCE_ID
        ):
            self._react(step, code, identity, "OffsetCommit")

    def request_rejoin(self, reason: str) -> None:
        """Let the next call of the application join the group again. `reason` is for the log."""
        if self.rejoin is None:
            log.info("the member will rejoin group=%s reason=%s", self._link.key, reason)
            self.rejoin = reason
        self._news()

    def look_at_partitions(self) -> None:
        """Let the group rebalance if this member is the leader, and partition counts have changed
        since the last assignment."""
        if self._divided is not None and self.state is MemberState.STABLE:
            topics, counts = self._divided
            if self._memory.partition_counts(topics) != counts:
                self._divided = None
                self.request_rejoin("the partition counts of topics changed")

    def begin(self, topics: Iterable[str], owned: Iterable[TopicPartition]) -> None:
        """Start to join in the background. `owned`: the partitions that the member still owns."""
        self.state = MemberState.JOINING
        self._began_to_join = self._cluster.clock.monotonic()
        self._stable.clear()
        self.rejoin = None
        self._divided = self._withheld_until = None
        work = self._join(tuple(sorted(topics)), tuple(sorted(owned)))
        self._tasks.start(work, "join group")
        if self._heartbeats is None:
            self._heartbeats = self._tasks.start(self._beat(), "heartbeats")

    def take(self) -> JoinResult | None:
        """Return the result of the last completed join. Return None if no join has completed since
        the previous call."""
        joined, self.joined = self.joined, None
        return joined

    async def leave(self, reason: str) -> None:
        """End the membership; `reason` is for the log. A static member sends no LeaveGroup, because
        it may return."""
        identity = self.identity
        try:
            await self._tasks.close()
        finally:
            self._heartbeats = None
            self.state = MemberState.OUTSIDE
            self._forget(ErrorCode.UNKNOWN_MEMBER_ID)
            self.rejoin = self.failure = None
        await self._say_goodbye(reason, identity)

    # Joining

    async def _join(self, topics: tuple[str, ...], owned: tuple[TopicPartition, ...]) -> None:
        failures = 0
        owned_in = self.identity.generation
        while True:
            try:
                step = await self._join_once(topics, owned, owned_in)
            except ClientError as error:
                if not error.retriable:
                    self._fail(error)
                    return
                log.debug(
                    "join failed, the member repeats it group=%s reason=%s",
                    self._link.key,
                    error,
                )
                step = Next.AGAIN
            if step is Next.GO_ON:
                return
            if step is Next.LOST and owned:
                self.state = MemberState.OUTSIDE
                self.request_rejoin("the coordinator removed the member during the rebalance")
                return
            if step is Next.AGAIN or step is Next.FIND:
                failures += 1
                await asyncio.sleep(self._cluster.pause_s(failures))

    async def _join_once(
        self, topics: tuple[str, ...], owned: tuple[TopicPartition, ...], owned_in: int
    ) -> Next:
        """Send JoinGroup and, if it succeeds, SyncGroup. Return the member's reaction to the last
        response. Raises ClientError."""
        limit_ms = max(
            self._options.request_timeout_ms, self._options.max_poll_interval_ms + JOIN_MARGIN_MS
        )
        answer = await self._link.send(
            ApiKey.JOIN_GROUP,
            lambda version: requests.join(
                self._options,
                self._link.key,
                self.identity,
                [
                    (assignor.name, requests.Joining(topics, assignor.user_data(), owned, owned_in))
                    for assignor in self._assignors
                ],
                version,
            ),
            JoinGroupResponse,
            timeout_s=limit_ms / 1_000,
            lane=GROUP_LANE,
        )
        code = error_code(answer.error_code)
        step = decide(JOIN, code)
        if step is Next.TAKE_ID:
            self.identity = replace(self.identity, member_id=answer.member_id)
        if step is not Next.GO_ON:
            return self._not_joined(step, code, "JoinGroup")
        self.identity = replace(
            self.identity, generation=answer.generation_id, member_id=answer.member_id
        )
        assignor = self._assignor(answer.protocol_name)
        given: Assignments = {}
        if answer.leader == answer.member_id:
            given = await self._compute_assignment(assignor, answer)
        return await self._sync(assignor, answer, given)

    def _not_joined(self, step: Next, code: ErrorCode, request: str) -> Next:
        """Log the rejection of a JoinGroup or SyncGroup request, and carry out the reaction `step`:
        FIND forgets the coordinator, LOST forgets the membership, and GIVE_UP raises ClientError.
        Return `step`."""
        log.info(
            "request to join refused group=%s member=%s request=%s reason=%s",
            self._link.key, self.identity.member_id, request, code.name,
        )  # fmt: skip
        if step is Next.GIVE_UP:
            raise refusal(self._link.key, self.identity.instance_id, code)
        if step is Next.FIND:
            self._link.lost(code.name)
        if step is Next.LOST:
            self._forget(code)
        return step

    def _given(self, data: bytes) -> tuple[TopicPartition, ...]:
        try:
            return decode_assignment(data).partitions
        except MalformedInput as error:
            raise JoinRefused(
                self._link.key,
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the assignment from the group's leader cannot be decoded ({error})",
            ) from error

    def _assignor(self, name: str | None) -> Assignor:
        for assignor in self._assignors:
            if assignor.name == name:
                return assignor
        raise UnsupportedByBroker(
            f"the coordinator chose the assignor {name!r}, which this client does not support"
        )

    async def _compute_assignment(
        self, assignor: Assignor, answer: JoinGroupResponse
    ) -> Assignments:
        """As the leader of the group, return member id -> partitions."""
        members = requests.members_of(answer)
        topics = {topic for member in members for topic in member.subscription.topics}
        self._cluster.watch(topics)
        if not topics <= self._memory.known.keys() | self._cluster.view.topics.keys():
            with contextlib.suppress(ClientError, TimeoutError):
                await self._cluster.refreshed(self._options.request_timeout_ms / 1_000)
        self._memory.look(self._cluster.view, self._cluster.clock.monotonic())
        counts = self._memory.partition_counts(topics)
        found = assignor.assign(counts, members)
        self._divided = topics, counts
        if sum(map(len, found.values())) < sum(counts.values()):
            self._withheld_until = (
                self._cluster.clock.monotonic() + self._options.session_timeout_ms / 1_000
            )
        return found

    async def _sync(
        self,
        assignor: Assignor,
        joined: JoinGroupResponse,
        given: Assignments,
    ) -> Next:
        sent = self.identity
        answer = await self._link.send(
            ApiKey.SYNC_GROUP,
            lambda _: requests.sync(self._link.key, sent, joined.protocol_name, given),
            SyncGroupResponse,
            timeout_s=(self._options.request_timeout_ms + self._options.max_poll_interval_ms)
            / 1_000,
            lane=GROUP_LANE,
        )
        code = error_code(answer.error_code)
        step = decide(SYNC, code)
        if step is not Next.GO_ON:
            return self._not_joined(step, code, "SyncGroup")
        partitions = self._given(answer.assignment)
        assignor.assigned(partitions, sent.generation)
        log.info(
            "joined group=%s member=%s generation=%d assignor=%s partitions=%d",
            self._link.key, sent.member_id, sent.generation, assignor.name, len(partitions),
        )  # fmt: skip
        self.joined = JoinResult(sent, assignor, partitions)
        self.state = MemberState.STABLE
        self._metrics.rebalance_latency.add(self._cluster.clock.monotonic() - self._began_to_join)
        self._stable.set()
        self._news()
        return step

    # Heartbeats

    async def _beat(self) -> None:
        clock = self._cluster.clock
        due = 0.0
        while True:
            if self.state is not MemberState.STABLE:
                await self._stable.wait()
                due = clock.monotonic() + self._options.heartbeat_interval_ms / 1_000
            if self._poll_time_left_s() <= 0:
                await self._leave_for_silence()
                continue
            self._rebalance_for_unowned(clock.monotonic())
            if clock.monotonic() >= due:
                pause_s = await self._send_heartbeat()
                due = clock.monotonic() + pause_s
            await asyncio.sleep(max(min(due - clock.monotonic(), self._poll_time_left_s()), 0.001))

    def _rebalance_for_unowned(self, now: float) -> None:
        """As the group leader, request a rebalance if partitions have had no owner for
        session.timeout.ms.

        A cooperative assignor withholds a moving partition until the previous owner has released
        it. The previous owner's JoinGroup usually causes the next rebalance. The JoinGroup of a
        restarted static member causes none.
        """
        if self._withheld_until is not None and now >= self._withheld_until:
            self._withheld_until = None
            self.request_rejoin("partitions were assigned to no member")

    async def _send_heartbeat(self) -> float:
        """Send one heartbeat. Return the seconds to wait before the next."""
        sent = self.identity
        limit_ms = min(self._options.request_timeout_ms, self._options.session_timeout_ms)
        try:
            answer = await self._link.send(
                ApiKey.HEARTBEAT,
                lambda _: requests.heartbeat(self._link.key, sent),
                HeartbeatResponse,
                timeout_s=limit_ms / 1_000,
                lane=GROUP_LANE,
            )
        except ClientError as error:
            if not error.retriable:
                self._fail(error)
            log.debug(
                "heartbeat failed, the next one follows soon group=%s reason=%s",
                self._link.key,
                error,
            )
            return self._soon_s()
        code = error_code(answer.error_code)
        step = decide(HEARTBEAT, code)
        if step is Next.GO_ON:
            self._missed = 0
        elif self.state is MemberState.STABLE:
            self._react(step, code, sent, "Heartbeat")
        return self._soon_s() if step is Next.FIND else self._options.heartbeat_interval_ms / 1_000

    def _soon_s(self) -> float:
        self._missed += 1
        return min(self._options.heartbeat_interval_ms / 1_000, self._cluster.pause_s(self._missed))

    def _poll_time_left_s(self) -> float:
        """Return the time in seconds until the member leaves the group because the application
        reads no records (max.poll.interval.ms)."""
        limit = self._options.max_poll_interval_ms / 1_000
        return limit if self.reading else limit - (self._cluster.clock.monotonic() - self.last_read)

    async def _leave_for_silence(self) -> None:
        log.warning(
            "left group group=%s reason=the application did not read within "
            "max.poll.interval.ms=%d; raise it, or lower max.poll.records",
            self._link.key, self._options.max_poll_interval_ms,
        )  # fmt: skip
        identity = self.identity
        self._lost(
            ErrorCode.UNKNOWN_MEMBER_ID,
            "it left the group, because the application did not read for max.poll.interval.ms",
        )
        await self._say_goodbye("max.poll.interval.ms", identity)

    # Internal

    async def _say_goodbye(self, reason: str, who: Identity) -> None:
        if not who.member_id or who.instance_id is not None or not self._link.known:
            return
        log.info("the member leaves its group group=%s reason=%s", self._link.key, reason)
        try:
            async with asyncio.timeout(LEAVE_LIMIT_S):
                await self._link.send(
                    ApiKey.LEAVE_GROUP,
                    lambda version: requests.leave(self._link.key, who, version),
                    LeaveGroupResponse,
                    timeout_s=LEAVE_LIMIT_S,
                )
        except (ClientError, TimeoutError) as error:
            log.debug(
                "leaving failed, the session expires instead group=%s reason=%s",
                self._link.key,
                error,
            )

    def _react(self, step: Next, code: ErrorCode, sent: Identity, request: str) -> None:
        """React to the error code of a Heartbeat or OffsetCommit response. If the member's identity
        is now different from `sent`, react only if the coordinator must be looked up again."""
        reason = f"{request} was answered with {code.name}"
        if step is Next.FIND:
            self._link.lost(code.name)
        elif sent != self.identity:
            return
        elif step is Next.REJOIN:
            self.request_rejoin(reason)
        elif step is Next.LOST:
            log.warning(
                "membership lost, the member rejoins group=%s member=%s generation=%d reason=%s",
                self._link.key, sent.member_id, sent.generation, reason,
            )  # fmt: skip
            self._lost(code, reason)
        elif step is Next.GIVE_UP:
            self._fail(refusal(self._link.key, sent.instance_id, code))

    def _lost(self, code: ErrorCode, reason: str) -> None:
        self.state = MemberState.OUTSIDE
        self._forget(code)
        self.request_rejoin(reason)

    def _forget(self, code: ErrorCode) -> None:
        """Reset the identity, because the member is no longer in a generation. Keep the member id
        if `code` allows it."""
        self._stable.clear()
        self.joined = None
        self.identity = Identity(
            member_id="" if forgets_member_id(code) else self.identity.member_id,
            instance_id=self.identity.instance_id,
        )

    def _fail(self, error: ClientError) -> None:
        log.error(
            "membership failed, calls that read raise the error group=%s reason=%s",
            self._link.key,
            error,
        )
        self.state = MemberState.OUTSIDE
        self._forget(ErrorCode.UNKNOWN_MEMBER_ID)
        self.failure = error
        self._news()

    def _broken(self, error: BaseException) -> None:
        """End the membership after a defect in its background task, so that the application does
        not wait forever."""
        text = f"group {self._link.key}: a defect of the client ended the membership: {error!r}"
        failure = Closed(text)
        failure.__cause__ = error
        self._fail(failure)
