"""The formats of `meta.properties` (the owner of a log directory), `partition.metadata` (the topic
id of a partition), `pybroker.boot` (the boot in which a broker writes) and the mark of a clean
shutdown. Pure; `directory.py` reads and writes the files."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pybroker.errors import CorruptionError
from pybroker.model import decode_uuid, encode_uuid

META_VERSION: Final = 0
"""Version 1 is that of KRaft, which names a node.id."""


@dataclass(frozen=True, slots=True)
class Meta:
    """Content of `meta.properties`; `other` are lines of newer versions of Kafka, which are
    kept."""

    broker_id: int | None
    cluster_id: str | None
    version: int = META_VERSION
    other: Mapping[str, str] = field(default_factory=dict)
    directory_id: str | None = None
    """Kafka 3.7 and later name each directory; 22 characters as a topic id has."""


@dataclass(frozen=True, slots=True)
class Boot:
    """Content of `pybroker.boot`: the kernel's boot id when the broker began to write here, and
    the data version of its incarnation node, -1 until that is known."""

    boot_id: str
    incarnation: int = -1


@dataclass(frozen=True, slots=True)
class Family:
    """Content of `pybroker.directories`: the id of each log directory of one broker, with the path
    that it had. Every directory knows all of them, so that the broker notices a lost one. Of two
    directories that differ, the one with the higher `revision` holds."""

    members: Mapping[str, str] = field(default_factory=dict)
    revision: int = 0


def decode_properties(text: str) -> dict[str, str]:
    """Parse Java's properties as far as these files use them: comments, `key=value`,
    backslashes."""
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
    """Return the owner of the log directory. Raises CorruptionError naming `path`."""
    try:
        properties = decode_properties(data.decode())
        if "version" not in properties:
            raise ValueError("not whole, it has no version")
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
    """Return the topic id of `version: 0`, `topic_id: <22 characters>`. Raises CorruptionError."""
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
    """Return the content, or None if it is incomplete: the boot is then unknown."""
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
    """Return the content. Raises CorruptionError naming `path`."""
    try:
        content = json.loads(data)
        members = {str(row["id"]): str(row["path"]) for row in content["directories"]}
        return Family(members, int(content["revision"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{path}: {error!r}") from error


def encode_family(family: Family) -> bytes:
    rows = [{"id": key, "path": path} for key, path in sorted(family.members.items())]
    content = {"version": 0, "revision": family.revision, "directories": rows}
    return json.dumps(content, indent=1).encode() + b"\n"


def encode_clean_mark(broker_epoch: int) -> bytes:
    """Return the mark as Kafka 3.7 and later write it; earlier versions left the file empty.
    Readers ask only whether the file exists."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()
