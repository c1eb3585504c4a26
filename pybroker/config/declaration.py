"""The declaration of configuration options, and the parser of their text, by the rules of Kafka. A
table of options is a frozen dataclass with fields from the functions below:

    log_segment_bytes: int = integer("log.segment.bytes", 1 << 30, minimum=14, meaning="...")
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
"""An unknown name counts as a misspelling of a known name if their similarity (0 to 1) is at least
this."""

VALUE_BYTES_MAX: Final = 32767
"""The maximum length of an option's name or value (bytes). A longer one does not fit into a message
of the protocol, so no client could read it."""
SUGGESTIONS_MAX: Final = 20
"""The maximum number of unknown names for which one call searches a similar known name. A search
takes half a millisecond, and a request or a ZooKeeper node may contain thousands of unknown
names."""
_SHOWN_CHARACTERS_MAX: Final = 200

_INTEGER = re.compile(r"[+-]?[0-9]+")
_DOUBLE = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_COMMA = re.compile(r"\s*,\s*")


@dataclass(frozen=True, slots=True)
class Password:
    """A secret value. Its text never appears in a log line or in the description of the option."""

    value: str = field(repr=False)

    def __str__(self) -> str:
        return "[hidden]"


Value = bool | int | float | str | tuple[str, ...] | Password | None


class OptionType(enum.Enum):
    """Kafka's types of options. Each value is the type's name in the documentation."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    SHORT = "short"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"
    PASSWORD = "password"


class UpdateMode(enum.Enum):
    """Whether an option may be changed while the broker runs, as in Kafka."""

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
    """The declaration of one option: one row of a table of options.

    - `choices`: the allowed words. `pattern`: a regular expression, which `shape` describes. Both
      apply to the text, or to each item of a list.
    - `excluded`: forbidden numbers within the bounds.
    - `inherits` (topics only): the broker options that give the default, in order of precedence.
    - `inherited` (if `inherits` has several options): the broker's attribute that has the resulting
      default.
    - `effective`: False if the option has no effect; `instead` (topics only) says what the broker
      does.
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
    instead: str = ""

    @property
    def attribute(self) -> str:
        """The name of the attribute that has the option's value."""
        return attribute_of(self.name)

    @property
    def inherited_attribute(self) -> str | None:
        """The broker's attribute that gives the default of this topic option, or None if the option
        has a default of its own."""
        if self.inherited is None and self.inherits:
            return attribute_of(self.inherits[0])
        return self.inherited

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The smallest and the largest allowed value, or None if the type is not a number."""
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
        """Return a description of the valid values, such as "an integer from 1 to 10"."""
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
        if math.isinf(high):
            return kind if math.isinf(low) else f"{kind} from {low} up"
        excluded = f", but not {', '.join(map(str, self.excluded))}" if self.excluded else ""
        return f"{kind} from {low} to {high}{excluded}"

    def parse(self, text: str) -> Value:
        """Return `text` as a value of the option's type. Raise ValueError without a message if it
        is invalid."""
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
        """Whether `text` is a valid value that has no effect in this broker: the option is not
        `effective`, and the value is not Kafka's default."""
        try:
            value = self.parse(text)
        except ValueError:
            return False
        return not self.effective and value != self.default

    def fault(self, text: str) -> str:
        """Return a sentence that says why `text` is no valid value of this option."""
        shown = "[hidden]" if self.type is OptionType.PASSWORD else shortened(text)
        return f"{self.name}={shown}: expected {self.expected()}"

    def format(self, value: Value) -> str | None:
        """Return `value` as a text that `parse` accepts. Return None if `value` is None, and a
        placeholder if `value` is a password."""
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
    """Return a field that declares an option with the values true and false."""
    return _row(Option(name, OptionType.BOOLEAN, _plain(default), meaning, **rest), default)


def integer(name: str, default: D, meaning: str, **rest: Any) -> D:
    """Return a field that declares a 32-bit integer option."""
    return _row(Option(name, OptionType.INT, _plain(default), meaning, **rest), default)


def long(name: str, default: D, meaning: str, **rest: Any) -> D:
    """Return a field that declares a 64-bit integer option."""
    return _row(Option(name, OptionType.LONG, _plain(default), meaning, **rest), default)


def short(name: str, default: D, meaning: str, **rest: Any) -> D:
    """Return a field that declares a 16-bit integer option."""
    return _row(Option(name, OptionType.SHORT, _plain(default), meaning, **rest), default)


def double(name: str, default: D, meaning: str, **rest: Any) -> D:
    """Return a field that declares a floating-point option."""
    return _row(Option(name, OptionType.DOUBLE, _plain(default), meaning, **rest), default)


def string(name: str, default: D, meaning: str, **rest: Any) -> D:
    """Return a field that declares a text option. As in Kafka, blanks at the ends are kept."""
    return _row(Option(name, OptionType.STRING, _plain(default), meaning, **rest), default)


def listing(name: str, default: D, meaning: str, **rest: Any) -> D:
    """Return a field that declares an option whose value is a list of words, separated by
    commas."""
    return _row(Option(name, OptionType.LIST, _plain(default), meaning, **rest), default)


def password(name: str, default: D, meaning: str, **rest: Any) -> D:
    """Return a field that declares an option whose value is a secret."""
    return _row(Option(name, OptionType.PASSWORD, _plain(default), meaning, **rest), default)


def attribute_of(name: str) -> str:
    """Return the attribute name for an option's name: underscores instead of dots."""
    return name.replace(".", "_")


def options_of(table: type[Any]) -> dict[str, Option]:
    """Return the declarations of all options of a table by option name, in the order of the
    table."""
    found = [
        item.metadata["option"] for item in dataclasses.fields(table) if "option" in item.metadata
    ]
    return {option.name: option for option in found}


def parse_values(
    options: Mapping[str, Option], properties: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return two mappings: attribute -> value for the valid options in `properties`, and option
    name -> fault for the invalid ones. Names that are not in `options` are ignored."""
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
    """Return `text` for a message, cut off if it is long."""
    if len(text) <= _SHOWN_CHARACTERS_MAX:
        return text
    return f"{text[:_SHOWN_CHARACTERS_MAX]}... ({len(text)} characters)"


def first_faults(faults: Sequence[str]) -> list[str]:
    """Return the first few of `faults` for the log. If some faults are left out, the last item says
    how many, such as "and 3 more"."""
    more = len(faults) - SUGGESTIONS_MAX
    return [*faults[:SUGGESTIONS_MAX], *([f"and {more} more"] if more > 0 else [])]


def fits_in_message(text: str) -> bool:
    """Whether `text` is short enough for a field of the protocol (VALUE_BYTES_MAX)."""
    return 3 * len(text) <= VALUE_BYTES_MAX or len(text.encode()) <= VALUE_BYTES_MAX


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the name in `known` that was probably meant by the misspelling `name`. Return None if
    no name is similar enough."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=SIMILARITY_OF_A_TYPO)
    return by_lower[close[0]] if close else None


def first_ms(*candidates: tuple[int | None, int]) -> int | None:
    """Return the first amount that is set, in milliseconds. Each of `candidates` is an amount
    (None: not set) and the milliseconds in its unit."""
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
    """Return a number as Java's Double.toString formats it, such as 0.5 and 1.0E10."""
    if number == 0 or 1e-3 <= abs(number) < 1e7 or not math.isfinite(number):
        return str(number)
    sign, all_digits, exponent = Decimal(repr(number)).as_tuple()
    digits = "".join(map(str, all_digits))
    power = len(digits) - 1 + int(exponent)
    mantissa = f"{digits[0]}.{digits[1:].rstrip('0') or '0'}"
    return f"{'-' if sign else ''}{mantissa}E{power}"


def _row(option: Option, default: D) -> D:
    return field(default=default, metadata={"option": option})
