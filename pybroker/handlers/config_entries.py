"""The options in DescribeConfigs and CreateTopics responses: their values, sources, types and
descriptions. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pybroker.config.broker_config import BROKER_OPTIONS
from pybroker.config.declaration import Option, OptionType, UpdateMode, Value, fits_in_message
from pybroker.config.layered_config import LayeredConfig, Source, Synonym, is_secret, option_of
from pybroker.config.topic_config import TOPIC_OPTIONS, TopicConfig, usable_overrides

_UNKNOWN_TYPE: Final = 0
_TYPES: Final[Mapping[OptionType, int]] = {
    OptionType.BOOLEAN: 1,
    OptionType.STRING: 2,
    OptionType.INT: 3,
    OptionType.SHORT: 4,
    OptionType.LONG: 5,
    OptionType.DOUBLE: 6,
    OptionType.LIST: 7,
    OptionType.PASSWORD: 9,
}
"""Option type -> its number in the protocol (KIP-569)."""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One option of a resource in DescribeConfigs. `type` is the type number of KIP-569."""

    name: str
    value: str | None
    source: Source
    read_only: bool = False
    sensitive: bool = False
    synonyms: Sequence[Synonym] = ()
    type: int = _UNKNOWN_TYPE
    documentation: str | None = None


def topic_entries(layers: LayeredConfig, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Return an entry for every topic option and for every unknown name in `overrides`. The default
    replaces an invalid override."""
    usable, _ = usable_overrides(layers.current, overrides)
    values = TopicConfig.parse(layers.current, usable).values
    entries = [
        _entry(name, row, values[name], layers.topic_synonyms(name, usable), read_only=False)
        for name, row in TOPIC_OPTIONS.items()
    ]
    unknown = [name for name in overrides if name not in TOPIC_OPTIONS and fits_in_message(name)]
    return entries + [_unknown(name, Source.TOPIC, read_only=False) for name in unknown]


def broker_entries(layers: LayeredConfig) -> list[ConfigEntry]:
    """Return an entry for every option of this broker, and for every dynamic value of an unknown
    option."""
    values = layers.current.values
    entries = [
        _entry(name, row, values[name], layers.synonyms(name), read_only=_is_fixed(row))
        for name, row in BROKER_OPTIONS.items()
    ]
    others = {**layers.for_all, **layers.for_this}
    return entries + [
        _as_text(name, text, layers.synonyms(name))
        for name, text in others.items()
        if name not in BROKER_OPTIONS
    ]


def all_brokers_entries(layers: LayeredConfig) -> list[ConfigEntry]:
    """Return an entry for each dynamic value that is set for all brokers together."""
    return [
        _as_text(
            name,
            text,
            [item for item in layers.synonyms(name) if item.source is Source.ALL_BROKERS],
        )
        for name, text in layers.for_all.items()
    ]


def _entry(
    name: str, row: Option, value: Value, synonyms: Sequence[Synonym], *, read_only: bool
) -> ConfigEntry:
    secret = is_secret(row)
    return ConfigEntry(
        name=name,
        value=None if secret else row.format(value),
        source=synonyms[0].source if synonyms else Source.DEFAULT,
        read_only=read_only,
        sensitive=secret,
        synonyms=synonyms,
        type=_TYPES[row.type],
        documentation=row.meaning,
    )


def _as_text(name: str, text: str, synonyms: Sequence[Synonym]) -> ConfigEntry:
    row = option_of(name)
    source = synonyms[0].source if synonyms else Source.DEFAULT
    if row is None:
        return _unknown(name, source, read_only=True)
    return ConfigEntry(
        name=name,
        value=None if is_secret(row) else text,
        source=source,
        read_only=_is_fixed(row),
        sensitive=is_secret(row),
        synonyms=synonyms,
        type=_TYPES[row.type],
        documentation=row.meaning,
    )


def _unknown(name: str, source: Source, *, read_only: bool) -> ConfigEntry:
    """Return an entry for an unknown option, without its value, which may be a secret."""
    return ConfigEntry(name, None, source, read_only=read_only, sensitive=True)


def _is_fixed(row: Option) -> bool:
    return row.update is UpdateMode.READ_ONLY
