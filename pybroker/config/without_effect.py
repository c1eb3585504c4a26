"""Options of topics that this version accepts, as Kafka does, but does not implement. This module
finds such options among those of a topic, and writes the text of the warning for the operator.

The rows of `topic_config.py` declare which options and values have no effect, and what the broker
does in their place. This module does not log or print; brokers and tools do that.
"""

from __future__ import annotations

from collections.abc import Mapping

from pybroker.config.topic_config import TOPIC_OPTIONS


def options_without_effect(config: Mapping[str, str]) -> list[str]:
    """Return the names of those options of a topic (name -> text) whose value has no effect, in the
    order of `config`. Unknown names and invalid values are omitted, since other checks reject
    them."""
    return [
        name
        for name, text in config.items()
        if (row := TOPIC_OPTIONS.get(name)) is not None and row.is_without_effect(text)
    ]


def sentence(topic: str, option: str) -> str:
    """Return the warning that an option of a topic has no effect."""
    instead = TOPIC_OPTIONS[option].instead
    return f"topic {topic}: {option} has no effect in this version: {instead}"
