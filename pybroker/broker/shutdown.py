"""The last steps of a broker's stop: close the connections, remove the registration, then make the
logs durable.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from pybroker.broker.lifecycle import Lifecycle
from pybroker.coordinator.zookeeper import registry
from pybroker.errors import CoordError
from pybroker.model import Broker
from pybroker.ports import Blocking, Coord
from pybroker.replication.manager import ReplicaManager
from pybroker.server.listener import Server
from pybroker.storage.manager import LogManager

log = logging.getLogger(__name__)

DRAIN_S: Final = 1.0
"""How long (s) a stopping broker still answers requests in flight."""


async def close_connections(server: Server, replicas: ReplicaManager) -> None:
    """Close each connection after the response to its current request, at the latest after DRAIN_S
    seconds. Waiting fetches are answered at once."""
    replicas.fetches.time_out_all()
    replicas.replica_fetches.time_out_all()
    await server.close(DRAIN_S)


async def unregister(coord: Coord, broker: Broker) -> None:
    """Remove the broker's registration from ZooKeeper. If ZooKeeper does not answer, only log a
    warning."""
    try:
        await registry.unregister_broker(coord, broker)
    except CoordError as error:
        text = "registration not removed, ZooKeeper removes it with the session error=%r"
        log.warning(text, error)


def end_logs_last(
    lifecycle: Lifecycle, logs: LogManager, blocking: Blocking, replicas: ReplicaManager
) -> None:
    """Make `lifecycle` close the logs as its last steps. Must be called before any component is
    started."""
    lifecycle.push("log-directories", partial(_end_directories, logs, blocking, replicas))
    lifecycle.push("logs", partial(_end_logs, logs, blocking))


async def _end_logs(logs: LogManager, blocking: Blocking) -> None:
    """Make the logs durable and close them, several at a time. If a log fails, close the others,
    then raise the error."""
    shares = await blocking.run(logs.ending.shares)
    work = (blocking.run(logs.ending.end, share) for share in shares)
    for ended in await asyncio.gather(*work, return_exceptions=True):
        if ended is not None:
            raise ended


async def _end_directories(logs: LogManager, blocking: Blocking, replicas: ReplicaManager) -> None:
    """Close the logs that are still open. Then write the checkpoints of each log directory, and the
    mark of a clean shutdown."""
    shutdown = partial(logs.shutdown, broker_epoch=replicas.broker_epoch)
    await blocking.run(shutdown, replicas.high_watermarks())
