"""The simulated producers. They send numbered values, and record each value before sending it."""

from __future__ import annotations

import asyncio
from typing import Final

from pybroker.client import Delivery, Producer
from pybroker.client.errors import ClientError, Closed
from pybroker.model import TopicPartition
from pybroker.testing.history.model import ProducerFacts, Send
from pybroker.testing.history.values import Identity
from pybroker.testing.simulation.workload.clients import Client, Shared
from pybroker.testing.simulation.workload.options import PRODUCER_OPTIONS, ProducerKind

_NO_TOPIC_S: Final = 0.1
_EVEN_PER_S_MIN: Final = 10.0
"""The minimum rate, in values per second, of a producer once `shared.is_even` is set. Then every
partition must get some values soon, even if there are many."""


class ProducerClient(Client):
    """A client that sends values to all topics. After a kill, the outcome of its unanswered sends
    is unknown."""

    def __init__(self, shared: Shared, name: str, kind: ProducerKind) -> None:
        super().__init__(shared, name)
        self.kind = kind
        self._unanswered = 0
        self._counter = 0

    async def run(self) -> None:
        options, kind = self.options, self.kind
        self._unanswered = self._counter = 0
        facts = ProducerFacts(kind.acks, kind.is_idempotent, kind.keeps_order)
        self.recorder.producer(self.name, self.incarnation, facts)
        producer = await self.opened(self._make)
        if producer is None:
            return
        while not self.is_stopping:
            for _ in range(self.rng.randint(1, options.burst_max)):
                if self._unanswered < options.unanswered_max:
                    await self._send(producer)
            records_per_s = options.records_per_s
            if self.shared.is_even:
                records_per_s = max(records_per_s, _EVEN_PER_S_MIN)
            await self.rest((1 + options.burst_max) / 2 / records_per_s)
        await producer.close()

    def _make(self) -> Producer:
        return Producer(
            self.shared.bootstrap,
            clock=self.clock,
            rng=self.rng,
            client_id=self.name,
            acks=self.kind.acks,
            enable_idempotence=self.kind.is_idempotent,
            compression_type=self.rng.choice(self.options.codecs),
            linger_ms=self.options.linger_ms,
            batch_size=self.options.batch_bytes,
            **PRODUCER_OPTIONS,
        )

    async def _send(self, producer: Producer) -> None:
        topics = self.shared.catalog.topics
        if not topics:
            await asyncio.sleep(_NO_TOPIC_S)
            return
        if self.shared.is_even:
            topic, number = self.rng.choice(self.shared.catalog.partitions())
        else:
            topic = self.rng.choice([*topics])
            number = self.options.partition_choice(self.rng, topics[topic])
        identity = Identity(self.name, self.incarnation, self._counter)
        send = self.recorder.begun(identity, TopicPartition(topic, number))
        self._counter += 1
        self._unanswered += 1
        padding = b"x" * self.rng.randint(0, self.options.padding_bytes_max)
        try:
            delivery = await producer.send(
                topic, send.value.encode(), key=padding, partition=number
            )
        except ClientError as error:
            self._unanswered -= 1
            self.recorder.failed(send, error, definite=error.definite)
            if isinstance(error, Closed):
                raise
        else:
            delivery.add_done_callback(lambda done: self._delivered(send, done))

    def _delivered(self, send: Send, done: Delivery) -> None:
        self._unanswered -= 1
        error = done.exception()
        if error is None:
            self.recorder.stored(send, done.result().offset)
        else:
            definite = isinstance(error, ClientError) and error.definite
            self.recorder.failed(send, error, definite=definite)
