"""The last steps of a broker's stop: the registration goes, then the logs become durable."""

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
    """What cannot be removed now ends with the session."""
    try:
        await registry.unregister_broker(coord, broker)
    except CoordError as error:
        log.warning("registration not removed, it ends with the session error=%r", error)


def end_logs_last(
    lifecycle: Lifecycle, logs: LogManager, blocking: Blocking, replicas: ReplicaManager
) -> None:
    """To be called before anything starts; the logs are open already."""
    lifecycle.push("log-directories", partial(_end_directories, logs, blocking, replicas))
    lifecycle.push("logs", partial(_end_logs, logs, blocking))


async def _end_logs(logs: LogManager, blocking: Blocking) -> None:
    """Make the logs durable and close them, several at a time. All have ended when this returns or
    raises, since the checkpoints come next."""
    shares = await blocking.run(logs.ending.shares)
    work = (blocking.run(logs.ending.end, share) for share in shares)
    for ended in await asyncio.gather(*work, return_exceptions=True):
        if ended is not None:
            raise ended


async def _end_directories(logs: LogManager, blocking: Blocking, replicas: ReplicaManager) -> None:
    """End the logs that `_end_logs` has not ended, write the checkpoints and the clean mark."""
    shutdown = partial(logs.shutdown, broker_epoch=replicas.broker_epoch)
    await blocking.run(shutdown, replicas.high_watermarks())
