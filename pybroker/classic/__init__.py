"""The ZooKeeper consumer ("classic" here), compatible with the high-level consumer of Kafka 0.8.
The members divide the partitions through ZooKeeper. Kafka 4's "classic consumer" is a different
consumer, which uses JoinGroup."""

from pybroker.classic.consumer import ClassicConsumer
from pybroker.classic.errors import (
    ConsumerIdTaken,
    GroupIsCoordinated,
    NotOwned,
    RebalanceFailed,
)
from pybroker.classic.options import ClassicOptions
from pybroker.classic.rebalancing import RebalanceListener
from pybroker.classic.stream import Stream

__all__ = [
    "ClassicConsumer",
    "ClassicOptions",
    "ConsumerIdTaken",
    "GroupIsCoordinated",
    "NotOwned",
    "RebalanceFailed",
    "RebalanceListener",
    "Stream",
]
