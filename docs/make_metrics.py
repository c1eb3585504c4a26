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

``http://HOST:8090/metrics`` shows the broker's metrics in Prometheus' text format
(``pybroker.http.listener`` sets the address). The names are those of dashboards for Kafka: those
that the JMX exporter derives from Kafka's own, and those of kafka_exporter. So neither exporter
has to run beside this broker. Metrics that neither has begin with ``pybroker_``. Counters begin at
0 with each start.

Summaries have a line for each of the quantiles 0.5, 0.75, 0.95, 0.98, 0.99 and 0.999 of about the
last minute, exact to one eighth of their value (NaN without measurements), and ``_sum`` and
``_count`` since the start. Of the Produce and Fetch requests that are answered at once, one in
sixteen is timed and stands for the others.

Exactly one broker shows each partition, its leader, and only the controller shows the cluster, so
that sums over the brokers are right.

The families of the process have prometheus-client's own names: ``process_cpu_seconds_total``,
``process_resident_memory_bytes``, ``process_open_fds``, ``python_gc_collections_total`` and so on.
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
