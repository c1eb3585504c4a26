"""The Kafka client for asyncio. `Producer` sends records to topics. `Consumer` reads records from
topics. `Admin` manages topics, options, groups and log directories.

Create a client in an `async with` block: it connects at the start of the block and closes at the
end. The options are keyword arguments with Kafka's names, in which underscores replace the dots
(`linger_ms=5`). A key and a value are bytes. Every failure of a request is a `ClientError`. Its
attribute `retriable` tells whether a retry may help. Its attribute `definite` is false if the
broker may have processed the request. For example::

    async with Producer("localhost:9092") as producer:
        delivery = await producer.send("orders", b"paid", key=b"42")
        print((await delivery).offset)
"""

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
from pybroker.client.appender import Partitioner
from pybroker.client.consumer import Consumer
from pybroker.client.deliveries import Deliveries, Delivery, RecordMetadata
from pybroker.client.deserializers import Deserializer
from pybroker.client.epoch_lookup import EpochEnd
from pybroker.client.errors import (
    AbortableTransactionError,
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
    DeserializationFailed,
    FatalTransactionError,
    FencedInstance,
    GroupError,
    InvalidSessionTimeout,
    JoinRefused,
    LogTruncated,
    NoBrokers,
    NotAssigned,
    NotConnected,
    OffsetUnavailable,
    ProducerFenced,
    RebalanceInProgress,
    RecordTooLarge,
    RequestTimedOut,
    ResponseError,
    SerializationFailed,
    SubscriptionConflict,
    TopicUnavailable,
    TransactionConflict,
    TransactionError,
    UnsupportedByBroker,
    WouldBlock,
)
from pybroker.client.group_values import GroupMetadata, OffsetAndMetadata
from pybroker.client.groups.topics import RebalanceListener
from pybroker.client.keywords import AdminKeywords, ConsumerKeywords, ProducerKeywords
from pybroker.client.metadata import Node, PartitionInfo, TopicInfo
from pybroker.client.metrics import (
    ConsumerMetrics,
    ConsumerTopicMetrics,
    ProducerMetrics,
    ProducerTopicMetrics,
    prometheus_text,
)
from pybroker.client.offset_lookup import EARLIEST, LATEST, MAX_TIMESTAMP, OffsetAnswer
from pybroker.client.producer import Producer
from pybroker.client.serializers import Serializer
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.records.batch import TimestampType
from pybroker.records.consumed import ConsumerRecord

__all__ = [
    "ALL_BROKERS",
    "EARLIEST",
    "HIGH_WATERMARK",
    "LATEST",
    "MAX_TIMESTAMP",
    "AbortableTransactionError",
    "ActiveProducer",
    "Admin",
    "AdminKeywords",
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
    "ConsumerKeywords",
    "ConsumerMetrics",
    "ConsumerRecord",
    "ConsumerTopicMetrics",
    "DamagedRecords",
    "DeadlinePassed",
    "DeletedRecords",
    "Deliveries",
    "Delivery",
    "DeliveryFailed",
    "DeserializationFailed",
    "Deserializer",
    "ElectionType",
    "EpochEnd",
    "ErrorCode",
    "FatalTransactionError",
    "FencedInstance",
    "GroupDescription",
    "GroupError",
    "GroupLag",
    "GroupList",
    "GroupListing",
    "GroupMember",
    "GroupMetadata",
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
    "Partitioner",
    "Producer",
    "ProducerFenced",
    "ProducerKeywords",
    "ProducerMetrics",
    "ProducerTopicMetrics",
    "RebalanceInProgress",
    "RebalanceListener",
    "RecordMetadata",
    "RecordTooLarge",
    "Replica",
    "ReplicaLog",
    "RequestTimedOut",
    "ResourceKind",
    "ResponseError",
    "SerializationFailed",
    "Serializer",
    "SubscriptionConflict",
    "TimestampType",
    "TopicInfo",
    "TopicPartition",
    "TopicResult",
    "TopicUnavailable",
    "TransactionConflict",
    "TransactionError",
    "UnsupportedByBroker",
    "WouldBlock",
    "prometheus_text",
]
