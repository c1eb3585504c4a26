"""The command `pybroker broker-api-versions`, equivalent to Kafka's kafka-broker-api-versions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import click

from pybroker.client.admin.admin import Admin
from pybroker.client.admin.cluster import BrokerVersions
from pybroker.client.metadata import Node
from pybroker.tools._cli import (
    EXIT_FAILED,
    Tool,
    bootstrap_option,
    client_options,
    config_file_option,
    format_option,
    run_async,
    write_json,
)
from pybroker.wire.api import APIS, Api

Range = tuple[int, int]

# fmt: off
NAMES: Final[Mapping[int, str]] = MappingProxyType({
    0: "Produce", 1: "Fetch", 2: "ListOffsets", 3: "Metadata", 4: "LeaderAndIsr",
    5: "StopReplica", 6: "UpdateMetadata", 7: "ControlledShutdown", 8: "OffsetCommit",
    9: "OffsetFetch", 10: "FindCoordinator", 11: "JoinGroup", 12: "Heartbeat", 13: "LeaveGroup",
    14: "SyncGroup", 15: "DescribeGroups", 16: "ListGroups", 17: "SaslHandshake",
    18: "ApiVersions", 19: "CreateTopics", 20: "DeleteTopics", 21: "DeleteRecords",
    22: "InitProducerId", 23: "OffsetForLeaderEpoch", 24: "AddPartitionsToTxn",
    25: "AddOffsetsToTxn", 26: "EndTxn", 27: "WriteTxnMarkers", 28: "TxnOffsetCommit",
    29: "DescribeAcls", 30: "CreateAcls", 31: "DeleteAcls", 32: "DescribeConfigs",
    33: "AlterConfigs", 34: "AlterReplicaLogDirs", 35: "DescribeLogDirs",
    36: "SaslAuthenticate", 37: "CreatePartitions", 38: "CreateDelegationToken",
    39: "RenewDelegationToken", 40: "ExpireDelegationToken", 41: "DescribeDelegationToken",
    42: "DeleteGroups", 43: "ElectLeaders", 44: "IncrementalAlterConfigs",
    45: "AlterPartitionReassignments", 46: "ListPartitionReassignments", 47: "OffsetDelete",
    48: "DescribeClientQuotas", 49: "AlterClientQuotas", 50: "DescribeUserScramCredentials",
    51: "AlterUserScramCredentials", 52: "Vote", 53: "BeginQuorumEpoch", 54: "EndQuorumEpoch",
    55: "DescribeQuorum", 56: "AlterPartition", 57: "UpdateFeatures", 58: "Envelope",
    59: "FetchSnapshot", 60: "DescribeCluster", 61: "DescribeProducers",
    62: "BrokerRegistration", 63: "BrokerHeartbeat", 64: "UnregisterBroker",
    65: "DescribeTransactions", 66: "ListTransactions", 67: "AllocateProducerIds",
    68: "ConsumerGroupHeartbeat", 69: "ConsumerGroupDescribe", 70: "ControllerRegistration",
    71: "GetTelemetrySubscriptions", 72: "PushTelemetry", 73: "AssignReplicasToDirs",
    74: "ListClientMetricsResources", 75: "DescribeTopicPartitions", 76: "ShareGroupHeartbeat",
    77: "ShareGroupDescribe", 78: "ShareFetch", 79: "ShareAcknowledge", 80: "AddRaftVoter",
    81: "RemoveRaftVoter", 82: "UpdateRaftVoter", 83: "InitializeShareGroupState",
    84: "ReadShareGroupState", 85: "WriteShareGroupState", 86: "DeleteShareGroupState",
    87: "ReadShareGroupStateSummary",
})
"""The names of the APIs in Kafka 3.9, by API key."""

ONLY_OF_QUORUMS: Final = frozenset({52, 53, 54, 59, 62, 63, 70, 73, 82})
"""APIs of KRaft only. A broker that lacks such an API is not reported as UNSUPPORTED."""
# fmt: on


@click.command("broker-api-versions", cls=Tool, error_prefix="Error: ")
@bootstrap_option()
@config_file_option("--command-config", "--admin.config")
@format_option()
def command(bootstrap_server: str, config_file: str | None, output_format: str) -> int:
    """Print the APIs that each broker supports, with their versions.

    "usable" is the version that this client would use. UNSUPPORTED marks an API of Kafka 3.9 that
    the broker does not offer.

    \b
    Example: pybroker broker-api-versions --bootstrap-server 127.0.0.1:9092
    """
    options = client_options(bootstrap_server, config_file)

    async def work() -> int:
        async with Admin(**options) as admin:
            found = await admin.api_versions()
        for number in sorted(found):
            if output_format == "json":
                write_json(as_json(found[number]))
            else:
                click.echo(as_text(found[number]))
        return EXIT_FAILED if all(answer.error for answer in found.values()) else 0

    return run_async(work())


def as_text(answer: BrokerVersions) -> str:
    """Return the text that Kafka's tool prints for one broker."""
    name = format_node(answer.node)
    if answer.error is not None:
        return f"{name} -> ERROR: {answer.error}"
    missing = NAMES.keys() - ONLY_OF_QUORUMS
    rows = ",\n\t".join(
        describe_api(number, answer.versions.get(number), APIS_BY_NUMBER.get(number))
        for number in sorted(missing | answer.versions.keys())
    )
    return f"{name} -> (\n\t{rows}\n)"


def as_json(answer: BrokerVersions) -> dict[str, object]:
    document: dict[str, object] = {
        "broker": answer.node.id,
        "host": answer.node.host,
        "port": answer.node.port,
    }
    if answer.error is not None:
        return document | {"error": str(answer.error)}
    return document | {
        "apis": [
            {"key": number, "name": NAMES.get(number), "min": low, "max": high}
            for number, (low, high) in sorted(answer.versions.items())
        ]
    }


def describe_api(number: int, offered: Range | None, supported: Api | None) -> str:
    """Return a text such as `Fetch(1): 4 to 12 [usable: 12]`. `offered`: the broker's versions,
    None if the broker lacks the API. `supported`: None if this client lacks the API."""
    name = NAMES.get(number, "UNKNOWN")
    if offered is None:
        return f"{name}({number}): UNSUPPORTED"
    low, high = offered
    text = f"{name}({number}): {low}" if low == high else f"{name}({number}): {low} to {high}"
    if supported is None:
        return text
    if supported.max_version < low:
        return f"{text} [unusable: node too new]"
    if high < supported.min_version:
        return f"{text} [unusable: node too old]"
    return f"{text} [usable: {min(high, supported.max_version)}]"


def format_node(node: Node) -> str:
    """Return a node's text in the format of Java's Node.toString."""
    rack = "null" if node.rack is None else node.rack
    return f"{node.host}:{node.port} (id: {node.id} rack: {rack})"


APIS_BY_NUMBER: Final[Mapping[int, Api]] = MappingProxyType(
    {int(key): api for key, api in APIS.items()}
)
