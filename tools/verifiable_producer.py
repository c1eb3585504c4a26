"""The command `pybroker verifiable-producer`, equivalent to Kafka's kafka-verifiable-producer. It
prints JSON events for system tests."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import click

from pybroker.client.deliveries import Delivery
from pybroker.client.errors import ClientError
from pybroker.client.producer import Producer
from pybroker.tools._cli import (
    Tool,
    bootstrap_option,
    client_options,
    config_file_option,
    run_async,
)
from pybroker.tools._stop import Stop
from pybroker.tools._verifiable import print_event

YIELD_EVERY = 64
"""After this number of records without a pause, the tool yields to the client's other tasks."""


@dataclass(frozen=True, slots=True)
class Args:
    """The records to send. A negative `record_count` or `throughput` (records per second) means no
    limit. `create_time`: the first record's timestamp in ms since 1970 (None: now)."""

    topic: str
    record_count: int = -1
    throughput: int = -1
    value_prefix: int | None = None
    repeating_keys: int | None = None
    create_time: int | None = None


@click.command("verifiable-producer", cls=Tool, error_prefix="verifiable-producer: error: ")
@click.option("--topic", required=True, help="The topic to which records are sent.")
@bootstrap_option("--broker-list")
@click.option(
    "--max-messages",
    type=int,
    default=-1,
    help="The number of records to send. Default: -1, no limit.",
)
@click.option(
    "--throughput",
    type=int,
    default=-1,
    help="The approximate rate in records per second. Default: -1, no limit.",
)
@click.option(
    "--acks",
    type=click.Choice(["0", "1", "-1"]),
    default="-1",
    help="The replicas that must have a record before it is acknowledged: all in-sync"
    " replicas (-1), the leader (1) or none (0). Default: -1.",
)
@config_file_option("--producer.config", "--command-config")
@click.option(
    "--message-create-time",
    type=int,
    default=-1,
    metavar="MS",
    help="The timestamp of the first record, in ms since 1970. Default: the present time.",
)
@click.option(
    "--value-prefix",
    type=int,
    help="Write this number and a dot before each value. Default: no prefix.",
)
@click.option(
    "--repeating-keys",
    type=click.IntRange(min=1),
    help="The number of different keys: the records have the keys 0, 1, 2 and so on below this"
    " number, again and again. Default: no keys.",
)
def command(
    topic: str,
    bootstrap_server: str,
    max_messages: int,
    throughput: int,
    acks: str,
    config_file: str | None,
    message_create_time: int,
    value_prefix: int | None,
    repeating_keys: int | None,
) -> int:
    """Send the numbers 0, 1, 2 and so on as records. Print an event for each record that is
    acknowledged or fails."""
    options = client_options(
        bootstrap_server, config_file, acks=acks, client_id="verifiable-producer"
    )
    args = Args(
        topic,
        max_messages,
        throughput,
        value_prefix,
        repeating_keys,
        None if message_create_time == -1 else message_create_time,
    )
    return run_async(VerifiableProducer(args, options).run())


class VerifiableProducer:
    """Sends records, and prints an event with the result of each."""

    def __init__(self, args: Args, options: dict[str, Any]) -> None:
        """Create the producer. Raises ConfigError."""
        self._args = args
        self._producer = Producer(**options)
        self._sent = 0
        self._acked = 0

    async def run(self) -> int:
        """Send until the limit is reached or a signal arrives. Return the exit code. Raises
        PybrokerError if no broker can be reached."""
        started = time.monotonic()
        with Stop() as stop:
            async with self._producer:
                print_event("startup_complete")
                await self._send_all(stop, started)
            print_event("shutdown_complete")
        print_event(
            "tool_data",
            sent=self._sent,
            acked=self._acked,
            target_throughput=self._args.throughput,
            avg_throughput=self._acked / max(time.monotonic() - started, 1e-3),
        )
        return stop.exit_code

    async def _send_all(self, stop: Stop, started: float) -> None:
        args = self._args
        started_ms = time.time_ns() // 1_000_000
        create_time = args.create_time
        number = 0
        while not stop.is_set and (args.record_count < 0 or number < args.record_count):
            await self._send(key_of(args, number), value_of(args, number), create_time)
            if create_time is not None:  # the timestamps advance as in Kafka's tool
                create_time += time.time_ns() // 1_000_000 - started_ms
            number += 1
            if args.throughput > 0:
                ahead_s = number / args.throughput - (time.monotonic() - started)
                await stop.wait(max(ahead_s, 0))
            elif args.throughput == 0:
                await stop.event.wait()
            elif number % YIELD_EVERY == 0:
                await asyncio.sleep(0)

    async def _send(self, key: str | None, value: str, create_time: int | None) -> None:
        self._sent += 1
        try:
            delivery = await self._producer.send(
                self._args.topic,
                value.encode(),
                key=None if key is None else key.encode(),
                timestamp_ms=create_time,
            )
        except ClientError as error:
            self._print_failure(key, value, error)
            return

        def settled(outcome: Delivery) -> None:
            error = outcome.exception()
            if error is not None:
                self._print_failure(key, value, error)
                return
            self._acked += 1
            stored = outcome.result()
            print_event(
                "producer_send_success",
                key=key,
                value=value,
                offset=stored.offset,
                topic=stored.topic,
                partition=stored.partition,
            )

        delivery.add_done_callback(settled)

    def _print_failure(self, key: str | None, value: str, error: BaseException) -> None:
        print_event(
            "producer_send_error",
            topic=self._args.topic,
            key=key,
            value=value,
            exception=type(error).__name__,
            message=str(error),
        )


def key_of(args: Args, number: int) -> str | None:
    return None if args.repeating_keys is None else str(number % args.repeating_keys)


def value_of(args: Args, number: int) -> str:
    return str(number) if args.value_prefix is None else f"{args.value_prefix}.{number}"
