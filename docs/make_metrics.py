"""Write `metrics.rst` from the list of metrics, so that the guide cannot differ from the page
`/metrics`. `make docs` runs this module; a test compares the page with `render()`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pybroker.admin.families import FAMILIES
from pybroker.metrics import Family

PAGE: Final = Path(__file__).parent / "metrics.rst"

INTRODUCTION: Final = """\
Metrics
=======

.. This page is made by ``make docs`` from the rows in ``pybroker/metrics.py`` and
   ``pybroker/admin/families.py``; change those.

``http://HOST:8090/metrics`` shows what the broker counts, in Prometheus' text format
(``pybroker.http.listener`` says where). The names are those that dashboards for Kafka know: what
Kafka's JMX exporter makes of Kafka's own names, and those of kafka_exporter, so that neither has to
run beside this broker. What Kafka has no name for begins with ``pybroker_``. Counters begin at 0
with each start.

Summaries have a line for each of the quantiles 0.5, 0.75, 0.95, 0.98, 0.99 and 0.999 of about the
last minute, right to an eighth of their value (NaN where nothing was measured), and ``_sum`` and
``_count`` since the start. Of the answers to Produce and Fetch that come at once one in sixteen is
timed and stands for the others.

Each partition is told by one broker, its leader, and the cluster by the controller, so that sums
over the brokers are right.

The families of the process have Prometheus' own names: ``process_cpu_seconds_total``,
``process_resident_memory_bytes``, ``process_open_fds``, ``python_gc_collections_total`` and the
rest of theirs.
"""


def render() -> str:
    """The whole page."""
    return INTRODUCTION + "\n" + "\n".join(_entry(family) for family in FAMILIES.values())


def _entry(family: Family) -> str:
    labels = f", by {', '.join(f'``{label}``' for label in family.labels)}" if family.labels else ""
    return f"``{family.name}`` ({family.kind}{labels})\n    {family.meaning}\n"


def main() -> None:
    PAGE.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
