"""Numbers, dates and metrics as Kafka's performance tests print them."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from typing import Final

import click

from pybroker.tools._cli import Failure

MIB: Final = 1024 * 1024

_RUN: Final = re.compile(r"'((?:[^']|'')*)'|(([A-Za-z])\3*)|([^A-Za-z']+)")


def ratio(amount: float, parts: float) -> float:
    """Return `amount` / `parts` as Java computes it: a division by 0 gives infinity or NaN."""
    if parts:
        return amount / parts
    return math.nan if not amount else math.copysign(math.inf, amount)


def fixed(number: float, digits: int) -> str:
    """Return a number with `digits` decimals. NaN and Infinity have Java's names."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return f"{number:.{digits}f}"


def finite(number: float) -> float | None:
    """Return the number, or None for NaN and infinity, which JSON cannot express."""
    return number if math.isfinite(number) else None


def date_format(pattern: str) -> Callable[[int], str]:
    """Return a function that formats ms since 1970 in local time by a pattern of Java's
    SimpleDateFormat. Raises Failure for an unknown letter."""
    parts: list[str | Callable[[time.struct_time, int], str]] = []
    position = 0
    while position < len(pattern):
        match = _RUN.match(pattern, position)
        if match is None:
            raise Failure(f"Unterminated quote in the date format {pattern!r}")
        quoted, letters, _, plain = match.groups()
        if letters is not None:
            parts.append(_field(letters, pattern))
        else:
            parts.append(plain if plain is not None else quoted.replace("''", "'") or "'")
        position = match.end()

    def show(milliseconds: int) -> str:
        seconds, rest = divmod(milliseconds, 1000)
        local = time.localtime(seconds)
        return "".join(part if isinstance(part, str) else part(local, rest) for part in parts)

    return show


_NUMBERS: Final[Mapping[str, Callable[[time.struct_time, int], int]]] = {
    "d": lambda local, _: local.tm_mday,
    "H": lambda local, _: local.tm_hour,
    "k": lambda local, _: local.tm_hour or 24,
    "K": lambda local, _: local.tm_hour % 12,
    "h": lambda local, _: local.tm_hour % 12 or 12,
    "m": lambda local, _: local.tm_min,
    "s": lambda local, _: local.tm_sec,
    "S": lambda _, rest: rest,
    "D": lambda local, _: local.tm_yday,
    "u": lambda local, _: local.tm_wday + 1,
}
_TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "E": ("%a", "%A"),
    "a": ("%p", "%p"),
    "z": ("%Z", "%Z"),
    "Z": ("%z", "%z"),
    "X": ("%z", "%z"),
}
"""Pattern letter -> strftime's codes: the first for up to three such letters in a row, the second
for more."""


def _field(letters: str, pattern: str) -> Callable[[time.struct_time, int], str]:
    letter, width = letters[0], len(letters)
    if letter in _NUMBERS:
        number = _NUMBERS[letter]
        return lambda local, rest: f"{number(local, rest):0{width}d}"
    if letter in "yY":
        if width == 2:
            return lambda local, _: f"{local.tm_year % 100:02d}"
        return lambda local, _: f"{local.tm_year:0{width}d}"
    if letter in "ML":
        if width <= 2:
            return lambda local, _: f"{local.tm_mon:0{width}d}"
        code = "%b" if width == 3 else "%B"
        return lambda local, _: time.strftime(code, local)
    if letter in _TEXTS:
        code = _TEXTS[letter][width > 3]
        return lambda local, _: time.strftime(code, local)
    raise Failure(f"Illegal pattern character '{letter}' in the date format {pattern!r}")


def print_metrics(metrics: Mapping[str, float]) -> None:
    """Print the metrics sorted by name, in the columns of Kafka's tools."""
    width = max(map(len, metrics), default=0)
    click.echo(f"\n{'Metric Name':{width}}   Value")
    for name in sorted(metrics):
        click.echo(f"{name:{width}} : {fixed(metrics[name], 3)}")
