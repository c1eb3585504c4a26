"""Write `configuration.rst` from the tables of options, so that the guide cannot differ from the
code. `make docs` runs this module, which also writes `metrics.rst` and the files of
`config/`; a test compares the page with `render()`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from docs import make_config_files, make_metrics
from pybroker.config.broker_config import BROKER_OPTIONS
from pybroker.config.declaration import Option, UpdateMode
from pybroker.config.kafka_options import NOT_IMPLEMENTED, REFUSED
from pybroker.config.topic_config import TOPIC_OPTIONS

PAGE: Final = Path(__file__).parent / "configuration.rst"
TYPE_BOUND: Final = re.compile(rf"^an integer from (\S+) to ({2**31 - 1}|{2**63 - 1})$")
"""The accepted values of an option whose upper bound is the largest value of its type."""

INTRODUCTION: Final = """\
Configuration
=============

.. This page is made by ``make docs`` from the tables in ``pybroker/config/broker_options.py`` and
   ``pybroker/config/topic_config.py``; change those.

This page lists all options of the broker and of topics. The names, defaults and precedence are
those of Apache Kafka 3.9 in ZooKeeper mode, except for ``offsets.storage`` and the options that
begin with ``pybroker.``. ``pybroker start CONFIG`` reads a file in the format of Kafka's
``server.properties``. ``--override key=value`` overrides an option of the file.

**Without a file** some defaults suit a small cluster. In this list N is the number of brokers that
``pybroker start --brokers N`` starts, 1 by default:

- The replication factor of every topic is N, but at most 3.
- If N is 3 or more, ``min.insync.replicas`` is 2.
- The first member of a consumer group does not wait for further members.

**Faults.** The broker does not start in three cases, and lists all faults at once:

- The value of an option is invalid.
- The name of an option is unknown, and the name either resembles a known name or begins with
  ``pybroker.``.
- An option is set that this broker refuses. The section "Options of Kafka that stop the start"
  lists these options. In the other sections these options are marked *refused here*.

**Options without effect.** The broker also starts with options that have no effect, and one warning
names all of them. Three kinds of options have no effect:

- options marked *without effect here*;
- the options in the section "Options of Kafka that are ignored";
- options with an unknown name (but some unknown names stop the start, see **Faults**).

**Dynamic options** can be changed while the broker runs: with ``kafka-configs``, with an admin
client, or in the ZooKeeper nodes ``/config/brokers/ID`` and ``/config/brokers/<default>``.

- An option marked *cluster-wide* can be changed for all brokers or for one broker.
- An option marked *per-broker* can be changed for one broker only.
- A value for one broker overrides a value for all brokers, and both override the file.
- All options of topics are dynamic.
"""


def render() -> str:
    """The whole page."""
    parts = [
        INTRODUCTION,
        _heading("Options of the broker"),
        "Set these options in the broker's ``server.properties``. Each entry gives the meaning of\n"
        "the option, its type (Int and Long have 32 and 64 bits), bounds and the default.\n",
        *(_entry(row) for row in _sorted(BROKER_OPTIONS)),
        _heading("Options of a topic"),
        "Set these options when you create a topic, or change them later. If a topic does not set\n"
        "an option, the topic uses the broker's option that the entry names after *inherits*. If\n"
        "the entry names several options, the first one that is set counts.\n",
        *(_entry(row) for row in _sorted(TOPIC_OPTIONS)),
        _heading("Options of Kafka that stop the start"),
        "If one of these options of Kafka is set, the broker does not start. A Boolean option\n"
        "stops the start only with the value true. Each entry gives the reason and what to do.\n",
        *(
            f"``{name}``\n    {reason[0].upper()}{reason[1:]}.\n"
            for name, (_, reason) in sorted(REFUSED.items())
        ),
        _heading("Options of Kafka that are ignored"),
        "The broker does not have the features of these options. If some of these options are\n"
        "set, the broker starts, and one warning names them.\n",
        "\n".join(f"- ``{name}``" for name in sorted(NOT_IMPLEMENTED)) + "\n",
    ]
    return "\n".join(parts)


def _heading(text: str) -> str:
    return f"{text}\n{'-' * len(text)}\n"


def _sorted(options: Mapping[str, Option]) -> list[Option]:
    return sorted(options.values(), key=lambda row: row.name)


def _entry(row: Option) -> str:
    return f"``{row.name}``\n    {row.meaning}\n    {'; '.join(_facts(row))}.\n"


def _facts(row: Option) -> Iterator[str]:
    kind = row.type.value
    yield kind.capitalize()
    bounded = row.minimum is not None or row.maximum is not None
    if row.choices or row.shape or bounded:
        # an asterisk begins emphasis, and a bound that only the type sets says nothing
        yield TYPE_BOUND.sub(r"at least \1", row.expected()).replace("*", r"\*")
    default = row.format(row.default)
    if default is None:
        yield "no default"
    else:
        yield f"default ``{default}``" if default else "default empty"
    if row.inherits:
        yield "inherits " + ", ".join(f"``{name}``" for name in row.inherits)
    if row.update is not UpdateMode.READ_ONLY:
        yield f"dynamic ({row.update.value})"
    if row.name in REFUSED:
        yield "**refused here**"
    elif not row.effective:
        yield "**without effect here**"


if __name__ == "__main__":
    PAGE.write_text(render())
    make_config_files.write_all()
    make_metrics.main()
