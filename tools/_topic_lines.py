"""The output of `topics --describe`: the choice of topics and partitions, and their lines in
Kafka's format."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pybroker.client.admin.configs import ConfigEntry
from pybroker.client.metadata import PartitionInfo, TopicInfo
from pybroker.model import NO_LEADER, NO_TOPIC_ID, encode_uuid

MIN_ISR = "min.insync.replicas"
MIN_ISR_DEFAULT = 1


@dataclass(frozen=True, slots=True)
class Reports:
    """The flags of --describe that filter the report. A partition is printed if it matches any of
    the partition filters, or if none is set. `overrides`: print only the topic lines of topics with
    options of their own."""

    under_replicated: bool = False
    unavailable: bool = False
    under_min_isr: bool = False
    at_min_isr: bool = False
    overrides: bool = False

    @property
    def partitions_only(self) -> bool:
        return self.under_replicated or self.unavailable or self.under_min_isr or self.at_min_isr


@dataclass(frozen=True, slots=True)
class Described:
    """A topic, its options, and the ids of the live brokers."""

    topic: TopicInfo
    configs: tuple[ConfigEntry, ...]
    live: Collection[int]

    @property
    def overrides(self) -> dict[str, str | None]:
        """The options whose value is not a default: name -> value."""
        return {row.name: row.value for row in self.configs if not row.is_default}

    @property
    def replication_factor(self) -> int:
        """The number of replicas of the first partition, as in Kafka's tool."""
        for _, partition in sorted(self.topic.partitions.items()):
            return len(partition.replicas)
        return 0

    @property
    def min_isr(self) -> int:
        for row in self.configs:
            if row.name == MIN_ISR and row.value is not None:
                return int(row.value)
        return MIN_ISR_DEFAULT

    def shown_partitions(self, reports: Reports) -> list[PartitionInfo]:
        """Return the partitions that the filters choose, sorted by number."""
        if reports.overrides:
            return []
        return [
            partition
            for _, partition in sorted(self.topic.partitions.items())
            if not reports.partitions_only or self._is_reported(partition, reports)
        ]

    def is_headed(self, reports: Reports) -> bool:
        """Return whether a line for the topic itself is printed."""
        return not reports.partitions_only and bool(self.overrides or not reports.overrides)

    def is_shown(self, reports: Reports) -> bool:
        """Return whether the topic or one of its partitions is printed."""
        return self.is_headed(reports) or bool(self.shown_partitions(reports))

    def _is_reported(self, partition: PartitionInfo, reports: Reports) -> bool:
        in_sync = len(partition.isr)
        led = partition.leader != NO_LEADER
        return (
            (reports.under_replicated and in_sync < len(partition.replicas))
            or (reports.unavailable and not (led and partition.leader in self.live))
            or (reports.under_min_isr and not (led and in_sync >= self.min_isr))
            or (reports.at_min_isr and in_sync == self.min_isr)
        )


def lines(described: Described, reports: Reports) -> Iterator[str]:
    """Yield the lines that `topics --describe` prints for one topic."""
    if described.is_headed(reports):
        yield topic_line(described)
    for partition in described.shown_partitions(reports):
        yield partition_line(partition)


def topic_line(described: Described) -> str:
    topic = described.topic
    fields = [f"Topic: {topic.name}"]
    if topic.topic_id != NO_TOPIC_ID:
        fields.append(f"TopicId: {encode_uuid(topic.topic_id)}")
    fields.append(f"PartitionCount: {len(topic.partitions)}")
    fields.append(f"ReplicationFactor: {described.replication_factor}")
    configs = ",".join(f"{name}={_text(value)}" for name, value in described.overrides.items())
    fields.append(f"Configs: {configs}")
    return "\t".join(fields)


def partition_line(partition: PartitionInfo) -> str:
    """Return the line of one partition. Elr is always N/A, because ZooKeeper-based brokers do not
    report eligible leader replicas."""
    leader = "none" if partition.leader == NO_LEADER else str(partition.leader)
    return "\t".join(
        [
            "",
            f"Topic: {partition.topic_partition.topic}",
            f"Partition: {partition.topic_partition.partition}",
            f"Leader: {leader}",
            f"Replicas: {_join(partition.replicas)}",
            f"Isr: {_join(partition.isr)}",
            "Elr: N/A",
            "LastKnownElr: N/A",
        ]
    )


def document(described: Described, reports: Reports) -> dict[str, object]:
    """Return one topic as a JSON value."""
    topic = described.topic
    return {
        "topic": topic.name,
        "topicId": encode_uuid(topic.topic_id),
        "internal": topic.internal,
        "replicationFactor": described.replication_factor,
        "configs": described.overrides,
        "partitions": [
            {
                "partition": partition.topic_partition.partition,
                "leader": None if partition.leader == NO_LEADER else partition.leader,
                "leaderEpoch": partition.leader_epoch,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
            }
            for partition in described.shown_partitions(reports)
        ],
    }


def _text(value: str | None) -> str:
    return "null" if value is None else value


def _join(numbers: tuple[int, ...]) -> str:
    return ",".join(str(number) for number in numbers)
