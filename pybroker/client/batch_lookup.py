"""Finds the base offset of the batch that contains an offset, by a Fetch of one batch.
`spark/splits.py` splits offset ranges at such base offsets if possible, so that no batch is decoded
twice."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from pybroker.bounded_gather import bounded_gather
from pybroker.client.backoff import Deadline
from pybroker.client.cluster import Cluster
from pybroker.client.errors import ClientError
from pybroker.client.leader_calls import request_limit_s
from pybroker.errors import CorruptionError
from pybroker.model import TopicPartition
from pybroker.records.batch import HEADER_SIZE, read_header
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

log = logging.getLogger(__name__)

Place = tuple[TopicPartition, int]
"""A partition and an offset."""

AT_ONCE_MAX: Final = 16
"""The maximum number of Fetch requests in flight. A response has one batch, which may exceed the
byte limit of the request."""
NO_SESSION_EPOCH: Final = -1


async def batch_starts(
    cluster: Cluster, places: Collection[Place], *, deadline: Deadline
) -> dict[Place, int]:
    """Return for each (partition, offset) the base offset of the first batch that ends at or after
    the offset. Failed lookups are omitted."""
    found: dict[Place, int] = {}

    async def look_up(place: Place) -> None:
        if deadline.passed:
            return
        try:
            base = await _ask(cluster, *place, request_limit_s(cluster, deadline))
        except (ClientError, CorruptionError) as error:
            log.debug("batch not found place=%s@%d reason=%s", *place, error)
            return
        if base is not None:
            found[place] = base

    await bounded_gather(look_up, list(places), AT_ONCE_MAX)
    return found


async def _ask(cluster: Cluster, key: TopicPartition, offset: int, limit_s: float) -> int | None:
    leader, info = cluster.view.leader(key), cluster.view.partition(key)
    if leader is None or info is None:
        return None
    connection = await cluster.connection(leader)
    partition = FetchPartition(
        partition=key.partition,
        current_leader_epoch=info.leader_epoch,
        fetch_offset=offset,
        partition_max_bytes=1,
    )
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1,
        isolation_level=0,
        session_epoch=NO_SESSION_EPOCH,
        topics=[FetchTopic(topic=key.topic, partitions=[partition])],
    )
    answer = await connection.send(ApiKey.FETCH, request, FetchResponse, timeout_s=limit_s)
    for topic in answer.responses:
        for row in topic.partitions:
            if not row.error_code and row.records and len(row.records) >= HEADER_SIZE:
                return read_header(row.records).base_offset
    return None
