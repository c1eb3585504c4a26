"""Parsers for the text of an option. A parser raises ValueError with a message such as "must be
true or false". The caller adds the option's name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from pybroker.client.offset_lookup import EARLIEST, LATEST
from pybroker.model import TopicPartition

T = TypeVar("T")

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
_UNITS: Final[Mapping[str, int]] = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE: Final = re.compile(r"(\d+)\s*(?:([kmgt]?)(?:i?b)?|b)", re.IGNORECASE)
_OFFSETS_EXAMPLE: Final = '{"orders": {"0": 23, "1": -1}}'
_TIMESTAMPS_EXAMPLE: Final = '{"orders": {"0": 1700000000000, "1": 1700000000000}}'
_PARTITIONS_EXAMPLE: Final = '{"orders": [0, 1]}'
_SHOWN_CHARACTERS_MAX: Final = 80


def shown(text: str) -> str:
    """Return a text in quotes for an error message, shortened if long."""
    cut = text if len(text) <= _SHOWN_CHARACTERS_MAX else text[: _SHOWN_CHARACTERS_MAX - 3] + "..."
    return repr(cut)


def flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise ValueError(f"must be true or false, not {shown(text)}")
    return lowered == "true"


def whole(minimum: int, maximum: int = INT32_MAX) -> Callable[[str], int]:
    """Return a parser for whole numbers within bounds."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,19}", text.strip(), re.ASCII):
            raise ValueError(f"must be a whole number, not {shown(text)}")
        number = int(text)
        if not minimum <= number <= maximum:
            raise ValueError(f"must be from {minimum} to {maximum}, not {number}")
        return number

    return read


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser that accepts one of `choices` in upper or lower case. The parsed value is in
    lower case."""

    def read(text: str) -> str:
        lowered = text.strip().lower()
        if lowered not in choices:
            raise ValueError(f"must be {' or '.join(choices)}, not {shown(text)}")
        return lowered

    return read


def size(text: str) -> int:
    """Return the number of bytes that a text such as `128m`, `64k` or `4096` means. Units are
    powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    number = int(match[1]) * _UNITS[(match[2] or "").lower()] if match else 0
    if not 0 < number <= INT64_MAX:
        raise ValueError(f"must be a size above 0 such as 128m, not {shown(text)}")
    return number


def size_up_to_a_gigabyte(text: str) -> int:
    """Return the number of bytes, as `size` does. More than 1 GiB is an error, because Arrow's
    offsets have 32 bits."""
    number = size(text)
    if number > 2**30:
        raise ValueError(f"must be at most 1g, not {shown(text)}")
    return number


def words(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated text. Duplicates are dropped."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise ValueError("must contain at least one name; names are separated by commas")
    return found


def pattern(text: str) -> str:
    stripped = text.strip()
    if not stripped:
        raise ValueError("must be a regular expression, but is empty")
    try:
        re.compile(stripped)
    except re.error as error:
        raise ValueError(f"must be a regular expression: {error} in {shown(stripped)}") from None
    return stripped


def partitions(text: str) -> dict[str, tuple[int, ...]]:
    """Return the partition numbers of each topic in a JSON text such as {"orders": [0, 1]}."""
    found: dict[str, tuple[int, ...]] = {}
    for topic, numbers in _object(text, _PARTITIONS_EXAMPLE).items():
        if not isinstance(numbers, list) or not all(_is_number(each, 0) for each in numbers):
            raise _malformed(_PARTITIONS_EXAMPLE, f"{shown(topic)} needs a list of partitions")
        if not numbers:
            raise _malformed(
                _PARTITIONS_EXAMPLE, f"the list of partitions of {shown(topic)} is empty"
            )
        found[topic] = tuple(sorted(set(numbers)))
    if not found:
        raise _malformed(_PARTITIONS_EXAMPLE, "it contains no topic")
    return found


def timestamps(text: str) -> dict[TopicPartition, int]:
    """Return the timestamp (ms since 1970) of each partition in a JSON text such as {"orders":
    {"0": 1700000000000}}."""
    return _by_partition(text, _TIMESTAMPS_EXAMPLE, 0)


def starting_offsets(text: str) -> str | dict[TopicPartition, int]:
    """Return "earliest" if the text is this word, otherwise the offsets in the JSON text. Raises
    ValueError, for example for the offset -1 (latest)."""
    return _edge_or_offsets(text, "earliest", "latest", LATEST)


def ending_offsets(text: str) -> str | dict[TopicPartition, int]:
    """Return "latest", or the offsets in a JSON text, in which -2 (earliest) is an error."""
    return _edge_or_offsets(text, "latest", "earliest", EARLIEST)


def _edge_or_offsets(
    text: str, allowed: str, refused: str, number: int
) -> str | dict[TopicPartition, int]:
    lowered = text.strip().lower()
    if lowered == allowed:
        return lowered
    if lowered == refused:
        raise ValueError(f"must be {allowed} or JSON: with {refused}, no record would ever be read")
    if not lowered.startswith("{"):
        raise ValueError(f"must be {allowed} or JSON such as {_OFFSETS_EXAMPLE}, not {shown(text)}")
    found = _by_partition(text, _OFFSETS_EXAMPLE, EARLIEST)
    for partition, offset in found.items():
        if offset == number:
            raise ValueError(
                f"must not be {number} ({refused}) for {partition}: with {refused},"
                " no record would ever be read"
            )
    return found


def _by_partition(text: str, example: str, minimum: int) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic, by_partition in _object(text, example).items():
        if not isinstance(by_partition, dict):
            raise _malformed(example, f"{shown(topic)} needs an object with partitions as its keys")
        for name, number in by_partition.items():
            if not re.fullmatch(r"\d{1,10}", name, re.ASCII) or int(name) > INT32_MAX:
                raise _malformed(
                    example, f"{shown(name)} of {shown(topic)} is not a partition number"
                )
            if not _is_number(number, minimum):
                raise _malformed(
                    example,
                    f"the value of {topic}-{name} is {shown(json.dumps(number))}, expected a whole"
                    f" number from {minimum} to {INT64_MAX}",
                )
            if TopicPartition(topic, int(name)) in found:
                raise _malformed(example, f"{topic}-{int(name)} is given twice")
            found[TopicPartition(topic, int(name))] = number
    if not found:
        raise _malformed(example, "it contains no partition")
    return found


def _object(text: str, example: str) -> dict[str, object]:
    try:
        found = json.loads(text, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise _malformed(example, f"{error} in {shown(text)}") from None
    if not isinstance(found, dict):
        raise _malformed(example, f"not {shown(text)}")
    return found


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{shown(twice)} is given twice")
    return found


def _is_number(value: object, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= INT64_MAX


def _malformed(example: str, problem: str) -> ValueError:
    return ValueError(f"must be JSON such as {example}: {problem}")
