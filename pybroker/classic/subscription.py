"""The subscription of a member: topics by name, or all topics that match a pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pybroker.client.errors import ConfigError
from pybroker.coordinator.zookeeper.schemas import ConsumerRegistration
from pybroker.model import INTERNAL_TOPICS

STATIC: Final = "static"
WHITE_LIST: Final = "white_list"
BLACK_LIST: Final = "black_list"
_QUOTES: Final = "\"'"


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription of one member. `counts` maps a topic or a pattern to the number of
    streams."""

    kind: str
    counts: Mapping[str, int]

    @property
    def is_pattern(self) -> bool:
        return self.kind != STATIC

    def streams(self, topics: Iterable[str], *, exclude_internal: bool) -> dict[str, int]:
        """Return the number of streams for each subscribed topic. `topics` (all existing topics)
        and `exclude_internal` concern only a subscription by pattern. Raises ConfigError for an
        invalid pattern."""
        if not self.is_pattern:
            return dict(self.counts)
        ((expression, count),) = self.counts.items()
        pattern = _compiled(expression)
        wanted = self.kind == WHITE_LIST
        return {
            topic: count
            for topic in topics
            if (pattern.fullmatch(topic) is not None) == wanted
            and not (exclude_internal and topic in INTERNAL_TOPICS)
        }

    def registration(self, timestamp_ms: int) -> ConsumerRegistration:
        return ConsumerRegistration(self.counts, self.kind, timestamp_ms)


def by_names(counts: Mapping[str, int]) -> Subscription:
    """Return a subscription to the topics in `counts`, which maps a topic's name to its number of
    streams. Raises ConfigError."""
    faults = [
        f"topic {topic!r} has {count} streams, expected a name and 1 or more streams"
        for topic, count in counts.items()
        if not topic or count < 1
    ]
    if faults or not counts:
        raise ConfigError(faults or ["the subscription has no topics: name at least one topic"])
    return Subscription(STATIC, dict(counts))


def by_pattern(kind: str, expression: str, count: int) -> Subscription:
    """Return a subscription with `count` streams. `kind` is WHITE_LIST or BLACK_LIST. `expression`
    is a regular expression that must match a whole topic name. A comma in `expression` means `|`.
    Raises ConfigError."""
    if count < 1:
        raise ConfigError([f"the pattern subscription has {count} streams, expected 1 or more"])
    plain = expression.strip().replace(",", "|").replace(" ", "").strip(_QUOTES)
    _compiled(plain)
    return Subscription(kind, {plain: count})


def as_registered(registration: ConsumerRegistration) -> Subscription:
    """Return the subscription in a member's node. As in Kafka, the subscription is a pattern only
    if the field `pattern` is white_list or black_list and the node has exactly one topic or
    pattern."""
    kind = registration.pattern
    if kind not in (WHITE_LIST, BLACK_LIST) or len(registration.subscription) != 1:
        kind = STATIC
    return Subscription(kind, dict(registration.subscription))


def _compiled(expression: str) -> re.Pattern[str]:
    try:
        return re.compile(expression)
    except re.error as error:
        raise ConfigError(
            [f"the pattern {expression!r} is not a valid regular expression: {error}"]
        ) from error
