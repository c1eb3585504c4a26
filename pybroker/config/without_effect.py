"""Topic options that this version accepts, as Kafka does, but does not implement: finds them among
given options, and words the warning for the operator.

The rows of `topic_config.py` declare which options and values have no effect. This module adds the
reasons. It neither logs nor prints: brokers and tools do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pybroker.config.topic_config import TOPIC_OPTIONS
from pybroker.model import INTERNAL_TOPICS

CLEANUP_POLICY: Final = "cleanup.policy"

_NOT_COMPACTED: Final = "topics are not compacted, and all records of a key stay"
_NOT_THROTTLED: Final = "replication is not throttled"
_USUAL_EFFORT: Final = "each codec uses its default level"
_REASONS: Final[Mapping[str, str]] = {
    "delete.retention.ms": _NOT_COMPACTED,
    "max.compaction.lag.ms": _NOT_COMPACTED,
    "min.cleanable.dirty.ratio": _NOT_COMPACTED,
    "min.compaction.lag.ms": _NOT_COMPACTED,
    "follower.replication.throttled.replicas": _NOT_THROTTLED,
    "leader.replication.throttled.replicas": _NOT_THROTTLED,
    "compression.gzip.level": _USUAL_EFFORT,
    "compression.lz4.level": _USUAL_EFFORT,
    "compression.zstd.level": _USUAL_EFFORT,
    "message.downconversion.enable": "all clients get the newest format of batches",
    "message.format.version": "batches are always of the newest format",
    "preallocate": "the files of a segment grow as they are written",
}
"""Topic option -> what the broker does instead. Of cleanup.policy only the value compact has no
effect."""


def options_without_effect(config: Mapping[str, str]) -> list[str]:
    """The names among a topic's own options (name -> text) whose value has no effect, in the order
    given. Names and values that are no option's are left out: other checks refuse them."""
    return [
        name
        for name, text in config.items()
        if (row := TOPIC_OPTIONS.get(name)) is not None and row.asks_in_vain(text)
    ]


def topic_options_without_effect(topic: str, config: Mapping[str, str]) -> list[str]:
    """The same for a topic by its name. The broker itself makes its internal topics compact, so
    their cleanup.policy is left out."""
    return [
        name
        for name in options_without_effect(config)
        if name != CLEANUP_POLICY or topic not in INTERNAL_TOPICS
    ]


def sentence(topic: str, option: str) -> str:
    """What an operator is told of a topic's option without effect."""
    if option == CLEANUP_POLICY:
        return f"topic {topic}: compact in {option} has no effect in this version: {_NOT_COMPACTED}"
    return f"topic {topic}: {option} has no effect in this version: {_REASONS[option]}"
