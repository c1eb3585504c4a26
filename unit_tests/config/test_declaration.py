"""Tests of types of options: the values that each accepts, refuses and formats."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from pybroker.config.declaration import (
    Option,
    OptionType,
    Password,
    Value,
    double,
    first_ms,
    integer,
    nearest_name,
    options_of,
    parse_values,
    password,
)

BOOLEAN = Option("x", OptionType.BOOLEAN, False, "m")
SHORT = Option("x", OptionType.SHORT, 0, "m")
INT = Option("x", OptionType.INT, 0, "m", minimum=14)
LONG = Option("x", OptionType.LONG, 0, "m", maximum=100)
DOUBLE = Option("x", OptionType.DOUBLE, 0.5, "m", minimum=0, maximum=1)
STRING = Option("x", OptionType.STRING, "", "m")
CHOICE = Option("x", OptionType.STRING, "a", "m", choices=("a", "b"))
LIST = Option("x", OptionType.LIST, (), "m")
CHOICES = Option("x", OptionType.LIST, (), "m", choices=("a", "b"))
PAIRS = Option("x", OptionType.LIST, (), "m", pattern="[0-9]:[0-9]", shape="pairs")

TAKEN: list[tuple[Option, str, Value]] = [
    (BOOLEAN, "true", True),
    (BOOLEAN, " FALSE ", False),
    (SHORT, "-32768", -32768),
    (INT, "14", 14),
    (INT, " 2147483647 ", 2147483647),
    (INT, "+15", 15),
    (LONG, "-9223372036854775808", -(1 << 63)),
    (DOUBLE, "1", 1.0),
    (DOUBLE, "5e-1", 0.5),
    (DOUBLE, ".25", 0.25),
    (STRING, " kept as it is ", " kept as it is "),
    (STRING, "", ""),
    (CHOICE, "b", "b"),
    (LIST, "", ()),
    (LIST, " a , b,c ", ("a", "b", "c")),
    (LIST, "a,,b", ("a", "", "b")),
    (CHOICES, "b,a", ("b", "a")),
    (PAIRS, "1:2, 3:4", ("1:2", "3:4")),
]

REFUSED = [
    (BOOLEAN, "yes", "x=yes: expected true or false"),
    (BOOLEAN, "", "x=: expected true or false"),
    (SHORT, "32768", "x=32768: expected an integer from -32768 to 32767"),
    (INT, "abc", "x=abc: expected an integer from 14 to 2147483647"),
    (INT, "13", "x=13: expected an integer from 14 to 2147483647"),
    (INT, "2_000", "x=2_000: expected an integer from 14 to 2147483647"),
    (INT, "١٥", "x=١٥: expected an integer from 14 to 2147483647"),
    (
        INT,
        "9" * 5000,
        f"x={'9' * 200}... (5000 characters): expected an integer from 14 to 2147483647",
    ),
    (LONG, "101", "x=101: expected an integer from -9223372036854775808 to 100"),
    (DOUBLE, "1.1", "x=1.1: expected a number from 0 to 1"),
    (DOUBLE, "nan", "x=nan: expected a number from 0 to 1"),
    (CHOICE, "A", "x=A: expected one of a, b"),
    (CHOICES, "a,c", "x=a,c: expected a list of a, b"),
    (PAIRS, "1:2,x", "x=1:2,x: expected pairs"),
]


@pytest.mark.parametrize(("option", "text", "value"), TAKEN)
def test_a_good_value_becomes_typed(option: Option, text: str, value: Value) -> None:
    assert option.parse(text) == value
    assert type(option.parse(text)) is type(value)


@pytest.mark.parametrize(("option", "text", "fault"), REFUSED)
def test_a_bad_value_is_refused_with_what_was_expected(
    option: Option, text: str, fault: str
) -> None:
    with pytest.raises(ValueError):
        option.parse(text)
    assert option.fault(text) == fault


@pytest.mark.parametrize(("option", "value"), [(row[0], row[2]) for row in TAKEN if row[1]])
def test_a_formatted_value_reads_back(option: Option, value: Value) -> None:
    text = option.format(value)
    assert text is not None
    assert option.parse(text) == value


def test_a_password_is_never_shown() -> None:
    option = Option("x", OptionType.PASSWORD, None, "m")
    secret = option.parse("letmein")
    assert secret == Password("letmein")
    assert "letmein" not in f"{secret} {secret!r} {option.format(secret)} {option.fault('letmein')}"


@dataclass(frozen=True, slots=True)
class Table:
    batch_bytes: int = integer("batch.bytes", 5, "m", minimum=1)
    ratio: float | None = double("ratio", None, "m")
    key: Password | None = password("key", None, "m")
    other: int = 3


def test_a_table_is_its_own_declaration() -> None:
    rows = options_of(Table)
    assert list(rows) == ["batch.bytes", "ratio", "key"]
    assert rows["batch.bytes"].default == Table().batch_bytes == 5


def test_values_and_faults_come_together_and_other_names_are_left() -> None:
    values, faults = parse_values(
        options_of(Table), {"batch.bytes": "0", "ratio": "2", "elsewhere": "x"}
    )
    assert values == {"ratio": 2.0}
    assert list(faults) == ["batch.bytes"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("log.segmnet.bytes", "log.segment.bytes"),
        ("Log.Segment.Bytes", "log.segment.bytes"),
        ("log_segment_bytes", "log.segment.bytes"),
        ("my.plugin.setting", None),
    ],
)
def test_a_typing_mistake_is_recognised(name: str, meant: str | None) -> None:
    assert nearest_name(name, ["log.segment.bytes", "log.roll.ms"]) == meant


def test_the_first_given_unit_wins() -> None:
    assert first_ms((None, 1), (2, 60_000), (3, 3_600_000)) == 120_000
    assert first_ms((0, 1), (2, 60_000)) == 0
    assert first_ms((None, 1)) is None


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.0"),
        (0.5, "0.5"),
        (123456.0, "123456.0"),
        (1e7, "1.0E7"),
        (-1.5e-4, "-1.5E-4"),
        (sys.float_info.max, "1.7976931348623157E308"),
    ],
)
def test_numbers_with_a_fraction_are_written_as_java_does(number: float, text: str) -> None:
    free = Option("x", OptionType.DOUBLE, 0.0, "m")
    assert free.format(number) == text
    assert free.parse(text) == number
