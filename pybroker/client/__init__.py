"""The asyncio client: connections, metadata, producer, consumer, admin. Imports layers L0 to L2
only."""

from pybroker.client.accumulator import RecordMetadata
from pybroker.client.admin import Admin, ClusterDescription, ConfigEntry, NewTopic, TopicResult
from pybroker.client.consumer import Consumer
from pybroker.client.metadata import Node, PartitionInfo, TopicInfo
from pybroker.client.offset_lookup import EARLIEST, LATEST, MAX_TIMESTAMP, OffsetAnswer
from pybroker.client.producer import Producer
from pybroker.client.subscription import ConsumerRecord
from pybroker.model import TopicPartition
from pybroker.records.batch import TimestampType

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Admin",
    "ClusterDescription",
    "ConfigEntry",
    "Consumer",
    "ConsumerRecord",
    "NewTopic",
    "Node",
    "OffsetAnswer",
    "PartitionInfo",
    "Producer",
    "RecordMetadata",
    "TimestampType",
    "TopicInfo",
    "TopicPartition",
    "TopicResult",
]
