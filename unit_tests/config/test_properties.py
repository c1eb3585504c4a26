"""Tests of Java's properties syntax, as `java.util.Properties` reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.config.properties import parse_overrides, parse_properties, read_properties
from pybroker.errors import ConfigError

READ_AS: list[tuple[str, dict[str, str]]] = [
    ("", {}),
    ("# note\n! note\n\n   \n", {}),
    ("a=b", {"a": "b"}),
    ("a:b", {"a": "b"}),
    ("a b", {"a": "b"}),
    ("a\tb", {"a": "b"}),
    ("a = b = c", {"a": "b = c"}),
    ("  a  :  b", {"a": "b"}),
    ("a", {"a": ""}),
    ("a=", {"a": ""}),
    ("a=b  ", {"a": "b  "}),
    ("a=1\na=2", {"a": "2"}),
    ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
    ("a=one,\\\n   two", {"a": "one,two"}),
    ("a=one\\\n# two", {"a": "one# two"}),
    ("a=one\\\n\nb=2", {"a": "one", "b": "2"}),
    ("a=one\\\\\nb=2", {"a": "one\\", "b": "2"}),
    ("a=end\\", {"a": "end"}),
    ("a\\=b=c", {"a=b": "c"}),
    ("a\\ b c", {"a b": "c"}),
    ("listeners=PLAINTEXT://:9092", {"listeners": "PLAINTEXT://:9092"}),
    ("a=\\t\\n\\z", {"a": "\t\nz"}),
    ("a=\\u00e9\\u20AC", {"a": "é€"}),
]


@pytest.mark.parametrize(("text", "properties"), READ_AS)
def test_text_is_read_as_java_reads_it(text: str, properties: dict[str, str]) -> None:
    assert parse_properties(text) == properties


def test_every_broken_unicode_escape_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_properties("a=\\u12\nb=1\nc=\\uxyzw")
    assert len(caught.value.faults) == 2


def test_a_file_may_be_utf8_or_latin1(tmp_path: Path) -> None:
    for encoding in ("utf-8", "latin-1"):
        path = tmp_path / encoding
        path.write_bytes("a=é".encode(encoding))
        assert read_properties(str(path)) == {"a": "é"}


def test_a_missing_file_is_a_fault_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        read_properties(str(tmp_path / "absent"))


def test_overrides_split_at_the_first_equals_sign() -> None:
    assert parse_overrides(["a=b=c", "d=", "a=2"]) == {"a": "2", "d": ""}


@pytest.mark.parametrize("word", ["a", "=b", ""])
def test_an_override_needs_a_name_and_an_equals_sign(word: str) -> None:
    with pytest.raises(ConfigError, match="expected name=value"):
        parse_overrides([word])


def test_a_fault_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.properties"
    path.write_text("a=\\u12\n")
    with pytest.raises(ConfigError) as caught:
        read_properties(str(path))
    assert all(fault.startswith(f"{path}: ") for fault in caught.value.faults)
