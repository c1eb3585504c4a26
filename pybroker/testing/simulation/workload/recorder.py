"""Writes the requests that simulated clients send, and the answers that they get, into a history.
All times are in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pybroker.client import ConsumerRecord
from pybroker.model import TopicPartition
from pybroker.testing.history.model import (
    NANOSECONDS,
    Assignment,
    Commit,
    Committed,
    FinalRead,
    History,
    Holding,
    Latest,
    LostPosition,
    Poll,
    Processed,
    ProducerFacts,
    ProducerStart,
    Record,
    Send,
    Transaction,
)
from pybroker.testing.history.values import Identity, make_value
from pybroker.testing.simulation.environment import Environment


def nanoseconds(seconds: float) -> int:
    """Return the virtual time `seconds` in ns, at least 1: in a history 0 means "never"."""
    return round(seconds * NANOSECONDS) + 1


class Recorder:
    """The history of one run's requests and answers, and counts of the clients' progress."""

    def __init__(self, environment: Environment) -> None:
        self.history = History()
        self.acked: Counter[TopicPartition] = Counter()
        """The number of values acknowledged by all in-sync replicas, by partition."""
        self.ends: Counter[TopicPartition] = Counter()
        """The offset after the last value that all in-sync replicas have acknowledged, by
        partition."""
        self.delivered: Counter[TopicPartition] = Counter()
        """The number of records delivered to consumers, by partition."""
        self.positions: Counter[tuple[str, TopicPartition]] = Counter()
        """The offset after the last record that a group has processed, by group and partition."""
        self.refused: Counter[str] = Counter()
        """The number of errors that clients got, by the name of the error."""
        self.managed: Counter[str] = Counter()
        """The number of successful admin operations, by kind: topics created, partitions elected
        and so on.
        """
        self.transacted: Counter[str] = Counter()
        """The number of committed transactions, by transactional id."""
        self._committed_reads: Recorder | None = None
        self._environment = environment

    def of_committed_reads(self) -> Recorder:
        """Return the recorder of the read_committed consumers."""
        if self._committed_reads is None:
            self._committed_reads = Recorder(self._environment)
            self.history.transactions.reads = self._committed_reads.history
        return self._committed_reads

    def now(self) -> int:
        return nanoseconds(self._environment.now)

    # producers

    def producer(self, name: str, incarnation: int, facts: ProducerFacts) -> None:
        self.history.producers[name, incarnation] = facts

    def begun(self, identity: Identity, partition: TopicPartition) -> Send:
        """Make a value, and record that a producer is about to send this value. Return the `Send`
        that contains the value."""
        value = make_value(identity, partition)
        send = Send(identity, partition, value, self.now())
        self.history.sends[value] = send
        return send

    def stored(self, send: Send, offset: int) -> None:
        send.outcome, send.ended, send.offset = "ok", self.now(), offset
        facts = self.history.facts(send.identity)
        if facts is not None and facts.acks == -1:
            partition = TopicPartition(*send.partition)
            self.acked[partition] += 1
            self.ends[partition] = max(offset + 1, self.ends[partition])

    def failed(self, send: Send, error: BaseException, *, definite: bool) -> None:
        cause = f" ({error.__cause__})" if error.__cause__ else ""
        send.outcome, send.ended = "fail" if definite else "info", self.now()
        send.error = f"{error}{cause}"
        self.refused[type(error.__cause__ or error).__name__] += 1

    # transactions

    def producer_started(
        self, transactional_id: str, client: str, producer_id: int, epoch: int
    ) -> None:
        self.history.transactions.starts.append(
            ProducerStart(transactional_id, client, producer_id, epoch, self.now())
        )

    def transaction_begun(
        self, transactional_id: str, client: str, producer_id: int, epoch: int, group: str = ""
    ) -> Transaction:
        transaction = Transaction(transactional_id, client, producer_id, epoch, self.now(), group)
        self.history.transactions.all.append(transaction)
        return transaction

    def transaction_ended(self, transaction: Transaction, outcome: str) -> None:
        transaction.outcome, transaction.ended = outcome, self.now()
        if outcome == "ok":
            self.transacted[transaction.transactional_id] += 1

    # consumers

    def assigned(self, client: str, partition: TopicPartition, offset: int) -> None:
        self.history.assignments.append(Assignment(client, partition, self.now(), offset))

    def polled(
        self,
        client: str,
        partition: TopicPartition,
        records: Sequence[ConsumerRecord],
        high_watermark: int | None,
    ) -> None:
        end = -1 if high_watermark is None else high_watermark
        self.history.polls.append(Poll(client, partition, self.now(), as_read(records), end))
        self.delivered[partition] += len(records)

    def lost(self, client: str, partition: TopicPartition, position: int, error: str) -> None:
        self.history.lost_positions.append(
            LostPosition(client, self.now(), error, partition, position)
        )

    def told_end(self, client: str, partition: TopicPartition, asked: int, offset: int) -> None:
        self.history.latest.append(Latest(client, partition, asked, self.now(), offset))

    # groups

    def transactional_group(self, name: str, partition: int) -> None:
        """Record that the offsets of the group are committed in transactions. `partition` is the
        group's partition of __consumer_offsets."""
        self.history.groups.coordinated_by[name] = partition
        self.history.groups.transactional.add(name)

    def group(self, name: str, topics: Sequence[str], partition: int) -> None:
        """Record that the group reads these topics. `partition` is the group's partition of
        __consumer_offsets."""
        self.history.groups.coordinated_by[name] = partition
        self.history.groups.topics[name] = frozenset(topics)

    def holds(
        self,
        group: str,
        client: str,
        member: str,
        generation: int,
        partitions: Sequence[TopicPartition],
    ) -> None:
        self.history.groups.holdings.append(
            Holding(group, client, member, generation, self.now(), tuple(partitions))
        )

    def processed(self, group: str, client: str, partition: TopicPartition, offset: int) -> None:
        self.history.groups.processed.append(
            Processed(group, client, partition, offset, self.now())
        )
        key = (group, partition)
        self.positions[key] = max(offset + 1, self.positions[key])

    def commit_begun(
        self, group: str, client: str, generation: int, partition: TopicPartition, offset: int
    ) -> Commit:
        commit = Commit(group, client, generation, partition, offset, self.now())
        self.history.groups.commits.append(commit)
        return commit

    def commit_ended(self, commit: Commit, outcome: str, error: str) -> None:
        commit.outcome, commit.ended, commit.error = outcome, self.now(), error

    def told_committed(
        self, group: str, client: str, partition: TopicPartition, asked: int, offset: int
    ) -> None:
        self.history.groups.answers.append(
            Committed(group, client, partition, asked, self.now(), offset)
        )

    def final(
        self,
        client: str,
        partition: TopicPartition,
        start: int,
        records: Sequence[ConsumerRecord],
    ) -> None:
        self.history.finals.append(FinalRead(partition, client, start, as_read(records)))


def as_read(records: Sequence[ConsumerRecord]) -> tuple[Record, ...]:
    return tuple(
        Record(each.offset, (each.value or b"").decode(errors="replace"), each.leader_epoch)
        for each in records
    )
