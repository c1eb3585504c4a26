"""Tests of options that are accepted without effect: they are detected, and the broker warns."""

from __future__ import annotations

import pytest

from pybroker.config.topic_config import TOPIC_OPTIONS
from pybroker.config.without_effect import options_without_effect, sentence


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({}, []),
        ({"cleanup.policy": "delete", "retention.ms": "5"}, []),
        ({"cleanup.policy": "delete, compact", "min.cleanable.dirty.ratio": "0.1"}, []),
        (
            {"preallocate": "true", "leader.replication.throttled.replicas": "0:1"},
            ["preallocate", "leader.replication.throttled.replicas"],
        ),
        ({"follower.replication.throttled.replicas": "*"}, None),
        ({"compression.zstd.level": "7"}, []),
        ({"message.format.version": "2.8"}, None),
        ({"preallocate": "true"}, None),
        # Kafka's default needs no warning; an invalid value is refused elsewhere.
        ({"preallocate": "false", "leader.replication.throttled.replicas": ""}, []),
        ({"cleanup.policy": "burn", "delete.retention.ms": "soon", "nope": "1"}, []),
    ],
)
def test_options_without_effect_are_named(config: dict[str, str], named: list[str] | None) -> None:
    assert options_without_effect(config) == (list(config) if named is None else named)


@pytest.mark.parametrize("name", [name for name, row in TOPIC_OPTIONS.items() if not row.effective])
def test_each_option_without_effect_has_a_sentence(name: str) -> None:
    told = sentence("orders", name)
    assert told.startswith("topic orders: ")
    assert f"{name} has no effect in this version: " in told
    assert TOPIC_OPTIONS[name].instead
