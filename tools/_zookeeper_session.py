"""The ZooKeeper session of a tool, for --zookeeper. It does not create the chroot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from pybroker.clock import SystemClock
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.first_answer import TOOL_REFUSALS_MAX
from pybroker.coordinator.zookeeper.session import KazooCoord
from pybroker.errors import CoordError
from pybroker.tools._cli import Failure

CONNECT_S: Final = 30.0


@asynccontextmanager
async def cluster_nodes(connect: str) -> AsyncIterator[KazooCoord]:
    """Open a session with the cluster at `connect` (HOST:PORT[,HOST:PORT...][/chroot]). Raises
    StartupError if no ZooKeeper can be reached or the chroot is missing. Raises Failure if there
    is no cluster, or if ZooKeeper fails within the block."""
    coord = KazooCoord(connect, clock=SystemClock())
    await coord.start(CONNECT_S, refusals_max=TOOL_REFUSALS_MAX)
    try:
        if await coord.exists(paths.BROKER_IDS) is None:
            raise Failure(f"{connect} holds no Kafka cluster: there is no {paths.BROKER_IDS}")
        yield coord
    except CoordError as error:
        raise Failure(f"ZooKeeper at {connect} failed: {error!r}") from error
    finally:
        await coord.close()
