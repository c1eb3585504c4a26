"""The only list of differences from Apache Kafka 3.9.1, with their reasons.

Tests that compare tools with Apache's name the rows that they allow, and `docs/compatibility.rst`
shows the same rows; `integration_tests/test_compatibility.py` holds the two together. A difference
without a row is a defect. `python -m integration_tests.differences` writes the rows into that
page.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[1] / "docs" / "compatibility.rst"
_HEADING: Final = "What the tools do differently\n-----------------------------\n\n"

Lines = list[str]


@dataclass(frozen=True, slots=True)
class Difference:
    """`tool` is its name, or "all tools". `what` and `reason` are sentences of the document.
    `apache` and `ours` convert the printed lines into the lines to compare."""

    tool: str
    what: str
    reason: str
    apache: Callable[[Lines], Lines] = lambda lines: lines
    ours: Callable[[Lines], Lines] = lambda lines: lines


def without(pattern: str) -> Callable[[Lines], Lines]:
    """Leave out the lines that contain a match."""
    return lambda lines: [line for line in lines if not re.search(pattern, line)]


def replaced(pattern: str, text: str) -> Callable[[Lines], Lines]:
    """Replace each match by `text` (with \\1 for groups)."""
    return lambda lines: [re.sub(pattern, text, line) for line in lines]


def without_events(lines: Lines) -> Lines:
    """Leave out the ZooKeeper shell's events of its own connection, with the blank lines and the
    heading around them."""
    return [
        line
        for line in lines
        if line not in ("", "WATCHER::") and not re.match(r"WatchedEvent .* type:None ", line)
    ]


def with_sorted_partitions(lines: Lines) -> Lines:
    """Sort the lists of partitions in lines of the election tools."""

    def ordered(found: re.Match[str]) -> str:
        return ", ".join(sorted(re.split(", ?", found[0])))

    return [re.sub(r"[^ ,()]+-[0-9]+(, ?[^ ,()]+-[0-9]+)+", ordered, line) for line in lines]


def until_metrics(lines: Lines) -> Lines:
    """The lines before the table of metrics."""
    ends = [number for number, line in enumerate(lines) if line.startswith("Metric Name")]
    return lines[: ends[0]] if ends else lines


def with_split_tables(lines: Lines) -> Lines:
    """Put each row of consumer-groups on a line of its own: Apache 3.9 prints the rows behind the
    headings of their table."""
    found = []
    for line in lines:
        for head, row in (_RESET_TABLE, _DELETED_TABLE):
            if match := head.match(line):
                found.append(match[0])
                found.extend(row.findall(line[match.end() :]))
                break
        else:
            found.append(line)
    return found


_RESET_TABLE: Final = (
    re.compile(r"GROUP +TOPIC +PARTITION +NEW-OFFSET {5}"),
    re.compile(r"\S+ +\S+ +\d+ +\d+ *"),
)
_DELETED_TABLE: Final = (
    re.compile(r"TOPIC +PARTITION +STATUS {9}"),
    re.compile(r"\S+ +(?:\d+|Not Provided) +(?:Error: :\S*Exception: [^.]*\.|Successful {5})"),
)


def with_lag_from_zero(lines: Lines) -> Lines:
    """Replace a negative LAG in lines of consumer-groups by 0, in the same width."""
    return [re.sub(r"(?<= )-\d+(?= )", lambda found: "0".ljust(len(found[0])), x) for x in lines]


DIFFERENCES: Final[Mapping[str, Difference]] = {
    "errors in one line": Difference(
        "all tools",
        "A failure is one line on standard error, and wrong usage is that line and a hint at"
        " --help. Apache's tools add a Java stack trace or the whole list of options.",
        "A person has to find the sentence that matters.",
    ),
    "version": Difference(
        "all tools",
        "--version prints pybroker's version.",
        "It is not Kafka's tool.",
    ),
    "json": Difference(
        "all tools",
        "There is --format json.",
        "Scripts need not take apart what is written for people.",
    ),
    "spelling of --admin.config": Difference(
        "all tools",
        "Both --command-config and --admin.config are taken wherever one of them is known.",
        "Kafka uses the two in different tools for the same thing.",
    ),
    "abbreviated options": Difference(
        "all tools",
        "Options are written out. Apache's tools also take --boot for --bootstrap-server.",
        "A new option could give an old script another meaning.",
    ),
    "order of topics": Difference(
        "configs",
        "Topics come by name. Apache prints them in the order of a hash table.",
        "The same cluster prints the same lines.",
        sorted,
        sorted,
    ),
    "unknown broker": Difference(
        "configs",
        "A broker that is not in the cluster is told at once. Apache's tool waits for a minute.",
        "The cluster knows its brokers.",
    ),
    "single broker options": Difference(
        "configs",
        "Options of brokers are changed one by one. Apache's tool reads all that was set, and"
        " writes all of it again, so that it refuses while a password is set.",
        "Two operators do not undo each other's changes.",
    ),
    "quotas": Difference(
        "configs",
        "Users, clients, addresses and metrics of clients are refused.",
        "The broker has no quotas and no credentials yet.",
    ),
    "deprecation of ZooKeeper": Difference(
        "configs",
        "No warning that --zookeeper will be removed.",
        "It will not be.",
        without("^Warning: --zookeeper is deprecated|^Use --bootstrap-server instead to specify"),
    ),
    "topics in ZooKeeper": Difference(
        "configs",
        "--zookeeper takes topics, as Kafka did until 2.8; 3.9.1 refuses them.",
        "It is how scripts of that time change a topic while no broker runs.",
    ),
    "usable versions": Difference(
        "broker-api-versions",
        "[usable: N] is the version that our client uses. On a broker of ours the lines are the"
        " same; of newer brokers our client uses less, and APIs that it never uses show none.",
        "The tool tells what this client and that broker do with each other.",
        replaced(r" \[usable: \d+\]", ""),
        replaced(r" \[usable: \d+\]", ""),
    ),
    "order of descriptions": Difference(
        "topics",
        "--describe shows the topics by name. Apache shows them in the order of a hash table.",
        "The same cluster prints the same lines.",
        sorted,
        sorted,
    ),
    "name of a missing topic": Difference(
        "topics",
        "Topic 'x' does not exist as expected. Apache says Topic 'Optional[x]'.",
        "It is a slip of its release 3.",
        replaced(r"'Optional\[(.*)\]'", r"'\1'"),
    ),
    "values with =": Difference(
        "topics",
        "--config takes name= (an empty value) and values with an equals sign.",
        "Some options have such values.",
    ),
    "order of groups": Difference(
        "consumer-groups",
        "Groups, topics and partitions come by name. Apache prints them in the order of a hash"
        " table.",
        "The same cluster prints the same lines.",
        sorted,
        sorted,
    ),
    "rows of tables": Difference(
        "consumer-groups",
        "Each row of --reset-offsets and --delete-offsets has its line. Apache's release 3.9 prints"
        " all of them in the line of the headings.",
        "It is a slip of its release 3.",
        with_split_tables,
    ),
    "errors of groups": Difference(
        "consumer-groups",
        "An error is told by Kafka's name of its code, and who is still in a group that has to be"
        " empty by a line on standard error each. Apache prints the Java class.",
        "There are no Java classes here, and the next question is who it is.",
        replaced(r"(due to: |Error: :).*", r"\1"),
        replaced(r"(due to: |Error: :).*", r"\1"),
    ),
    "names of deleted groups": Difference(
        "consumer-groups",
        "Where some groups could not be deleted, those that were are listed as 'a', 'b'. Apache"
        " prints 'a'b', '.",
        "It is a slip of its release 3.",
        replaced(r"(deleted successfully: ).*", r"\1"),
        replaced(r"(deleted successfully: ).*", r"\1"),
    ),
    "failed commands": Difference(
        "consumer-groups",
        "A command that fails as a whole ends with 1, and the line that tells why is on standard"
        " error. Apache's ends with 0 after a line on standard output. What a group refuses is told"
        " as Apache's tells it, with 0.",
        "A script has to know that nothing was done.",
    ),
    "partitions that are not there": Difference(
        "consumer-groups",
        "--reset-offsets refuses a partition that its topic does not have. Apache's asks for it"
        " until --timeout.",
        "The cluster knows its partitions.",
    ),
    "lag below zero": Difference(
        "consumer-groups",
        "LAG is 0 where a group has committed an offset beyond the end. Apache prints a negative"
        " number.",
        "Nothing is left to read; the two offsets show what has happened.",
        with_lag_from_zero,
    ),
    "lag in detail": Difference(
        "consumer-groups",
        "There is --lag-details: last stable offset, lag in bytes and in seconds.",
        "Records alone do not tell how late a group is.",
    ),
    "types of groups": Difference(
        "consumer-groups",
        "--list --type prints Unknown and refuses a choice, also on newer brokers, which tell types"
        " by version 5 of ListGroups.",
        "All groups of Kafka's ZooKeeper years are of one type.",
    ),
    "errors of partitions": Difference(
        "delete-records",
        "An error is told by Kafka's name of its code. Apache prints the Java class.",
        "There are no Java classes here; the name is what documents and other clients use.",
        replaced("error: .*", "error"),
        replaced("error: .*", "error"),
    ),
    "order of partitions": Difference(
        "delete-records",
        "The lines come in the order of the file. Apache prints them in that of a hash table.",
        "Whoever wrote the file finds its lines.",
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
        "An error is told by Kafka's name of its code. Apache prints the Java class.",
        "There are no Java classes here.",
        replaced(r"(^Error completing .* for partition: \S+: ).*", r"\1"),
        replaced(r"(^Error completing .* for partition: \S+: ).*", r"\1"),
    ),
    "deprecation of the old election tool": Difference(
        "preferred-replica-election",
        "No warning that the tool and --zookeeper are deprecated.",
        "They are not.",
        without(
            "^This tool is deprecated|^Warning: --zookeeper is|^Use --bootstrap-server instead"
        ),
    ),
    "elections that did not happen": Difference(
        "preferred-replica-election",
        "With --zookeeper the tool waits until the controller has held the election, prints a line"
        " for each partition that has another leader nevertheless, and then ends with 1. Apache's"
        " ends with 0 as soon as it has asked.",
        "Nobody hears otherwise of an election that did not happen.",
    ),
    "leaders that were elected before": Difference(
        "preferred-replica-election",
        "With --bootstrap-server, 'Preferred replica already elected' names the partitions of"
        " which that is true. Apache's names those that were elected just now, or none.",
        "It is a slip of its release 2.",
        replaced("^(Preferred replica already elected for partitions).*", r"\1"),
        replaced("^(Preferred replica already elected for partitions).*", r"\1"),
    ),
    "descriptions of older releases": Difference(
        "topics",
        "--describe prints what release 3.9 prints. Until 2.8 there are no columns Elr and"
        " LastKnownElr, and --zookeeper shows only the options of the topic itself; until 2.1 there"
        " are no blanks after the colons of the first line and no TopicId.",
        "Two texts cannot be had at the same time.",
        lambda lines: replaced(r"^(Topic:)(?=\S)", r"\1 ")(
            replaced(r"\t(PartitionCount|ReplicationFactor|Configs):(?=\S)", r"\t\1: ")(
                replaced(r"\tTopicId: \S+|[ \t]+$", "")(lines)
            )
        ),
        replaced(r"\tTopicId: \S+|\tElr: N/A\tLastKnownElr: N/A|[ \t]+$", ""),
    ),
    "moments of tiered storage": Difference(
        "get-offsets",
        "--time takes no earliest-local (-4) and latest-tiered (-5), and no other number below -3."
        " Apache's tool asks, prints nothing and ends with 0.",
        "There is no tiered storage in Kafka's ZooKeeper years.",
    ),
    "blanks between numbers": Difference(
        "get-offsets",
        "--partitions takes blanks after its commas.",
        "They cannot mean anything else.",
    ),
    "decoders of internal topics": Difference(
        "dump-log",
        "--transaction-log-decoder and the decoders of KRaft's and of tiered storage's records are"
        " refused.",
        "pybroker writes no such records. --print-data-log shows those of other brokers.",
    ),
    "records of offsets that cannot be read": Difference(
        "dump-log",
        "--offsets-decoder says in other words why it skips a record, does not know the records of"
        " KIP-848, and shows the fields that it knows of a subscription of a later version.",
        "Apache's words name its own code; groups of KIP-848 need KRaft.",
    ),
    "binary payloads": Difference(
        "dump-log",
        "DefaultDecoder prints hexadecimal digits. Apache's prints the address of an array.",
        "The digits say what is there.",
    ),
    "other decoders": Difference(
        "dump-log",
        "Classes of one's own are refused.",
        "There is no Java machine to load them.",
    ),
    "old message formats in depth": Difference(
        "dump-log",
        "Messages of formats 0 and 1 are printed, but not looked into (--deep-iteration ends with"
        " an error).",
        "The broker has never written them.",
    ),
    "damaged records": Difference(
        "dump-log",
        "A batch that cannot be decoded ends the tool before its first record is printed. Apache"
        " prints the records before the fault.",
        "They are decoded together.",
    ),
    "order of directories and partitions": Difference(
        "log-dirs",
        "Directories come in the order of log.dirs, partitions by name. Apache prints both in the"
        " order of a hash table.",
        "The same cluster prints the same lines.",
    ),
    "failed records": Difference(
        "producer-perf-test",
        "The exit code is 1 if a record was not delivered, and ten reasons at most are shown."
        " Apache ends with 0 after a stack trace for each.",
        "A measurement without its records is no measurement.",
    ),
    "bootstrap server of the test": Difference(
        "producer-perf-test",
        "--bootstrap-server is taken, too, beside bootstrap.servers in --producer-props.",
        "All other tools have it, and Kafka's since 4.1.",
    ),
    "transactions": Difference(
        "producer-perf-test",
        "--transactional-id and a positive --transaction-duration-ms are refused.",
        "There are no transactions yet.",
    ),
    "throughput of zero": Difference(
        "producer-perf-test",
        "--throughput 0 is refused. Apache sends one record and then waits for ever.",
        "Nobody can want it.",
    ),
    "random payloads": Difference(
        "producer-perf-test",
        "The random letters are not the same ones, though of the same alphabet.",
        "Nothing depends on them, and ours are made many at a time.",
    ),
    "metrics of the client": Difference(
        "producer-perf-test and consumer-perf-test",
        "--print-metrics prints only what the test has counted itself, with Kafka's names.",
        "Our client keeps few counters.",
        until_metrics,
        until_metrics,
    ),
    "no group": Difference(
        "consumer-perf-test",
        "All partitions are read by assignment; --group is taken and not used, and"
        " rebalance.time.ms is the time until the partitions were known.",
        "What is measured is reading, not the group's rebalances.",
    ),
    "reading without a group": Difference(
        "console-consumer",
        "Without a group the partitions that a topic has at the start are read by assignment."
        " Apache's joins a group console-consumer-NNN that nobody uses again; ours does so for"
        " --include.",
        "To look into a topic needs no coordinator, and does not wait for one.",
    ),
    "retries": Difference(
        "verifiable-producer",
        "What fails is sent again within delivery.timeout.ms. Apache's sends once.",
        "Our producer is idempotent: a second try is never stored twice.",
    ),
    "exceptions": Difference(
        "verifiable-producer",
        "exception is the name of an error of pybroker.client. Apache prints a Java class.",
        "There are no Java classes here.",
    ),
    "failed consumers": Difference(
        "verifiable-consumer",
        "The exit code is 1, with a line on standard error, if reading cannot go on. Apache's ends"
        " with 0.",
        "A test has to know that something was wrong.",
    ),
    "group protocol": Difference(
        "verifiable-consumer",
        "--group-protocol consumer is refused.",
        "It is younger than Kafka's ZooKeeper years.",
    ),
    "events of the connection": Difference(
        "zookeeper-shell",
        "That the connection is there is told once, before the first answer, and not that it was"
        " closed. Apache's shell prints each once or twice, somewhere between the answers.",
        "Output in the same order can be compared and piped.",
        without_events,
        without_events,
    ),
    "server that does not answer": Difference(
        "zookeeper-shell",
        "If no server can be reached the shell says why and ends with 1. Apache's shell goes on"
        " trying, and each command fails.",
        "A wrong address should be told at once.",
    ),
    "commands of the shell": Difference(
        "zookeeper-shell",
        "No quotas, addWatch, removewatches, reconfig, getEphemerals and whoami, no containers and"
        " nodes with a time to live, no TLS. There is help, which ends with 0.",
        "Kafka uses none of these; the library that speaks with ZooKeeper lacks most of them.",
    ),
    "version of the shell": Difference(
        "zookeeper-shell",
        "version prints pybroker's version.",
        "It is not ZooKeeper's shell.",
        replaced("^ZooKeeper CLI version: .*", "ZooKeeper CLI version"),
        replaced("^ZooKeeper CLI version: .*", "ZooKeeper CLI version"),
    ),
}
"""Short name -> difference."""


def render() -> str:
    """The rows in the form of `docs/compatibility.rst`."""
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
    """The page with its rows, which are its last part, replaced by these."""
    before, heading, _ = text.partition(_HEADING)
    return before + heading + render().strip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page_with_rows(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
