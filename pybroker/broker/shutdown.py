"""The last steps of a broker's stop: remove the registration, then make the logs durable."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from pybroker.broker.lifecycle import Lifecycle
from pybroker.coordinator.zookeeper import registry
from pybroker.errors import CoordError
from pybroker.model import Broker
from pybroker.ports import Blocking, Coord
from pybroker.replication.manager import ReplicaManager
from pybroker.storage.manager import LogManager

log = logging.getLogger(__name__)


async def unregister(coord: Coord, broker: Broker) -> None:
    """Remove the registration. If ZooKeeper does not answer, the node is removed when the session
    expires."""
    try:
        await registry.unregister_broker(coord, broker)
    except CoordError as error:
        log.warning("registration not removed until the session ends error=%r", error)


def end_logs_last(
    lifecycle: Lifecycle, logs: LogManager, blocking: Blocking, replicas: ReplicaManager
) -> None:
    """Make the closing of the logs the last step of the stop. Called before any component
    starts."""
    lifecycle.push("log-directories", partial(_end_directories, logs, blocking, replicas))
    lifecycle.push("logs", partial(_end_logs, logs, blocking))


async def _end_logs(logs: LogManager, blocking: Blocking) -> None:
    """Make the logs durable and close them, several at a time. Wait for all of them even if one
    fails, since the checkpoints are written next."""
    shares = await blocking.run(logs.ending.shares)
    work = (blocking.run(logs.ending.end, share) for share in shares)
    for ended in await asyncio.gather(*work, return_exceptions=True):
        if ended is not None:
            raise ended


async def _end_directories(logs: LogManager, blocking: Blocking, replicas: ReplicaManager) -> None:
    """Close the logs that `_end_logs` has not closed, then write the checkpoints and the clean
    shutdown files."""
    shutdown = partial(logs.shutdown, broker_epoch=replicas.broker_epoch)
    await blocking.run(shutdown, replicas.high_watermarks())
