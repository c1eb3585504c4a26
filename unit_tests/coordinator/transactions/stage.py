"""The coordinator of one shard that runs a script: the requests of producers, their answers, the
stored records and the markers.

Producers have names; the name is also the transactional id unless `id=` gives another. A producer
remembers the producer id and epoch of its last InitProducerId. Commands (`=` sets a value other
than the default, times in seconds):

    init p [id=p] [timeout=60] [keep] [as=PID:EPOCH]   `keep`: with the known id and epoch (KIP-360)
    add p t-0 t-1 [id=p] [as=PID:EPOCH]
    commit p | abort p [id=p] [as=PID:EPOCH]
    verify p t-0 [id=p] [as=PID:EPOCH]
    describe ID | list
    write [t-0 ...]        the leaders of these partitions (default: all) write their markers
    fenced                 the leaders refuse all markers because of a later coordinator
    wait 10                time passes
    late                   the timeouts of requests pass that are shorter than 0.3 seconds
    hold | release         appends are not committed from now on | all are committed
    refuse CODE            the next append fails
    no-ids | ids           no producer id can be taken | producer ids can be taken
    full | room            no memory is left | memory is left
    full-for-new           no memory is left for new transactional ids
    cut-off | reached      ZooKeeper cannot be reached: another broker may be the coordinator
    fail-over [lost]       the next leader loads the log; `lost`: without uncommitted records

A trace has the answers, the stored records, and the markers that are sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.transactions.coordinator import TransactionCoordinator
from pybroker.coordinator.transactions.decisions import Init
from pybroker.coordinator.transactions.dependencies import TransactionDependencies
from pybroker.coordinator.transactions.markers import Completion
from pybroker.coordinator.transactions.records import decode_key, decode_value
from pybroker.coordinator.transactions.transaction import ProducerIdAndEpoch, Transaction
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import TopicPartition
from unit_tests.coordinator.runtime.vocabulary import MemoryShard
from unit_tests.idle_loop import idle

FIRST_PRODUCER_ID = 1000
NOBODY = ProducerIdAndEpoch(-1, -1)
OPTIONS = {
    "transaction.max.timeout.ms": "900000",
    "transactional.id.expiration.ms": "7200000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "10000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "1200000",
}


async def stored(change: Callable[[], Awaitable[None] | None]) -> None:
    """Call `change`, which changes a transaction, and wait until the change is stored."""
    waiting = change()
    if waiting is not None:
        await waiting


class Stage:
    """Runs commands."""

    def __init__(self, options: dict[str, str] | None = None) -> None:
        self.config = BrokerConfig.parse({**OPTIONS, **(options or {})})
        self.shard = MemoryShard()
        self.completions: list[Completion] = []
        self.has_room = self.has_room_for_new = self.has_ids = True
        self.coordinator = self.host()
        self._next_id = FIRST_PRODUCER_ID
        self._identities: dict[str, ProducerIdAndEpoch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stored = 0
        self._lines: list[str] = []

    def host(self) -> TransactionCoordinator:
        dependencies = TransactionDependencies(
            self.config, self._new_id, self._send, self._take_memory, self._take_for_new
        )
        return self.shard.host(lambda context: TransactionCoordinator(context, dependencies))

    async def _new_id(self) -> int:
        await asyncio.sleep(0)
        if not self.has_ids:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the test has no producer ids")
        self._next_id += 1
        return self._next_id - 1

    def _take_memory(self, size: int) -> None:
        if not self.has_room:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the memory is full")

    def _take_for_new(self, size: int) -> None:
        if not self.has_room_for_new:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no memory for new ids")
        self._take_memory(size)

    def _send(self, completion: Completion) -> None:
        marker = completion.marker
        self.completions.append(completion)
        self._lines.append(
            f"markers {'commit' if marker.is_commit else 'abort'}"
            f" {marker.producer_id}:{marker.producer_epoch} epoch={marker.coordinator_epoch}"
            f" {_keys(completion.remaining)}"
        )

    async def prepare(self) -> None:
        await self.shard.load()

    async def close(self) -> None:
        self.shard.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def play(self, command: str) -> list[str]:
        name, *words = command.split()
        commands: dict[str, Callable[[list[str], dict[str, str]], Awaitable[None]]] = {
            each.removeprefix("_on_").replace("_", "-"): getattr(self, each)
            for each in dir(self)
            if each.startswith("_on_")
        }
        if name not in commands:
            raise ValueError(f"{name!r} is none of {', '.join(commands)}")
        self._lines = []
        plain = [word for word in words if "=" not in word]
        await commands[name](plain, dict(word.split("=", 1) for word in words if "=" in word))
        await idle()
        self._show_stored()
        return self._lines

    # requests

    def _identity(self, who: str, given: dict[str, str]) -> ProducerIdAndEpoch:
        if "as" in given:
            producer_id, epoch = given["as"].split(":")
            return ProducerIdAndEpoch(int(producer_id), int(epoch))
        return self._identities.get(who, NOBODY)

    async def _on_init(self, plain: list[str], given: dict[str, str]) -> None:
        who, *flags = plain
        expected = self._identity(who, given) if "keep" in flags or "as" in given else None
        call = Init(int(float(given.get("timeout", "60")) * 1000), expected)
        self._begin(who, self._init(who, given.get("id", who), call))

    async def _init(self, who: str, transactional_id: str, call: Init) -> str:
        found = await self.coordinator.init_producer_id(transactional_id, call)
        self._identities[who] = found
        return f"{found.producer_id}:{found.epoch}"

    async def _on_add(self, plain: list[str], given: dict[str, str]) -> None:
        who, *keys = plain
        name, producer = given.get("id", who), self._identity(who, given)
        partitions = frozenset(map(_key, keys))
        self._begin(
            who, stored(lambda: self.coordinator.add_partitions(name, producer, partitions))
        )

    async def _on_commit(self, plain: list[str], given: dict[str, str]) -> None:
        self._end(plain[0], given, is_commit=True)

    async def _on_abort(self, plain: list[str], given: dict[str, str]) -> None:
        self._end(plain[0], given, is_commit=False)

    def _end(self, who: str, given: dict[str, str], *, is_commit: bool) -> None:
        producer = self._identity(who, given)
        name = given.get("id", who)
        self._begin(who, stored(lambda: self.coordinator.end(name, producer, is_commit=is_commit)))

    async def _on_verify(self, plain: list[str], given: dict[str, str]) -> None:
        who, *keys = plain
        self._begin(who, self._verify(given.get("id", who), self._identity(who, given), keys))

    async def _verify(
        self, transactional_id: str, producer: ProducerIdAndEpoch, keys: list[str]
    ) -> str:
        await self.coordinator.context.confirm_current()
        found = self.coordinator.verify(transactional_id, producer, [*map(_key, keys)])
        return " ".join(f"{key}={_error(code)}" for key, code in found.items())

    def _begin(self, who: str, work: Coroutine[Any, Any, str | None]) -> None:
        async def answer() -> None:
            try:
                text = await work
            except BrokerError as error:
                text = _error(error.code)
            self._lines.append(f"{who} < {text or 'ok'}")

        task = asyncio.get_running_loop().create_task(answer())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # what is known and stored

    async def _on_describe(self, plain: list[str], given: dict[str, str]) -> None:
        found = self.coordinator.describe(plain[0])
        self._lines.append("unknown" if found is None else _shown(found))

    async def _on_list(self, plain: list[str], given: dict[str, str]) -> None:
        self._lines += [_shown(each) for each in self.coordinator.transactions()]

    def _show_stored(self) -> None:
        records = self.shard.log.records()
        for record in records[self._stored :]:
            assert record.key is not None
            name = decode_key(record.key)
            assert name is not None
            value = record.value
            text = "tombstone" if value is None else _shown(decode_value(name, value))
            self._lines.append(f"stored {name} {text}")
        self._stored = len(records)

    # markers, time and faults

    async def _on_write(self, plain: list[str], given: dict[str, str]) -> None:
        for completion in [each for each in self.completions if not each.is_over]:
            completion.written([*map(_key, plain)] if plain else [*completion.remaining])

    async def _on_fenced(self, plain: list[str], given: dict[str, str]) -> None:
        for completion in self.completions:
            completion.cancel()

    async def _on_wait(self, plain: list[str], given: dict[str, str]) -> None:
        seconds = float(plain[0])
        while seconds > 0:
            step = min([seconds, *(due for due in self.shard.due_s if due > 0)])
            self.shard.advance(step)
            seconds -= step
            await idle()

    async def _on_late(self, plain: list[str], given: dict[str, str]) -> None:
        await asyncio.sleep(0.3)

    async def _on_hold(self, plain: list[str], given: dict[str, str]) -> None:
        self.shard.log.holds = True

    async def _on_release(self, plain: list[str], given: dict[str, str]) -> None:
        self.shard.log.holds = False
        self.shard.log.commit()

    async def _on_refuse(self, plain: list[str], given: dict[str, str]) -> None:
        self.shard.log.refuse(ErrorCode[plain[0]])

    async def _on_no_ids(self, plain: list[str], given: dict[str, str]) -> None:
        self.has_ids = False

    async def _on_ids(self, plain: list[str], given: dict[str, str]) -> None:
        self.has_ids = True

    async def _on_full(self, plain: list[str], given: dict[str, str]) -> None:
        self.has_room = False

    async def _on_full_for_new(self, plain: list[str], given: dict[str, str]) -> None:
        self.has_room_for_new = False

    async def _on_room(self, plain: list[str], given: dict[str, str]) -> None:
        self.has_room = self.has_room_for_new = True

    async def _on_cut_off(self, plain: list[str], given: dict[str, str]) -> None:
        self.shard.log.is_connected = False

    async def _on_reached(self, plain: list[str], given: dict[str, str]) -> None:
        self.shard.log.is_connected = True

    async def _on_fail_over(self, plain: list[str], given: dict[str, str]) -> None:
        self.shard = self.shard.fail_over(keeps_uncommitted="lost" not in plain)
        await idle()
        self.completions = []
        self._stored = min(self._stored, len(self.shard.log.records()))
        self.coordinator = self.host()
        await self.shard.load()


def _key(text: str) -> TopicPartition:
    topic, _, number = text.rpartition("-")
    return TopicPartition(topic, int(number))


def _keys(keys: Iterable[TopicPartition]) -> str:
    return ",".join(map(str, sorted(keys))) or "-"


def _error(code: ErrorCode) -> str:
    return f"{code.value} {code.name}" if code else "0"


def _shown(found: Transaction) -> str:
    producer = found.producer
    return (
        f"{found.state.value} {producer.producer_id}:{producer.epoch}"
        f" timeout={found.timeout_ms // 1000} {_keys(found.partitions)}"
    )
