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
_INTRODUCTION: Final = "Differences between pybroker's and Apache Kafka's command line tools, for"
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
        "A failure prints one line on standard error; wrong usage adds a hint at --help. Apache's"
        " tools print a Java stack trace or the whole list of options as well.",
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
        "A tool that has the option --command-config or --admin.config accepts both names.",
        "In Kafka some tools have the one name and some the other, with the same meaning.",
    ),
    "abbreviated options": Difference(
        "all tools",
        "Options cannot be abbreviated. Apache's tools also accept --boot for --bootstrap-server.",
        "A new option could change the meaning of an old script.",
    ),
    "order of topics": Difference(
        "configs",
        "Topics are sorted by name. Apache prints them in the order of a hash table.",
        "The same cluster prints the same lines.",
        sorted,
        sorted,
    ),
    "unknown broker": Difference(
        "configs",
        "If no broker has the id, the tool fails at once. Apache's tool waits for a minute.",
        "The tool asks the cluster for its brokers.",
    ),
    "single broker options": Difference(
        "configs",
        "The tool changes single options of a broker. Apache's tool reads all dynamic options and"
        " writes them all again, so it fails while a password is set.",
        "Two operators do not undo each other's changes.",
    ),
    "quotas": Difference(
        "configs",
        "The tool refuses the options of users, clients, IP addresses and client metrics.",
        "The broker has no quotas and no credentials yet.",
    ),
    "deprecation of ZooKeeper": Difference(
        "configs",
        "The tool does not warn that --zookeeper will be removed.",
        "pybroker keeps the option.",
        without("^Warning: --zookeeper is deprecated|^Use --bootstrap-server instead to specify"),
    ),
    "topics in ZooKeeper": Difference(
        "configs",
        "--zookeeper can change options of topics, as in Kafka until 2.8. Kafka 3.9.1 refuses it.",
        "Scripts for these releases change a topic in this way while no broker runs.",
    ),
    "usable versions": Difference(
        "broker-api-versions",
        "[usable: N] is the version that pybroker's client uses with that broker. For a broker"
        " of pybroker, Kafka's tool prints the same version. For newer brokers pybroker's tool"
        " prints a lower version, or no version if the client never uses the API.",
        "The tool shows the versions that this client uses with that broker.",
        replaced(r" \[usable: \d+\]", ""),
        replaced(r" \[usable: \d+\]", ""),
    ),
    "order of descriptions": Difference(
        "topics",
        "--describe sorts topics by name. Apache's tool shows them in the order of a hash table.",
        "The same cluster prints the same lines.",
        sorted,
        sorted,
    ),
    "name of a missing topic": Difference(
        "topics",
        "The message about a missing topic names Topic 'x'. Apache names Topic 'Optional[x]'.",
        "Apache's text is a defect of release 3.",
        replaced(r"'Optional\[(.*)\]'", r"'\1'"),
    ),
    "values with =": Difference(
        "topics",
        "--config accepts an empty value (name=) and values that contain an equals sign.",
        "Some options have such values.",
    ),
    "order of groups": Difference(
        "consumer-groups",
        "Groups, topics and partitions are sorted by name. Apache prints them in the order of a"
        " hash table.",
        "The same cluster prints the same lines.",
        sorted,
        sorted,
    ),
    "rows of tables": Difference(
        "consumer-groups",
        "Each row of --reset-offsets and --delete-offsets has its own line. Apache's release 3.9"
        " prints all rows in the line of the headings.",
        "Apache's output is a defect of release 3.",
        with_split_tables,
    ),
    "errors of groups": Difference(
        "consumer-groups",
        "An error is shown by the name of its Kafka error code. Apache prints the Java class. If"
        " members of the group prevent the command, standard error has a line for each member.",
        "pybroker has no Java classes, and the operator needs to know the members.",
        replaced(r"(due to: |Error: :).*", r"\1"),
        replaced(r"(due to: |Error: :).*", r"\1"),
    ),
    "names of deleted groups": Difference(
        "consumer-groups",
        "If some groups could not be deleted, the deleted ones are listed as 'a', 'b'. Apache"
        " prints 'a'b', '.",
        "Apache's output is a defect of release 3.",
        replaced(r"(deleted successfully: ).*", r"\1"),
        replaced(r"(deleted successfully: ).*", r"\1"),
    ),
    "failed commands": Difference(
        "consumer-groups",
        "A command that fails as a whole has exit code 1 and prints the reason on standard error."
        " Apache's tool has exit code 0 and prints a line on standard output. If only single groups"
        " are refused, both tools print these refusals and have exit code 0.",
        "A script must notice that nothing was done.",
    ),
    "missing partitions": Difference(
        "consumer-groups",
        "--reset-offsets fails at once if a partition is missing. Apache waits until a timeout.",
        "The tool asks the cluster for its partitions.",
    ),
    "lag below zero": Difference(
        "consumer-groups",
        "LAG is 0 if a group has committed an offset beyond the log end. Apache prints a negative"
        " number.",
        "There is nothing left to read; the two offsets show the difference.",
        with_lag_from_zero,
    ),
    "lag in detail": Difference(
        "consumer-groups",
        "The option --lag-details adds the last stable offset, and the lag in bytes and seconds.",
        "The number of records does not show how late a group is.",
    ),
    "types of groups": Difference(
        "consumer-groups",
        "--list --type prints the type Unknown for every group and refuses a filter by type, also"
        " for newer brokers, which return types in version 5 of ListGroups.",
        "All groups of ZooKeeper-mode Kafka have one type.",
    ),
    "errors of partitions": Difference(
        "delete-records",
        "An error is shown by the name of its Kafka error code. Apache prints the Java class.",
        "pybroker has no Java classes; Kafka's documents and other clients use the name.",
        replaced("error: .*", "error"),
        replaced("error: .*", "error"),
    ),
    "order of partitions": Difference(
        "delete-records",
        "The lines have the order of the given file. Apache uses the order of a hash table.",
        "The author of the file finds the lines more easily.",
        sorted,
        sorted,
    ),
    "order of elected partitions": Difference(
        "leader-election and preferred-replica-election",
        "The partitions of a line are sorted. Apache prints them in the order of a hash table, and"
        " names the kind of table (Set or HashSet).",
        "The same cluster prints the same lines.",
        lambda lines: with_sorted_partitions(replaced("HashSet", "Set")(lines)),
        with_sorted_partitions,
    ),
    "errors of elections": Difference(
        "leader-election and preferred-replica-election",
        "An error is shown by the name of its Kafka error code. Apache prints the Java class.",
        "pybroker has no Java classes.",
        replaced(r"(^Error completing .* for partition: \S+: ).*", r"\1"),
        replaced(r"(^Error completing .* for partition: \S+: ).*", r"\1"),
    ),
    "deprecation of the old election tool": Difference(
        "preferred-replica-election",
        "The tool does not warn that it and its option --zookeeper are deprecated.",
        "pybroker keeps both.",
        without(
            "^This tool is deprecated|^Warning: --zookeeper is|^Use --bootstrap-server instead"
        ),
    ),
    "elections that did not happen": Difference(
        "preferred-replica-election",
        "With --zookeeper the tool waits until the controller has held the election, prints a"
        " line for each partition that still has another leader, and then ends with exit code 1."
        " Apache's tool ends with exit code 0 as soon as it has written the request.",
        "Otherwise the operator does not learn that an election did not happen.",
    ),
    "leaders that were elected before": Difference(
        "preferred-replica-election",
        "With --bootstrap-server, 'Preferred replica already elected' names the partitions that had"
        " their preferred leader before. Apache's tool names the partitions that were elected"
        " just now, or none.",
        "Apache's output is a defect of release 2.",
        replaced("^(Preferred replica already elected for partitions).*", r"\1"),
        replaced("^(Preferred replica already elected for partitions).*", r"\1"),
    ),
    "descriptions of older releases": Difference(
        "topics",
        "--describe prints the text of Kafka 3.9. Apache's tools until 2.8 print no columns Elr and"
        " LastKnownElr, and with --zookeeper only the options of the topic itself. Apache's tools"
        " until 2.1 print no blanks after the colons of the first line and no TopicId.",
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
        "Transactional ids and partitions are sorted. Apache prints them in the order of a hash"
        " table.",
        "The same cluster prints the same lines.",
        sorted,
        sorted,
    ),
    "reasons of failures": Difference(
        "transactions",
        "The end of an error line is the name and the message of the Kafka error code. Apache's"
        " tool prints a sentence of its Java client.",
        "pybroker has no Java classes; Kafka's documents and other clients use the name.",
    ),
    "missing partitions of transactions": Difference(
        "transactions",
        "The tool fails at once if a partition is missing. Apache's tool waits for a minute.",
        "The tool asks the cluster for its partitions.",
    ),
    "internal topics": Difference(
        "transactions",
        "find-hanging with --broker-id also searches internal topics.",
        "A hanging transaction in __consumer_offsets keeps groups from reading their offsets.",
    ),
    "times of tiered storage": Difference(
        "get-offsets",
        "With --time the tool refuses earliest-local (-4), latest-tiered (-5) and all other numbers"
        " below -3. Apache's tool sends them, prints nothing and ends with exit code 0.",
        "pybroker has no tiered storage.",
    ),
    "blanks between numbers": Difference(
        "get-offsets",
        "--partitions accepts a blank after each comma.",
        "The meaning of the list stays clear.",
    ),
    "decoders of internal topics": Difference(
        "dump-log",
        "The tool refuses the decoders for records of KRaft and of tiered storage.",
        "pybroker never writes such records.",
    ),
    "records of transactions": Difference(
        "dump-log",
        "--transaction-log-decoder sorts the partitions of a transaction. Apache prints them in the"
        " order of a hash table. A record that cannot be decoded prints an error line, as with"
        " --offsets-decoder. Apache's tool ends there.",
        "The same file prints the same lines, and the records after a damaged one are shown.",
        with_sorted_transaction_partitions,
        with_sorted_transaction_partitions,
    ),
    "records of offsets that cannot be read": Difference(
        "dump-log",
        "--offsets-decoder words the reason for a skipped record differently, does not decode the"
        " records of KIP-848, and shows the known fields of a subscription of a later version.",
        "Apache's reasons name Java code, and groups of KIP-848 need KRaft.",
    ),
    "binary payloads": Difference(
        "dump-log",
        "DefaultDecoder prints the bytes as hexadecimal digits. Apache prints a Java address.",
        "The digits show the content of the record.",
    ),
    "other decoders": Difference(
        "dump-log",
        "The tool refuses decoders that are classes of the user.",
        "pybroker has no JVM to load them.",
    ),
    "old message formats in depth": Difference(
        "dump-log",
        "Messages of formats 0 and 1 are printed, but not decompressed (--deep-iteration ends"
        " with an error).",
        "The broker has never written them.",
    ),
    "damaged records": Difference(
        "dump-log",
        "A batch that cannot be decoded ends the tool before its first record is printed. Apache"
        " prints the records before the fault.",
        "The records of a batch are decoded together.",
    ),
    "order of directories and partitions": Difference(
        "log-dirs",
        "Directories are in the order of log.dirs, partitions sorted by name. Apache prints both in"
        " the order of a hash table.",
        "The same cluster prints the same lines.",
    ),
    "failed records": Difference(
        "producer-perf-test",
        "If records were not delivered, the exit code is 1, and the tool prints up to ten reasons."
        " Apache's tool prints a stack trace for each such record and ends with exit code 0.",
        "A measurement with lost records is not valid.",
    ),
    "bootstrap server of the test": Difference(
        "producer-perf-test",
        "The tool accepts --bootstrap-server, or bootstrap.servers in --producer-props.",
        "All other tools have the option, and so has Kafka's tool since 4.1.",
    ),
    "throughput of zero": Difference(
        "producer-perf-test",
        "--throughput 0 is refused. Apache sends one record and then waits for ever.",
        "A test that sends nothing has no use.",
    ),
    "random payloads": Difference(
        "producer-perf-test",
        "The random letters of the payloads differ from Apache's, but are of the same alphabet.",
        "No user depends on the letters, and pybroker makes many of them at a time.",
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
        "The tool assigns all partitions to itself. So --group is accepted and has no effect, and"
        " rebalance.time.ms is the time until the tool knew the partitions.",
        "The tool measures reading, not the group's rebalances.",
    ),
    "reading without a group": Difference(
        "console-consumer",
        "Without --group the tool reads all partitions that the topic has when the tool starts."
        " Apache's tool joins a group console-consumer-NNN that is never used again; pybroker's"
        " tool does so only with --include.",
        "Reading a topic then needs no coordinator, and does not wait for one.",
    ),
    "retries": Difference(
        "verifiable-producer",
        "The tool retries failed records within delivery.timeout.ms. Apache sends each only once.",
        "pybroker's producer is idempotent: a retried record is never stored twice.",
    ),
    "exceptions": Difference(
        "verifiable-producer",
        "The field exception names an error of pybroker.client. Apache's names a Java class.",
        "pybroker has no Java classes.",
    ),
    "failed consumers": Difference(
        "verifiable-consumer",
        "If reading cannot continue, the tool prints a line on standard error and ends with exit"
        " code 1. Apache's tool ends with exit code 0.",
        "A test must notice the failure.",
    ),
    "group protocol": Difference(
        "verifiable-consumer",
        "The tool refuses --group-protocol consumer.",
        "That protocol needs KRaft.",
    ),
    "events of the connection": Difference(
        "zookeeper-shell",
        "The shell prints one event when it connects, before the first answer, and none when it"
        " disconnects. Apache's shell prints both events once or twice, between the answers.",
        "Output in the same order can be compared and piped.",
        without_events,
        without_events,
    ),
    "server that does not answer": Difference(
        "zookeeper-shell",
        "If no server can be reached, the shell prints the reason and ends with exit code 1."
        " Apache's shell goes on trying, and each command fails.",
        "A wrong address should be reported at once.",
    ),
    "commands of the shell": Difference(
        "zookeeper-shell",
        "The shell has no container nodes, no TTL nodes and no TLS. It lacks the commands"
        " listquota, setquota, delquota, addWatch, removewatches, reconfig, getEphemerals and"
        " whoami. It has the command help, which ends with exit code 0.",
        "Kafka uses none of these; the ZooKeeper client library lacks most of them.",
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
        parts.append(f"{tool}\n{'~' * len(tool)}\n\n{_INTRODUCTION} {tool}:\n")
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
