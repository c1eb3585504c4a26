"""The part of a consumer that needs the option group.id."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pybroker.client.backoff import Deadline
from pybroker.client.cluster import Cluster
from pybroker.client.coordinator_link import CoordinatorLink
from pybroker.client.fetcher import Fetcher
from pybroker.client.group_values import GroupMetadata
from pybroker.client.groups.committer import Committer
from pybroker.client.groups.decisions import Identity, Next, no_member, rebalancing, refusal
from pybroker.client.groups.member import Membership
from pybroker.client.groups.offsets import Committed, GroupOffsets
from pybroker.client.groups.session import GroupSession
from pybroker.client.groups.topics import TopicMemory
from pybroker.client.metrics import ConsumerMetrics
from pybroker.client.options import ConsumerOptions
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition

DOUBT_LOOKS: Final = 5
"""A topic counts as deleted after brokers have reported it as missing for this number times
retry.backoff.max.ms."""


class Group:
    """The group of a consumer. With manual assignment the consumer only commits offsets to the
    group."""

    def __init__(
        self,
        options: ConsumerOptions,
        cluster: Cluster,
        fetcher: Fetcher,
        group_id: str,
        metrics: ConsumerMetrics,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._fetcher = fetcher
        link = self._link = CoordinatorLink(
            cluster, group_id, refuse=functools.partial(refusal, group_id, None)
        )
        memory = TopicMemory(DOUBT_LOOKS * options.retry_backoff_max_ms / 1_000)
        self._member = Membership(options, cluster, link, memory, fetcher.news.set, metrics)
        self._offsets = GroupOffsets(
            link,
            metrics,
            identity_at_call=self._identity_at_call,
            identity_now=self._identity_now,
            refused=self._commit_refused,
        )
        self.committer = Committer(
            options, cluster, self._offsets, lambda: fetcher.readers, fetcher.news.set
        )
        self.session = GroupSession(options, cluster, fetcher, self._member, self.committer, memory)
        fetcher.positions.find_committed = self._find_committed

    def due(self) -> bool:
        """Return whether `attend` has work to do. A call of `due` restarts max.poll.interval.ms."""
        now = self._member.last_read = self._cluster.clock.monotonic()
        return self.session.due() or self.committer.due(now)

    async def attend(self) -> None:
        """Do what is due: join the group, release or accept partitions, begin an automatic commit.
        Raises the errors of `GroupSession.attend`."""
        await self.session.attend()
        self.committer.commit_if_due()

    def wait_at_most_s(self, limit_s: float) -> float:
        """Return the time in seconds until `attend` has to be called again, at most `limit_s`."""
        if self.session.due():
            return 0.0
        due_s = self.committer.due_in_s(self._cluster.clock.monotonic())
        return limit_s if due_s is None else min(limit_s, due_s)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Return a context manager for a consumer call that returns records. While its `with` block
        runs, max.poll.interval.ms does not run out."""
        self._member.reading = True
        try:
            yield
        finally:
            self._member.reading = False
            self._member.last_read = self._cluster.clock.monotonic()

    async def committed(self, partitions: Iterable[TopicPartition]) -> Committed:
        """Return for each partition the group's committed offset; None if there is none. Raises
        ClientError."""
        return await self._offsets.fetch(
            partitions,
            Deadline(self._cluster.clock, self._options.default_api_timeout_ms),
            stable=self._options.isolation_level == "read_committed",
        )

    def metadata(self) -> GroupMetadata:
        """Return the member's identity, which a producer sends with the offsets of its transaction.
        Raises CommitFailed if the consumer has a subscription, but is not in a generation."""
        who = self._identity_now(None)
        return GroupMetadata(self._link.key, who.generation, who.member_id, who.instance_id)

    async def leave(self) -> None:
        """Release all partitions and leave the group. If automatic commits are enabled, first
        commit the positions. Raises the errors of callbacks."""
        await self._leave({})

    async def close(self, in_hand: Mapping[TopicPartition, int], *, quick: bool) -> None:
        """Commit, release all partitions and leave the group. `in_hand`: partition -> offset of the
        first record that may be unprocessed. `quick` limits waits for brokers. Raises the errors of
        callbacks."""
        if quick:
            self.committer.hurry()
        try:
            await self._leave(in_hand)
        finally:
            await self.committer.close()

    async def _leave(self, in_hand: Mapping[TopicPartition, int]) -> None:
        handled = self.committer.handled(in_hand)
        if self.session.choice is None:
            await self.committer.commit_last(handled)
        else:
            await self.session.close(handled)

    def _identity_at_call(self) -> Identity | None:
        return None if self.session.choice is None else self._member.identity

    def _identity_now(self, at_call: Identity | None) -> Identity:
        """Return the member's identity for an OffsetCommit request. `at_call` is the identity at
        the call of `commit`, or None to skip the comparison. Raises CommitFailed if the identity
        now differs from `at_call`, because other members can then have committed larger offsets."""
        if self.session.choice is None:
            if at_call is not None:
                raise no_member(self._link.key)
            return Identity()
        identity = self._member.for_commit()
        if at_call is not None and identity != at_call:
            raise rebalancing(self._link.key)
        return identity

    def _commit_refused(self, step: Next, code: ErrorCode, identity: Identity) -> None:
        if identity.member_id:
            self._member.commit_refused(step, code, identity)

    async def _find_committed(
        self, partitions: list[TopicPartition]
    ) -> Mapping[TopicPartition, tuple[int, int] | None]:
        found = await self.committed(partitions)
        return {
            key: None if offset is None else (offset.offset, offset.leader_epoch)
            for key, offset in found.items()
        }
