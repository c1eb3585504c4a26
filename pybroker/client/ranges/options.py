"""The options for reading ranges, as a Spark job or an application sets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pybroker.client.errors import ConfigError
from pybroker.client.options import ConsumerOptions, parse_options
from pybroker.client.ranges.fetcher import Patience
from pybroker.config.properties import PropertyText

DEFAULTS: Final[Mapping[str, object]] = {
    "max_partition_fetch_bytes": 4 * 1024 * 1024,
    "bootstrap_timeout_ms": 30_000,
    "client_id": "pybroker-range",
}
"""The options whose defaults for ranges differ from those of a consumer."""
POLL_TIMEOUT: Final = "kafkaconsumer.polltimeoutms"
POLL_TIMEOUT_MS: Final = 120_000
CLIENT_PREFIX: Final = "kafka."


def parse_range_options(
    options: Mapping[str, str], **fixed: object
) -> tuple[ConsumerOptions, Patience]:
    """Return the consumer options, and the tolerated durations of problems, from the `options` of a
    RangeReader. `fixed` overrides `options`. Raises ConfigError with all invalid options."""
    given: dict[str, object] = {}
    stalled_ms = POLL_TIMEOUT_MS
    faults: list[str] = []
    for name, value in options.items():
        plain = name.lower()
        if plain != POLL_TIMEOUT:
            given[plain.removeprefix(CLIENT_PREFIX).replace(".", "_")] = PropertyText(value)
        elif value.isascii() and value.isdecimal() and int(value):
            stalled_ms = int(value)
        else:
            faults.append(f"option {name} must be a whole number above 0, not {value!r}")
    try:
        parsed = parse_options(ConsumerOptions, {**DEFAULTS, **given, **fixed})
    except ConfigError as error:
        raise ConfigError([*faults, *error.faults]) from None
    if faults:
        raise ConfigError(faults)
    return parsed, Patience(stalled_s=stalled_ms / 1_000)
