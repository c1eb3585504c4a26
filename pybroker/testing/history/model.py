"""A history in memory, and what can be wrong with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pybroker.testing.history.values import Identity, TopicPartition

UNTOLD: Final = -1
"""In place of an offset or an epoch that a client does not tell."""
NANOSECONDS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ProducerFacts:
    """What a producer was promised. `keeps_order`: values that it knows to be stored stand in the
    order in which it sent them (idempotence, or one request in flight). `starts_anew`: after an
    error in one partition it takes the next producer epoch, and sends again what another partition
    may have (#4953 in librdkafka's tracker); then no broker can know it for a repetition."""

    acks: int
    idempotent: bool
    keeps_order: bool
    starts_anew: bool = False


@dataclass(slots=True)
class Send:
    """One value's way. `ended` is 0 and `outcome` "info" while nothing was heard."""

    identity: Identity
    partition: TopicPartition
    value: str
    begun: int
    outcome: str = "info"
    ended: int = 0
    offset: int = UNTOLD
    error: str = ""

    def __str__(self) -> str:
        end = f"@{self.offset}" if self.outcome == "ok" else f" ({self.error or 'no answer'})"
        outcome = f"{self.outcome}{end} {_seconds(self.ended)}"
        return f"send {self.value} at {_seconds(self.begun)}: {outcome}"


class Record(NamedTuple):
    """A record as somebody read it."""

    offset: int
    value: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Poll:
    """Records of one partition that a consumer was given at once."""

    client: str
    partition: TopicPartition
    at: int
    records: tuple[Record, ...]
    high_watermark: int = UNTOLD

    def __str__(self) -> str:
        first, last = self.records[0].offset, self.records[-1].offset
        return f"poll of {self.client} at {_seconds(self.at)}: {first}..{last}"


@dataclass(frozen=True, slots=True)
class Assignment:
    """A consumer begins at `offset`, or begins there anew."""

    client: str
    partition: TopicPartition
    at: int
    offset: int


@dataclass(frozen=True, slots=True)
class LostPosition:
    """A consumer was told that its position does not exist; which one, if it knows."""

    client: str
    at: int
    error: str
    partition: TopicPartition | None = None
    offset: int = UNTOLD


@dataclass(frozen=True, slots=True)
class Latest:
    """An answer to "where does the partition end?"."""

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
    """Everything that a partition held at the end, as `source` gave it."""

    partition: TopicPartition
    source: str
    start: int
    records: tuple[Record, ...]


class Batch(NamedTuple):
    """A stored batch; `digest` is of all its bytes, `producer` its producer's id and epoch."""

    first: int
    last: int
    epoch: int
    digest: str
    producer: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaFiles:
    """What a broker's files hold of a partition. `producers` is None where no snapshot tells."""

    partition: TopicPartition
    broker: int
    start: int
    high_watermark: int
    batches: tuple[Batch, ...]
    epochs: tuple[tuple[int, int], ...]
    producers: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class State:
    """A partition's state as it was written for the cluster. `eligible` left the ISR, and have all
    that is committed nevertheless."""

    partition: TopicPartition
    version: int
    leader: int
    epoch: int
    isr: tuple[int, ...]
    eligible: tuple[int, ...]
    controller_epoch: int
    at: int
    """When it was first seen, a moment after it was written."""
    office_epoch: int = UNTOLD
    """The controller epoch that was in force when it was written, where that is known."""
    written: int | None = None
    """When it was written, where ZooKeeper has said that: whoever looks may be late."""


@dataclass(frozen=True, slots=True)
class Office:
    """Somebody held the controller's office in that epoch."""

    epoch: int
    broker: int


@dataclass(frozen=True, slots=True)
class Fault:
    """What was done to the cluster: `kind` is "invoke" or "ok"."""

    at: int
    kind: str
    what: str
    target: str


@dataclass(slots=True)
class TopicLife:
    """A topic from its creation to its end: another of the same name is another life. `replicas`
    by partition, with those that were added later."""

    topic: str
    begun: int
    replicas: dict[int, tuple[int, ...]]
    min_isr: int = 1
    doomed: int = 0
    """When its deletion was decided; 0: it was not."""


@dataclass(slots=True)
class Loss:
    """It was written down for the cluster that the partition may have lost records. `given_up`: the
    offsets that replicas have cut since, the first one and the one behind the last."""

    partition: TopicPartition
    at: int
    reason: str
    given_up: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Calm:
    """Nothing is done to the cluster any more from `since` on; `limit` ns later it is well."""

    since: int
    limit: int


@dataclass(slots=True)
class Silence:
    """Two brokers may not have heard of each other, in one direction or both: a cut link, a broker
    that stands still or does not run. `end` is far away until it is told."""

    one: int
    other: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class EarlyEnd:
    """A fault ended the session of a broker before its time was over, as ZooKeeper does not, at
    `begin`; the broker heard of it at `end`."""

    broker: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Holding:
    """What a member of a group holds from `at` on: after an assignment, or after it gave some back.
    `member` is its id, or that of its instance if it is static; `generation` is that of its last
    assignment."""

    group: str
    client: str
    member: str
    generation: int
    at: int
    partitions: tuple[TopicPartition, ...]

    def __str__(self) -> str:
        names = " ".join(f"{topic}-{number}" for topic, number in self.partitions) or "nothing"
        who = f"{self.client} ({self.member}) of {self.group}"
        return f"{who} holds {names} in generation {self.generation} at {_seconds(self.at)}"


@dataclass(frozen=True, slots=True)
class Processed:
    """A member of a group is done with a record."""

    group: str
    client: str
    partition: TopicPartition
    offset: int
    at: int

    def __str__(self) -> str:
        return f"{self.client} of {self.group} processed {self.offset} at {_seconds(self.at)}"


@dataclass(slots=True)
class Commit:
    """An offset that a member asked to be stored, of the next record to read. `ended` is 0 and
    `outcome` "info" while nothing was heard; `ended` of who was killed is when that happened."""

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
    """An answer to "what has the group committed?"; UNTOLD: nothing."""

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
class Reign:
    """Somebody became coordinator of some groups, those of a partition of the offsets' topic."""

    partition: int
    broker: int
    at: int


@dataclass(slots=True)
class Groups:
    """What is known of groups of consumers. Lists are in the order of time."""

    coordinated_by: dict[str, int] = field(default_factory=dict)
    """Each group that is judged, and the partition of the offsets' topic that it belongs to."""
    topics: dict[str, frozenset[str]] = field(default_factory=dict)
    """What each group has to read all of."""
    holdings: list[Holding] = field(default_factory=list)
    processed: list[Processed] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    answers: list[Committed] = field(default_factory=list)
    reigns: list[Reign] = field(default_factory=list)


@dataclass(slots=True)
class History:
    """All that is known of a run. `polls` and `latest` are in the order of time."""

    producers: dict[tuple[str, int], ProducerFacts] = field(default_factory=dict)
    sends: dict[str, Send] = field(default_factory=dict)
    polls: list[Poll] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    lost_positions: list[LostPosition] = field(default_factory=list)
    latest: list[Latest] = field(default_factory=list)
    finals: list[FinalRead] = field(default_factory=list)
    files: list[ReplicaFiles] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    offices: list[Office] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    lives: list[TopicLife] = field(default_factory=list)
    """In the order of time; empty where no topic is deleted, or nobody knows."""
    losses: list[Loss] = field(default_factory=list)
    expires: bool = False
    """Whether old records go, so that logs begin ever later."""
    may_lose: bool = True
    """Whether what was done excuses losses that are written down."""
    stale: int = 10 * NANOSECONDS
    """So many ns after a topic or leadership ended, somebody may still be answered by it: longer
    than a broker goes on without ZooKeeper, and than a command to it may take."""
    calm: Calm | None = None
    silences: list[Silence] = field(default_factory=list)
    early_ends: list[EarlyEnd] = field(default_factory=list)
    groups: Groups = field(default_factory=Groups)

    def final(self) -> dict[TopicPartition, FinalRead]:
        """The first final read of each partition."""
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
        """What somebody knew to be committed: partition, since when, the offset, the operation."""
        for poll in self.polls:
            yield poll.partition, poll.at, poll.records[-1].offset, str(poll)
        for send in self.sends.values():
            facts = self.facts(send.identity)
            if send.outcome == "ok" and send.offset != UNTOLD and facts and facts.acks == -1:
                yield send.partition, send.ended, send.offset, str(send)

    def facts(self, identity: Identity) -> ProducerFacts | None:
        return self.producers.get((identity.producer, identity.incarnation))


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be: the rule, where, and the operations that show it."""

    rule: str
    partition: TopicPartition | None
    offset: int
    text: str
    ops: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = "" if self.partition is None else f" {self.partition[0]}-{self.partition[1]}"
        at = "" if self.offset == UNTOLD else f"@{self.offset}"
        shown = "".join(f"\n    {op}" for op in self.ops)
        return f"{self.rule}{where}{at}: {self.text}{shown}"


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / NANOSECONDS:.3f}" if nanoseconds else "never"
