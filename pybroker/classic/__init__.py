"""The consumer of Kafka 0.8: its group lives in ZooKeeper. Its members watch each other, divide the
partitions without a broker's help, and keep their offsets there."""

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
