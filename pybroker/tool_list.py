"""The list of the tools. Imports no other module of pybroker, since every start of a tool reads
this list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Tool(NamedTuple):
    """The module of a tool's command, and a summary of the tool in one line."""

    module: str
    summary: str


TOOLS: Final[Mapping[str, Tool]] = {
    "start": Tool("pybroker.tools.start", "run a broker"),
    "container": Tool(
        "pybroker.tools.container", "run a broker with options from KAFKA_* variables"
    ),
    "zookeeper-server-start": Tool(
        "pybroker.tools.zookeeper_server_start", "run a ZooKeeper server"
    ),
    "topics": Tool("pybroker.tools.topics", "create, list, alter, describe and delete topics"),
    "configs": Tool("pybroker.tools.configs", "print and change options of topics and brokers"),
    "console-producer": Tool("pybroker.tools.console_producer", "send lines of standard input"),
    "console-consumer": Tool("pybroker.tools.console_consumer", "print the records of a topic"),
    "consumer-groups": Tool(
        "pybroker.tools.consumer_groups", "list, describe, reset and delete groups of consumers"
    ),
    "preferred-replica-election": Tool(
        "pybroker.tools.preferred_replica_election", "move leadership to the preferred replicas"
    ),
    "leader-election": Tool("pybroker.tools.leader_election", "elect leaders of partitions"),
    "get-offsets": Tool(
        "pybroker.tools.get_offsets", "print the first or the end offsets of partitions"
    ),
    "delete-records": Tool(
        "pybroker.tools.delete_records", "delete the oldest records of partitions"
    ),
    "transactions": Tool(
        "pybroker.tools.transactions", "list and describe transactions, abort hanging ones"
    ),
    "producer-perf-test": Tool(
        "pybroker.tools.producer_perf_test", "send records and print how long they took"
    ),
    "consumer-perf-test": Tool(
        "pybroker.tools.consumer_perf_test", "read records and print how long it took"
    ),
    "verifiable-producer": Tool(
        "pybroker.tools.verifiable_producer", "send numbers, and print the outcome of each"
    ),
    "verifiable-consumer": Tool(
        "pybroker.tools.verifiable_consumer", "read as a member of a group, and print all events"
    ),
    "snapshot": Tool(
        "pybroker.tools.snapshot",
        "take, show and compare exact offset ranges of topics",
    ),
    "log-dirs": Tool("pybroker.tools.log_dirs", "print the partitions of log directories"),
    "dump-log": Tool("pybroker.tools.dump_log", "print the content of segments and indexes"),
    "etl": Tool("pybroker.tools.etl", "run jobs that read topics into tables with Spark"),
    "broker-api-versions": Tool(
        "pybroker.tools.broker_api_versions", "print the APIs and versions of brokers"
    ),
    "zookeeper-shell": Tool("pybroker.tools.zookeeper_shell", "show and change ZooKeeper's nodes"),
}

BROKERS: Final = ("start", "container")
"""The names of the tools that run a broker."""


def tool_name(word: str) -> str:
    """Return the tool's name in the list. `word` is the name that the user has given. It may be
    Kafka's name, such as `kafka-topics.sh`."""
    return word.removesuffix(".sh").removeprefix("kafka-")
