"""The paths of all nodes that pybroker reads or writes. Only this module builds and parses paths.

The tree is Kafka's; pybroker's own nodes are under /pybroker. Names that may have any character are
percent-encoded as by Kafka's Sanitizer.
"""

from __future__ import annotations

import re
import urllib.parse
import uuid
from typing import Final, NamedTuple

from pybroker.model import TopicPartition, encode_uuid

BROKER_IDS: Final = "/brokers/ids"
BROKER_SEQUENCE: Final = "/brokers/seqid"
TOPICS: Final = "/brokers/topics"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
DELETE_TOPICS: Final = "/admin/delete_topics"
PREFERRED_ELECTION: Final = "/admin/preferred_replica_election"
REASSIGNMENTS: Final = "/admin/reassign_partitions"
ISR_CHANGES: Final = "/isr_change_notification"
LOG_DIR_EVENTS: Final = "/log_dir_event_notification"
CONFIG: Final = "/config"
CONFIG_CHANGES: Final = "/config/changes"
CONSUMERS: Final = "/consumers"
CLUSTER_ID: Final = "/cluster/id"
PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"
ACLS: Final = "/kafka-acl"
ACL_CHANGES: Final = "/kafka-acl-changes"
PREFIXED_ACLS: Final = "/kafka-acl-extended/prefixed"
PREFIXED_ACL_CHANGES: Final = "/kafka-acl-extended-changes"
DELEGATION_TOKENS: Final = "/delegation_token/tokens"
DELEGATION_TOKEN_CHANGES: Final = "/delegation_token/token_changes"
FEATURES: Final = "/feature"
MIGRATION: Final = "/migration"
INCARNATIONS: Final = "/pybroker/incarnations"
COORDINATORS: Final = "/pybroker/coordinators"
COMMITTED: Final = "/pybroker/offsets"
OFFSETS_STORED: Final = "/pybroker/offsets_stored"
APPLIED_MARKERS: Final = "/pybroker/applied_markers"
SUSPECTS: Final = "/pybroker/suspects"
TOPIC_IDS: Final = "/pybroker/topic_ids"
LOSSES: Final = "/pybroker/losses"

CONFIG_CHANGE_PREFIX: Final = f"{CONFIG_CHANGES}/config_change_"
ISR_CHANGE_PREFIX: Final = f"{ISR_CHANGES}/isr_change_"
LOG_DIR_EVENT_PREFIX: Final = f"{LOG_DIR_EVENTS}/log_dir_event_"
ACL_CHANGE_PREFIX: Final = f"{ACL_CHANGES}/acl_changes_"
PREFIXED_ACL_CHANGE_PREFIX: Final = f"{PREFIXED_ACL_CHANGES}/acl_changes_"
DELEGATION_TOKEN_CHANGE_PREFIX: Final = f"{DELEGATION_TOKEN_CHANGES}/token_change_"

DEFAULT_ENTITY: Final = "<default>"
"""The name under /config for the default values, which apply to every entity without a value of its
own."""

CONFIG_ENTITY_TYPES: Final = ("topics", "clients", "users", "brokers", "ips")

PERSISTENT_PARENTS: Final = (
    CONSUMERS,
    BROKER_IDS,
    TOPICS,
    BROKER_SEQUENCE,
    CONFIG_CHANGES,
    *(f"{CONFIG}/{entity_type}" for entity_type in CONFIG_ENTITY_TYPES),
    DELETE_TOPICS,
    ISR_CHANGES,
    LOG_DIR_EVENTS,
    PRODUCER_ID_BLOCK,
    INCARNATIONS,
    COORDINATORS,
    LOSSES,
    TOPIC_IDS,
)
"""The nodes that a broker creates at its start, because Kafka's tools require them."""

_SEQUENCE_DIGITS: Final = 10
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
_NUMBER_MAX: Final = 2**31 - 1


class ConfigEntity(NamedTuple):
    """The entity of a configuration, as (entity type, decoded name) pairs. A client id of a user
    has two pairs: `users` and `clients`. Any other entity has one pair. The name DEFAULT_ENTITY
    stands for the default of all entities of the type."""

    parts: tuple[tuple[str, str], ...]


class OffsetKey(NamedTuple):
    """The group and the partition of a committed offset."""

    group: str
    topic_partition: TopicPartition


# ---- names


def encode_name(name: str) -> str:
    """Return a name as one component of a path. Bytes are encoded as %XX, except letters, digits,
    '.', '_' and '-'. The names '.' and '..' are encoded, too."""
    if name in (".", ".."):
        return name.replace(".", "%2E")
    return urllib.parse.quote(name, safe="").replace("~", "%7E")


def decode_name(component: str) -> str:
    """Return the name that `encode_name` has encoded. A '+' stands for a space, as in Java."""
    return urllib.parse.unquote_plus(component)


def sequence_of(name: str) -> int | None:
    """Return the number in the name of a sequential node; None for any other name."""
    digits = name[-_SEQUENCE_DIGITS:]
    is_number = len(digits) == _SEQUENCE_DIGITS and digits.isascii() and digits.isdigit()
    return int(digits) if is_number else None


def parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def last_component(path: str) -> str:
    return path.rpartition("/")[2]


# ---- brokers


def broker(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def parse_broker(path: str) -> int | None:
    return _number(_below(path, BROKER_IDS))


def incarnation(broker_id: int) -> str:
    """Return the path of the broker's incarnation node. Every registration of the broker raises the
    node's version."""
    return f"{INCARNATIONS}/{broker_id}"


def coordinator(partition: int) -> str:
    """Return the path of the fence node of a `__consumer_offsets` partition: each new group
    coordinator raises the version, and the writes of earlier coordinators then fail."""
    return f"{COORDINATORS}/{partition}"


def parse_coordinator(path: str) -> int | None:
    return _number(_below(path, COORDINATORS))


# ---- topics


def topic(name: str) -> str:
    return f"{TOPICS}/{encode_name(name)}"


def parse_topic(path: str) -> str | None:
    return _name(_below(path, TOPICS))


def partitions(name: str) -> str:
    """Return the path of the parent node of a topic's partition nodes."""
    return f"{topic(name)}/partitions"


def partition(topic_partition: TopicPartition) -> str:
    return f"{partitions(topic_partition.topic)}/{topic_partition.partition}"


def partition_state(topic_partition: TopicPartition) -> str:
    return f"{partition(topic_partition)}/state"


def parse_partition_state(path: str) -> TopicPartition | None:
    match path.split("/"):
        case ["", "brokers", "topics", name, "partitions", number, "state"] if name:
            index = _number(number)
            return None if index is None else TopicPartition(decode_name(name), index)
    return None


def topic_id(topic_id: uuid.UUID) -> str:
    """Return the path of a topic's id node, which is created and deleted together with the topic.
    The node's name is the id in Kafka's base64 text."""
    return f"{TOPIC_IDS}/{encode_uuid(topic_id)}"


def losses(name: str) -> str:
    """Return the path of the parent node of a topic's loss receipts (`loss_receipts.py`). The node
    has one child node for each partition that may have lost records."""
    return f"{LOSSES}/{encode_name(name)}"


def loss(topic_partition: TopicPartition) -> str:
    """Return the path of the node that describes the records that a partition may have lost in
    unclean leader elections (`loss_receipts.py`)."""
    return f"{losses(topic_partition.topic)}/{topic_partition.partition}"


def suspects(name: str) -> str:
    """Return the path of the node below which a topic's replicas report their log ends. See
    `suspect`."""
    return f"{SUSPECTS}/{encode_name(name)}"


def suspect(topic_partition: TopicPartition, replica: int) -> str:
    """Return the path of a replica's log end report, a node below `/pybroker/suspects`. See
    `log_end_reports.py`."""
    return f"{suspects(topic_partition.topic)}/{topic_partition.partition}/{replica}"


def delete_topic(name: str) -> str:
    return f"{DELETE_TOPICS}/{encode_name(name)}"


def parse_delete_topic(path: str) -> str | None:
    return _name(_below(path, DELETE_TOPICS))


# ---- configuration


def config_root(entity_type: str) -> str:
    """Return the path of the parent node of all configurations of a type, such as "topics"."""
    return f"{CONFIG}/{entity_type}"


def config(entity: ConfigEntity) -> str:
    return f"{CONFIG}/{config_entity_path(entity)}"


def topic_entity(name: str) -> ConfigEntity:
    return ConfigEntity((("topics", name),))


def broker_entity(broker_id: int | None) -> ConfigEntity:
    """Return the entity of a broker (None: the cluster-wide defaults)."""
    return ConfigEntity((("brokers", DEFAULT_ENTITY if broker_id is None else str(broker_id)),))


def topic_config(name: str) -> str:
    return config(topic_entity(name))


def broker_config(broker_id: int | None) -> str:
    """Return the path of a broker's dynamic configuration (None: the cluster-wide defaults)."""
    return config(broker_entity(broker_id))


def config_entity_path(entity: ConfigEntity) -> str:
    """Return the entity's path for a config change notification, such as
    `users/alice/clients/app1`."""
    return "/".join(f"{entity_type}/{_entity_name(name)}" for entity_type, name in entity.parts)


def parse_config_entity_path(entity_path: str) -> ConfigEntity | None:
    """Return the entity that `config_entity_path` encodes as this path. None if the type is unknown
    or the path names no entity."""
    components = entity_path.split("/")
    pairs = list(zip(components[::2], components[1::2], strict=False))
    types = [entity_type for entity_type, _ in pairs]
    if len(components) % 2 or not all(name for _, name in pairs):
        return None
    if types != ["users", "clients"] and not (len(pairs) == 1 and types[0] in CONFIG_ENTITY_TYPES):
        return None
    return ConfigEntity(tuple((entity_type, decode_name(name)) for entity_type, name in pairs))


def parse_config(path: str) -> ConfigEntity | None:
    prefix = f"{CONFIG}/"
    return parse_config_entity_path(path[len(prefix) :]) if path.startswith(prefix) else None


# ---- consumer groups


def group(group_id: str) -> str:
    return f"{CONSUMERS}/{encode_name(group_id)}"


def group_members(group_id: str) -> str:
    return f"{group(group_id)}/ids"


def group_member(group_id: str, consumer_id: str) -> str:
    return f"{group_members(group_id)}/{encode_name(consumer_id)}"


def group_owners(group_id: str, topic_name: str) -> str:
    return f"{group(group_id)}/owners/{encode_name(topic_name)}"


def group_owner(group_id: str, topic_partition: TopicPartition) -> str:
    return f"{group_owners(group_id, topic_partition.topic)}/{topic_partition.partition}"


def group_offsets(group_id: str) -> str:
    """Return the path of the node whose children are the topics with offsets of the group."""
    return f"{group(group_id)}/offsets"


def topic_offsets(group_id: str, topic_name: str) -> str:
    return f"{group_offsets(group_id)}/{encode_name(topic_name)}"


def offset(group_id: str, topic_partition: TopicPartition) -> str:
    return f"{topic_offsets(group_id, topic_partition.topic)}/{topic_partition.partition}"


def group_details(group_id: str) -> str:
    """Return the path of the parent node of the group's offset details (`offset_details.py`)."""
    return f"{COMMITTED}/{encode_name(group_id)}"


def topic_details(group_id: str, topic_name: str) -> str:
    return f"{group_details(group_id)}/{encode_name(topic_name)}"


def offset_details(group_id: str, topic_partition: TopicPartition) -> str:
    """Return the path of the details of a committed offset. An offset without details has no such
    node."""
    return f"{topic_details(group_id, topic_partition.topic)}/{topic_partition.partition}"


def offsets_stored(partition_number: int) -> str:
    """Return the path of the node that says whether the offsets of a `__consumer_offsets` partition
    are stored in ZooKeeper or in the log (`offsets/storage_mark.py`)."""
    return f"{OFFSETS_STORED}/{partition_number}"


def applied_marker(partition_number: int) -> str:
    """Return the path of the applied marker of a `__consumer_offsets` partition: the log offset up
    to which ZooKeeper has the offsets of committed transactions (`offsets/applied_marker.py`)."""
    return f"{APPLIED_MARKERS}/{partition_number}"


def parse_offset(path: str) -> OffsetKey | None:
    match path.split("/"):
        case ["", "consumers", group_id, "offsets", name, number] if group_id and name:
            index = _number(number)
            if index is not None:
                key = TopicPartition(decode_name(name), index)
                return OffsetKey(decode_name(group_id), key)
    return None


# ---- security


def acl(resource_type: str, name: str, *, prefixed: bool = False) -> str:
    """Return the path of the ACLs of the resource `name`; with `prefixed`, of all resources whose
    names begin with `name`. `resource_type`: Topic, Group, Cluster, TransactionalId or
    DelegationToken."""
    return f"{PREFIXED_ACLS if prefixed else ACLS}/{resource_type}/{encode_name(name)}"


def delegation_token(token_id: str) -> str:
    return f"{DELEGATION_TOKENS}/{encode_name(token_id)}"


# ---- private


def _entity_name(name: str) -> str:
    return name if name == DEFAULT_ENTITY else encode_name(name)


def _below(path: str, root: str) -> str:
    """Return the component of `path` below `root`; empty unless `path` is exactly one level
    below."""
    head, _, tail = path.rpartition("/")
    return tail if head == root else ""


def _name(component: str) -> str | None:
    return decode_name(component) if component else None


def _number(component: str) -> int | None:
    number = int(component) if _NUMBER.fullmatch(component) else None
    return number if number is not None and number <= _NUMBER_MAX else None
