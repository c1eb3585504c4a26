"""Java's properties syntax, as `load` of java.util.Properties reads it, for the configuration files
of Kafka and ZooKeeper.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from pybroker.errors import ConfigError

_BLANKS: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_UNICODE: Final = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class PropertyText(str):
    """A value from a properties file or a command line. A client option without effect causes a
    warning instead of an error if its value is a PropertyText, because several programs may share a
    file."""

    __slots__ = ()


def parse_properties(text: str) -> dict[str, str]:
    r"""Return the properties in a file's text. The last value of a name counts. Raise ConfigError
    for a `\u` without four hexadecimal digits."""
    properties: dict[str, str] = {}
    faults = []
    for line in _logical_lines(text):
        raw_name, raw_value = _split(line)
        try:
            properties[_unescape(raw_name)] = PropertyText(_unescape(raw_value))
        except ValueError:
            faults.append(f"{line!r}: expected four hexadecimal digits after \\u")
    if faults:
        raise ConfigError(faults)
    return properties


def read_properties(path: str) -> dict[str, str]:
    """Return the properties in a file. The file is read as UTF-8, or as Latin-1 if it is not valid
    UTF-8. Raise ConfigError if the file cannot be read or has an error."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from error
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    try:
        return parse_properties(text)
    except ConfigError as error:
        raise ConfigError([f"{path}: {fault}" for fault in error.faults]) from error


def parse_overrides(assignments: Iterable[str]) -> dict[str, str]:
    """Return the properties in arguments such as `name=value`. The last value of a name counts.
    Raise ConfigError if an argument has no name or no equals sign."""
    properties: dict[str, str] = {}
    faults = []
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip():
            faults.append(f"{assignment!r}: expected name=value")
        properties[name.strip()] = PropertyText(value)
    if faults:
        raise ConfigError(faults)
    return properties


def is_property(name: str, value: object) -> bool:
    """Whether the option counts as an option from a properties file, not as a Python argument. True
    for a PropertyText. True also for any other str, unless `name` has an underscore: only Python
    arguments have underscores."""
    return isinstance(value, PropertyText) or ("_" not in name and isinstance(value, str))


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines that are neither comments nor empty. A line that ends in an odd number of
    backslashes is joined with the next one."""
    joined = ""
    continues = False
    for natural in _LINE_END.split(text):
        line = natural.lstrip(_BLANKS)
        if not continues and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        continues = backslashes % 2 == 1
        joined += line[:-1] if continues else line
        if not continues:
            yield joined
            joined = ""
    if joined:
        yield joined


def _split(line: str) -> tuple[str, str]:
    """Return the name and the value of a line. The name ends at the first blank, `=` or `:` without
    a backslash before it."""
    position = 0
    while position < len(line) and line[position] not in "=:" + _BLANKS:
        position += 2 if line[position] == "\\" else 1
    name, rest = line[:position], line[position:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return name, rest


def _unescape(text: str) -> str:
    r"""Return the text with escape sequences such as `\t` and `\u00e4` replaced. Raise ValueError
    for a `\u` without four hexadecimal digits."""
    if "\\" not in text:
        return text
    result = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\" or position == len(text):
            if character != "\\":
                result.append(character)
            continue
        escaped = text[position]
        position += 1
        if escaped != "u":
            result.append(_ESCAPES.get(escaped, escaped))
            continue
        digits = _UNICODE.match(text, position)
        if digits is None:
            raise ValueError(text)
        result.append(chr(int(digits.group(), 16)))
        position = digits.end()
    return "".join(result)
