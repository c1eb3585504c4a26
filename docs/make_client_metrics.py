"""Writes the tables of metrics into `client.rst`, from the classes in `pybroker/client/metrics.py`.
Run by `make docs`; a test compares the page with `render()`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pybroker.client.metrics import (
    CLIENT,
    ConsumerMetrics,
    ConsumerTopicMetrics,
    ProducerMetrics,
    ProducerTopicMetrics,
)
from pybroker.metrics import Family, families_of

PAGE: Final = Path(__file__).parent / "client.rst"
BEGIN: Final = ".. These tables are made by ``make docs`` from ``pybroker/client/metrics.py``.\n"
END: Final = ".. The tables of metrics end here.\n"
TABLES: Final[tuple[tuple[str, type[Any], type[Any]], ...]] = (
    ("ProducerMetrics", ProducerTopicMetrics, ProducerMetrics),
    ("ConsumerMetrics", ConsumerTopicMetrics, ConsumerMetrics),
)
HEAD: Final = """
.. list-table:: ``{title}``
   :header-rows: 1
   :widths: 55 45

"""


def render() -> str:
    """Return the part of the page between the marks, with them."""
    parts = [BEGIN]
    for title, of_topic, of_client in TABLES:
        parts.append(HEAD.format(title=title))
        parts += _row("Attribute, metric of Prometheus, type and labels", "Meaning")
        for prefix, kind in (("topics[...].", of_topic), ("", of_client)):
            for name, family in families_of(kind).items():
                parts += _row(_names(f"{prefix}{name}", family), family.meaning)
    return "".join([*parts, f"\n{END}"])


def _row(first: str, second: str) -> Iterator[str]:
    yield f"   * - {first}\n"
    yield f"     - {second}\n"


def _names(attribute: str, family: Family) -> str:
    labels = [f"``{label}``" for label in family.labels if label not in CLIENT]
    by = f", by {', '.join(labels)}" if labels else ""
    return f"``{attribute}``: ``{family.name}`` ({family.kind}{by})"


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + render() + after, encoding="utf-8")


if __name__ == "__main__":
    main()
