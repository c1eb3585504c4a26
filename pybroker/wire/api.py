"""The APIs and versions of Kafka's protocol that pybroker supports. Most versions are those of a
ZooKeeper-mode Kafka 3.0, because clients infer the features of a broker from them.

Produce starts at version 0, because older librdkafka otherwise disables compression (KAFKA-18659).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pybroker.wire.messages import (
    acls,
    cluster,
    configs,
    control,
    fetch,
    group_admin,
    groups,
    list_offsets,
    log_dirs,
    metadata,
    offsets,
    produce,
    quotas,
    reassignment,
    sasl,
    scram,
    topics,
    transaction_admin,
    transactions,
)
from pybroker.wire.schema import Message


class ApiKey(enum.IntEnum):
    """The API keys that pybroker supports. Only brokers send requests with the keys 4 to 7."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66


@dataclass(frozen=True, slots=True)
class Api:
    """An API and its supported versions. `flexible_since` is the first version with compact types
    and tagged fields (KIP-482)."""

    key: ApiKey
    request: type[Message]
    response: type[Message]
    min_version: int
    max_version: int
    flexible_since: int | None

    def supports(self, version: int) -> bool:
        """Return whether pybroker supports this version of the API."""
        return self.min_version <= version <= self.max_version

    def is_flexible(self, version: int) -> bool:
        """Return whether this version of the API has compact types and tagged fields (KIP-482)."""
        return self.flexible_since is not None and version >= self.flexible_since

    def request_header_version(self, version: int) -> int:
        """Return the request header version for this API version: 2 if it is flexible (tagged
        fields), else 1."""
        return 2 if self.is_flexible(version) else 1

    def response_header_version(self, version: int) -> int:
        """Return the response header version for this API version: 1 if the API version is flexible
        (has tagged fields), else 0. Always 0 for ApiVersions."""
        if self.key is ApiKey.API_VERSIONS:
            return 0
        return 1 if self.is_flexible(version) else 0


_Row = tuple[ApiKey, type[Message], type[Message], int, int, int | None]

# key, request, response, lowest version, highest version, first flexible version
# fmt: off
_ROWS: Final[tuple[_Row, ...]] = (
    (ApiKey.PRODUCE, produce.ProduceRequest, produce.ProduceResponse, 0, 9, 9),
    (ApiKey.FETCH, fetch.FetchRequest, fetch.FetchResponse, 4, 12, 12),
    (ApiKey.LIST_OFFSETS,
     list_offsets.ListOffsetsRequest, list_offsets.ListOffsetsResponse, 0, 7, 6),
    (ApiKey.METADATA, metadata.MetadataRequest, metadata.MetadataResponse, 0, 12, 9),
    (ApiKey.LEADER_AND_ISR, control.LeaderAndIsrRequest, control.LeaderAndIsrResponse, 5, 5, 4),
    (ApiKey.STOP_REPLICA, control.StopReplicaRequest, control.StopReplicaResponse, 3, 3, 2),
    (ApiKey.UPDATE_METADATA,
     control.UpdateMetadataRequest, control.UpdateMetadataResponse, 7, 7, 6),
    (ApiKey.CONTROLLED_SHUTDOWN,
     control.ControlledShutdownRequest, control.ControlledShutdownResponse, 3, 3, 3),
    (ApiKey.OFFSET_COMMIT, offsets.OffsetCommitRequest, offsets.OffsetCommitResponse, 0, 8, 8),
    (ApiKey.OFFSET_FETCH, offsets.OffsetFetchRequest, offsets.OffsetFetchResponse, 0, 8, 6),
    (ApiKey.FIND_COORDINATOR,
     groups.FindCoordinatorRequest, groups.FindCoordinatorResponse, 0, 4, 3),
    (ApiKey.JOIN_GROUP, groups.JoinGroupRequest, groups.JoinGroupResponse, 0, 9, 6),
    (ApiKey.HEARTBEAT, groups.HeartbeatRequest, groups.HeartbeatResponse, 0, 4, 4),
    (ApiKey.LEAVE_GROUP, groups.LeaveGroupRequest, groups.LeaveGroupResponse, 0, 4, 4),
    (ApiKey.SYNC_GROUP, groups.SyncGroupRequest, groups.SyncGroupResponse, 0, 5, 4),
    (ApiKey.DESCRIBE_GROUPS,
     group_admin.DescribeGroupsRequest, group_admin.DescribeGroupsResponse, 0, 5, 5),
    (ApiKey.LIST_GROUPS, group_admin.ListGroupsRequest, group_admin.ListGroupsResponse, 0, 4, 3),
    (ApiKey.SASL_HANDSHAKE, sasl.SaslHandshakeRequest, sasl.SaslHandshakeResponse, 0, 1, None),
    (ApiKey.API_VERSIONS, cluster.ApiVersionsRequest, cluster.ApiVersionsResponse, 0, 4, 3),
    (ApiKey.CREATE_TOPICS, topics.CreateTopicsRequest, topics.CreateTopicsResponse, 0, 7, 5),
    (ApiKey.DELETE_TOPICS, topics.DeleteTopicsRequest, topics.DeleteTopicsResponse, 0, 6, 4),
    (ApiKey.DELETE_RECORDS, topics.DeleteRecordsRequest, topics.DeleteRecordsResponse, 0, 2, 2),
    (ApiKey.INIT_PRODUCER_ID,
     transactions.InitProducerIdRequest, transactions.InitProducerIdResponse, 0, 4, 2),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH,
     list_offsets.OffsetForLeaderEpochRequest, list_offsets.OffsetForLeaderEpochResponse, 0, 4, 4),
    (ApiKey.ADD_PARTITIONS_TO_TXN,
     transactions.AddPartitionsToTxnRequest, transactions.AddPartitionsToTxnResponse, 0, 4, 3),
    (ApiKey.ADD_OFFSETS_TO_TXN,
     transactions.AddOffsetsToTxnRequest, transactions.AddOffsetsToTxnResponse, 0, 3, 3),
    (ApiKey.END_TXN, transactions.EndTxnRequest, transactions.EndTxnResponse, 0, 3, 3),
    (ApiKey.WRITE_TXN_MARKERS,
     transactions.WriteTxnMarkersRequest, transactions.WriteTxnMarkersResponse, 0, 1, 1),
    (ApiKey.TXN_OFFSET_COMMIT,
     transactions.TxnOffsetCommitRequest, transactions.TxnOffsetCommitResponse, 0, 3, 3),
    (ApiKey.DESCRIBE_ACLS, acls.DescribeAclsRequest, acls.DescribeAclsResponse, 0, 2, 2),
    (ApiKey.CREATE_ACLS, acls.CreateAclsRequest, acls.CreateAclsResponse, 0, 2, 2),
    (ApiKey.DELETE_ACLS, acls.DeleteAclsRequest, acls.DeleteAclsResponse, 0, 2, 2),
    (ApiKey.DESCRIBE_CONFIGS,
     configs.DescribeConfigsRequest, configs.DescribeConfigsResponse, 0, 4, 4),
    (ApiKey.ALTER_CONFIGS, configs.AlterConfigsRequest, configs.AlterConfigsResponse, 0, 2, 2),
    (ApiKey.ALTER_REPLICA_LOG_DIRS,
     log_dirs.AlterReplicaLogDirsRequest, log_dirs.AlterReplicaLogDirsResponse, 0, 2, 2),
    (ApiKey.DESCRIBE_LOG_DIRS,
     log_dirs.DescribeLogDirsRequest, log_dirs.DescribeLogDirsResponse, 0, 2, 2),
    (ApiKey.SASL_AUTHENTICATE,
     sasl.SaslAuthenticateRequest, sasl.SaslAuthenticateResponse, 0, 2, 2),
    (ApiKey.CREATE_PARTITIONS,
     topics.CreatePartitionsRequest, topics.CreatePartitionsResponse, 0, 3, 2),
    (ApiKey.DELETE_GROUPS,
     group_admin.DeleteGroupsRequest, group_admin.DeleteGroupsResponse, 0, 2, 2),
    (ApiKey.ELECT_LEADERS,
     reassignment.ElectLeadersRequest, reassignment.ElectLeadersResponse, 0, 2, 2),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS,
     configs.IncrementalAlterConfigsRequest, configs.IncrementalAlterConfigsResponse, 0, 1, 1),
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS,
     reassignment.AlterPartitionReassignmentsRequest,
     reassignment.AlterPartitionReassignmentsResponse, 0, 0, 0),
    (ApiKey.LIST_PARTITION_REASSIGNMENTS,
     reassignment.ListPartitionReassignmentsRequest,
     reassignment.ListPartitionReassignmentsResponse, 0, 0, 0),
    (ApiKey.OFFSET_DELETE, offsets.OffsetDeleteRequest, offsets.OffsetDeleteResponse, 0, 0, None),
    (ApiKey.DESCRIBE_CLIENT_QUOTAS,
     quotas.DescribeClientQuotasRequest, quotas.DescribeClientQuotasResponse, 0, 1, 1),
    (ApiKey.ALTER_CLIENT_QUOTAS,
     quotas.AlterClientQuotasRequest, quotas.AlterClientQuotasResponse, 0, 1, 1),
    (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
     scram.DescribeUserScramCredentialsRequest,
     scram.DescribeUserScramCredentialsResponse, 0, 0, 0),
    (ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
     scram.AlterUserScramCredentialsRequest, scram.AlterUserScramCredentialsResponse, 0, 0, 0),
    (ApiKey.DESCRIBE_CLUSTER,
     cluster.DescribeClusterRequest, cluster.DescribeClusterResponse, 0, 1, 0),
    (ApiKey.DESCRIBE_PRODUCERS,
     transaction_admin.DescribeProducersRequest,
     transaction_admin.DescribeProducersResponse, 0, 0, 0),
    (ApiKey.DESCRIBE_TRANSACTIONS,
     transaction_admin.DescribeTransactionsRequest,
     transaction_admin.DescribeTransactionsResponse, 0, 0, 0),
    (ApiKey.LIST_TRANSACTIONS,
     transaction_admin.ListTransactionsRequest,
     transaction_admin.ListTransactionsResponse, 0, 1, 0),
)
# fmt: on

APIS: Final[Mapping[ApiKey, Api]] = MappingProxyType({row[0]: Api(*row) for row in _ROWS})


BETWEEN_BROKERS: Final = frozenset(
    {
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
    }
)
"""The keys of the APIs that only brokers use. ApiVersions responses omit them, and only the
listener for brokers accepts their requests."""

CLIENT_VERSION_MAX: Final[Mapping[ApiKey, int]] = MappingProxyType(
    {ApiKey.ADD_PARTITIONS_TO_TXN: 3}
)
"""The highest version that clients may use, for each API whose higher versions only brokers use."""


def api_versions_rows() -> tuple[tuple[int, int, int], ...]:
    """Return the rows of an ApiVersions response, sorted by key: the key, the lowest and the
    highest version of each API that clients may use."""
    return tuple(
        (api.key, api.min_version, CLIENT_VERSION_MAX.get(api.key, api.max_version))
        for api in APIS.values()
        if api.key not in BETWEEN_BROKERS
    )
