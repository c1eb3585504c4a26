"""The layers of the project as data; `test_tidy.py` holds the code to them.

A module belongs to the longest prefix of its name in LAYERS. It may import modules of its own room
and of lower layers only; the modules of L0 may import each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PARTS_OF_APP: Final = (
    "pybroker.broker.start_steps",
    "pybroker.broker.startup",
    "pybroker.peers.broker_channel",
    "pybroker.broker.controlled_shutdown",
    "pybroker.broker.controller_journal",
    "pybroker.broker.group_coordination",
    "pybroker.broker.leader_discovery",
    "pybroker.broker.lag_watch",
    "pybroker.peers.leader_channel",
    "pybroker.broker.live_config",
    "pybroker.peers.local_channel",
    "pybroker.broker.log_directory_failures",
    "pybroker.broker.membership",
    "pybroker.host.process",
    "pybroker.broker.component_options",
    "pybroker.host.run",
    "pybroker.host.several_brokers",
    "pybroker.broker.standing",
    "pybroker.host.supervision",
    "pybroker.host.supervisor",
    "pybroker.broker.topic_logs",
    "pybroker.broker.environment",
)
"""Modules that the composition root is cut into; app, the tools, the test helpers and
they themselves may import them."""

LAYERS: Final[Mapping[str, int]] = {
    **dict.fromkeys(PARTS_OF_APP, 7),
    "pybroker": 0,
    "pybroker.errors": 0,
    "pybroker.model": 0,
    "pybroker.ports": 0,
    "pybroker.group_lag": 0,
    "pybroker.host.child_launcher": 0,
    "pybroker.host.child_process": 0,
    "pybroker.clock": 0,
    "pybroker.metrics": 0,
    "pybroker.applog.log_levels": 0,
    "pybroker.applog.rate_limit": 0,
    "pybroker.config.declaration": 0,
    "pybroker.config.properties": 0,
    "pybroker.tool_list": 0,
    "pybroker.host.standard_output": 0,
    "pybroker.config.listeners": 0,
    "pybroker.config.kafka_options": 0,
    "pybroker.config.kafka_versions": 0,
    "pybroker.config.broker_options": 0,
    "pybroker.config.broker_config": 0,
    "pybroker.config.topic_config": 0,
    "pybroker.config.layered_config": 0,
    "pybroker.config.without_effect": 0,
    "pybroker.wire": 1,
    "pybroker.records": 2,
    "pybroker.storage": 3,
    "pybroker.coordinator": 3,
    "pybroker.coordinator.runtime": 3,
    "pybroker.coordinator.zookeeper": 3,
    "pybroker.replication": 4,
    "pybroker.coordinator.groups": 4,
    "pybroker.coordinator.transactions": 4,
    "pybroker.coordinator.controller": 4,
    "pybroker.handlers": 5,
    "pybroker.client": 6,
    "pybroker.server": 6,
    "pybroker.admin": 6,
    "pybroker.applog.output": 6,
    "pybroker.tools": 7,
    "pybroker.spark": 7,
    "pybroker.testing": 7,
    "pybroker.testing.history": 6,
    "pybroker.broker.app": 7,
    "pybroker.classic": 7,
    "pybroker.__main__": 8,
    "pyspark_pybroker": 8,
}

SIDEWAYS: Final = frozenset(
    (importer, imported)
    for importer in ("pybroker.broker.app", "pybroker.tools", "pybroker.testing", *PARTS_OF_APP)
    for imported in ("pybroker.broker.app", *PARTS_OF_APP)
    if imported != "pybroker.broker.app"
    or importer not in PARTS_OF_APP
    or importer == "pybroker.broker.startup"
) | {("pybroker.tools", "pybroker.spark")}
"""Imports between rooms of one layer that are allowed: (importer, imported)."""

FORBIDDEN: Final[Mapping[str, tuple[str, ...]]] = {
    "pybroker.wire": ("asyncio", "socket", "os", "time", "logging"),
    "pybroker.records": ("asyncio", "socket", "os", "time", "logging"),
    "pybroker.storage": ("pybroker.wire.messages",),
    "pybroker.coordinator": (
        "pybroker.wire.messages",
        "pybroker.storage",
        "pybroker.replication",
    ),
    "pybroker.replication": ("pybroker.wire.messages", "pybroker.client"),
    "pybroker.client": (
        "pybroker.storage",
        "pybroker.coordinator",
        "pybroker.replication",
        "pybroker.handlers",
        "kazoo",
    ),
    "pybroker.spark": (
        "pybroker.storage",
        "pybroker.coordinator",
        "pybroker.replication",
        "pybroker.handlers",
        "pybroker.server",
    ),
    "pybroker.testing.history": tuple(
        f"pybroker.{room}"
        for room in (
            *("errors", "model", "ports", "wire", "records", "storage", "coordinator"),
            *("replication", "handlers", "client", "server"),
        )
    ),
}
"""What a room may not import, beyond the order of the layers."""

TELLS_TIME: Final = frozenset({"pybroker.clock"})
"""The only modules of L0 to L5 that read the machine's clocks."""
