"""ApiVersions (18) 0-4 and DescribeCluster (60) 0-1.

ApiVersions: 1 throttle time. 2 the client throttles itself. 3 flexible, the client's name
(KIP-511), features. 4 features whose lowest level is 0. The header of the answer stays at version 0
for all of them, since the client does not yet know which version it will get.
DescribeCluster is flexible from the start (KIP-700). 1 the type of endpoint (KIP-919).
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
OPERATIONS_NOT_ASKED: Final = -(2**31)  # instead of the bits of authorized operations


@message
class ApiVersionsRequest(Message):
    """Asks which APIs and versions the broker understands; the first request of a connection."""

    client_software_name: str = string(
        "The client library's name (KIP-511).", since=3, ignorable=True
    )
    client_software_version: str = string("The client library's version.", since=3, ignorable=True)


@message
class ApiVersion(Message):
    """One element of `ApiVersionsResponse.api_keys`."""

    api_key: int = int16("The API's number.")
    min_version: int = int16("The lowest version understood.")
    max_version: int = int16("The highest version understood.")


@message
class SupportedFeatureKey(Message):
    """One element of `ApiVersionsResponse.supported_features`."""

    name: str = string("The feature's name.")
    min_version: int = int16("The lowest level that the broker knows.")
    max_version: int = int16("The highest level that the broker knows.")


@message
class FinalizedFeatureKey(Message):
    """One element of `ApiVersionsResponse.finalized_features`."""

    name: str = string("The feature's name.")
    max_version_level: int = int16("The highest level switched on.")
    min_version_level: int = int16("The lowest level switched on.")


@message
class ApiVersionsResponse(Message):
    """The APIs and versions that the broker understands."""

    error_code: int = int16("The error, or 0.")
    api_keys: list[ApiVersion] = array(ApiVersion, "The APIs and their versions.")
    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all.",
        since=1,
        ignorable=True,
    )
    supported_features: list[SupportedFeatureKey] = array(
        SupportedFeatureKey,
        "Features that the broker knows (KIP-584).",
        since=3,
        tag=0,
        ignorable=True,
    )
    finalized_features_epoch: int = int64(
        "The version of the finalized features, or -1.", since=3, tag=1, ignorable=True, default=-1
    )
    finalized_features: list[FinalizedFeatureKey] = array(
        FinalizedFeatureKey,
        "Features that the cluster has switched on.",
        since=3,
        tag=2,
        ignorable=True,
    )
    zk_migration_ready: bool = boolean(
        "Whether a KRaft controller could take over.", since=3, tag=3, ignorable=True
    )


@message
class DescribeClusterRequest(Message):
    """Asks for the brokers of the cluster (KIP-700)."""

    include_cluster_authorized_operations: bool = boolean(
        "Whether to answer the operations allowed on the cluster."
    )
    endpoint_type: int = int8(
        "The endpoints to describe: 1 brokers, 2 controllers.", since=1, default=ENDPOINT_BROKERS
    )


@message
class DescribeClusterBroker(Message):
    """One element of `DescribeClusterResponse.brokers`."""

    broker_id: int = int32("The broker's id.")
    host: str = string("Where the broker listens.")
    port: int = int32("The port it listens on.")
    rack: str | None = string("The broker's rack, or null.", nullable_since=0, default=None)


@message
class DescribeClusterResponse(Message):
    """Brokers and controller."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error in words, or null.", nullable_since=0, default=None
    )
    endpoint_type: int = int8(
        "The endpoints described: 1 brokers, 2 controllers.",
        since=1,
        ignorable=True,
        default=ENDPOINT_BROKERS,
    )
    cluster_id: str = string("The cluster's id.")
    controller_id: int = int32("The controller's broker id, or -1.", default=-1)
    brokers: list[DescribeClusterBroker] = array(
        DescribeClusterBroker, "The live brokers, as this listener's clients reach them."
    )
    cluster_authorized_operations: int = int32(
        "Bits of the operations that the client may do to the cluster.",
        default=OPERATIONS_NOT_ASKED,
    )
