"""The cluster and its brokers: listing them, and the API versions of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pybroker.client.admin.calls import Calls
from pybroker.client.connection import Connection
from pybroker.client.errors import ClientError, UnsupportedByBroker
from pybroker.client.leader_calls import response_error
from pybroker.client.metadata import Node
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.cluster import DescribeClusterRequest, DescribeClusterResponse


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The brokers of a cluster, and its controller (None if there is none)."""

    cluster_id: str | None
    controller: Node | None
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class BrokerVersions:
    """API key -> the lowest and highest version that a broker supports. If the broker did not
    respond, only `error` is set."""

    node: Node
    versions: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    error: ClientError | None = None

    def check(self) -> BrokerVersions:
        """Return this object. Raises `error` if it is set."""
        if self.error is not None:
            raise self.error
        return self


async def describe_cluster(calls: Calls, *, timeout_ms: int | None) -> ClusterDescription:
    """Return the cluster, by DescribeCluster (KIP-700), or by Metadata for older brokers."""

    async def ask(connection: Connection, timeout_s: float) -> DescribeClusterResponse:
        answer = await connection.send(
            ApiKey.DESCRIBE_CLUSTER,
            DescribeClusterRequest(),
            DescribeClusterResponse,
            timeout_s=timeout_s,
        )
        if error := response_error(answer.error_code, answer.error_message):
            raise error
        return answer

    try:
        answer = await calls.any_broker(ask, timeout_ms)
    except UnsupportedByBroker:
        view = await calls.metadata([])
        nodes = dict(view.nodes)
        cluster_id, controller = view.cluster_id, view.controller_id
    else:
        nodes = {
            row.broker_id: Node(row.broker_id, row.host, row.port, row.rack)
            for row in answer.brokers
        }
        cluster_id, controller = answer.cluster_id, answer.controller_id
    return ClusterDescription(
        cluster_id, nodes.get(controller), tuple(nodes[number] for number in sorted(nodes))
    )


async def api_versions(
    calls: Calls, brokers: Iterable[int] | None, *, timeout_ms: int | None
) -> dict[int, BrokerVersions]:
    """Return the API versions of each of these brokers (None: all known brokers)."""

    async def ask(connection: Connection, timeout_s: float) -> Mapping[int, tuple[int, int]]:
        return connection.versions

    answers = await calls.each_broker(brokers, ask, timeout_ms)
    known = calls.cluster.view.nodes
    found = {}
    for number, answer in answers.items():
        node = known.get(number, Node(number, "", -1))
        if isinstance(answer, ClientError):
            found[number] = BrokerVersions(node, error=answer)
        else:
            found[number] = BrokerVersions(node, answer)
    return found
