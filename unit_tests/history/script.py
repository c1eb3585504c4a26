"""A history written by hand. Each call adds one operation, one millisecond after the previous
one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pybroker.testing.history.loader import from_ops
from pybroker.testing.history.model import History
from pybroker.testing.history.ops import Op
from pybroker.testing.history.values import Identity, TopicPartition, make_value

T0: TopicPartition = ("t", 0)


def value(counter: int, producer: str = "a", partition: TopicPartition = T0) -> str:
    return make_value(Identity(producer, 1, counter), partition)


class Script:
    """A history of these producers: `a` is idempotent. `anew` is idempotent, too, and begins a new
    producer epoch after an error. `b` has one request in flight, `c` has five, and `leader-only`
    uses acks=1."""

    def __init__(self, partition: TopicPartition = T0) -> None:
        self.ops: list[Op] = []
        self.waited = 0
        self.partition = partition
        for name, acks, idempotent, keeps_order in (
            ("a", -1, True, True),
            ("anew", -1, True, True),
            ("b", -1, False, True),
            ("c", -1, False, False),
            ("leader-only", 1, False, False),
        ):
            self.add(
                name, "producer", "info", acks=acks, idempotent=idempotent,
                keeps_order=keeps_order, starts_anew=name == "anew",
            )  # fmt: skip

    def add(self, client: str, function: str, kind: str, **more: Any) -> int:
        """Add an operation, and return its time."""
        at = (len(self.ops) + 1) * 1_000_000
        at += self.waited * 1_000_000
        self.ops.append({"t": at, "w": 0, "p": client, "i": 1, "f": function, "type": kind, **more})
        return at

    def silence(self, one: int, other: int, kind: str = "invoke") -> None:
        """Record that two brokers may not receive each other's messages from now on, or with "ok"
        that they receive them again."""
        self.add("nemesis", "silence", kind, between=[one, other])

    def invoke(self, counter: int, producer: str = "a") -> str:
        text = value(counter, producer, self.partition)
        self.add(producer, "send", "invoke", tp=self.partition, v=text)
        return text

    def send(self, counter: int, outcome: str | int, producer: str = "a") -> str:
        """Send a value. `outcome` is the offset of the acknowledgement, "fail" or "info"."""
        text = self.invoke(counter, producer)
        if isinstance(outcome, int):
            self.add(producer, "send", "ok", v=text, off=outcome)
        else:
            self.add(producer, "send", outcome, v=text, err="because")
        return text

    def sent(self, count: int, producer: str = "a") -> list[str]:
        """Send the values 0 to `count` - 1. Value N is acknowledged at offset N."""
        return [self.send(number, number, producer) for number in range(count)]

    def assign(self, offset: int = 0, client: str = "reader") -> None:
        self.add(client, "assign", "ok", tp=self.partition, off=offset)

    def poll(self, *records: tuple[int, str], client: str = "reader") -> None:
        recs = [[offset, text, 0] for offset, text in records]
        self.add(client, "poll", "ok", tp=self.partition, recs=recs, hw=-1)

    def latest(self, offset: int, asked: int | None = None, client: str = "asker") -> int:
        """Answer a request for the log end offset, and return the time of the answer."""
        now = len(self.ops) * 1_000_000 + self.waited * 1_000_000
        question = now + 500_000 if asked is None else asked
        return self.add(client, "latest", "ok", tp=self.partition, off=offset, asked=question)

    def final(
        self,
        *values: str | None,
        start: int = 0,
        epochs: Sequence[int] | None = None,
        source: str = "leader",
    ) -> None:
        """Record the final read of the values from `start` on. None stands for an offset without a
        record."""
        numbers = epochs or [0] * len(values)
        recs = [
            [start + place, text, epoch]
            for place, (text, epoch) in enumerate(zip(values, numbers, strict=True))
            if text is not None
        ]
        self.add("final", "final", "ok", tp=self.partition, source=source, start=start, recs=recs)

    def files(
        self,
        broker: int,
        batches: list[list[Any]],
        *,
        epochs: Sequence[tuple[int, int]] = ((0, 0),),
        start: int = 0,
        producers: list[str] | None = None,
    ) -> None:
        self.add(
            "files", "files", "ok",
            tp=self.partition, broker=broker, start=start, hw=10,
            batches=batches, epochs=[list(entry) for entry in epochs], producers=producers,
        )  # fmt: skip

    def state(
        self,
        version: int,
        leader: int,
        epoch: int,
        controller_epoch: int = 1,
        isr: Sequence[int] = (1, 2, 3),
        eligible: Sequence[int] = (),
    ) -> None:
        self.add(
            "watch", "state", "ok",
            tp=self.partition, version=version, leader=leader, epoch=epoch, isr=list(isr),
            eligible=list(eligible), controller_epoch=controller_epoch,
        )  # fmt: skip

    def controller_term(self, epoch: int, broker: int) -> None:
        self.add("watch", "controller", "ok", epoch=epoch, broker=broker)

    def topic(self, *replicas: Sequence[int], min_isr: int = 2) -> None:
        """Create the topic with these replicas of each partition."""
        numbered = dict(enumerate(map(list, replicas or [(1, 2, 3)])))
        name = self.partition[0]
        self.add("watch", "topic", "ok", name=name, min_isr=min_isr, replicas=numbered)

    def deletion(self) -> None:
        self.add("watch", "topic", "invoke", name=self.partition[0])

    def loss(self, *given_up: tuple[int, int], reason: str = "unclean-election") -> None:
        """Record a loss receipt at the time of the last operation. `given_up` are the offset ranges
        that replicas have truncated."""
        before = self.ops[-1]["t"]
        ranges = [[*each] for each in given_up]
        self.add("watch", "loss", "ok", tp=self.partition, reason=reason, given_up=ranges)
        self.ops[-1]["t"] = before

    def calm(self, limit_ms: int) -> int:
        """Record the end of all faults."""
        return self.add("watch", "calm", "ok", limit=limit_ms * 1_000_000)

    def wait(self, milliseconds: int) -> None:
        """Let time pass without an operation."""
        self.waited += milliseconds

    def history(self) -> History:
        return from_ops(self.ops)
