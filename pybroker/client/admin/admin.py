"""The public admin client. An operation on several items returns a result or an error for each
item."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from pybroker.client import defaults
from pybroker.client.admin import cluster as admin_cluster
from pybroker.client.admin import configs as admin_configs
from pybroker.client.admin import elections as admin_elections
from pybroker.client.admin import group_offsets as admin_group_offsets
from pybroker.client.admin import groups as admin_groups
from pybroker.client.admin import lag
from pybroker.client.admin import log_dirs as admin_log_dirs
from pybroker.client.admin import partitions as admin_partitions
from pybroker.client.admin import topics as admin_topics
from pybroker.client.admin import transactions as admin_transactions
from pybroker.client.admin.calls import Calls
from pybroker.client.admin.cluster import BrokerVersions, ClusterDescription
from pybroker.client.admin.configs import (
    ConfigChange,
    ConfigDescription,
    ConfigResource,
    ConfigResult,
)
from pybroker.client.admin.elections import ElectionType
from pybroker.client.admin.group_offsets import CommittedOffset, GroupOffsets
from pybroker.client.admin.groups import GroupDescription, GroupList
from pybroker.client.admin.lag import GroupLag, PartitionLag
from pybroker.client.admin.log_dirs import BrokerLogDirs, Replica
from pybroker.client.admin.partitions import DeletedRecords, PartitionProducers
from pybroker.client.admin.topics import NewPartitions, NewTopic, TopicResult
from pybroker.client.admin.transactions import (
    FencedProducer,
    OpenTransaction,
    TransactionDescription,
    TransactionList,
)
from pybroker.client.cluster import Cluster
from pybroker.client.epoch_lookup import EpochEnd, epoch_ends
from pybroker.client.errors import ClientError
from pybroker.client.keywords import AdminKeywords
from pybroker.client.metadata import TopicInfo
from pybroker.client.offset_lookup import OffsetAnswer, list_offsets
from pybroker.client.options import AdminOptions, parse_options
from pybroker.model import TopicPartition
from pybroker.ports import Clock, Rng


class Admin:
    """The admin client: it manages topics, partitions, options, log directories and groups.

    `timeout_ms` limits an operation including its retries. None means default.api.timeout.ms. Every
    operation raises Closed if the client is not open.

        async with Admin("localhost:9092") as admin:
            for result in await admin.create_topics([NewTopic("orders", partitions=3)]):
                result.check()
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | None = None,
        *,
        clock: Clock | None = None,
        rng: Rng | None = None,
        **options: Unpack[AdminKeywords],
    ) -> None:
        """Parse the options. Raises ConfigError, which lists all invalid options."""
        self.options = parse_options(AdminOptions, options, bootstrap_servers)
        self._cluster = Cluster(
            self.options, clock=clock or defaults.make_clock(), rng=rng or defaults.make_rng()
        )
        self._calls = Calls(self._cluster)

    async def start(self) -> None:
        """Connect to one of the bootstrap brokers. Raises NoBrokers after bootstrap.timeout.ms."""
        try:
            await self._cluster.start()
        except BaseException:
            await self._cluster.close()
            raise
        self._calls.opened = True

    async def close(self) -> None:
        """Close the connections to all brokers. Idempotent."""
        self._calls.opened = False
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def create_topics(
        self,
        topics: Iterable[NewTopic],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> list[TopicResult]:
        """Create topics; `validate_only` only checks the request. Return one result for each topic.
        Raises ClientError if the controller does not answer."""
        return await admin_topics.create_topics(
            self._calls, topics, validate_only=validate_only, timeout_ms=timeout_ms
        )

    async def delete_topics(
        self, names: Iterable[str], *, timeout_ms: int | None = None
    ) -> list[TopicResult]:
        """Delete topics. Return one result for each topic. Raises ClientError if the controller
        does not answer."""
        return await admin_topics.delete_topics(self._calls, names, timeout_ms=timeout_ms)

    async def create_partitions(
        self,
        topics: Iterable[NewPartitions],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> list[TopicResult]:
        """Add partitions to topics. Return one result for each topic. Raises
        ClientError if the controller does not answer."""
        return await admin_topics.create_partitions(
            self._calls, topics, validate_only=validate_only, timeout_ms=timeout_ms
        )

    async def elect_leaders(
        self,
        election_type: ElectionType = ElectionType.PREFERRED,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, ClientError | None]:
        """Let the controller elect leaders of these partitions (None: of all that need an
        election). Return each partition's error, such as ELECTION_NOT_NEEDED, or None if a leader
        was elected. Raises ClientError if the controller does not answer."""
        return await admin_elections.elect_leaders(
            self._calls, election_type, partitions, timeout_ms=timeout_ms
        )

    async def list_topics(self) -> list[TopicInfo]:
        """Return all topics that the client may describe, sorted by name, including internal ones.
        Raises ClientError if no broker answers."""
        view = await self._calls.metadata(None)
        return [view.topics[name] for name in sorted(view.topics)]

    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Return topic name -> TopicInfo. If a topic does not exist, `TopicInfo.error` has the
        error code that the broker returned. Raises ClientError if no broker answers."""
        wanted = list(names)
        return dict((await self._calls.metadata(wanted)).topics) if wanted else {}

    async def describe_cluster(self, *, timeout_ms: int | None = None) -> ClusterDescription:
        """Return the id, the brokers and the controller of the cluster. Raises ClientError if no
        broker answers."""
        return await admin_cluster.describe_cluster(self._calls, timeout_ms=timeout_ms)

    async def api_versions(
        self, brokers: Iterable[int] | None = None, *, timeout_ms: int | None = None
    ) -> dict[int, BrokerVersions]:
        """Return the API versions that each broker in `brokers` supports. If `brokers` is None, ask
        all known brokers. Raises Closed before `start` and after `close`."""
        return await admin_cluster.api_versions(self._calls, brokers, timeout_ms=timeout_ms)

    async def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        names: Sequence[str] | None = None,
        synonyms: bool = False,
        documentation: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[ConfigResource, ConfigDescription]:
        """Return the options of topics and brokers, one description for each resource. `names`: the
        options to return (None: all). Raises Closed if the client is not open."""
        return await admin_configs.describe_configs(
            self._calls,
            resources,
            names=names,
            synonyms=synonyms,
            documentation=documentation,
            timeout_ms=timeout_ms,
        )

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Iterable[ConfigChange]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[ConfigResource, ConfigResult]:
        """Change the given options of each resource and keep all others (IncrementalAlterConfigs).
        Return one result for each resource. Raises Closed if the client is not open."""
        return await admin_configs.alter_configs(
            self._calls, changes, validate_only=validate_only, timeout_ms=timeout_ms
        )

    async def replace_configs(
        self,
        configs: Mapping[ConfigResource, Mapping[str, str | None]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[ConfigResource, ConfigResult]:
        """Set the given options of each resource and unset all others (AlterConfigs). Return one
        result for each resource. Raises Closed if the client is not open."""
        return await admin_configs.replace_configs(
            self._calls, configs, validate_only=validate_only, timeout_ms=timeout_ms
        )

    async def describe_log_dirs(
        self,
        brokers: Iterable[int] | None = None,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> dict[int, BrokerLogDirs]:
        """Return the log directories of these brokers (None: all), with the replicas of these
        partitions (None: all). Raises Closed if the client is not open."""
        return await admin_log_dirs.describe_log_dirs(
            self._calls, brokers, partitions, timeout_ms=timeout_ms
        )

    async def alter_replica_log_dirs(
        self, moves: Mapping[Replica, str], *, timeout_ms: int | None = None
    ) -> dict[Replica, ClientError | None]:
        """Ask brokers to move replicas to the given log directories. Return None for each accepted
        move, else the error. Raises Closed if the client is not open."""
        return await admin_log_dirs.alter_replica_log_dirs(
            self._calls, moves, timeout_ms=timeout_ms
        )

    async def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, DeletedRecords]:
        """Delete the records before the given offset of each partition (-1: before the high
        watermark). Return one result for each partition. Raises Closed if the client is not
        open."""
        return await admin_partitions.delete_records(self._calls, before, timeout_ms=timeout_ms)

    async def describe_producers(
        self,
        partitions: Iterable[TopicPartition],
        *,
        broker: int | None = None,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, PartitionProducers]:
        """Return the active producers of each partition, as the leader knows them. With `broker`,
        return the producers that the replica on that broker knows."""
        return await admin_partitions.describe_producers(
            self._calls, partitions, broker=broker, timeout_ms=timeout_ms
        )

    async def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, EpochEnd]:
        """Return for each partition the end offset of the given leader epoch in the leader's log
        (OffsetForLeaderEpoch). Raises Closed if the client is not open."""
        self._calls.check_opened()
        return await epoch_ends(self._cluster, epochs, deadline=self._calls.deadline(timeout_ms))

    async def list_offsets(
        self,
        moments: Mapping[TopicPartition, int],
        *,
        isolation_level: str = "read_uncommitted",
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAnswer]:
        """Return for each partition the offset for the given timestamp, or the error. A timestamp
        is in ms since 1970, or LATEST, EARLIEST or MAX_TIMESTAMP."""
        self._calls.check_opened()
        return await list_offsets(
            self._cluster,
            moments,
            isolation_level=isolation_level,
            deadline=self._calls.deadline(timeout_ms),
        )

    async def list_groups(
        self, states: Iterable[str] = (), *, timeout_ms: int | None = None
    ) -> GroupList:
        """Return the groups of all brokers, of any protocol type, with one of these states (empty:
        all). Raises Closed if the client is not open."""
        return await admin_groups.list_groups(self._calls, states, timeout_ms=timeout_ms)

    async def describe_groups(
        self, groups: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, GroupDescription]:
        """Return the state and the members of each group. The state of an unknown group is "Dead".
        Raises Closed if the client is not open."""
        return await admin_groups.describe_groups(self._calls, groups, timeout_ms=timeout_ms)

    async def delete_groups(
        self, groups: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, ClientError | None]:
        """Delete groups and their committed offsets. A group with members is not deleted. Return
        None for each deleted group, else the error."""
        return await admin_groups.delete_groups(self._calls, groups, timeout_ms=timeout_ms)

    async def remove_members(
        self, group: str, instance_ids: Sequence[str], *, timeout_ms: int | None = None
    ) -> dict[str, ClientError | None]:
        """Remove the static members with these instance ids. Return None for each removed member,
        else the error. Raises ClientError if the coordinator does not answer."""
        return await admin_groups.remove_members(
            self._calls, group, instance_ids, timeout_ms=timeout_ms
        )

    async def committed_offsets(
        self,
        groups: Mapping[str, Iterable[TopicPartition] | None],
        *,
        require_stable: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[str, GroupOffsets]:
        """Return the committed offsets of each group, in the given partitions (None: all). With
        `require_stable`, wait while an open transaction may commit offsets of these partitions."""
        return await admin_group_offsets.committed_offsets(
            self._calls, groups, require_stable=require_stable, timeout_ms=timeout_ms
        )

    async def alter_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, ClientError | None]:
        """Commit offsets for a group without members. Return None for each committed offset, else
        the error. Raises ClientError if the coordinator does not answer."""
        return await admin_group_offsets.alter_offsets(
            self._calls, group, offsets, timeout_ms=timeout_ms
        )

    async def delete_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition],
        *,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, ClientError | None]:
        """Delete a group's committed offsets. Return None for each deleted offset, else the error,
        for example if a member is subscribed to the topic. Raises ClientError if the whole request
        fails."""
        return await admin_group_offsets.delete_offsets(
            self._calls, group, partitions, timeout_ms=timeout_ms
        )

    async def group_lag(
        self, groups: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, GroupLag]:
        """Return the lag of each group, in each partition with a committed offset. Raises Closed if
        the client is not open."""
        return await lag.group_lag(self._calls, groups, timeout_ms=timeout_ms)

    async def partition_lag(
        self,
        committed: Mapping[TopicPartition, int],
        *,
        details: bool = True,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, PartitionLag]:
        """Return for each partition the lag of its offset in `committed`. Without `details`, the
        lag in bytes and in seconds is None."""
        return await lag.partition_lag(
            self._calls, committed, details=details, timeout_ms=timeout_ms
        )

    async def position_lag(
        self,
        positions: Sequence[lag.Position],
        *,
        details: bool = True,
        timeout_ms: int | None = None,
    ) -> list[PartitionLag]:
        """Return the lag of each (partition, offset) pair, in the given order. A partition may
        occur several times. Raises Closed if the client is not open."""
        return await lag.position_lag(
            self._calls, positions, details=details, timeout_ms=timeout_ms
        )

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        duration_ms: int = admin_transactions.ALL,
        timeout_ms: int | None = None,
    ) -> TransactionList:
        """Return the transactional ids that match all filters (empty: any). A `duration_ms` of 0 or
        more selects transactions that have been open for longer, and needs Kafka 3.8 or later."""
        return await admin_transactions.list_transactions(
            self._calls, states, producer_ids, duration_ms, timeout_ms=timeout_ms
        )

    async def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, TransactionDescription]:
        """Return for each transactional id its state, its producer and the partitions of its
        transaction. Raises Closed if the client is not open."""
        return await admin_transactions.describe_transactions(
            self._calls, transactional_ids, timeout_ms=timeout_ms
        )

    async def fence_producers(
        self, transactional_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, FencedProducer]:
        """Fence the producers of each transactional id and abort its open transaction. Return one
        result for each id. Raises Closed if the client is not open."""
        return await admin_transactions.fence_producers(
            self._calls, transactional_ids, timeout_ms=timeout_ms
        )

    async def abort_transaction(
        self, transaction: OpenTransaction, *, timeout_ms: int | None = None
    ) -> None:
        """Abort a hanging transaction in one partition, without the transaction coordinator. The
        records stay aborted even if the coordinator later commits the transaction. Raises
        ClientError if the leader did not confirm the abort marker."""
        await admin_transactions.abort_transaction(self._calls, transaction, timeout_ms=timeout_ms)
