"""A program that consumes, transforms and produces in transactions with confluent-kafka
(`integration_tests.transformers` starts it). Each transaction has the records of one poll and their
offsets, with the metadata of the group (KIP-447). Some transactions are aborted, and their records
are read again. After an error the program continues with a new consumer and producer.

A call of librdkafka may ignore its timeout: send_offsets_to_transaction does if the group's
coordinator is down (librdkafka's issues 5456 and 5511). So the program ends if a call takes longer
than WATCHDOG_S, and the test starts it again.
"""

from __future__ import annotations

import faulthandler
import itertools
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Final

import confluent_kafka

ABORTED: Final = b"aborted "
WATCHDOG_S: Final = 10.0
"""How long one call of the program may take, in seconds. librdkafka's own timeouts are shorter."""
_CALL_S: Final = 8.0


class Transformer:
    """The program. `names` are the arguments of `main`."""

    def __init__(self, names: Sequence[str]) -> None:
        self._bootstrap, self._group, self._id, self._input, self._output, *numbers = names
        self._per_transaction, self._abort_one_in = map(int, numbers)
        self._numbers = itertools.count(1)

    def run(self) -> None:
        """Work until a call raises KafkaException."""
        _watch()
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": self._id,
                "transaction.timeout.ms": 10_000,
                "log_level": 0,
            }
        )
        producer.init_transactions(_CALL_S)
        options = {
            "bootstrap.servers": self._bootstrap,
            "group.id": self._group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 4_000,
            "heartbeat.interval.ms": 500,
            "log_level": 0,
        }
        with closing(confluent_kafka.Consumer(options)) as consumer:
            consumer.subscribe([self._input])
            print("READY", flush=True)
            while True:
                _watch()
                messages = consumer.consume(self._per_transaction, 0.1)
                records = [message for message in messages if message.error() is None]
                if records:
                    self._transform(producer, consumer, records)

    def _transform(
        self,
        producer: confluent_kafka.Producer,
        consumer: confluent_kafka.Consumer,
        records: Sequence[confluent_kafka.Message],
    ) -> None:
        is_aborted = next(self._numbers) % self._abort_one_in == 0
        first: dict[int, int] = {}
        beyond: dict[int, int] = {}
        producer.begin_transaction()
        for message in records:
            number, offset = _place(message)
            first.setdefault(number, offset)
            beyond[number] = offset + 1
            value = (ABORTED if is_aborted else b"") + (message.value() or b"")
            producer.produce(self._output, value, partition=number)
        offsets = [confluent_kafka.TopicPartition(self._input, n, at) for n, at in beyond.items()]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), _CALL_S)
        _watch()
        if is_aborted:
            producer.flush(_CALL_S)
            producer.abort_transaction(_CALL_S)
            for number, offset in first.items():
                consumer.seek(confluent_kafka.TopicPartition(self._input, number, offset))
        else:
            producer.commit_transaction(_CALL_S)


def _place(message: confluent_kafka.Message) -> tuple[int, int]:
    """Return the partition and the offset of a record that was read."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None and offset is not None
    return partition, offset


def _watch() -> None:
    """Restart the time limit of the watchdog."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)


def main(arguments: Sequence[str]) -> None:
    """Run until the process is killed. The arguments: bootstrap servers, group, transactional id,
    topic of the input, topic of the output, records of a transaction, and the number n of which one
    transaction in n is aborted.
    """
    transformer = Transformer(arguments)
    while True:
        try:
            transformer.run()
        except confluent_kafka.KafkaException as error:
            print("ERROR", error, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
