"""A broker's registration and id, the cluster's id, and the persistent parents of all nodes.

One multi registers a broker. It creates the broker's ephemeral node, whose czxid is the broker
epoch (KIP-380). It also writes a persistent node, whose version is the broker's incarnation
(KIP-903). So each epoch belongs to one incarnation.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from typing import Final

from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.repeating import repeat_conditional_write
from pybroker.coordinator.zookeeper.schemas import (
    decode_broker,
    decode_cluster_id,
    encode_broker,
    encode_cluster_id,
)
from pybroker.errors import (
    BadVersion,
    ConnectionLoss,
    CoordError,
    MalformedNode,
    MultiFailed,
    NodeExists,
    NoNode,
    StartupError,
)
from pybroker.model import Broker, encode_uuid
from pybroker.ports import Clock, Coord, CoordOp, CreateOp, DeleteOp, NodeStat, Rng, SetOp

log = logging.getLogger(__name__)

RESERVED_BROKER_ID_MAX: Final = 1000
"""The default of `reserved.broker.max.id`: generated broker ids are larger."""

_ATTEMPTS_MAX: Final = 10
_TIMEOUTS: Final = 2
"""If another session's registration of the broker id still exists after this number of session
timeouts, another live broker uses the id. One session timeout is not enough: ZooKeeper ends
sessions up to half a timeout late, and extends all sessions when its leader changes."""
_UUID_BYTES: Final = 16


async def create_parents(coord: Coord) -> None:
    """Create the persistent nodes that brokers and Kafka's tools expect. Raises CoordError."""
    await asyncio.gather(*(ensure(coord, path) for path in paths.PERSISTENT_PARENTS))


async def ensure(coord: Coord, path: str) -> None:
    """Create the node, without data, and its missing parents. No error if the node exists."""
    try:
        await coord.create(path)
    except NodeExists:
        return
    except NoNode:
        await ensure(coord, paths.parent(path))
        await ensure(coord, path)


async def cluster_id(coord: Coord, rng: Rng) -> str:
    """Return the cluster's id (22 characters). The first broker creates it."""
    with suppress(NoNode):
        return await _read_cluster_id(coord)
    await ensure(coord, paths.parent(paths.CLUSTER_ID))
    while True:
        made_up = encode_uuid(uuid.UUID(bytes=rng.randbytes(_UUID_BYTES), version=4))
        if not made_up.startswith("-"):  # tools would parse the id as an option
            break
    with suppress(NodeExists):
        await coord.create(paths.CLUSTER_ID, encode_cluster_id(made_up))
    return await _read_cluster_id(coord)


async def generate_broker_id(coord: Coord, reserved_max: int = RESERVED_BROKER_ID_MAX) -> int:
    """Return a new broker id, above `reserved_max`."""
    await ensure(coord, paths.BROKER_SEQUENCE)
    stat = await coord.set(paths.BROKER_SEQUENCE, b"")
    return reserved_max + stat.version


async def register_broker(
    coord: Coord,
    broker: Broker,
    *,
    clock: Clock,
    session_timeout_ms: int,
    earlier_session_ids: Collection[int] = (),
) -> Broker:
    """Register the broker in an ephemeral node of this session. A registration by an earlier
    session of this broker is replaced. Return the broker with its epoch and incarnation. Raises
    CoordError. Raises StartupError if another session still has the id after two session
    timeouts."""
    deadline = clock.monotonic() + _TIMEOUTS * session_timeout_ms / 1000
    data = encode_broker(broker.endpoints, broker.rack, clock.wall_ms())
    await ensure(coord, paths.incarnation(broker.id))
    for _ in range(_ATTEMPTS_MAX):
        try:
            return await _register_once(coord, broker, data, [])
        except (MultiFailed, ConnectionLoss) as error:
            failure: CoordError = error
        found = await _registration(coord, broker.id)
        if found is None:
            continue  # the multi was not applied, or the other registration has just ended
        found_data, stat = found
        if stat.ephemeral_owner == coord.session_id and found_data == data:
            return await _adopt(coord, broker, stat)  # the multi was applied, its reply lost
        if stat.ephemeral_owner in {coord.session_id, *earlier_session_ids}:
            with suppress(MultiFailed, ConnectionLoss):
                removal = DeleteOp(paths.broker(broker.id), stat.version)
                return await _register_once(coord, broker, data, [removal])
            continue
        await _wait_for_other_session(coord, broker.id, found, deadline - clock.monotonic())
    raise failure


async def update_registration(coord: Coord, broker: Broker, *, clock: Clock) -> None:
    """Write the broker's present endpoints into its registration. Do nothing if this session has no
    registration. Raises CoordError."""
    path = paths.broker(broker.id)
    for _ in range(_ATTEMPTS_MAX):
        found = await _registration(coord, broker.id)
        if found is None or found[1].ephemeral_owner != coord.session_id:
            return
        data, stat = found
        with suppress(MalformedNode):
            if decode_broker(path, data)[0] == broker.endpoints:
                return
        changed = encode_broker(broker.endpoints, broker.rack, clock.wall_ms())
        try:
            await coord.set(path, changed, stat.version)
        except (BadVersion, NoNode, ConnectionLoss) as error:
            failure: CoordError = error
        else:
            return
    raise failure


async def wait_until_free(coord: Coord, broker_id: int, session_timeout_ms: int) -> None:
    """Wait until no other session has registered `broker_id`. Raises StartupError if another
    session still holds the id after two session timeouts. Raises CoordError if ZooKeeper fails."""
    found = await _registration(coord, broker_id)
    if found is not None and found[1].ephemeral_owner != coord.session_id:
        await _wait_for_other_session(
            coord, broker_id, found, _TIMEOUTS * session_timeout_ms / 1000
        )


async def _wait_for_other_session(
    coord: Coord, broker_id: int, found: tuple[bytes, NodeStat], timeout_s: float
) -> None:
    """Wait until another session's registration `found` is deleted. Raises StartupError after
    `timeout_s`."""
    data, stat = found
    log.warning(
        "broker id awaited broker=%d registered_by_session=0x%x",
        broker_id,
        stat.ephemeral_owner,
    )
    if not await _wait_until_deleted(coord, broker_id, timeout_s):
        raise StartupError(_taken(broker_id, data))


async def unregister_broker(coord: Coord, broker: Broker) -> None:
    """Remove the registration, if it belongs to this session. Raises CoordError."""
    found = await _registration(coord, broker.id)
    if found is None or found[1].ephemeral_owner != coord.session_id:
        return
    with suppress(NoNode, BadVersion):
        await coord.delete(paths.broker(broker.id), found[1].version)


async def _register_once(
    coord: Coord, broker: Broker, data: bytes, first_ops: list[CoordOp]
) -> Broker:
    """Register the broker by one multi, which begins with `first_ops`. The multi first creates the
    node empty and then sets its content, because only the result of a set contains the czxid."""
    path = paths.broker(broker.id)
    results = await coord.multi(
        [
            *first_ops,
            CreateOp(path, ephemeral=True),
            SetOp(path, data, 0),
            SetOp(paths.incarnation(broker.id), b""),
        ]
    )
    registered, incarnation = results[-2:]
    assert isinstance(registered, NodeStat)
    assert isinstance(incarnation, NodeStat)
    if registered.ephemeral_owner != coord.session_id:
        raise ConnectionLoss(f"the session that created the node {path} is over")
    return replace(broker, epoch=registered.czxid, incarnation=incarnation.version)


async def raise_incarnation(coord: Coord, broker_id: int) -> None:
    """Increase the broker's incarnation number, so that late Fetch requests of the broker's earlier
    process cannot add a replica to an ISR (KIP-903). A starting broker calls this before it removes
    its replicas from ISRs and before it registers. Raises CoordError."""
    path = paths.incarnation(broker_id)
    await ensure(coord, path)
    await repeat_conditional_write(lambda: coord.multi([SetOp(path, b"")]))


async def read_incarnation(coord: Coord, broker_id: int) -> int:
    """Return the broker's incarnation: the version of its incarnation node. Each registration of
    the broker raises this version (KIP-903). Return -1 if the node does not exist. Raises
    CoordError."""
    with suppress(NoNode):
        return (await coord.get(paths.incarnation(broker_id)))[1].version
    return -1


async def _adopt(coord: Coord, broker: Broker, registered: NodeStat) -> Broker:
    """Return the broker with the epoch and incarnation of its existing registration."""
    _, incarnation = await coord.get(paths.incarnation(broker.id))
    return replace(broker, epoch=registered.czxid, incarnation=incarnation.version)


async def _registration(coord: Coord, broker_id: int) -> tuple[bytes, NodeStat] | None:
    await coord.sync(paths.BROKER_IDS)
    try:
        return await coord.get(paths.broker(broker_id))
    except NoNode:
        return None


async def _wait_until_deleted(coord: Coord, broker_id: int, timeout_s: float) -> bool:
    """Return False if the registration still exists after `timeout_s`."""
    changed = asyncio.Event()
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while await coord.exists(paths.broker(broker_id), lambda _: changed.set()) is not None:
                await changed.wait()
                changed.clear()
            return True
    return await coord.exists(paths.broker(broker_id)) is None


def _taken(broker_id: int, data: bytes) -> str:
    where = ""
    with suppress(MalformedNode):
        endpoints, _ = decode_broker(paths.broker(broker_id), data)
        where = ", ".join(f"{endpoint.host}:{endpoint.port}" for endpoint in endpoints)
    return (
        f"broker id {broker_id} is registered already by {where or 'another broker'};"
        " set another broker.id, or stop that broker"
    )


async def _read_cluster_id(coord: Coord) -> str:
    data, _ = await coord.get(paths.CLUSTER_ID)
    return decode_cluster_id(paths.CLUSTER_ID, data)
