"""Checks the names of topics, columns and folders in a job. Each fault is one sentence."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Final

from pybroker.spark.etl import layout

FOLDER: Final = "an absolute path in a file system of this machine"
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SCHEME: Final = re.compile(r"[a-z0-9]+:/")
_GLOB: Final = frozenset("*?[]{}\\")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def topic_faults(topics: Sequence[str]) -> Iterator[str]:
    """Yield the faults of a list of topics."""
    for topic in topics:
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            yield f"{topic!r} is not a valid topic name"
    yield from _twice(topics)


def column_faults(columns: Sequence[str]) -> Iterator[str]:
    """Yield the faults of the names of partition columns (sink.partition-by)."""
    for column in columns:
        if column.lower().startswith(layout.RESERVED_PREFIX):
            yield f"{column}: names that begin with {layout.RESERVED_PREFIX} are reserved"
    yield from _twice(columns)


def folder_fault(text: str) -> str | None:
    """Return the reason why a job cannot use a folder's path `text`, or None. The caller must have
    removed a leading `file://` from the path."""
    if "://" in text or _SCHEME.match(text):
        return f"{text} is not {FOLDER}; object stores and HDFS are not supported yet"
    if not text.startswith("/"):
        return f"expected {FOLDER}, found {text!r}"
    if _CONTROL.search(text):
        return f"{text!r} contains a control character; expected {FOLDER}"
    if os.path.normpath(text).strip("/") == "":
        return f"expected a folder that only this job uses, found {text!r}"
    if _GLOB & set(text):
        return f"{text!r} contains one of * ? [ ] {{ }} \\, which Spark would expand as a pattern"
    return None


def _twice(names: Sequence[str]) -> Iterator[str]:
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{name} is given twice"
