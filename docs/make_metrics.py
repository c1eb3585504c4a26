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

This page lists the broker's metrics. ``http://HOST:8090/metrics`` returns them in Prometheus' text
format (``pybroker.http.listener`` sets the address). Dashboards for Kafka find the names that they
know: those that the JMX exporter derives from Kafka's metrics, and those of kafka_exporter. So
neither exporter has to run beside this broker. All other metrics begin with ``pybroker_``.

- A **counter** begins at 0 with each start.
- A **summary** has a line for each of the quantiles 0.5, 0.75, 0.95, 0.98, 0.99 and 0.999 of about
  the last minute, exact to one eighth of their value (NaN without measurements). Its ``_sum`` and
  ``_count`` count from the start on. Of the Produce and Fetch requests that are answered without
  waiting, one in sixteen is timed and represents the others.
- A metric of a **partition** is shown only by its leader, and a metric of the **cluster** only by
  the controller, so sums over all brokers are correct.
- Metrics of the **process** have prometheus-client's names: ``process_cpu_seconds_total``,
  ``process_resident_memory_bytes``, ``process_open_fds``, ``python_gc_collections_total`` ...
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
