"""Topic options that this version accepts, as Kafka does, but does not implement: finds them among
given options, and words the warning for the operator.

The rows of `topic_config.py` declare which options and values have no effect, and what the broker
does instead. This module does not log or print; brokers and tools do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pybroker.config.topic_config import TOPIC_OPTIONS
from pybroker.model import INTERNAL_TOPICS

CLEANUP_POLICY: Final = "cleanup.policy"


def options_without_effect(config: Mapping[str, str]) -> list[str]:
    """Return those names among a topic's own options (name -> text) whose value has no effect, in
    the given order. Unknown names and invalid values are omitted, since other checks reject
    them."""
    return [
        name
        for name, text in config.items()
        if (row := TOPIC_OPTIONS.get(name)) is not None and row.is_without_effect(text)
    ]


def topic_options_without_effect(topic: str, config: Mapping[str, str]) -> list[str]:
    """Return what `options_without_effect` returns, for a topic by its name. The broker itself
    makes its internal topics compact, so their cleanup.policy is omitted."""
    return [
        name
        for name in options_without_effect(config)
        if name != CLEANUP_POLICY or topic not in INTERNAL_TOPICS
    ]


def sentence(topic: str, option: str) -> str:
    """Return the warning about a topic's option without effect."""
    row = TOPIC_OPTIONS[option]
    what = f"{' and '.join(row.idle_choices)} in {option}" if row.idle_choices else option
    return f"topic {topic}: {what} has no effect in this version: {row.instead}"
