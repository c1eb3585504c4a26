"""The content of nodes: encodes values of the model as JSON text, and decodes them. `decode_*`
functions raise MalformedNode; `path` is for the error message.

Kafka's rules: compact UTF-8 JSON. Numbers are integers of 32 bits, because old readers accept no
larger ones. Times and producer ids are strings. pybroker writes the newest versions that all
readers of 0.8.2 to 3.9 accept, and reads every version. Unknown keys survive a rewrite of topic and
state nodes.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from pybroker.config.listeners import PORT_MAX, PROTOCOLS
from pybroker.coordinator.zookeeper.json_nodes import (
    Fields,
    decimal,
    dump,
    load,
    load_object,
    malformed,
)
from pybroker.errors import MalformedNode
from pybroker.model import Endpoint, PartitionState, TopicPartition, decode_uuid, encode_uuid

_BROKER_VERSION: Final = 4
_BROKER_BYTES_MAX: Final = 2**15 - 1
"""The maximum size (bytes) of a registration. The controller sends the host and rack in it to all
brokers as strings of the Kafka protocol, which have this limit."""
_TOPIC_VERSION: Final = 3
_TOPIC_VERSION_WITHOUT_ID: Final = 2
_STATE_KEYS: Final = frozenset(
    {"version", "controller_epoch", "leader", "leader_epoch", "isr", "eligible"}
)
_TOPIC_KEYS: Final = frozenset(
    {"version", "partitions", "adding_replicas", "removing_replicas", "topic_id"}
)

COORDINATED_KEY: Final = "pybroker"
"""A key in a consumer's node below `/consumers`. Only a group coordinator writes it, in the nodes
of its members; consumers of Kafka 0.8 do not."""

Replicas = Mapping[int, tuple[int, ...]]
"""Partition -> broker ids, the preferred replica first."""


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """The replicas of a topic's partitions. `adding` and `removing` name only partitions that are
    being reassigned (KIP-455). `unknown` has the node's other JSON keys, which later versions
    wrote."""

    replicas: Replicas
    topic_id: uuid.UUID | None = None
    adding: Replicas = field(default_factory=dict)
    removing: Replicas = field(default_factory=dict)
    unknown: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """A block of producer ids: `first` to `last` (both included) belong to `broker_id`."""

    broker_id: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ConsumerRegistration:
    """The subscription of a consumer of Kafka 0.8: topic or pattern -> number of streams.
    `pattern`: static, white_list or black_list. `is_coordinated`: whether a group coordinator wrote
    the registration for a member."""

    subscription: Mapping[str, int]
    pattern: str
    timestamp_ms: int
    is_coordinated: bool = False


# ---- topics and partitions


def encode_topic(assignment: TopicAssignment) -> bytes:
    version = _TOPIC_VERSION_WITHOUT_ID if assignment.topic_id is None else _TOPIC_VERSION
    content: dict[str, object] = dict(assignment.unknown)
    content["version"] = version
    content["partitions"] = _replicas_to_json(assignment.replicas)
    content["adding_replicas"] = _replicas_to_json(assignment.adding)
    content["removing_replicas"] = _replicas_to_json(assignment.removing)
    if assignment.topic_id is not None:
        content["topic_id"] = encode_uuid(assignment.topic_id)
    return dump(content)


def decode_topic(path: str, data: bytes) -> TopicAssignment:
    """Decode a topic's node, version 1 to 3."""
    fields = load_object(path, data)
    text = fields.text("topic_id", default="")
    try:
        topic_id = decode_uuid(text) if text else None
    except ValueError as error:
        raise malformed(path, "a base64url UUID of 22 characters at topic_id", text) from error
    return TopicAssignment(
        replicas=_assigned(path, _replicas_from_json(fields, "partitions")),
        topic_id=topic_id,
        adding=_replicas_from_json(fields, "adding_replicas", required=False),
        removing=_replicas_from_json(fields, "removing_replicas", required=False),
        unknown=fields.without(_TOPIC_KEYS),
    )


def encode_state(state: PartitionState, previous: bytes = b"") -> bytes:
    """Encode a state. `previous` is the node's old content, whose unknown keys are kept."""
    content: dict[str, object] = {}
    with suppress(MalformedNode):
        content = load_object("", previous).without(_STATE_KEYS)
    content["controller_epoch"] = state.controller_epoch
    content["leader"] = state.leader
    content["version"] = 1
    content["leader_epoch"] = state.leader_epoch
    content["isr"] = list(state.isr)
    if state.eligible:
        content["eligible"] = list(state.eligible)
    return dump(content)


def decode_state(path: str, data: bytes) -> PartitionState:
    fields = load_object(path, data)
    return PartitionState(
        leader=fields.integer("leader"),
        leader_epoch=fields.integer("leader_epoch"),
        isr=fields.integers("isr"),
        controller_epoch=fields.integer("controller_epoch"),
        eligible=fields.integers("eligible", required=False),
    )


def encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode the partitions of an ISR change notification or a preferred replica election."""
    return dump({"version": 1, "partitions": [_partition_to_json(key) for key in partitions]})


def decode_partitions(path: str, data: bytes) -> list[TopicPartition]:
    return [_partition_from(item) for item in load_object(path, data).objects("partitions")]


def encode_reassignment(replicas: Mapping[TopicPartition, Sequence[int]]) -> bytes:
    items = [
        {**_partition_to_json(key), "replicas": list(brokers)} for key, brokers in replicas.items()
    ]
    return dump({"version": 1, "partitions": items})


def decode_reassignment(path: str, data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    items = load_object(path, data).objects("partitions")
    return {_partition_from(item): item.integers("replicas") for item in items}


# ---- controller


def encode_controller(broker_id: int, timestamp_ms: int) -> bytes:
    return dump({"version": 1, "brokerid": broker_id, "timestamp": str(timestamp_ms)})


def decode_controller(path: str, data: bytes) -> int:
    """Return the id of the controller. Decodes versions 1 and 2, and a bare number."""
    content = load(path, data)
    if isinstance(content, int) and not isinstance(content, bool):
        return content
    return load_object(path, data).integer("brokerid")


def encode_number(value: int) -> bytes:
    """Encode a number as decimal text."""
    return str(value).encode()


def decode_number(path: str, data: bytes) -> int:
    number = decimal(data.decode("ascii", "replace"))
    if number is None:
        raise malformed(path, "a decimal number", data)
    return number


# ---- configuration


def encode_config(config: Mapping[str, str]) -> bytes:
    return dump({"version": 1, "config": dict(config)})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    """Return option -> value. A node without data has no values."""
    return load_object(path, data).texts("config") if data else {}


def encode_config_change(entity_path: str) -> bytes:
    """Encode a notification for a path of `paths.config_entity_path`."""
    return dump({"version": 2, "entity_path": entity_path})


def decode_config_change(path: str, data: bytes) -> str:
    """Return the entity's path below /config. Decodes version 2, version 1 (type and name) and the
    bare topic name of 0.8.2."""
    content = load(path, data)
    if isinstance(content, str):
        return f"topics/{content}"
    fields = load_object(path, data)
    if fields.integer("version") == 1:
        return f"{fields.text('entity_type')}/{fields.text('entity_name')}"
    return fields.text("entity_path")


# ---- cluster, producer ids, log directories, classic consumers


def encode_cluster_id(cluster_id: str) -> bytes:
    """Encode the node of the cluster id. The field `version` is a string, as in Kafka."""
    return dump({"version": "1", "id": cluster_id})


def decode_cluster_id(path: str, data: bytes) -> str:
    return load_object(path, data).text("id")


def encode_producer_id_block(block: ProducerIdBlock) -> bytes:
    content = {
        "version": 1,
        "broker": block.broker_id,
        "block_start": str(block.first),
        "block_end": str(block.last),
    }
    return dump(content)


def decode_producer_id_block(path: str, data: bytes) -> ProducerIdBlock | None:
    """Return the latest block; None if no broker has taken one yet."""
    if not data:
        return None
    fields = load_object(path, data)
    return ProducerIdBlock(
        broker_id=fields.integer("broker"),
        first=fields.number_in_text("block_start"),
        last=fields.number_in_text("block_end"),
    )


class LogDirEvent(enum.IntEnum):
    """The reason of a broker's log directory notification. Kafka has only DIRECTORY_FAILED."""

    DIRECTORY_FAILED = 1
    REPLICAS_CHANGED = 2
    """The broker refuses to lead with one of its replicas, or has removed one of its replicas from
    the ISR."""


def encode_log_dir_event(broker_id: int, event: LogDirEvent) -> bytes:
    return dump({"version": 1, "broker": broker_id, "event": int(event)})


def decode_log_dir_event(path: str, data: bytes) -> tuple[int, LogDirEvent]:
    """Return (broker id, reason). An unknown reason counts as DIRECTORY_FAILED."""
    content = load_object(path, data)
    is_changed = (
        "event" in content.names() and content.integer("event") == LogDirEvent.REPLICAS_CHANGED
    )
    event = LogDirEvent.REPLICAS_CHANGED if is_changed else LogDirEvent.DIRECTORY_FAILED
    return content.integer("broker"), event


def encode_consumer(registration: ConsumerRegistration) -> bytes:
    content = {
        "version": 1,
        "subscription": dict(registration.subscription),
        "pattern": registration.pattern,
        "timestamp": str(registration.timestamp_ms),
    }
    if registration.is_coordinated:
        content[COORDINATED_KEY] = {"coordinated": True}
    return dump(content)


def is_coordinated_member(path: str, data: bytes) -> bool:
    """Whether a group coordinator wrote the member's node; False if the content is malformed."""
    try:
        return COORDINATED_KEY in load_object(path, data).names()
    except MalformedNode:
        return False


def decode_consumer(path: str, data: bytes) -> ConsumerRegistration:
    fields = load_object(path, data)
    subscription = fields.nested("subscription")
    return ConsumerRegistration(
        subscription={name: subscription.integer(name) for name in subscription.names()},
        pattern=fields.text("pattern", default="static"),
        timestamp_ms=fields.number_in_text("timestamp", default=-1),
        is_coordinated=COORDINATED_KEY in fields.names(),
    )


# ---- brokers


def encode_broker(
    endpoints: Sequence[Endpoint], rack: str | None, timestamp_ms: int, *, jmx_port: int = -1
) -> bytes:
    """Encode a registration. Host and port at the top level are those of the first PLAINTEXT
    endpoint."""
    plain = next((item for item in endpoints if item.security_protocol == "PLAINTEXT"), None)
    content: dict[str, object] = {
        "version": _BROKER_VERSION,
        "host": plain.host if plain else None,
        "port": plain.port if plain else -1,
        "jmx_port": jmx_port,
        "timestamp": str(timestamp_ms),
        "endpoints": [
            f"{item.listener}://{_host_text(item.host)}:{item.port}" for item in endpoints
        ],
        "listener_security_protocol_map": {
            item.listener: item.security_protocol for item in endpoints
        },
    }
    if rack is not None:
        content["rack"] = rack
    return dump(content)


def decode_broker(path: str, data: bytes) -> tuple[tuple[Endpoint, ...], str | None]:
    """Return (endpoints, rack). Decodes versions 1 to 5. Version 1 has one PLAINTEXT endpoint.
    Before version 4 a listener's name is its security protocol."""
    if len(data) > _BROKER_BYTES_MAX:
        raise malformed(path, f"at most {_BROKER_BYTES_MAX} bytes", len(data))
    fields = load_object(path, data)
    rack = fields.text("rack", default="") or None
    if fields.integer("version") < 2:
        endpoint = Endpoint("PLAINTEXT", fields.text("host"), fields.integer("port"))
        return (endpoint,), rack
    protocols = fields.texts("listener_security_protocol_map", required=False)
    endpoints = [_endpoint(path, text, protocols) for text in fields.text_list("endpoints")]
    return tuple(endpoints), rack


def _endpoint(path: str, text: str, protocols: Mapping[str, str]) -> Endpoint:
    listener, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    number = decimal(port) if port.isascii() and port.isdigit() else None
    if not (listener and separator and colon) or number is None or number > PORT_MAX:
        raise malformed(path, "LISTENER://host:port in endpoints", text)
    protocol = protocols.get(listener, listener)
    if protocol not in PROTOCOLS:
        raise malformed(path, f"one of the security protocols {', '.join(PROTOCOLS)}", protocol)
    return Endpoint(listener, host.strip("[]"), number, protocol)


def _host_text(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# ---- private


def _partition_to_json(key: TopicPartition) -> dict[str, object]:
    return {"topic": key.topic, "partition": key.partition}


def _partition_from(item: Fields) -> TopicPartition:
    return TopicPartition(item.text("topic"), item.integer("partition"))


def _replicas_to_json(replicas: Replicas) -> dict[str, list[int]]:
    return {str(partition): list(brokers) for partition, brokers in replicas.items()}


def _assigned(path: str, replicas: Replicas) -> Replicas:
    for partition, brokers in replicas.items():
        if not brokers or len(set(brokers)) < len(brokers):
            raise malformed(
                path, f"one or more distinct replicas at partitions.{partition}", brokers
            )
    return replicas


def _replicas_from_json(fields: Fields, key: str, *, required: bool = True) -> Replicas:
    partitions = fields.nested(key, required=required)
    return {partitions.number(name): partitions.integers(name) for name in partitions.names()}
