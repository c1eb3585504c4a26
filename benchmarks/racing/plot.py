"""The plot of docs/performance.rst, as an SVG file: pybroker's figures divided by Apache Kafka's,
and the growth of an acknowledgement's time with idle partitions.

    python -m benchmarks.racing.plot

It is made from the medians in the folder benchmarks/results, which benchmarks/race.py (race.json)
and benchmarks/growth.py (growth.json) write with `--results`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from benchmarks.racing.contestants import APACHE
from benchmarks.racing.metrics import METRICS

ROOT: Final = Path(__file__).resolve().parent.parent.parent
RESULTS: Final = ROOT / "benchmarks" / "results"
PLOT: Final = ROOT / "docs" / "static" / "performance.svg"

Row = Mapping[str, Any]
"""A row of a file of results. `ratio`, and each figure of growth.json, is [median, smallest,
largest]."""

SHOWN: Final = (
    "program-produce-100-none-1/rate",
    "program-produce-100-none-1/cpu",
    "program-produce-1024-none-all/rate",
    "program-produce-1024-none-all/cpu",
    "program-consume-100-none/rate",
    "program-consume-100-none/cpu",
    "program-consume-1024-none/rate",
    "program-consume-1024-none/cpu",
    "unbatched-4/rate",
    "latency-raw/p50",
    "latency-raw/p99",
    "latency-raw/p999",
    "memory/loaded",
    "start/idle-cpu",
    "start/clean",
    "partitions/clean",
)
"""The metrics in the plot, from top to bottom."""
_OURS_COLOUR, _APACHE_COLOUR, _INK = "#2a78b8", "#d9822b", "#808080"
_WIDTH, _LEFT, _RIGHT, _STEP, _TOP = 860, 400, 830, 20, 44
_GROWTH_HEIGHT = 230
_TICKS: Final = (0.05, 0.1, 0.2, 0.5, 1, 2, 5)


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file of results; none if the file does not exist."""
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return rows


def merge_rows(path: Path, rows: Sequence[Row], key: Sequence[str]) -> None:
    """Write `rows` to a file of results. They replace the rows with the same values under the names
    in `key`; other rows stay."""
    merged = {tuple(row[name] for name in key): row for row in [*read_rows(path), *rows]}
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in merged.values())
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def svg(race: Sequence[Row], growth: Sequence[Row]) -> str:
    by_key = {row["key"]: row for row in race}
    shown = [by_key[key] for key in SHOWN if key in by_key]
    below = _TOP + len(shown) * _STEP + 60
    parts = [*_ratios(shown), *_growth(growth, below)]
    height = below + _GROWTH_HEIGHT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"'
            f' font-family="sans-serif" font-size="12" fill="{_INK}">',
            *parts,
            "</svg>",
            "",
        ]
    )


def _ratios(rows: Sequence[Row]) -> Iterator[str]:
    bottom = _TOP + len(rows) * _STEP
    yield _text(_LEFT, 18, "pybroker's figure divided by Apache Kafka's", "start", bold=True)
    for tick in _TICKS:
        x = _ratio_x(tick)
        yield _line(x, _TOP - 4, x, bottom, 1.5 if tick == 1 else 0.4)
        yield _text(x, bottom + 16, f"{tick:g}", "middle")
    for number, row in enumerate(rows):
        median, low, high = row["ratio"]
        metric = METRICS[row["key"]]
        y = _TOP + number * _STEP
        middle = y + _STEP / 2 - 2
        colour = _OURS_COLOUR if (median >= 1) == metric.larger_is_better else _APACHE_COLOUR
        begin, end = sorted((_ratio_x(1), _ratio_x(median)))
        yield _text(_LEFT - 8, y + 12, f"{metric.title} [{metric.unit}]", "end")
        yield f'<rect x="{begin:.1f}" y="{y + 2}" width="{end - begin:.1f}" height="12"' + (
            f' fill="{colour}"/>'
        )
        yield _line(_ratio_x(low), middle, _ratio_x(high), middle, 1.2)
    told = "blue: pybroker's figure is better, orange: Apache's; lines: smallest to largest round"
    yield _text(_LEFT, bottom + 36, told, "start")


def _ratio_x(ratio: float) -> float:
    first, last = math.log(_TICKS[0]), math.log(_TICKS[-1])
    share = (math.log(ratio) - first) / (last - first)
    return _LEFT + min(max(share, 0.0), 1.0) * (_RIGHT - _LEFT)


def _growth(rows: Sequence[Row], top: float) -> Iterator[str]:
    """Draw the p50 of an acknowledgement over the number of idle partitions, a line for each
    contestant."""
    if not rows:
        return
    left, right, bottom = 80, _RIGHT, top + _GROWTH_HEIGHT - 40
    most = max(row["p50"][0] for row in rows)
    sizes = sorted({row["partitions"] for row in rows})
    title = "Time until an acknowledgement (p50, ms), three brokers, acks=all, by idle partitions"
    yield _text(left, top, title, "start", bold=True)
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * (bottom - top - 36)
        yield _line(left, y, right, y, 0.4)
        yield _text(left - 8, y + 4, f"{most * share:.1f}", "end")

    def place(row: Row) -> tuple[float, float]:
        x = left + sizes.index(row["partitions"]) / max(len(sizes) - 1, 1) * (right - left)
        return x, bottom - row["p50"][0] / most * (bottom - top - 36)

    for size in sizes:
        x, _ = place({"partitions": size, "p50": [0.0]})
        yield _text(x, bottom + 16, f"{size:,}", "middle")
    names = dict.fromkeys(row["brokers"] for row in rows)
    for name in names:
        colour = _APACHE_COLOUR if name == APACHE else _OURS_COLOUR
        line = sorted(place(row) for row in rows if row["brokers"] == name)
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for x, y in line:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
        yield _text(x - 6, y - 7, name, "end", colour=colour)


def _text(
    x: float, y: float, text: str, anchor: str, *, bold: bool = False, colour: str = _INK
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {place}{weight}>{escape(text)}</text>"


def _line(x1: float, y1: float, x2: float, y2: float, width: float) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{_INK}" stroke-width="{width}"/>'


def main() -> None:
    race, growth = (read_rows(RESULTS / name) for name in ("race.json", "growth.json"))
    PLOT.write_text(svg(race, growth), encoding="utf-8")
    print(PLOT)


if __name__ == "__main__":
    main()
