"""Two parts of a broker's start. Before the registration, replicas that may lack records leave the
ISR. After the registration, the broker waits for the controller's metadata."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection

from pybroker.broker.log_directory_failures import read_accepted_losses, vanished
from pybroker.coordinator.controller.controller import Controller
from pybroker.coordinator.controller.reading import (
    read_deletion_requests,
    read_topic_names,
    read_topics,
)
from pybroker.coordinator.zookeeper.loss_receipts import ACCEPTED_LOSS
from pybroker.errors import CoordError, StartupError
from pybroker.handlers.metadata_view import MetadataView
from pybroker.ports import Clock, Coord
from pybroker.replication.health.power_loss import PowerLoss, left_of
from pybroker.replication.health.unhealthy_replicas import UnhealthyReplicas
from pybroker.storage.manager import LogManager

log = logging.getLogger(__name__)

_READY_WAIT_S = 30.0
"""How long (s) the starting broker waits until a controller sends the metadata of the cluster. If
none does, the start fails."""
_OPEN_SOON_S = 2.0
_OPEN_WAIT_S = 30.0
"""How long (s) the starting broker waits until the metadata has every existing topic. Then it
serves clients in any case, and a missing topic follows later."""


async def settle_replicas(
    coord: Coord, me: int, clock: Clock, logs: LogManager, damaged: UnhealthyReplicas
) -> set[str]:
    """Remove each replica of broker `me` that may lack records from the ISR and from the eligible
    replicas (KIP-966). If a replica is the only one assigned to its partition, it is not removed.
    Return the names of all topics except those being deleted. After an error, this call can be
    repeated. Raise CoordError or MalformedNode."""
    power_loss = PowerLoss(coord, me, clock)
    await power_loss.step_aside(left_of(logs, logs.suspects) | await vanished(coord, me, logs))
    await damaged.settle()
    await power_loss.step_aside(await read_accepted_losses(coord, me, logs), ACCEPTED_LOSS)
    return await read_topic_names(coord) - await read_deletion_requests(coord)


async def wait_for_cluster(metadata: MetadataView, controller: Controller, broker_id: int) -> None:
    """Wait until the metadata contains the broker `broker_id`. Raise StartupError after
    `_READY_WAIT_S`."""
    known = await metadata.wait_until(lambda: broker_id in metadata.brokers, _READY_WAIT_S)
    if not known:
        raise StartupError(
            f"broker {broker_id} did not receive the cluster metadata from a "
            f"controller within {_READY_WAIT_S:.0f} s. Check that the broker named in "
            "the ZooKeeper node /controller runs, and that "
            "inter.broker.listener.name is the same on all brokers"
        )
    # Otherwise a CreateTopics right after the start may find no controller.
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(controller.looked.wait(), _READY_WAIT_S)


async def wait_for_topics(metadata: MetadataView, coord: Coord, existing: Collection[str]) -> None:
    """Wait until the metadata contains every topic in `existing`, except topics whose ZooKeeper
    node is malformed. After a time limit, log the missing topics and return."""

    def missing() -> set[str]:
        return wanted - metadata.topics.keys()

    wanted = set(existing)
    if await metadata.wait_until(lambda: not missing(), _OPEN_SOON_S):
        return
    with contextlib.suppress(CoordError):
        readable, _ = await read_topics(coord, missing())
        wanted.intersection_update(readable)
    if not await metadata.wait_until(lambda: not missing(), _OPEN_WAIT_S):
        late = sorted(missing())
        text = "topics not open yet, the broker serves clients without them count=%d first=%s"
        log.warning(text, len(late), late[:5])
