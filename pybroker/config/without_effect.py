"""Finds the topic options that this broker accepts, as Kafka does, but does not implement."""

from __future__ import annotations

from collections.abc import Mapping

from pybroker.config.topic_config import TOPIC_OPTIONS


def options_without_effect(config: Mapping[str, str]) -> list[str]:
    """Return the names of those options in a topic's `config` (name -> text) whose values have no
    effect. Unknown names and invalid values are omitted."""
    return [
        name
        for name, text in config.items()
        if (row := TOPIC_OPTIONS.get(name)) is not None and row.is_without_effect(text)
    ]


def sentence(topic: str, option: str) -> str:
    """Return the warning that an option of a topic has no effect."""
    instead = TOPIC_OPTIONS[option].instead
    return f"topic {topic}: {option} has no effect in this version: {instead}"
