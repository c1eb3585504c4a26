"""ApiVersions (18), versions 0-4, and DescribeCluster (60), versions 0-1 (KIP-919).

ApiVersions 2 and 4 add no field: version 2 moves throttling to the client (KIP-219), version 4
allows features whose lowest level is 0.
"""

from __future__ import annotations

from typing import Final

from pybroker.wire.schema import (
    Message,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    message,
    string,
)

ENDPOINT_BROKERS: Final = 1
ENDPOINT_CONTROLLERS: Final = 2
OPERATIONS_NOT_ASKED: Final = -(2**31)
"""The value of a field for authorized operations if the client did not request them."""


@message
class ApiVersionsRequest(Message):
    """Requests the APIs and versions that the broker supports, as the first request on a
    connection."""

    client_software_name: str = string(
        "The name of the client library (KIP-511).", since=3, ignorable=True
    )
    client_software_version: str = string(
        "The version of the client library.", since=3, ignorable=True
    )


@message
class ApiVersion(Message):
    """The versions of one API that the broker supports: an element of
    `ApiVersionsResponse.api_keys`."""

    api_key: int = int16("The API key.")
    min_version: int = int16("The lowest supported version.")
    max_version: int = int16("The highest supported version.")


@message
class SupportedFeatureKey(Message):
    """The name of a feature, and the lowest and highest level that the broker supports: an element
    of `ApiVersionsResponse.supported_features`."""

    name: str = string("The feature name.")
    min_version: int = int16("The lowest feature level that the broker supports.")
    max_version: int = int16("The highest feature level that the broker supports.")


@message
class FinalizedFeatureKey(Message):
    """A feature, and its levels that are finalized for the cluster: an element of
    `ApiVersionsResponse.finalized_features`."""

    name: str = string("The feature name.")
    max_version_level: int = int16("The highest finalized feature level.")
    min_version_level: int = int16("The lowest finalized feature level.")


@message
class ApiVersionsResponse(Message):
    """The APIs and versions that the broker supports."""

    error_code: int = int16("The error, or 0.")
    api_keys: list[ApiVersion] = array(ApiVersion, "The supported versions of each API.")
    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none.",
        since=1,
        ignorable=True,
    )
    supported_features: list[SupportedFeatureKey] = array(
        SupportedFeatureKey,
        "The features that the broker supports (KIP-584).",
        since=3,
        tag=0,
        ignorable=True,
    )
    finalized_features_epoch: int = int64(
        "The epoch of the finalized features, or -1.", since=3, tag=1, ignorable=True, default=-1
    )
    finalized_features: list[FinalizedFeatureKey] = array(
        FinalizedFeatureKey,
        "The finalized features of the cluster.",
        since=3,
        tag=2,
        ignorable=True,
    )
    zk_migration_ready: bool = boolean(
        "Whether the controller is ready for the migration from ZooKeeper to KRaft.",
        since=3,
        tag=3,
        ignorable=True,
    )


@message
class DescribeClusterRequest(Message):
    """Requests the brokers of the cluster (KIP-700)."""

    include_cluster_authorized_operations: bool = boolean(
        "Whether the response includes the operations that the client may perform on the cluster."
    )
    endpoint_type: int = int8(
        "The type of endpoints to describe: 1 brokers, 2 controllers.",
        since=1,
        default=ENDPOINT_BROKERS,
    )


@message
class DescribeClusterBroker(Message):
    """A live broker: an element of `DescribeClusterResponse.brokers`."""

    broker_id: int = int32("The broker id.")
    host: str = string("The host on which the broker listens.")
    port: int = int32("The port on which the broker listens.")
    rack: str | None = string("The rack of the broker, or null.", nullable_since=0, default=None)


@message
class DescribeClusterResponse(Message):
    """The brokers and the controller of the cluster."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", nullable_since=0, default=None
    )
    endpoint_type: int = int8(
        "The type of the described endpoints: 1 brokers, 2 controllers.",
        since=1,
        ignorable=True,
        default=ENDPOINT_BROKERS,
    )
    cluster_id: str = string("The cluster id.")
    controller_id: int = int32("The broker id of the controller, or -1.", default=-1)
    brokers: list[DescribeClusterBroker] = array(
        DescribeClusterBroker,
        "The live brokers, with their addresses on the listener of this connection.",
    )
    cluster_authorized_operations: int = int32(
        "A bit field of the operations that the client may perform on the cluster.",
        default=OPERATIONS_NOT_ASKED,
    )
