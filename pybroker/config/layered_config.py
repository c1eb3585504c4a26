"""The broker's options in Kafka's layers, in order of precedence: dynamic values of this broker,
dynamic values of all brokers, the file, and the defaults. No I/O."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from pybroker.config.broker_config import BROKER_OPTIONS, BrokerConfig, connection_overrides
from pybroker.config.broker_options import LONG_MAX
from pybroker.config.declaration import (
    SUGGESTIONS_MAX,
    VALUE_BYTES_MAX,
    Option,
    OptionType,
    UpdateMode,
    fits_in_message,
    nearest_name,
    shortened,
)
from pybroker.config.kafka_options import NOT_IMPLEMENTED, REFUSED
from pybroker.config.topic_config import TOPIC_OPTIONS
from pybroker.errors import BrokerError, ConfigError, ErrorCode


class Source(enum.IntEnum):
    """The layer of an option's value: Kafka's ConfigSource, with its numbers in the protocol."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    FILE = 4
    DEFAULT = 5
    LOGGER = 6


class Synonym(NamedTuple):
    """The value of an option in one layer. `name` is the option's own name or a synonym. `value` is
    None for a secret."""

    name: str
    value: str | None
    source: Source


_UNITS: Final = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
"""Groups of options that differ only in their unit. Within a group, the first option that is set
applies."""
_THREADS: Final = (
    "background.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
)
"""Options with a number of threads. As in Kafka, one change may at most double or halve the
number."""
_OF_A_LISTENER: Final = "listener.name."
_RATES: Final = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
DYNAMIC_ONLY: Final[Mapping[str, Option]] = {
    name: Option(
        name,
        OptionType.LONG,
        LONG_MAX,
        "The maximum rate of throttled replication traffic, in bytes per second.",
        minimum=0,
        update=UpdateMode.PER_BROKER,
        effective=False,
    )
    for name in _RATES
}
"""Options that can be set only as dynamic values, not in the configuration file."""


def broker_synonyms(name: str) -> tuple[str, ...]:
    """Return `name` and the other options that determine the same value, in order of precedence."""
    if name == "log.flush.interval.ms":
        return (name, "log.flush.scheduler.interval.ms")
    return next((group for group in _UNITS if name in group), (name,))


def overlaid(base: Mapping[str, str], over: Mapping[str, str]) -> dict[str, str]:
    """Return the options of `over`, and those options of `base` that are neither in `over` nor
    synonyms of an option in `over` (option -> text)."""
    hidden = {synonym for name in over for synonym in broker_synonyms(name)}
    return {name: text for name, text in base.items() if name not in hidden} | dict(over)


def option_of(name: str) -> Option | None:
    """Return the declaration of a broker option, or None if there is no such option. Options that
    can only be set dynamically are included."""
    return BROKER_OPTIONS.get(name) or DYNAMIC_ONLY.get(name)


@dataclass(frozen=True)
class LayeredConfig:
    """The layers of the broker's configuration: the file, the dynamic values of all brokers, and
    those of this broker (option -> text). `current` is the configuration in force."""

    static: BrokerConfig
    for_all: Mapping[str, str] = field(default_factory=dict)
    for_this: Mapping[str, str] = field(default_factory=dict)
    current: BrokerConfig = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Compute `current`. Raise ConfigError if values contradict each other."""
        texts = overlaid(overlaid(self.static.given, self.for_all), self.for_this)
        known = {name: text for name, text in texts.items() if name in BROKER_OPTIONS}
        changed = known != dict(self.static.given)
        current = BrokerConfig.parse(known) if changed else self.static
        object.__setattr__(self, "current", current)

    def synonyms(self, name: str) -> Sequence[Synonym]:
        """Return the values that the layers have for the option `name` and for its synonyms, in
        order of precedence. The first value is in force."""
        known = self._synonyms.get(name)
        return self._found_synonyms(name) if known is None else known

    @cached_property
    def _synonyms(self) -> Mapping[str, Sequence[Synonym]]:
        """The results of `synonyms` for all options of the broker, by option name."""
        return {name: self._found_synonyms(name) for name in BROKER_OPTIONS}

    def _found_synonyms(self, name: str) -> Sequence[Synonym]:
        layers = (
            (self.for_this, Source.BROKER),
            (self.for_all, Source.ALL_BROKERS),
            (self.static.given, Source.FILE),
            (_DEFAULTS, Source.DEFAULT),
        )
        names = broker_synonyms(name)
        found = [
            Synonym(synonym, None if is_secret(option_of(synonym)) else layer[synonym], source)
            for layer, source in layers
            for synonym in names
            if synonym in layer
        ]
        # As in Kafka, synonyms with precedence over the first value of `name` itself do not count.
        start = next((i for i, item in enumerate(found) if item.name == name), len(found))
        return found[start:]

    def topic_synonyms(self, name: str, overrides: Mapping[str, str]) -> Sequence[Synonym]:
        """Return all values of the option `name` of a topic, in order of precedence: the topic's
        own value in `overrides`, then the values inherited from the broker. The first value is in
        force."""
        row = TOPIC_OPTIONS.get(name)
        inherited = self.synonyms(row.inherits[0]) if row is not None and row.inherits else []
        if name not in overrides:
            return inherited
        return [Synonym(name, overrides[name], Source.TOPIC), *inherited]

    def checked(self, values: Mapping[str, str], *, per_broker: bool) -> LayeredConfig:
        """Return the layers with `values` as the dynamic values of this broker (`per_broker`) or
        of all brokers. Raise BrokerError INVALID_REQUEST if a value is invalid or must not be
        changed."""
        _refuse(
            [name for name in values if _is_fixed(name)], "Cannot update these configs dynamically"
        )
        faults = _value_faults(values)
        if faults:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "; ".join(faults.values()))
        if not per_broker:
            _refuse(
                [name for name in values if _is_for_one_broker(name)],
                "Cannot update these configs at default cluster level, broker id must be specified",
            )
        try:
            changed = self.with_values(values, per_broker=per_broker)
        except ConfigError as error:
            raise BrokerError(ErrorCode.INVALID_REQUEST, str(error)) from error
        for name in _THREADS:
            _check_threads(name, _number(self.current, name), _number(changed.current, name))
        return changed

    def with_values(self, values: Mapping[str, str], *, per_broker: bool) -> LayeredConfig:
        """Return the same layers as the method `checked`. The caller has checked each value
        already. Raise ConfigError if values contradict each other."""
        if per_broker:
            return LayeredConfig(self.static, self.for_all, dict(values))
        return LayeredConfig(self.static, dict(values), self.for_this)


def usable_values(
    values: Mapping[str, str], *, per_broker: bool
) -> tuple[dict[str, str], list[str]]:
    """Return the dynamic values from ZooKeeper that can be applied, and an error message for each
    value that cannot be applied."""
    usable, faults = {}, []
    wrong = _value_faults(values)
    for name, text in values.items():
        if name in wrong:
            faults.append(wrong[name])
        elif _is_fixed(name):
            faults.append(f"{name}: this option cannot be changed while the broker runs")
        elif not per_broker and _is_for_one_broker(name):
            faults.append(
                f"{name}: this option can be set for single brokers, not for all brokers together"
            )
        else:
            usable[name] = text
    return usable, faults


def merged(
    current: Mapping[str, str],
    operations: Iterable[tuple[int, str, str | None]],
    row_of: Callable[[str], Option | None],
) -> dict[str, str]:
    """Return `current` (option -> text) after `operations`: (type, option, value), with the types 0
    set, 1 delete, 2 append, 3 subtract.

    Raise BrokerError INVALID_CONFIG if the option of an append or subtract is not a list, or if a
    value is too long; INVALID_REQUEST for an unknown type.
    """
    values = dict(current)
    for operation, name, text in operations:
        items = (text or "").split(",")
        match operation:
            case 0:
                values[name] = text or ""
            case 1:
                values.pop(name, None)
            case 2:
                have = _items(name, values, row_of, "append")
                known = set(have)
                values[name] = ",".join(have + [item for item in items if item not in known])
            case 3:
                have = _items(name, values, row_of, "subtract")
                known = set(items)
                values[name] = ",".join(item for item in have if item not in known)
            case _:
                raise BrokerError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {operation}")
        if name in values and not fits_in_message(values[name]):
            raise BrokerError(
                ErrorCode.INVALID_CONFIG, f"{name}: the value has more than {VALUE_BYTES_MAX} bytes"
            )
    return values


def is_secret(row: Option | None) -> bool:
    """Whether values of the option must be hidden: it is a password, or it is unknown (None)."""
    return row is None or row.type is OptionType.PASSWORD


def _items(
    name: str,
    values: Mapping[str, str],
    row_of: Callable[[str], Option | None],
    verb: str,
) -> list[str]:
    """Return the items of the list option `name` in `values`, or else in Kafka's default. Raise
    BrokerError INVALID_CONFIG if `name` is not a list."""
    row = row_of(name)
    if row is None:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"Unknown config name: {name}")
    if row.type is not OptionType.LIST:
        raise BrokerError(
            ErrorCode.INVALID_CONFIG, f"Config value {verb} is not allowed for config key: {name}"
        )
    text = values[name] if name in values else row.format(row.default) or ""
    return text.split(",") if text else []


def _value_faults(values: Mapping[str, str]) -> dict[str, str]:
    faults: dict[str, str] = {}
    unknown = 0
    for name, text in values.items():
        row = option_of(name)
        unknown += row is None
        if not (fits_in_message(name) and fits_in_message(text)):
            fault: str | None = (
                f"{shortened(name)}: the name or value has more than {VALUE_BYTES_MAX} bytes"
            )
        elif row is not None:
            fault = _value_fault(row, name, text)
        elif unknown > SUGGESTIONS_MAX:
            fault = f"{name}: no such option; {SUGGESTIONS_MAX} other names are unknown, too"
        else:
            meant = nearest_name(name, BROKER_OPTIONS)
            fault = f"{name}: no such option; did you mean {meant}?" if meant else None
        if fault is not None:
            faults[name] = fault
    return faults


def _value_fault(row: Option, name: str, text: str) -> str | None:
    try:
        row.parse(text)
    except ValueError:
        shown = "[hidden]" if is_secret(row) else shortened(text)
        return f"Invalid value {shown} for configuration {name}: expected {row.expected()}"
    if name == "max.connections.per.ip.overrides":  # the other options of the node stay valid
        try:
            connection_overrides(text)
        except ValueError as error:
            return f"Invalid value {shortened(text)} for configuration {name}: {error}"
    return None


def _is_fixed(name: str) -> bool:
    """Whether the option cannot be changed while the broker runs. An unknown name, perhaps of a
    plugin, can be changed."""
    row = option_of(name)
    if row is None:
        return name in NOT_IMPLEMENTED or name in REFUSED or name.startswith(_OF_A_LISTENER)
    return row.update is UpdateMode.READ_ONLY


def _is_for_one_broker(name: str) -> bool:
    return name in BROKER_OPTIONS and BROKER_OPTIONS[name].update is UpdateMode.PER_BROKER


def _refuse(names: list[str], reason: str) -> None:
    if names:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{reason}: Set({', '.join(names)})")


def _number(config: BrokerConfig, name: str) -> int:
    return int(getattr(config, BROKER_OPTIONS[name].attribute))


def _check_threads(name: str, current: int, wanted: int) -> None:
    limit = None
    if wanted > current * 2:
        limit = f"should not be greater than double the current value {current}"
    elif wanted < current // 2:
        limit = f"should be at least half the current value {current}"
    if limit is not None:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            f"Dynamic thread count update validation failed for {name}={wanted}, value {limit}",
        )


_DEFAULTS: Final[Mapping[str, str]] = {
    name: text
    for name, row in BROKER_OPTIONS.items()
    if (text := row.format(row.default)) is not None
}
