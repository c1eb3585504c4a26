"""Reads the operation logs of a run into one history. An unknown operation is an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from pybroker.testing.history.model import (
    Assignment,
    Batch,
    Calm,
    Commit,
    Committed,
    ControllerTerm,
    CoordinatorTerm,
    Fault,
    FinalRead,
    History,
    Holding,
    Latest,
    Loss,
    LostPosition,
    Poll,
    Processed,
    ProducerFacts,
    Record,
    ReplicaFiles,
    Send,
    Silence,
    State,
    TopicLife,
)
from pybroker.testing.history.ops import SUFFIX, Op, read_ops
from pybroker.testing.history.values import TopicPartition, read_value

_NEVER: Final = 1 << 63
"""The end time of a time interval that has no end yet."""


def load(folder: Path) -> History:
    """Return the history from the operation logs in `folder`. Raises ValueError for an unknown
    operation."""
    ops = [op for path in sorted(folder.glob(f"*{SUFFIX}")) for op in read_ops(path)]
    return from_ops(ops)


def from_ops(ops: Iterable[Op]) -> History:
    """Return the history of these operations, which may be in any order. Raises ValueError for an
    unknown operation."""
    history = History()
    for op in sorted(ops, key=lambda op: op["t"]):
        read = _READERS.get(op["f"])
        if read is None:
            raise ValueError(f"unknown operation {op['f']!r}: {op}")
        read(history, op)
    return history


def _partition(op: Op) -> TopicPartition:
    topic, number = op["tp"]
    return str(topic), int(number)


def _records(op: Op) -> tuple[Record, ...]:
    return tuple(Record(int(offset), str(value), int(epoch)) for offset, value, epoch in op["recs"])


def _producer(history: History, op: Op) -> None:
    history.producers[op["p"], op["i"]] = ProducerFacts(
        acks=op["acks"],
        idempotent=op["idempotent"],
        keeps_order=op["keeps_order"],
        starts_anew=op.get("starts_anew", False),
    )


def _send(history: History, op: Op) -> None:
    value = op["v"]
    if op["type"] == "invoke":
        if value in history.sends:
            raise ValueError(f"value {value} is sent a second time: {op}")
        partition = _partition(op)
        identity = read_value(value, partition)
        history.sends[value] = Send(identity, partition, value, op["t"])
        return
    send = history.sends.get(value)
    if send is None:
        raise ValueError(f"no line of type invoke precedes this outcome: {op}")
    if send.ended:
        raise ValueError(
            f"a second outcome of value {value}, which already has the outcome {send.outcome!r}:"
            f" {op}"
        )
    send.outcome, send.ended = op["type"], op["t"]
    send.offset, send.error = op.get("off", -1), op.get("err", "")


def _assign(history: History, op: Op) -> None:
    history.assignments.append(Assignment(op["p"], _partition(op), op["t"], op["off"]))


def _poll(history: History, op: Op) -> None:
    if op["type"] == "ok":
        records = _records(op)
        if records:
            history.polls.append(Poll(op["p"], _partition(op), op["t"], records, op["hw"]))
    elif op["type"] == "fail":
        where = (_partition(op), op["off"]) if "tp" in op else (None, -1)
        history.lost_positions.append(LostPosition(op["p"], op["t"], op["err"], *where))


def _latest(history: History, op: Op) -> None:
    if op["type"] == "ok":
        history.latest.append(Latest(op["p"], _partition(op), op["asked"], op["t"], op["off"]))


def _final(history: History, op: Op) -> None:
    history.finals.append(FinalRead(_partition(op), op["source"], op["start"], _records(op)))


def _files(history: History, op: Op) -> None:
    producers = op["producers"]
    history.files.append(
        ReplicaFiles(
            partition=_partition(op),
            broker=op["broker"],
            start=op["start"],
            high_watermark=op["hw"],
            batches=tuple(Batch(*batch) for batch in op["batches"]),
            epochs=tuple((epoch, offset) for epoch, offset in op["epochs"]),
            producers=None if producers is None else tuple(producers),
        )
    )


def _state(history: History, op: Op) -> None:
    history.states.append(
        State(
            partition=_partition(op),
            version=op["version"],
            leader=op["leader"],
            epoch=op["epoch"],
            isr=tuple(op["isr"]),
            eligible=tuple(op["eligible"]),
            controller_epoch=op["controller_epoch"],
            at=op["t"],
            written=op.get("written"),
        )
    )


def _controller(history: History, op: Op) -> None:
    history.controller_terms.append(ControllerTerm(op["epoch"], op["broker"]))


def _fault(history: History, op: Op) -> None:
    history.faults.append(Fault(op["t"], op["type"], op["what"], str(op["target"])))


def _topic(history: History, op: Op) -> None:
    name, kind = str(op["name"]), op["type"]
    if kind == "ok":
        history.lives.append(TopicLife(name, op["t"], _replicas(op), op["min_isr"]))
        return
    life = next((each for each in reversed(history.lives) if each.topic == name), None)
    if life is None or life.doomed:
        raise ValueError(f"topic {name} does not exist, but this operation changes it: {op}")
    if kind == "info":
        life.replicas = _replicas(op)
    else:
        life.doomed = op["t"]


def _replicas(op: Op) -> dict[int, tuple[int, ...]]:
    return {int(number): tuple(brokers) for number, brokers in op["replicas"].items()}


def _loss(history: History, op: Op) -> None:
    given_up = tuple((int(start), int(end)) for start, end in op.get("given_up", ()))
    history.losses.append(Loss(_partition(op), op["t"], op["reason"], given_up))


def _calm(history: History, op: Op) -> None:
    history.calm = Calm(op["t"], op["limit"])


def _silence(history: History, op: Op) -> None:
    one, other = op["between"]
    if op["type"] == "invoke":
        history.silences.append(Silence(one, other, op["t"], _NEVER))
        return
    for silence in history.silences:
        if {silence.one, silence.other} == {one, other} and silence.end == _NEVER:
            silence.end = op["t"]


def _group(history: History, op: Op) -> None:
    groups = history.groups
    groups.coordinated_by[op["group"]] = op["partition"]
    groups.topics[op["group"]] = frozenset(op["topics"])


def _holds(history: History, op: Op) -> None:
    partitions = tuple((str(topic), int(number)) for topic, number in op["tps"])
    history.groups.holdings.append(
        Holding(op["group"], op["p"], op["member"], op["generation"], op["t"], partitions)
    )


def _processed(history: History, op: Op) -> None:
    history.groups.processed += [
        Processed(op["group"], op["p"], _partition(op), offset, op["t"]) for offset in op["offs"]
    ]


def _commit(history: History, op: Op) -> None:
    commits, key = history.groups.commits, (op["group"], op["p"], _partition(op))
    if op["type"] == "invoke":
        commits.append(Commit(*key[:2], op["generation"], key[2], op["off"], op["t"]))
        return
    for each in commits:
        same = (each.group, each.client, each.partition) == key
        if same and each.offset == op["off"] and not each.ended:
            each.outcome, each.ended, each.error = op["type"], op["t"], op.get("err", "")
            each.generation = op.get("generation", each.generation)
            return
    raise ValueError(f"no line of type invoke precedes this outcome: {op}")


def _committed(history: History, op: Op) -> None:
    if op["type"] == "ok":
        history.groups.answers.append(
            Committed(op["group"], op["p"], _partition(op), op["asked"], op["t"], op["off"])
        )


def _coordinator_term(history: History, op: Op) -> None:
    history.groups.coordinator_terms.append(CoordinatorTerm(op["partition"], op["broker"], op["t"]))


_READERS: Final[dict[str, Callable[[History, Op], None]]] = {
    "producer": _producer,
    "send": _send,
    "assign": _assign,
    "poll": _poll,
    "latest": _latest,
    "final": _final,
    "files": _files,
    "state": _state,
    "controller": _controller,
    "fault": _fault,
    "topic": _topic,
    "loss": _loss,
    "calm": _calm,
    "silence": _silence,
    "group": _group,
    "holds": _holds,
    "processed": _processed,
    "commit": _commit,
    "committed": _committed,
    "coordinator": _coordinator_term,
}
