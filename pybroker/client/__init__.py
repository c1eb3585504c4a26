"""The asyncio client: connections, metadata, producer, consumer and admin client."""

from pybroker.client.accumulator import RecordMetadata
from pybroker.client.admin.admin import Admin
from pybroker.client.admin.cluster import BrokerVersions, ClusterDescription
from pybroker.client.admin.configs import (
    ALL_BROKERS,
    ConfigChange,
    ConfigDescription,
    ConfigEntry,
    ConfigOperation,
    ConfigResource,
    ConfigResult,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    ResourceKind,
)
from pybroker.client.admin.elections import ElectionType
from pybroker.client.admin.group_offsets import CommittedOffset, GroupOffsets
from pybroker.client.admin.groups import GroupDescription, GroupList, GroupListing, GroupMember
from pybroker.client.admin.lag import GroupLag, PartitionLag
from pybroker.client.admin.log_dirs import BrokerLogDirs, LogDir, Replica, ReplicaLog
from pybroker.client.admin.partitions import (
    HIGH_WATERMARK,
    ActiveProducer,
    DeletedRecords,
    PartitionProducers,
)
from pybroker.client.admin.topics import NewPartitions, NewTopic, TopicResult
from pybroker.client.consumer import Consumer
from pybroker.client.epoch_lookup import EpochEnd
from pybroker.client.errors import (
    AnswerTooLarge,
    Attempt,
    BufferExhausted,
    ClientError,
    Closed,
    CommitFailed,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    DamagedRecords,
    DeadlinePassed,
    DeliveryFailed,
    FencedInstance,
    GroupError,
    InvalidSessionTimeout,
    JoinRefused,
    LogTruncated,
    NoBrokers,
    NotAssigned,
    NotConnected,
    OffsetUnavailable,
    RebalanceInProgress,
    RecordTooLarge,
    RequestTimedOut,
    ResponseError,
    SubscriptionConflict,
    TopicUnavailable,
    UnsupportedByBroker,
)
from pybroker.client.groups.offsets import OffsetAndMetadata
from pybroker.client.metadata import Node, PartitionInfo, TopicInfo
from pybroker.client.offset_lookup import EARLIEST, LATEST, MAX_TIMESTAMP, OffsetAnswer
from pybroker.client.producer import Producer
from pybroker.client.subscription import ConsumerRecord
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.records.batch import TimestampType

__all__ = [
    "ALL_BROKERS",
    "EARLIEST",
    "HIGH_WATERMARK",
    "LATEST",
    "MAX_TIMESTAMP",
    "ActiveProducer",
    "Admin",
    "AnswerTooLarge",
    "Attempt",
    "BrokerLogDirs",
    "BrokerVersions",
    "BufferExhausted",
    "ClientError",
    "Closed",
    "ClusterDescription",
    "CommitFailed",
    "CommittedOffset",
    "ConfigChange",
    "ConfigDescription",
    "ConfigEntry",
    "ConfigError",
    "ConfigOperation",
    "ConfigResource",
    "ConfigResult",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "ConnectFailed",
    "ConnectionLost",
    "Consumer",
    "ConsumerRecord",
    "DamagedRecords",
    "DeadlinePassed",
    "DeletedRecords",
    "DeliveryFailed",
    "ElectionType",
    "EpochEnd",
    "ErrorCode",
    "FencedInstance",
    "GroupDescription",
    "GroupError",
    "GroupLag",
    "GroupList",
    "GroupListing",
    "GroupMember",
    "GroupOffsets",
    "InvalidSessionTimeout",
    "JoinRefused",
    "LogDir",
    "LogTruncated",
    "NewPartitions",
    "NewTopic",
    "NoBrokers",
    "Node",
    "NotAssigned",
    "NotConnected",
    "OffsetAndMetadata",
    "OffsetAnswer",
    "OffsetUnavailable",
    "PartitionInfo",
    "PartitionLag",
    "PartitionProducers",
    "Producer",
    "RebalanceInProgress",
    "RecordMetadata",
    "RecordTooLarge",
    "Replica",
    "ReplicaLog",
    "RequestTimedOut",
    "ResourceKind",
    "ResponseError",
    "SubscriptionConflict",
    "TimestampType",
    "TopicInfo",
    "TopicPartition",
    "TopicResult",
    "TopicUnavailable",
    "UnsupportedByBroker",
]
