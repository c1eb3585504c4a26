"""The only list of differences from Apache Kafka 3.9.1, with their reasons.

Tests that compare our tools with Apache's name the rows that they allow, and
`docs/compatibility.rst` shows the same rows, which `integration_tests/test_compatibility.py`
checks. A difference without a row is a defect. `python -m integration_tests.differences` writes the
rows into the page.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from integration_tests.difference_lines import (
    Lines,
    replaced,
    until_metrics,
    with_lag_from_zero,
    with_sorted_partitions,
    with_sorted_transaction_partitions,
    with_split_tables,
    without,
    without_events,
)

PAGE: Final = Path(__file__).parents[1] / "docs" / "compatibility.rst"
_HEADING: Final = "What the tools do differently\n-----------------------------\n\n"


@dataclass(frozen=True, slots=True)
class Difference:
    """An allowed difference. `tool` is the name of a tool, or "all tools". `what` and `reason` are
    sentences of the page. `apache` and `ours` convert the printed lines into the lines to compare.
    """

    tool: str
    what: str
    reason: str
    apache: Callable[[Lines], Lines] = lambda lines: lines
    ours: Callable[[Lines], Lines] = lambda lines: lines


DIFFERENCES: Final[Mapping[str, Difference]] = {
    "errors in one line": Difference(
        "all tools",
        "A failure prints one line on standard error. After wrong usage the line also recommends"
        " --help. Apache's tools also print a Java stack trace, or the list of all options.",
        "The user sees the relevant sentence at once.",
    ),
    "version": Difference(
        "all tools",
        "--version prints the version of pybroker. Apache's tools print the version of Kafka.",
        "The tool is a part of pybroker.",
    ),
    "json": Difference(
        "all tools",
        "pybroker's tools have the option --format json.",
        "Scripts need not parse text that is written for people.",
    ),
    "spelling of --admin.config": Difference(
        "all tools",
        "Tools with the option --command-config also accept it as --admin.config, and the reverse.",
        "Some of Kafka's tools have only --command-config, and some have only --admin.config.",
    ),
    "abbreviated options": Difference(
        "all tools",
        "Options cannot be abbreviated. Apache's tools also accept --boot for --bootstrap-server.",
        "With a later release the abbreviation could mean another option.",
    ),
    "order of topics": Difference(
        "configs",
        "Topics are sorted by name. Apache's tool prints them in the order of a hash table.",
        "Each run prints the lines in the same order.",
        sorted,
        sorted,
    ),
    "unknown broker": Difference(
        "configs",
        "If no broker has the id that the command names, the tool fails at once. Apache's tool"
        " waits for a minute.",
        "The answer to a Metadata request lists all brokers.",
    ),
    "single broker options": Difference(
        "configs",
        "The tool changes only the given options of a broker. Apache's tool reads all dynamic"
        " options of the broker and writes them back. Apache's tool fails if one of these options"
        " is a password, because it cannot read passwords.",
        "Otherwise two operators could undo each other's changes.",
    ),
    "quotas": Difference(
        "configs",
        "The tool refuses the options for users, clients, IP addresses and client metrics.",
        "The broker has no quotas and no credentials yet. Client metrics need KRaft.",
    ),
    "deprecation of ZooKeeper": Difference(
        "configs",
        "The tool prints no warning that --zookeeper is deprecated.",
        "pybroker keeps the option.",
        without("^Warning: --zookeeper is deprecated|^Use --bootstrap-server instead to specify"),
    ),
    "topics in ZooKeeper": Difference(
        "configs",
        "With --zookeeper the tool can change options of topics, as in Kafka until 2.8. The tool of"
        " Kafka 3.9.1 refuses such a change.",
        "Old scripts can change a topic in this way, even while no broker runs.",
    ),
    "usable versions": Difference(
        "broker-api-versions",
        "[usable: N] names the version that the tool's client uses with the broker. With a"
        " pybroker broker, pybroker's tool and Apache's tool print the same number. With a broker"
        " of a later Kafka release, pybroker's tool may print a lower number than Apache's tool."
        " If pybroker's client never uses an API, pybroker's tool prints no [usable: N] for this"
        " API.",
        "The number describes the client that prints it.",
        replaced(r" \[usable: \d+\]", ""),
        replaced(r" \[usable: \d+\]", ""),
    ),
    "order of descriptions": Difference(
        "topics",
        "--describe sorts topics by name. Apache's tool shows them in the order of a hash table.",
        "Each run prints the lines in the same order.",
        sorted,
        sorted,
    ),
    "name of a missing topic": Difference(
        "topics",
        "The message about a missing topic names Topic 'x'. Apache's tool names"
        " Topic 'Optional[x]'.",
        "Apache's text is a defect of release 3.",
        replaced(r"'Optional\[(.*)\]'", r"'\1'"),
    ),
    "values with =": Difference(
        "topics",
        "--config accepts an empty value (name=) and values that contain an equals sign.",
        "Some options have empty values, or values with an equals sign.",
    ),
    "order of groups": Difference(
        "consumer-groups",
        "Groups, topics and partitions are sorted by name. Apache's tool prints them in"
        " the order of a hash table.",
        "Each run prints the lines in the same order.",
        sorted,
        sorted,
    ),
    "rows of tables": Difference(
        "consumer-groups",
        "--reset-offsets and --delete-offsets print each row of their table on a line of its own."
        " Kafka 3.9 prints all rows on the line of the headings.",
        "Apache's output is a defect of release 3.",
        with_split_tables,
    ),
    "errors of groups": Difference(
        "consumer-groups",
        "The tool names an error by its Kafka error code. Apache's tool names the Java class. If"
        " a command fails because the group has members, pybroker's tool prints a line for each"
        " member on standard error.",
        "pybroker has no Java classes, and the operator needs to know the members.",
        replaced(r"(due to: |Error: :).*", r"\1"),
        replaced(r"(due to: |Error: :).*", r"\1"),
    ),
    "names of deleted groups": Difference(
        "consumer-groups",
        "If some groups could not be deleted, the message lists the deleted groups as"
        " ``'a', 'b'``. Apache's tool prints ``'a'b', '``.",
        "Apache's output is a defect of release 3.",
        replaced(r"(deleted successfully: ).*", r"\1"),
        replaced(r"(deleted successfully: ).*", r"\1"),
    ),
    "failed commands": Difference(
        "consumer-groups",
        "A command that fails as a whole prints the reason on standard error and has exit code 1."
        " Apache's tool prints a line on standard output and has exit code 0. If only some groups"
        " are refused, both tools print these groups and have exit code 0.",
        "A script must notice that nothing was done.",
    ),
    "missing partitions": Difference(
        "consumer-groups",
        "--reset-offsets fails at once if a partition is missing. Apache's tool waits until a"
        " timeout.",
        "The answer to a Metadata request lists all partitions.",
    ),
    "lag below zero": Difference(
        "consumer-groups",
        "LAG is 0 if a group has committed an offset beyond the log end. Apache's tool prints a"
        " negative number.",
        "The group has read everything. The columns with the two offsets show the difference.",
        with_lag_from_zero,
    ),
    "lag in detail": Difference(
        "consumer-groups",
        "The tool also has the option --lag-details. It prints the last stable offset of each"
        " partition, and the lag in bytes and in seconds.",
        "The number of records does not show how late a group is.",
    ),
    "types of groups": Difference(
        "consumer-groups",
        "--list --type prints the type Unknown for every group. The tool refuses --type with the"
        " name of a type. Both also hold with newer brokers, which report types.",
        "The tool does not read the type of a group, because all groups of ZooKeeper-mode Kafka"
        " have the same type.",
    ),
    "errors of partitions": Difference(
        "delete-records",
        "The tool names an error by its Kafka error code. Apache's tool names the Java class.",
        "pybroker has no Java classes. Kafka's documentation and other clients use the name of"
        " the code.",
        replaced("error: .*", "error"),
        replaced("error: .*", "error"),
    ),
    "order of partitions": Difference(
        "delete-records",
        "The lines have the order of the given file. Apache's tool prints them in the order of"
        " a hash table.",
        "The author of the file finds the line of a partition by the order of the file.",
        sorted,
        sorted,
    ),
    "order of elected partitions": Difference(
        "leader-election and preferred-replica-election",
        "The partitions in a line are sorted. Apache's tool prints them in the order of a hash"
        " table, after the name of the Java class (Set or HashSet).",
        "Each run prints the lines in the same order.",
        lambda lines: with_sorted_partitions(replaced("HashSet", "Set")(lines)),
        with_sorted_partitions,
    ),
    "errors of elections": Difference(
        "leader-election and preferred-replica-election",
        "The tool names an error by its Kafka error code. Apache's tool names the Java class.",
        "pybroker has no Java classes.",
        replaced(r"(^Error completing .* for partition: \S+: ).*", r"\1"),
        replaced(r"(^Error completing .* for partition: \S+: ).*", r"\1"),
    ),
    "deprecation of the old election tool": Difference(
        "preferred-replica-election",
        "Apache's tool prints a warning that the tool is deprecated. With --zookeeper it also"
        " prints a warning that the option is deprecated. pybroker's tool prints neither warning.",
        "pybroker keeps the tool and the option.",
        without(
            "^This tool is deprecated|^Warning: --zookeeper is|^Use --bootstrap-server instead"
        ),
    ),
    "elections that did not happen": Difference(
        "preferred-replica-election",
        "With --zookeeper the tool waits until the controller has held the elections. If the"
        " leader of some partition is still not the preferred replica, the tool prints a line for"
        " each such partition and has exit code 1. Apache's tool ends with exit code 0 as soon as"
        " it has written the request.",
        "Otherwise the operator does not learn that an election did not happen.",
    ),
    "leaders that were elected before": Difference(
        "preferred-replica-election",
        "With --bootstrap-server the line 'Preferred replica already elected' names the"
        " partitions whose preferred replica already was the leader. Apache's tool names the"
        " partitions that it has just elected, or none.",
        "Apache's output is a defect of release 2.",
        replaced("^(Preferred replica already elected for partitions).*", r"\1"),
        replaced("^(Preferred replica already elected for partitions).*", r"\1"),
    ),
    "descriptions of older releases": Difference(
        "topics",
        "--describe prints the text of Kafka 3.9. Kafka until 2.8 prints no columns Elr and"
        " LastKnownElr. With --zookeeper, Kafka until 2.8 prints only the options of the topic"
        " itself. Kafka until 2.1 prints no TopicId, and no blanks after the colons of the first"
        " line.",
        "The tool can print the text of one release only.",
        lambda lines: replaced(r"^(Topic:)(?=\S)", r"\1 ")(
            replaced(r"\t(PartitionCount|ReplicationFactor|Configs):(?=\S)", r"\t\1: ")(
                replaced(r"\tTopicId: \S+|[ \t]+$", "")(lines)
            )
        ),
        replaced(r"\tTopicId: \S+|\tElr: N/A\tLastKnownElr: N/A|[ \t]+$", ""),
    ),
    "order of transactions": Difference(
        "transactions",
        "Transactional ids, producer ids and partitions are sorted. Apache's tool prints them in"
        " the order of a hash table.",
        "Each run prints the lines in the same order.",
        sorted,
        sorted,
    ),
    "reasons of failures": Difference(
        "transactions",
        "An error line ends with the name and the message of the Kafka error code. In Apache's"
        " tool it ends with a sentence of the Java client.",
        "pybroker has no Java classes. Kafka's documentation and other clients use the name of"
        " the code.",
    ),
    "missing partitions of transactions": Difference(
        "transactions",
        "The tool fails at once if a partition is missing. Apache's tool waits for a minute.",
        "The answer to a Metadata request lists all partitions.",
    ),
    "internal topics": Difference(
        "transactions",
        "find-hanging with --broker-id also searches internal topics.",
        "A hanging transaction in __consumer_offsets keeps groups from reading their offsets.",
    ),
    "times of tiered storage": Difference(
        "get-offsets",
        "The tool refuses --time earliest-local (-4), latest-tiered (-5) and all numbers below"
        " -5. Apache's tool sends them to the broker, prints nothing and has exit code 0.",
        "pybroker has no tiered storage.",
    ),
    "blanks between numbers": Difference(
        "get-offsets",
        "--partitions accepts a blank after each comma.",
        "A blank does not change the meaning of the list.",
    ),
    "decoders of internal topics": Difference(
        "dump-log",
        "The tool refuses the decoders for the records of KRaft and of tiered storage.",
        "pybroker never writes such records.",
    ),
    "records of transactions": Difference(
        "dump-log",
        "--transaction-log-decoder sorts the partitions of a transaction. Apache's tool prints"
        " them in the order of a hash table. If pybroker's tool cannot decode the key or the value"
        " of a record, it prints an error line and goes on with the next record. Apache's tool"
        " ends at such a record.",
        "Each run prints the same lines, and the tool also shows the records after a damaged"
        " record.",
        with_sorted_transaction_partitions,
        with_sorted_transaction_partitions,
    ),
    "undecodable records of committed offsets": Difference(
        "dump-log",
        "--offsets-decoder prints pybroker's own reasons for skipped records. It does not decode"
        " the records of new consumer groups (KIP-848). If a member's subscription has a version"
        " that the tool does not know, the tool prints the fields that it knows.",
        "Apache's reasons name Java code, and KIP-848 needs KRaft.",
    ),
    "binary payloads": Difference(
        "dump-log",
        "DefaultDecoder prints the bytes as hexadecimal digits. Apache's tool prints the address"
        " of a Java object.",
        "The digits show the content of the record.",
    ),
    "other decoders": Difference(
        "dump-log",
        "The tool refuses decoders that are Java classes of the user.",
        "pybroker has no JVM to load them.",
    ),
    "old message formats in depth": Difference(
        "dump-log",
        "Of messages of formats 0 and 1 the tool prints only the positions, offsets and sizes."
        " With --deep-iteration or --print-data-log the tool ends with an error at such a message.",
        "pybroker's broker has never written these formats.",
    ),
    "damaged records": Difference(
        "dump-log",
        "If the tool cannot separate the records of a damaged batch, it prints none of these"
        " records and ends. Apache's tool first prints the records before the damaged record.",
        "The records of a batch are decoded together.",
    ),
    "order of directories and partitions": Difference(
        "log-dirs",
        "Directories have the order of log.dirs. Partitions are sorted by name. Apache's tool"
        " prints both in the order of a hash table.",
        "Each run prints the lines in the same order.",
    ),
    "failed records": Difference(
        "producer-perf-test",
        "If records were not delivered, the tool prints up to ten reasons and has exit code 1."
        " Apache's tool prints a stack trace for each such record and has exit code 0.",
        "A measurement with lost records is not valid.",
    ),
    "bootstrap server of the test": Difference(
        "producer-perf-test",
        "The brokers can be named by --bootstrap-server, or by bootstrap.servers in"
        " --producer-props. Apache's tool accepts only bootstrap.servers.",
        "Most tools have the option --bootstrap-server. Apache's producer-perf-test has this"
        " option since Kafka 4.1.",
    ),
    "throughput of zero": Difference(
        "producer-perf-test",
        "--throughput 0 is refused. Apache's tool sends one record and then waits for ever.",
        "A test with this option would never end.",
    ),
    "random payloads": Difference(
        "producer-perf-test",
        "The random letters of the payloads differ from Apache's. The alphabet is the same.",
        "No user depends on the letters.",
    ),
    "metrics of the client": Difference(
        "producer-perf-test and consumer-perf-test",
        "--print-metrics prints only the counters of the test itself, with Kafka's names.",
        "pybroker's client keeps few counters.",
        until_metrics,
        until_metrics,
    ),
    "no group": Difference(
        "consumer-perf-test",
        "The tool reads all partitions by itself, without a group. It accepts --group and ignores"
        " it. rebalance.time.ms is the time until the tool knows the partitions.",
        "The tool measures reading, not the group's rebalances.",
    ),
    "reading without a group": Difference(
        "console-consumer",
        "Without --group the tool reads the partitions that the topic has at the start, and joins"
        " no group. Apache's tool joins a group console-consumer-NNN, which is never used again."
        " pybroker's tool joins such a group only with --include.",
        "Without a group the tool does not need to wait for a coordinator.",
    ),
    "retries": Difference(
        "verifiable-producer",
        "The tool retries failed records within delivery.timeout.ms. Apache's tool sends each"
        " record only once.",
        "pybroker's producer is idempotent: a retried record is never stored twice.",
    ),
    "exceptions": Difference(
        "verifiable-producer",
        "The field exception names an error class of pybroker.client. Apache's tool names a Java"
        " class.",
        "pybroker has no Java classes.",
    ),
    "failed consumers": Difference(
        "verifiable-consumer",
        "If the tool cannot go on reading, it prints a line on standard error and has exit code"
        " 1. Apache's tool has exit code 0.",
        "A test must notice the failure.",
    ),
    "group protocol": Difference(
        "verifiable-consumer",
        "The tool refuses --group-protocol consumer.",
        "That protocol needs KRaft.",
    ),
    "events of the connection": Difference(
        "zookeeper-shell",
        "The shell prints one event when it connects, before its first answer, and no event when it"
        " disconnects. Apache's shell prints events of the connection between the answers.",
        "Each run prints the lines in the same order, so scripts can compare two outputs.",
        without_events,
        without_events,
    ),
    "server that does not answer": Difference(
        "zookeeper-shell",
        "If the shell reaches no server, it prints the reason and has exit code 1. Apache's shell"
        " goes on trying, and each command fails.",
        "The user learns at once that an address is wrong.",
    ),
    "commands of the shell": Difference(
        "zookeeper-shell",
        "The shell has no container nodes, no TTL nodes and no TLS. It lacks the commands"
        " listquota, setquota, delquota, addWatch, removewatches, reconfig, getEphemerals and"
        " whoami. The command help has exit code 0. Apache's shell treats help as an unknown"
        " command.",
        "Kafka needs none of the missing parts, and the client library (kazoo) lacks most of them."
        " A user who asks for help has made no mistake.",
    ),
    "version of the shell": Difference(
        "zookeeper-shell",
        "The command version prints the version of pybroker.",
        "The shell is a part of pybroker.",
        replaced("^ZooKeeper CLI version: .*", "ZooKeeper CLI version"),
        replaced("^ZooKeeper CLI version: .*", "ZooKeeper CLI version"),
    ),
}
"""Short name -> difference."""


def render() -> str:
    """Return the rows in the form of `docs/compatibility.rst`."""
    parts = []
    for tool in dict.fromkeys(row.tool for row in DIFFERENCES.values()):
        parts.append(f"{tool}\n{'~' * len(tool)}\n")
        for name, row in DIFFERENCES.items():
            if row.tool == tool:
                text = f"**{name}**: {row.what} *Why:* {row.reason}"
                parts.append(
                    textwrap.fill(
                        text,
                        99,
                        initial_indent="- ",
                        subsequent_indent="  ",
                        break_on_hyphens=False,
                    )
                    + "\n"
                )
    return "\n".join(parts)


def page_with_rows(text: str) -> str:
    """Return the page with its last part, the rows, replaced by the current rows."""
    before, heading, _ = text.partition(_HEADING)
    return before + heading + render().strip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page_with_rows(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
