"""The report of a race: a table for the terminal, a table for the documents, and the rows of its
medians for the plot (`benchmarks.racing.plot`).

All figures come from `Results`; this module measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.racing.contestants import APACHE, OURS
from benchmarks.racing.metrics import METRICS, Goal, Metric
from benchmarks.racing.results import Results, Spread

MET, MISSED = "yes", "NO"
BEGIN, END = ".. The race's table begins.", ".. The race's table ends."
"""The comments before and after the table in a document, between which `put_into` replaces it."""


@dataclass(frozen=True)
class Row:
    """A metric of the table with its results: each contestant's figures, and the ratios of
    pybroker's figures to those of each other contestant, by the contestant's name."""

    metric: Metric
    figures: dict[str, Spread]
    ratios: dict[str, Spread]

    def verdict(self) -> str:
        """Return whether the median ratio to Apache Kafka meets the goal: MET or MISSED; empty
        without a goal or a ratio."""
        return verdict(self.metric.goal, self.ratios.get(APACHE))


def verdict(goal: Goal | None, ratio: Spread | None) -> str:
    if goal is None or ratio is None:
        return ""
    return MET if goal.met(ratio.median) else MISSED


def rows(results: Results) -> Iterator[Row]:
    """Return the rows of the table: the metrics that have results."""
    for metric in METRICS.values():
        found = {
            name: Spread.of(list(results.figures(metric.key, name).values()))
            for name in results.contestants
        }
        figures = {name: spread for name, spread in found.items() if spread is not None}
        if not figures:
            continue
        others = [name for name in results.contestants if name != OURS]
        compared = {name: Spread.of(results.ratios(metric.key, name)) for name in others}
        ratios = {name: spread for name, spread in compared.items() if spread is not None}
        yield Row(metric, figures, ratios)


def number(value: float) -> str:
    """Return the number as text with three significant digits."""
    if value >= 100 or value == 0:
        return f"{value:,.0f}"
    digits = 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{digits}f}"


def figure_text(row: Row, name: str) -> str:
    return number(row.figures[name].median) if name in row.figures else ""


def ratio_text(ratio: Spread | None) -> str:
    if ratio is None:
        return ""
    digits = 2 if ratio.median >= 0.1 else 4
    return f"{ratio.median:.{digits}f} ({ratio.low:.{digits}f}-{ratio.high:.{digits}f})"


def headings(results: Results) -> list[str]:
    others = [text for name in results.others for text in (name, f"to {name}", "goal", "met")]
    return ["measure", "unit", OURS, APACHE, "ratio", "goal", "met", *others]


def cells(results: Results, row: Row) -> list[str]:
    """Return the row as a line of the table, with a cell for each of `headings`."""
    metric = row.metric
    line = [
        metric.title,
        metric.unit,
        figure_text(row, OURS),
        figure_text(row, APACHE),
        ratio_text(row.ratios.get(APACHE)),
        str(metric.goal or ""),
        row.verdict(),
    ]
    for name in results.others:
        ratio = row.ratios.get(name)
        line += [
            figure_text(row, name),
            f"{ratio.median:.2f}" if ratio else "",
            str(metric.bare_goal or ""),
            verdict(metric.bare_goal, ratio),
        ]
    return line


def rounds(results: Results) -> int:
    return len({sample.round for sample in results.samples})


def fewer_rounds(results: Results) -> str:
    """Return a text that names the measures with fewer rounds than others, because the time limit
    was reached; empty if there are none."""
    found: dict[str, set[int]] = {}
    for sample in results.samples:
        found.setdefault(sample.measure, set()).add(sample.round)
    few = {name: len(numbers) for name, numbers in found.items() if len(numbers) < rounds(results)}
    return "".join(f" ({name}: {count})" for name, count in few.items())


def summary(results: Results) -> str:
    """Return a description of the race: date, machine, versions, and the number of rounds."""
    about = results.about
    return (
        f"{about['date']}, {about['cores']} cores, {about['memory']} of memory, {about['system']}; "
        f"{about['apache']}; client {about.get('client', 'librdkafka')}; "
        f"medians of {rounds(results)} rounds{fewer_rounds(results)}"
    )


def table(results: Results) -> str:
    """Return the report as a table for the terminal."""
    lines = [headings(results), *(cells(results, row) for row in rows(results))]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([summary(results), "", text[0], "-" * len(text[0]), *text[1:], ""])


def rst(results: Results) -> str:
    """Return the report as a table for docs/performance.rst."""
    lines = [headings(results), *(cells(results, row) for row in rows(results))]
    return "\n".join(
        [
            f"Measured on {summary(results)}.",
            "",
            ".. list-table::",
            "   :header-rows: 1",
            "",
            *(_list_table_row(line) for line in lines),
            "",
        ]
    )


def put_into(document: Path, results: Results) -> None:
    """Replace the table between the comments BEGIN and END in a document. Raises ValueError if a
    comment is missing."""
    before, begin, rest = document.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{document} lacks the lines {BEGIN!r} and {END!r} around the table")
    text = f"{before}{BEGIN}\n\n{rst(results)}\n{END}{after}"
    document.write_text(text, encoding="utf-8")


def _list_table_row(line: Sequence[str]) -> str:
    first, *others = line
    return "\n".join([f"   * - {first}", *(f"     - {cell}".rstrip() for cell in others)])


def plot_rows(results: Results) -> list[dict[str, Any]]:
    """Return the rows of benchmarks/results/race.json: the medians of both brokers, and the median,
    smallest and largest ratio, for each metric that both have."""
    return [
        {
            "key": row.metric.key,
            "date": results.about["date"],
            **{name: row.figures[name].rounded()[0] for name in (OURS, APACHE)},
            "ratio": row.ratios[APACHE].rounded(),
        }
        for row in rows(results)
        if APACHE in row.ratios
    ]
