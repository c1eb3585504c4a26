"""Committing of offsets in the order of the calls, and reading of committed offsets."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final

from pybroker.client.backoff import Deadline
from pybroker.client.coordinator_link import CoordinatorLink
from pybroker.client.errors import ClientError, DeadlinePassed, ResponseError
from pybroker.client.group_values import OffsetAndMetadata
from pybroker.client.groups.decisions import (
    COMMIT,
    FETCH_OFFSETS,
    Identity,
    Next,
    commit_refusal,
    decide,
    refusal,
)
from pybroker.client.leader_calls import request_limit_s
from pybroker.client.metadata import error_code
from pybroker.client.metrics import ConsumerMetrics
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)

INSTANCES_SINCE: Final = 7
"""The first version of OffsetCommit with a group.instance.id."""
STABLE_SINCE: Final = 7
GROUPS_SINCE: Final = 8
"""The first version of OffsetFetch that supports stable offsets and several groups."""

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


Committed = dict[TopicPartition, OffsetAndMetadata | None]


class Turnstile:
    """A lock that callers get in the order of their tickets, so that a retried commit cannot
    overwrite a later one."""

    def __init__(self) -> None:
        self._queue: deque[asyncio.Future[None]] = deque()

    def ticket(self) -> asyncio.Future[None]:
        """Return a future that is done when the caller has the lock. The caller must pass this
        future to `leave`, even if it has stopped waiting for the lock."""
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(ticket)
        self._admit()
        return ticket

    def leave(self, ticket: asyncio.Future[None]) -> None:
        self._queue.remove(ticket)
        self._admit()

    def _admit(self) -> None:
        if self._queue and not self._queue[0].done():
            self._queue[0].set_result(None)


class GroupOffsets:
    """The committed offsets of a consumer's group.

    - `identity_at_call` is called when the application calls `commit`. It returns the member's
      identity (None: no member).
    - `identity_now` is called before each request, with the identity from `identity_at_call`. It
      returns the present identity, and raises CommitFailed if the identity has changed.
    - `refused` is called if the coordinator rejects the request.
    """

    def __init__(
        self,
        link: CoordinatorLink,
        metrics: ConsumerMetrics,
        *,
        identity_at_call: Callable[[], Identity | None],
        identity_now: Callable[[Identity | None], Identity],
        refused: Callable[[Next, ErrorCode, Identity], None],
    ) -> None:
        self._link = link
        self._cluster = link.cluster
        self._metrics = metrics
        self._identity_at_call = identity_at_call
        self._identity_now = identity_now
        self._refused = refused
        self._turnstile = Turnstile()

    def commit(
        self, offsets: Offsets, deadline: Deadline, *, once: bool = False, automatic: bool = False
    ) -> Coroutine[Any, Any, frozenset[TopicPartition]]:
        """Return an awaitable that commits `offsets` after the commits of all earlier calls have
        ended. Errors are retried until the deadline, unless `once`. With `automatic`, deleted
        partitions are skipped and returned. Raises ClientError."""
        at_call, ticket = self._identity_at_call(), self._turnstile.ticket()
        return self._commit(at_call, ticket, offsets, deadline, once, automatic)

    async def _commit(
        self,
        at_call: Identity | None,
        ticket: asyncio.Future[None],
        offsets: Offsets,
        deadline: Deadline,
        once: bool,
        automatic: bool,
    ) -> frozenset[TopicPartition]:
        gone: set[TopicPartition] = set()
        try:
            await self._wait(ticket, deadline)
            rest = dict(offsets)
            failures = 0
            reason: ClientError | None = None
            while rest:
                try:
                    problem = await self._commit_once(at_call, rest, deadline, automatic, gone)
                except ClientError:
                    self._metrics.failed_commits += 1
                    raise
                if problem is None:
                    break
                self._metrics.failed_commits += 1
                if once or not problem.retriable:
                    raise problem
                failures += 1
                # An attempt that the deadline cut short fails by the deadline itself, which hides
                # why earlier attempts failed.
                if reason is None or deadline.remaining_s() > 0:
                    reason = problem
                what = "the offsets were not committed"
                await self._pause(failures, deadline, what, problem, reason)
        finally:
            self._turnstile.leave(ticket)
        return frozenset(gone)

    async def _wait(self, ticket: asyncio.Future[None], deadline: Deadline) -> None:
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                await ticket
        except TimeoutError:
            raise DeadlinePassed(
                f"group {self._link.key}: the offsets were not committed within the time "
                "limit (an earlier commit is still in progress)"
            ) from None

    async def _commit_once(
        self,
        at_call: Identity | None,
        rest: dict[TopicPartition, OffsetAndMetadata],
        deadline: Deadline,
        automatic: bool,
        gone: set[TopicPartition],
    ) -> ClientError | None:
        """Send one OffsetCommit request for `rest`. Remove committed partitions from `rest`. With
        `automatic`, move deleted partitions to `gone`.

        Return None if nothing is left. Return the error if no response has arrived, or if the
        response's error is retriable. Raises ClientError for any other error.
        """
        identity = self._identity_now(at_call)
        began = self._cluster.clock.monotonic()
        try:
            response = await self._link.send(
                ApiKey.OFFSET_COMMIT,
                lambda version: commit_request(self._link.key, identity, rest, version),
                OffsetCommitResponse,
                timeout_s=request_limit_s(self._cluster, deadline),
            )
        except ClientError as error:
            return error
        self._metrics.commit_latency.add(self._cluster.clock.monotonic() - began)
        problem: ClientError | None = None
        for topic in response.topics:
            for row in topic.partitions:
                key = TopicPartition(topic.name, row.partition_index)
                code = error_code(row.error_code)
                step = decide(COMMIT, code)
                if automatic and self._is_gone(key, code):
                    gone.add(key)
                    rest.pop(key, None)
                    continue
                if step is Next.GO_ON:
                    rest.pop(key, None)
                    continue
                if step not in (Next.AGAIN, Next.FIND):
                    self._refused(step, code, identity)
                    raise commit_refusal(self._link.key, step, code, identity)
                if step is Next.FIND:
                    self._link.lost(code.name)
                problem = ResponseError(code, f"{key}: {code.text}")
        if rest and problem is None:
            raise _not_answered(rest)
        return problem

    def _is_gone(self, key: TopicPartition, code: ErrorCode) -> bool:
        """Return whether the partition was deleted: neither the coordinator nor the client's
        metadata knows it. If only the coordinator does not know a partition, the partition may be
        new."""
        if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return False
        self._cluster.request_refresh()
        return self._cluster.view.partition(key) is None

    async def fetch(
        self, partitions: Iterable[TopicPartition], deadline: Deadline, *, stable: bool
    ) -> Committed:
        """Return the committed offset of each partition; None if there is none. With `stable`, wait
        while open transactions have pending offsets. Raises ClientError."""
        wanted = list(dict.fromkeys(partitions))
        failures = 0
        reason: ClientError | None = None
        while wanted:
            try:
                found = await self._fetch_once(wanted, deadline, stable)
                return {key: found.get(key) for key in wanted}
            except ClientError as error:
                if not error.retriable:
                    raise
                failures += 1
                if reason is None or deadline.remaining_s() > 0:
                    reason = error
                what = "the coordinator did not return the committed offsets"
                await self._pause(failures, deadline, what, error, reason)
        return {}

    async def _fetch_once(
        self, wanted: list[TopicPartition], deadline: Deadline, stable: bool
    ) -> Committed:
        response = await self._link.send(
            ApiKey.OFFSET_FETCH,
            lambda version: _fetch_request(self._link.key, wanted, stable, version),
            OffsetFetchResponse,
            timeout_s=request_limit_s(self._cluster, deadline),
        )
        answer = response.groups[0] if response.groups else response
        self._check(answer.error_code)
        found: Committed = {}
        for topic in answer.topics:
            for row in topic.partitions:
                self._check(row.error_code)
                found[TopicPartition(topic.name, row.partition_index)] = _committed(row)
        missing = [key for key in wanted if key not in found]
        if missing:
            raise _not_answered(missing)
        return found

    def _check(self, number: int) -> None:
        """Raise ClientError for any error code but NONE."""
        code = error_code(number)
        match decide(FETCH_OFFSETS, code):
            case Next.GO_ON:
                return
            case Next.AGAIN:
                raise ResponseError(code)
            case Next.FIND:
                self._link.lost(code.name)
                raise ResponseError(code)
        raise refusal(self._link.key, None, code)

    async def _pause(
        self,
        failures: int,
        deadline: Deadline,
        what: str,
        problem: ClientError,
        reason: ClientError,
    ) -> None:
        """Wait before the next attempt. If no time is left, raise DeadlinePassed with the text of
        `reason`. `reason` is `problem` (the last error), or an earlier error if the deadline cut
        off the last attempt."""
        pause = self._cluster.pause_s(failures)
        if deadline.remaining_s() <= pause:
            text = f"group {self._link.key}: {what} within the time limit ({reason})"
            raise DeadlinePassed(text, definite=problem.definite) from problem
        await asyncio.sleep(pause)


def _not_answered(keys: Iterable[TopicPartition]) -> ResponseError:
    return ResponseError(
        ErrorCode.UNKNOWN_SERVER_ERROR,
        f"the coordinator's response has no result for {', '.join(map(str, keys))}",
        definite=False,
    )


def commit_request(
    group_id: str, identity: Identity, offsets: Offsets, version: int
) -> OffsetCommitRequest:
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for key, offset in offsets.items():
        topic = topics.setdefault(key.topic, OffsetCommitRequestTopic(name=key.topic))
        topic.partitions.append(
            OffsetCommitRequestPartition(
                partition_index=key.partition,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                committed_metadata=offset.metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id=identity.generation,
        member_id=identity.member_id,
        group_instance_id=identity.instance_id if version >= INSTANCES_SINCE else None,
        topics=list(topics.values()),
    )


def _fetch_request(
    group_id: str, wanted: Iterable[TopicPartition], stable: bool, version: int
) -> OffsetFetchRequest:
    numbers: dict[str, list[int]] = {}
    for topic, number in wanted:
        numbers.setdefault(topic, []).append(number)
    if version >= GROUPS_SINCE:
        rows = [
            OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
            for name, indexes in numbers.items()
        ]
        return OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group_id, topics=rows)],
            require_stable=stable,
        )
    return OffsetFetchRequest(
        group_id=group_id,
        topics=[
            OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
            for name, indexes in numbers.items()
        ],
        require_stable=stable and version >= STABLE_SINCE,
    )


def _committed(
    row: OffsetFetchResponsePartition | OffsetFetchResponsePartitions,
) -> OffsetAndMetadata | None:
    if row.committed_offset < 0:
        return None
    return OffsetAndMetadata(row.committed_offset, row.metadata or "", row.committed_leader_epoch)
