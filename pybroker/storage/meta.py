"""The formats of the small files in a log directory: `meta.properties` (the ids of the broker, the
cluster and the directory), `partition.metadata` (the topic id), `pybroker.boot` (the machine's boot
id), `pybroker.directories` (all log directories), and the mark of a clean shutdown."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pybroker.errors import CorruptionError
from pybroker.model import decode_uuid, encode_uuid

META_VERSION: Final = 0
"""The version of `meta.properties` that has `broker.id`. Version 1 is KRaft's, with `node.id`."""


@dataclass(frozen=True, slots=True)
class Meta:
    """The content of `meta.properties`. `other` has the properties that this broker does not know,
    such as those of newer Kafka versions. The broker writes them back unchanged."""

    broker_id: int | None
    cluster_id: str | None
    version: int = META_VERSION
    other: Mapping[str, str] = field(default_factory=dict)
    directory_id: str | None = None
    """The id of the log directory: 22 characters, like a topic id. Kafka writes it since version
    3.7."""


@dataclass(frozen=True, slots=True)
class Boot:
    """The content of `pybroker.boot`, from the last start of the broker. `incarnation` grows with
    each registration in ZooKeeper; -1 if unknown."""

    boot_id: str
    incarnation: int = -1


@dataclass(frozen=True, slots=True)
class Family:
    """The content of `pybroker.directories`: id -> path of each log directory of one broker. Each
    directory has a copy; only copies with the highest `revision` are valid."""

    members: Mapping[str, str] = field(default_factory=dict)
    revision: int = 0


def decode_properties(text: str) -> dict[str, str]:
    """Return the properties in `text`. Supports only a part of Java's format: comments, `key=value`
    and backslashes."""
    properties = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        key, _, value = line.partition("=")
        properties[_unescape(key.strip())] = _unescape(value.strip())
    return properties


def encode_properties(properties: Mapping[str, object]) -> bytes:
    lines = [f"{key}={_escape(str(value))}\n" for key, value in properties.items()]
    return ("#\n" + "".join(lines)).encode()


def _unescape(text: str) -> str:
    result = []
    characters = iter(text)
    for character in characters:
        result.append(next(characters, "") if character == "\\" else character)
    return "".join(result)


def _escape(text: str) -> str:
    return "".join("\\" + character if character in "\\:=#!" else character for character in text)


def decode_meta(data: bytes, path: str) -> Meta:
    """Return the content of the file `meta.properties` at `path`. Raises CorruptionError if `data`
    is malformed."""
    try:
        properties = decode_properties(data.decode())
        if "version" not in properties:
            raise ValueError("the file is incomplete: it has no line version=0")
        version = int(properties.pop("version"))
        broker_id = properties.pop("broker.id", None)
        return Meta(
            None if broker_id is None else int(broker_id),
            properties.pop("cluster.id", None),
            version,
            directory_id=properties.pop("directory.id", None),
            other=properties,
        )
    except ValueError as error:
        raise CorruptionError(f"{path}: {error}") from error


def encode_meta(meta: Meta) -> bytes:
    known = {
        "version": meta.version,
        "broker.id": meta.broker_id,
        "cluster.id": meta.cluster_id,
        "directory.id": meta.directory_id,
    }
    return encode_properties(
        {**{key: value for key, value in known.items() if value is not None}, **meta.other}
    )


def decode_partition_metadata(data: bytes, path: str) -> uuid.UUID:
    """Return the topic id in the content `data` of the file `partition.metadata` at `path`. Raises
    CorruptionError."""
    try:
        pairs = [line.partition(":") for line in data.decode().splitlines()]
        values = {key.strip(): value.strip() for key, _, value in pairs}
        if values.get("version") != "0":
            raise CorruptionError(f"{path}: version is {values.get('version')}, expected 0")
        return decode_uuid(values.get("topic_id", ""))
    except ValueError as error:
        raise CorruptionError(f"{path}: {error}") from error


def encode_partition_metadata(topic_id: uuid.UUID) -> bytes:
    return f"version: 0\ntopic_id: {encode_uuid(topic_id)}".encode()


def decode_boot(data: bytes) -> Boot | None:
    """Return the content of `pybroker.boot`; None if the file is incomplete."""
    try:
        properties = decode_properties(data.decode())
        return Boot(properties["boot.id"], int(properties["incarnation"]))
    except (ValueError, KeyError):
        return None


def encode_boot(boot: Boot) -> bytes:
    return encode_properties(
        {"version": 0, "boot.id": boot.boot_id, "incarnation": boot.incarnation}
    )


def decode_family(data: bytes, path: str) -> Family:
    """Decode the file `pybroker.directories` at `path`. Raises CorruptionError if `data` is
    malformed."""
    try:
        content = json.loads(data)
        members = {str(row["id"]): str(row["path"]) for row in content["directories"]}
        return Family(members, int(content["revision"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(
            f"{path}: expected a JSON object with 'revision' (a number) and 'directories' (a list"
            " of objects with 'id' and 'path')"
        ) from error


def encode_family(family: Family) -> bytes:
    rows = [{"id": key, "path": path} for key, path in sorted(family.members.items())]
    content = {"version": 0, "revision": family.revision, "directories": rows}
    return json.dumps(content, indent=1).encode() + b"\n"


def encode_clean_mark(broker_epoch: int) -> bytes:
    """Return the content of the mark of a clean shutdown, in the format of Kafka 3.7 and later."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()
