"""The data of a history: what clients and brokers did and observed in a run, and violations of the
rules. Times are in ns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pybroker.testing.history.keyed import Keyed
from pybroker.testing.history.values import Identity, TopicPartition

UNKNOWN: Final = -1
"""The value of an offset or epoch that is not known."""
NANOSECONDS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ProducerFacts:
    """The guarantees of a producer. `keeps_order`: records are stored in the order of sending.
    `starts_anew`: after an error the producer takes the next producer epoch and resends records
    that may be stored already (librdkafka #4953)."""

    acks: int
    idempotent: bool
    keeps_order: bool
    starts_anew: bool = False


@dataclass(slots=True)
class Send:
    """The send of one value by a producer. Without an answer, `ended` is 0 and `outcome` is
    "info"."""

    identity: Identity
    partition: TopicPartition
    value: str
    begun: int
    outcome: str = "info"
    ended: int = 0
    offset: int = UNKNOWN
    error: str = ""

    def __str__(self) -> str:
        end = f"@{self.offset}" if self.outcome == "ok" else f" ({self.error or 'no answer'})"
        outcome = f"{self.outcome}{end} {_seconds(self.ended)}"
        return f"send {self.value} at {_seconds(self.begun)}: {outcome}"


class Record(NamedTuple):
    """A record that a client has read."""

    offset: int
    value: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Poll:
    """The records of one partition from one poll of a consumer."""

    client: str
    partition: TopicPartition
    at: int
    records: tuple[Record, ...]
    high_watermark: int = UNKNOWN

    def __str__(self) -> str:
        first, last = self.records[0].offset, self.records[-1].offset
        return f"poll of {self.client} at {_seconds(self.at)}: {first}..{last}"


@dataclass(frozen=True, slots=True)
class Assignment:
    """A consumer starts to read a partition at `offset`, after an assignment or a seek."""

    client: str
    partition: TopicPartition
    at: int
    offset: int


@dataclass(frozen=True, slots=True)
class LostPosition:
    """A consumer's error: the log no longer has the consumer's position. `partition` and `offset`
    of the position are set if known."""

    client: str
    at: int
    error: str
    partition: TopicPartition | None = None
    offset: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class Latest:
    """A client's ListOffsets request for the latest offset (timestamp -1), and the answer: the high
    watermark, or the last stable offset for a read_committed consumer."""

    client: str
    partition: TopicPartition
    asked: int
    answered: int
    offset: int

    def __str__(self) -> str:
        return (
            f"latest offset {self.offset} for {self.client},"
            f" asked {_seconds(self.asked)}, answered {_seconds(self.answered)}"
        )


@dataclass(frozen=True, slots=True)
class FinalRead:
    """All records of a partition at the end of the run. `source` names the client that read them,
    or the broker's files."""

    partition: TopicPartition
    source: str
    start: int
    records: tuple[Record, ...]


class Batch(NamedTuple):
    """A record batch in the log of a replica. `digest` covers all its bytes; `producer` is the
    producer id and epoch."""

    first: int
    last: int
    epoch: int
    digest: str
    producer: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaFiles:
    """The content of one replica's files at the end of the run. Only `producers`, the producer
    state, is from the broker's memory. `producers` is None if the broker does not run."""

    partition: TopicPartition
    broker: int
    start: int
    high_watermark: int
    batches: tuple[Batch, ...]
    epochs: tuple[tuple[int, int], ...]
    producers: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class State:
    """One version of a partition's state in ZooKeeper. `eligible` are the replicas outside the ISR
    that have every committed record (KIP-966)."""

    partition: TopicPartition
    version: int
    leader: int
    epoch: int
    isr: tuple[int, ...]
    eligible: tuple[int, ...]
    controller_epoch: int
    at: int
    """The time when the test saw this version, a moment after it was written."""
    current_controller_epoch: int = UNKNOWN
    """The controller epoch in force when the version was written, if known."""
    written: int | None = None
    """The time when the version was written, if ZooKeeper gave it. It may be much earlier than
    `at`."""


@dataclass(frozen=True, slots=True)
class ControllerTerm:
    """A controller epoch, and the broker that became the controller with this epoch."""

    epoch: int
    broker: int


@dataclass(frozen=True, slots=True)
class Fault:
    """The start of a fault (`kind` "invoke"), or its end ("ok")."""

    at: int
    kind: str
    what: str
    target: str


@dataclass(slots=True)
class TopicLife:
    """A topic from its creation to its deletion. A recreated topic has its own `TopicLife`.
    `replicas` has the broker ids of each partition, including partitions that were added later."""

    topic: str
    begun: int
    replicas: dict[int, tuple[int, ...]]
    min_isr: int = 1
    doomed: int = 0
    """The time when the deletion of the topic was requested; 0: never."""


@dataclass(slots=True)
class Loss:
    """A loss receipt: the note in ZooKeeper that the partition may have lost committed records.
    `given_up` has the truncated ranges, as (first offset, offset after the last)."""

    partition: TopicPartition
    at: int
    reason: str
    given_up: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Calm:
    """The last part of a run. No fault begins after the time `since`. The cluster must be healthy
    `limit` ns after `since`."""

    since: int
    limit: int


@dataclass(slots=True)
class Silence:
    """A time in which messages between two brokers may be lost: a cut link, a paused broker, a
    broker that does not run."""

    one: int
    other: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class EarlyEnd:
    """A fault made ZooKeeper expire a broker's session at `begin`, before the session timeout. The
    broker was notified at `end`."""

    broker: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Holding:
    """The partitions of a group member from the time `at` on, assigned in `generation`. `member` is
    the member id, or a static member's instance id."""

    group: str
    client: str
    member: str
    generation: int
    at: int
    partitions: tuple[TopicPartition, ...]

    def __str__(self) -> str:
        names = " ".join(f"{topic}-{number}" for topic, number in self.partitions) or "nothing"
        who = f"{self.client} ({self.member}) of {self.group}"
        return f"{who} has {names} in generation {self.generation} at {_seconds(self.at)}"


@dataclass(frozen=True, slots=True)
class Processed:
    """A record that a group member has processed."""

    group: str
    client: str
    partition: TopicPartition
    offset: int
    at: int

    def __str__(self) -> str:
        return f"{self.client} of {self.group} processed {self.offset} at {_seconds(self.at)}"


@dataclass(slots=True)
class Commit:
    """An offset commit by a group member. `offset` is that of the next record to read. The outcome
    "info" means unknown. `ended` is the time of the answer, of the error, or of the member's kill;
    0 if none."""

    group: str
    client: str
    generation: int
    partition: TopicPartition
    offset: int
    begun: int
    outcome: str = "info"
    ended: int = 0
    error: str = ""

    def __str__(self) -> str:
        end = self.outcome + (f" ({self.error})" if self.error else "")
        who = f"commit of {self.client} in generation {self.generation} of {self.group}"
        return f"{who} at {_seconds(self.begun)}: {self.offset} {end} {_seconds(self.ended)}"


@dataclass(frozen=True, slots=True)
class Committed:
    """A client's OffsetFetch request for a group, and the answer. `offset` is UNKNOWN if the group
    has committed nothing."""

    group: str
    client: str
    partition: TopicPartition
    asked: int
    answered: int
    offset: int

    def __str__(self) -> str:
        return (
            f"committed offset {self.offset} of {self.group} for {self.client},"
            f" asked {_seconds(self.asked)}, answered {_seconds(self.answered)}"
        )


@dataclass(frozen=True, slots=True)
class CoordinatorTerm:
    """The term of `broker` as the coordinator of the groups in one partition of __consumer_offsets.
    The term begins at the time `at`."""

    partition: int
    broker: int
    at: int


@dataclass(slots=True)
class Groups:
    """All facts about consumer groups. Lists are in the order of time."""

    coordinated_by: dict[str, int] = field(default_factory=dict)
    """Checked group -> its partition of __consumer_offsets."""
    topics: dict[str, frozenset[str]] = field(default_factory=dict)
    """Group -> the topics that it must read completely."""
    holdings: list[Holding] = field(default_factory=list)
    processed: list[Processed] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    answers: list[Committed] = field(default_factory=list)
    transactional: set[str] = field(default_factory=set)
    """The groups whose offsets are committed in transactions. They process no aborted records."""
    coordinator_terms: list[CoordinatorTerm] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ProducerStart:
    """The answer to InitProducerId that gave a producer its epoch. From `at` on, all earlier epochs
    of the transactional id are fenced."""

    transactional_id: str
    client: str
    producer_id: int
    epoch: int
    at: int


@dataclass(slots=True)
class Transaction:
    """A transaction. `commit_asked` is the time of the first commit request; 0 if there was none.
    `outcome` is "ok" for a confirmed commit, "fail" if the transaction is certainly not committed,
    else "info".

    In a loop that consumes, transforms and produces, `inputs` maps each value to the (partition,
    offset) of its source record, and `offsets` are committed for `group`.
    """

    transactional_id: str
    client: str
    producer_id: int
    epoch: int
    begun: int
    group: str = ""
    values: list[str] = field(default_factory=list)
    inputs: dict[str, tuple[TopicPartition, int]] = field(default_factory=dict)
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    commit_asked: int = 0
    outcome: str = "info"
    ended: int = 0

    @property
    def is_aborted(self) -> bool:
        """Return whether the transaction is certainly not committed."""
        return self.outcome == "fail" or not self.commit_asked

    def __str__(self) -> str:
        who = f"{self.transactional_id} of {self.client}, epoch {self.epoch}"
        asked, ended = _seconds(self.commit_asked), _seconds(self.ended)
        begun = _seconds(self.begun)
        return f"transaction of {who}, begun {begun}, commit {asked}: {self.outcome} {ended}"


@dataclass(slots=True)
class Transactions:
    """All facts about transactions, in the order of time."""

    starts: list[ProducerStart] = field(default_factory=list)
    all: list[Transaction] = field(default_factory=list)
    final_offsets: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    """The committed offset of each group at the end, by group and partition; UNKNOWN: none."""
    reads: History | None = None
    """All that clients with isolation.level=read_committed read: polls, positions, last stable
    offsets and final reads. None if there is no such client."""


@dataclass(slots=True)
class History:
    """All facts of a run. `polls` and `latest` (ListOffsets answers) are sorted by time."""

    producers: dict[tuple[str, int], ProducerFacts] = field(default_factory=dict)
    sends: dict[str, Send] = field(default_factory=dict)
    polls: list[Poll] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    lost_positions: list[LostPosition] = field(default_factory=list)
    latest: list[Latest] = field(default_factory=list)
    finals: list[FinalRead] = field(default_factory=list)
    """The reads at the end of the run."""
    files: list[ReplicaFiles] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    controller_terms: list[ControllerTerm] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    lives: list[TopicLife] = field(default_factory=list)
    """The lives of all topics in the order of time. The list is empty if no topic is deleted, or if
    deletions are unknown."""
    losses: list[Loss] = field(default_factory=list)
    expires: bool = False
    """Whether retention deletes old records."""
    may_lose: bool = True
    """Whether the faults of the run may lose records, so that loss receipts are no violation."""
    stale: int = 10 * NANOSECONDS
    """The time in ns for which a broker may still answer for a deleted topic or an ended
    leadership. It is longer than a broker continues to serve without ZooKeeper, and longer than a
    controller's request may take.
    """
    calm: Calm | None = None
    silences: list[Silence] = field(default_factory=list)
    early_ends: list[EarlyEnd] = field(default_factory=list)
    groups: Groups = field(default_factory=Groups)
    transactions: Transactions = field(default_factory=Transactions)
    keyed: Keyed = field(default_factory=Keyed)

    def final(self) -> dict[TopicPartition, FinalRead]:
        """Return for each partition its read at the end of the run: the first one if there are
        several."""
        found: dict[TopicPartition, FinalRead] = {}
        for read in self.finals:
            found.setdefault(read.partition, read)
        return found

    def sends_by_partition(self) -> dict[TopicPartition, list[Send]]:
        found: dict[TopicPartition, list[Send]] = defaultdict(list)
        for send in self.sends.values():
            found[send.partition].append(send)
        return found

    def committed(self) -> Iterator[tuple[TopicPartition, int, int, str]]:
        """Yield (partition, time, offset, operation) for each operation that showed to a client
        that the record at `offset` is committed. `time` is the end of the operation."""
        for poll in self.polls:
            yield poll.partition, poll.at, poll.records[-1].offset, str(poll)
        for send in self.sends.values():
            facts = self.facts(send.identity)
            if send.outcome == "ok" and send.offset != UNKNOWN and facts and facts.acks == -1:
                yield send.partition, send.ended, send.offset, str(send)

    def facts(self, identity: Identity) -> ProducerFacts | None:
        return self.producers.get((identity.producer, identity.incarnation))


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation of the rule named `rule`. `ops` are the operations that prove it."""

    rule: str
    partition: TopicPartition | None
    offset: int
    text: str
    ops: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = "" if self.partition is None else f" {self.partition[0]}-{self.partition[1]}"
        at = "" if self.offset == UNKNOWN else f"@{self.offset}"
        shown = "".join(f"\n    {op}" for op in self.ops)
        return f"{self.rule}{where}{at}: {self.text}{shown}"


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / NANOSECONDS:.3f}" if nanoseconds else "never"
