"""The ZooKeeper session of a tool with the option --zookeeper. A missing chroot is an error."""

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
    """Open a session with the ZooKeeper at `connect` (HOST:PORT[,HOST:PORT...][/chroot]). Raises
    StartupError if no server answers or the chroot is missing. Raises Failure if the chroot has no
    Kafka nodes. Also raises Failure if ZooKeeper fails inside the `async with` block."""
    coord = KazooCoord(connect, clock=SystemClock())
    await coord.start(CONNECT_S, refusals_max=TOOL_REFUSALS_MAX)
    try:
        if await coord.exists(paths.BROKER_IDS) is None:
            raise Failure(
                f"the ZooKeeper at {connect} has no Kafka cluster: the node"
                f" {paths.BROKER_IDS} does not exist"
            )
        yield coord
    except CoordError as error:
        raise Failure(f"ZooKeeper at {connect} failed: {type(error).__name__}: {error}") from error
    finally:
        await coord.close()
