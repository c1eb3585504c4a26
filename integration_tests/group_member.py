"""A group member as a separate process, which tests kill. The member uses confluent-kafka,
kafka-python or aiokafka, with the same output.

    python -m integration_tests.group_member CLIENT BOOTSTRAP GROUP TOPIC SESSION_MS [INSTANCE]

The process prints a JSON line for each event: {"assigned": [partitions]}, {"revoked": [...]},
{"read": [partition, offset]} (already committed), {"error": text}. On SIGTERM the member leaves the
group.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiokafka
import aiokafka.abc
import confluent_kafka
import kafka

from integration_tests.kafka_python import polled

HEARTBEAT_MS: Final = 500
PASSING: Final = frozenset(
    {
        confluent_kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        confluent_kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
        confluent_kafka.KafkaError.NOT_COORDINATOR,
        confluent_kafka.KafkaError.REQUEST_TIMED_OUT,
        confluent_kafka.KafkaError._TIMED_OUT,
        confluent_kafka.KafkaError._TRANSPORT,
        confluent_kafka.KafkaError._WAIT_COORD,
    }
)
"""The errors of librdkafka's commit while its coordinator is being replaced."""


@dataclass(frozen=True, slots=True)
class MemberArgs:
    """The command line arguments of a member."""

    bootstrap: str
    group: str
    topic: str
    session_ms: int
    instance: str | None


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


def partitions_of(rows: Iterable[Any]) -> list[int]:
    return sorted(row.partition for row in rows)


def confluent(args: MemberArgs) -> None:
    options: dict[str, object] = {
        "bootstrap.servers": args.bootstrap,
        "group.id": args.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": args.session_ms,
        "heartbeat.interval.ms": HEARTBEAT_MS,
    }
    if args.instance is not None:
        options["group.instance.id"] = args.instance
    consumer = confluent_kafka.Consumer(options)
    consumer.subscribe(
        [args.topic],
        on_assign=lambda _, rows: say(assigned=partitions_of(rows)),
        on_revoke=lambda _, rows: say(revoked=partitions_of(rows)),
        on_lost=lambda _, rows: say(revoked=partitions_of(rows)),
    )
    while not leaving:
        message = consumer.poll(0.1)
        if message is None:
            continue
        if message.error() is not None:
            say(error=str(message.error()))
            continue
        if has_committed(consumer, message):
            say(read=[message.partition(), message.offset()])
    consumer.close()


def has_committed(consumer: confluent_kafka.Consumer, message: confluent_kafka.Message) -> bool:
    """Commit, and retry while another coordinator takes over. Return False if another member owns
    the partition now, which reads the record again.
    """
    while not leaving:
        try:
            consumer.commit(message=message, asynchronous=False)
        except confluent_kafka.KafkaException as error:
            say(error=str(error))
            if error.args[0].code() not in PASSING:
                return False
        else:
            return True
    return False


class KafkaPythonListener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def on_partitions_revoked(self, revoked: Sequence[Any]) -> None:
        say(revoked=partitions_of(revoked))

    def on_partitions_assigned(self, assigned: Sequence[Any]) -> None:
        say(assigned=partitions_of(assigned))


def kafka_python(args: MemberArgs) -> None:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=args.bootstrap,
        group_id=args.group,
        group_instance_id=args.instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=args.session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )
    consumer.subscribe([args.topic], listener=KafkaPythonListener())
    while not leaving:
        for records in polled(consumer).values():
            for record in records:
                if has_committed_all(consumer):
                    say(read=[record.partition, record.offset])
    consumer.close()


def has_committed_all(consumer: kafka.KafkaConsumer) -> bool:
    """Commit all positions like `has_committed`. Like `poll`, `commit` raises the error of a
    connection to a dead broker.
    """
    while not leaving:
        try:
            consumer.commit()
        except kafka.errors.RetriableError as error:
            say(error=repr(error))
        except kafka.errors.KafkaError as error:
            say(error=repr(error))
            return False
        else:
            return True
    return False


class AioKafkaListener(aiokafka.abc.ConsumerRebalanceListener):  # type: ignore[misc]
    async def on_partitions_revoked(self, revoked: Sequence[Any]) -> None:
        say(revoked=partitions_of(revoked))

    async def on_partitions_assigned(self, assigned: Sequence[Any]) -> None:
        say(assigned=partitions_of(assigned))


async def aiokafka_member(args: MemberArgs) -> None:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=args.bootstrap,
        group_id=args.group,
        group_instance_id=args.instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=args.session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )
    consumer.subscribe([args.topic], listener=AioKafkaListener())
    await consumer.start()
    while not leaving:
        for records in (await consumer.getmany(timeout_ms=100)).values():
            for record in records:
                try:
                    await consumer.commit()
                except aiokafka.errors.KafkaError as error:
                    say(error=repr(error))
                else:
                    say(read=[record.partition, record.offset])
    await consumer.stop()


leaving: list[int] = []
"""The received signals. The member leaves when there is one."""


def main(client: str, *words: str) -> None:
    bootstrap, group, topic, session_ms, *instance = words
    args = MemberArgs(bootstrap, group, topic, int(session_ms), instance[0] if instance else None)
    signal.signal(signal.SIGTERM, lambda number, _: leaving.append(number))
    match client:
        case "confluent-kafka":
            confluent(args)
        case "kafka-python":
            kafka_python(args)
        case "aiokafka":
            asyncio.run(aiokafka_member(args))
        case _:
            raise SystemExit(
                f"unknown client {client!r}: expected confluent-kafka, kafka-python or aiokafka"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
