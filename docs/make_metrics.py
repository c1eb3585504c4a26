"""Write `metrics.rst` from the list of metrics, so that the guide cannot differ from the page
`/metrics`. `make docs` runs this module; a test compares the page with `render()`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
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
format (``pybroker.http.listener`` sets the address). ``docs/glossary.rst`` explains the terms.

The names are those of the JMX exporter and of kafka_exporter, so dashboards for Kafka work, and
neither exporter is needed. Metrics that Kafka does not have begin with ``pybroker_``.

The entries use these terms:

- A **gauge** is the value at the moment of the request.
- A **counter** begins at 0 with each start of the broker.
- A **summary** describes durations. It has a line for each of the quantiles 0.5, 0.75, 0.95, 0.98,
  0.99 and 0.999. The quantiles are those of about the last minute. NaN means that the broker
  measured nothing in this time. A quantile may be up to one eighth above the exact value. The lines
  ``_sum`` and ``_count`` begin at 0 with each start of the broker.
- **by** names the labels of a metric. The metric has a line for each combination of label values.

A partition's leader shows the metrics ``kafka_topic_partition_...`` of the partition. If a
partition has no leader, the controller shows some of these metrics for the partition. The
controller also shows the metrics of the whole cluster. Each gauge that this paragraph describes
has its value on one broker; all other brokers show 0 or no line. So you may sum such a gauge over
all brokers.

The broker also shows the process metrics of Prometheus' Python client, such as
``process_cpu_seconds_total`` and ``process_resident_memory_bytes``. They are not listed below.
"""


SECTIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "Metrics of the broker's process and requests": ("", "kafka_coordinator_transaction_"),
        "Metrics of replicas and log directories": (
            "kafka_server_replica",
            "kafka_server_brokertopicmetrics_replication",
            "kafka_server_fetcherstats_",
            "kafka_log_",
            "pybroker_damaged_",
            "pybroker_suspect_",
            "pybroker_incomplete_",
            "pybroker_full_",
            "pybroker_log_",
        ),
        "Metrics of the controller": ("kafka_controller_", "kafka_brokers"),
        "Metrics of topics and partitions": (
            "kafka_topic_",
            "kafka_log_log_",
            "kafka_server_brokertopicmetrics_",
        ),
        "Metrics of consumer groups": (
            "kafka_coordinator_",
            "kafka_consumergroup_",
            "kafka_server_group_",
            "pybroker_group_",
        ),
    }
)
"""Title of a section -> beginnings of the names of its metrics. If the name of a metric begins with
several of all these beginnings, the longest one decides. "" is the beginning of every name."""


def render() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for title in SECTIONS:
        parts.append(f"{title}\n{'-' * len(title)}\n")
        parts += [_entry(row) for row in FAMILIES.values() if _section(row.name) == title]
    return "\n".join(parts)


def _section(name: str) -> str:
    """Return the title of the section that lists the metric of that name."""
    begun = {
        each: max(map(len, filter(name.startswith, beginnings)), default=-1)
        for each, beginnings in SECTIONS.items()
    }
    return max(begun, key=begun.__getitem__)


def _entry(family: Family) -> str:
    labels = f", by {', '.join(f'``{label}``' for label in family.labels)}" if family.labels else ""
    return f"``{family.name}`` ({family.kind}{labels})\n    {family.meaning}\n"


def main() -> None:
    PAGE.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
