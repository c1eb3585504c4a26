"""The declaration of a configuration option, and the parser that turns its text into a typed value.

A table of options is a frozen dataclass whose fields are made by the row functions below. So a row
is the attribute's type, its default and its documentation at the same time:

    log_segment_bytes: int = integer("log.segment.bytes", 1 << 30, minimum=14, meaning="...")

The parsing rules are those of Kafka's own option types. The options are declared in
`broker_config.py` and `topic_config.py`. This module does not read files, sockets or clocks.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, TypeVar

D = TypeVar("D")

SIMILARITY_OF_A_TYPO: Final = 0.85
"""An unknown name counts as a misspelling of a known name from this similarity on (0 to 1)."""

VALUE_BYTES_MAX: Final = 32767
"""The maximal length of a name or value (bytes). A longer one fits into no message of the protocol,
so no client could read it."""
SUGGESTIONS_MAX: Final = 20
"""The maximal number of suggestions for each call. Searching for a similar name takes half a
millisecond, and a request or node may contain thousands of unknown names."""
_SHOWN_CHARACTERS_MAX: Final = 200

_INTEGER = re.compile(r"[+-]?[0-9]+")
_DOUBLE = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_COMMA = re.compile(r"\s*,\s*")


@dataclass(frozen=True, slots=True)
class Password:
    """A secret. Its text appears in no log line and no description."""

    value: str = field(repr=False)

    def __str__(self) -> str:
        return "[hidden]"


Value = bool | int | float | str | tuple[str, ...] | Password | None


class OptionType(enum.Enum):
    """Kafka's types of options. The value of each member is the type's name in the
    documentation."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    SHORT = "short"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"
    PASSWORD = "password"


class UpdateMode(enum.Enum):
    """Whether an option may be changed while the broker runs: not at all, for one broker, or for
    the whole cluster, as in Kafka."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


_RANGES: Final[Mapping[OptionType, tuple[int, int]]] = {
    OptionType.SHORT: (-(1 << 15), (1 << 15) - 1),
    OptionType.INT: (-(1 << 31), (1 << 31) - 1),
    OptionType.LONG: (-(1 << 63), (1 << 63) - 1),
}


@dataclass(frozen=True, slots=True)
class Option:
    """One row of a table: the declaration of an option.

    `excluded` are numbers within the bounds that are rejected nevertheless. `choices` are the
    allowed words (for a list, those of each item). `pattern` is the regular expression that each
    item has to match, and `shape` describes it in words. `inherits` (topics only) are the broker's
    options that give the default, in order of precedence. If there are several, `inherited` is the
    attribute of the broker's configuration with the resulting value. A row that is not `effective`
    is accepted and has no effect in this broker. In an effective row, the words in `idle_choices`
    have no effect, and `instead` (topics only) says what the broker does in their place.
    """

    name: str
    type: OptionType
    default: Value
    meaning: str
    minimum: float | None = None
    maximum: float | None = None
    excluded: tuple[int, ...] = ()
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    shape: str = ""
    update: UpdateMode = UpdateMode.READ_ONLY
    inherits: tuple[str, ...] = ()
    inherited: str | None = None
    effective: bool = True
    idle_choices: tuple[str, ...] = ()
    instead: str = ""

    @property
    def attribute(self) -> str:
        """The name of the option's attribute."""
        return attribute_of(self.name)

    @property
    def inherited_attribute(self) -> str | None:
        """The attribute of the broker's configuration that gives the default, or None."""
        if self.inherited is None and self.inherits:
            return attribute_of(self.inherits[0])
        return self.inherited

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The smallest and the largest value, or None if the type has no order."""
        if self.type is OptionType.DOUBLE:
            low, high = -math.inf, math.inf
        elif self.type in _RANGES:
            low, high = _RANGES[self.type]
        else:
            return None
        return (
            low if self.minimum is None else self.minimum,
            high if self.maximum is None else self.maximum,
        )

    def expected(self) -> str:
        """Return the form of a valid value of this option, as part of a sentence."""
        if self.choices:
            words = ", ".join(self.choices)
            return f"a list of {words}" if self.type is OptionType.LIST else f"one of {words}"
        if self.shape:
            return self.shape
        if self.type is OptionType.BOOLEAN:
            return "true or false"
        bounds = self.bounds
        if bounds is None:
            return f"a {self.type.value}"
        kind = "a number" if self.type is OptionType.DOUBLE else "an integer"
        low, high = bounds
        if self.excluded:
            kind += f" other than {', '.join(str(number) for number in self.excluded)}"
        if math.isinf(high):
            return kind if math.isinf(low) else f"{kind} from {low} up"
        return f"{kind} from {low} to {high}"

    def parse(self, text: str) -> Value:
        """Return the value of `text`. Raise ValueError without a message if `text` is invalid;
        `expected` describes the valid form."""
        if self.type is OptionType.PASSWORD:
            return Password(text)
        if self.type is OptionType.STRING:
            return self._checked_item(text)
        trimmed = text.strip()
        if self.type is OptionType.LIST:
            items = tuple(_COMMA.split(trimmed)) if trimmed else ()
            return tuple(self._checked_item(item) for item in items)
        if self.type is OptionType.BOOLEAN:
            if trimmed.lower() not in ("true", "false"):
                raise ValueError
            return trimmed.lower() == "true"
        return self._checked_number(trimmed)

    def is_without_effect(self, text: str) -> bool:
        """Whether this value has no effect in this broker. False for Kafka's default, and for an
        invalid text."""
        try:
            value = self.parse(text)
        except ValueError:
            return False
        if isinstance(value, tuple) and not set(self.idle_choices).isdisjoint(value):
            return True
        return not self.effective and value != self.default

    def fault(self, text: str) -> str:
        """Return the sentence that rejects `text` as a value."""
        shown = "[hidden]" if self.type is OptionType.PASSWORD else shortened(text)
        return f"{self.name}={shown}: expected {self.expected()}"

    def format(self, value: Value) -> str | None:
        """Return a value as the text from which `parse` returns it; None for None. A password is
        hidden."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        if isinstance(value, float):
            return _java_double(value)
        return str(value)

    def _checked_item(self, item: str) -> str:
        if self.choices and item not in self.choices:
            raise ValueError
        if self.pattern is not None and not re.fullmatch(self.pattern, item):
            raise ValueError
        return item

    def _checked_number(self, text: str) -> int | float:
        number: int | float
        if self.type is OptionType.DOUBLE:
            if not _DOUBLE.fullmatch(text):
                raise ValueError
            number = float(text)
        else:
            if not _INTEGER.fullmatch(text) or len(text) > 20:
                raise ValueError
            number = int(text)
        bounds = self.bounds
        if bounds is None or not bounds[0] <= number <= bounds[1] or number in self.excluded:
            raise ValueError
        return number


def boolean(name: str, default: D, meaning: str, **rest: Any) -> D:
    """Return a row for true or false."""
    return _row(Option(name, OptionType.BOOLEAN, _plain(default), meaning, **rest), default)


def integer(name: str, default: D, meaning: str, **rest: Any) -> D:
    """Return a row for a number of 32 bits."""
    return _row(Option(name, OptionType.INT, _plain(default), meaning, **rest), default)


def long(name: str, default: D, meaning: str, **rest: Any) -> D:
    """Return a row for a number of 64 bits."""
    return _row(Option(name, OptionType.LONG, _plain(default), meaning, **rest), default)


def short(name: str, default: D, meaning: str, **rest: Any) -> D:
    """Return a row for a number of 16 bits."""
    return _row(Option(name, OptionType.SHORT, _plain(default), meaning, **rest), default)


def double(name: str, default: D, meaning: str, **rest: Any) -> D:
    """Return a row for a number with a fraction."""
    return _row(Option(name, OptionType.DOUBLE, _plain(default), meaning, **rest), default)


def string(name: str, default: D, meaning: str, **rest: Any) -> D:
    """Return a row for text. As in Kafka, the text is not trimmed."""
    return _row(Option(name, OptionType.STRING, _plain(default), meaning, **rest), default)


def listing(name: str, default: D, meaning: str, **rest: Any) -> D:
    """Return a row for a list of words, separated by commas."""
    return _row(Option(name, OptionType.LIST, _plain(default), meaning, **rest), default)


def password(name: str, default: D, meaning: str, **rest: Any) -> D:
    """Return a row for a secret."""
    return _row(Option(name, OptionType.PASSWORD, _plain(default), meaning, **rest), default)


def attribute_of(name: str) -> str:
    """Return the name of an option's attribute."""
    return name.replace(".", "_")


def options_of(table: type[Any]) -> dict[str, Option]:
    """Return option name -> row, in the order of declaration."""
    found = [
        item.metadata["option"] for item in dataclasses.fields(table) if "option" in item.metadata
    ]
    return {option.name: option for option in found}


def parse_values(
    options: Mapping[str, Option], properties: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Parse `properties`. Return (attribute -> value, option name -> fault). Names without a row
    are ignored.
    """
    values: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for name, text in properties.items():
        option = options.get(name)
        if option is None:
            continue
        try:
            values[option.attribute] = option.parse(text)
        except ValueError:
            faults[name] = option.fault(text)
    return values, faults


def shortened(text: str) -> str:
    """Return a text of unknown origin shortened for a message."""
    if len(text) <= _SHOWN_CHARACTERS_MAX:
        return text
    return f"{text[:_SHOWN_CHARACTERS_MAX]}... ({len(text)} characters)"


def first_faults(faults: Sequence[str]) -> list[str]:
    """Return the first faults, for the log, which text of unknown origin must not fill."""
    more = len(faults) - SUGGESTIONS_MAX
    return [*faults[:SUGGESTIONS_MAX], *([f"and {more} more"] if more > 0 else [])]


def fits_in_message(text: str) -> bool:
    """Whether the text fits into a message of the protocol."""
    return 3 * len(text) <= VALUE_BYTES_MAX or len(text.encode()) <= VALUE_BYTES_MAX


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name of which `name` is probably a misspelling, or None."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=SIMILARITY_OF_A_TYPO)
    return by_lower[close[0]] if close else None


def first_ms(*candidates: tuple[int | None, int]) -> int | None:
    """Return the first given one of several (amount, milliseconds per unit), in milliseconds:
    Kafka's rule for options that differ only in the unit."""
    for amount, unit_ms in candidates:
        if amount is not None:
            return amount * unit_ms
    return None


def _plain(default: object) -> Value:
    if default is None or isinstance(default, bool | int | float | str | Password):
        return default
    if isinstance(default, tuple):
        return tuple(str(item) for item in default)
    raise TypeError(f"{default!r} cannot be the default of an option")


def _java_double(number: float) -> str:
    """Return a number as Java's Double.toString formats it: 0.5, 1.0E10; without an exponent from
    0.001 up to ten million."""
    if number == 0 or 1e-3 <= abs(number) < 1e7 or not math.isfinite(number):
        return str(number)
    sign, all_digits, exponent = Decimal(repr(number)).as_tuple()
    digits = "".join(map(str, all_digits))
    power = len(digits) - 1 + int(exponent)
    mantissa = f"{digits[0]}.{digits[1:].rstrip('0') or '0'}"
    return f"{'-' if sign else ''}{mantissa}E{power}"


def _row(option: Option, default: D) -> D:
    return field(default=default, metadata={"option": option})
