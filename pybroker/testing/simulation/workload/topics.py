"""The simulated admin client. It creates the topics, changes them at intervals, and requests
elections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from pybroker.client import Admin, ElectionType, NewPartitions, NewTopic, TopicResult
from pybroker.client.errors import ClientError
from pybroker.errors import ErrorCode
from pybroker.testing.history.model import Fault
from pybroker.testing.simulation.workload.clients import Client
from pybroker.testing.simulation.workload.options import CLIENT_OPTIONS, KEYED_TOPIC

_AGAIN_S: Final = 0.2
_LAST_TRIES: Final = 10
"""The maximum number of attempts once the workload is stopping."""
_TICK_S: Final = 0.1
_GROWTH_MAX: Final = 3


class AdminClient(Client):
    """The client that runs all admin operations of the workload. It retries an operation on a topic
    until the outcome is known. It does not retry elections."""

    async def run(self) -> None:
        admin = await self.opened(self._make)
        if admin is None:
            return
        for name in self.options.topic_names:
            if name not in self.shared.catalog.topics:
                await self._create(admin, name)
        if self.options.keyed_writers and not self.shared.has_keyed_topic:
            await self._create_keyed(admin)
        while not self.is_stopping:
            await asyncio.sleep(_TICK_S)
            for mean_s, act in (
                (self.options.churn_mean_s, self._churn),
                (self.options.election_mean_s, self._elect_preferred),
                (self.options.unclean_mean_s, self._elect_whoever_is_left),
            ):
                if act == self._churn and self.shared.is_even:
                    continue
                if mean_s and self.rng.random() < _TICK_S / mean_s:
                    await act(admin)
        await admin.close()

    def _make(self) -> Admin:
        return Admin(
            self.shared.bootstrap,
            clock=self.clock,
            rng=self.rng,
            client_id=self.name,
            **CLIENT_OPTIONS,
        )

    async def _churn(self, admin: Admin) -> None:
        catalog, names = self.shared.catalog, self._churned_names()
        name = self.rng.choice(names)
        if name in catalog.doomed:
            await self._delete(admin, name)
        elif name not in catalog.topics:
            await self._create(admin, name)
        elif self.rng.random() < 0.5:
            await self._delete(admin, name)
        else:
            await self._grow(admin, self.rng.choice([*catalog.topics]))

    def _churned_names(self) -> list[str]:
        return [f"churned-{number}" for number in range(self.options.churned_topics_max)]

    async def _create(self, admin: Admin, name: str) -> None:
        options = self.options
        topic = NewTopic(
            name,
            partitions=options.partitions,
            replication_factor=options.replication,
            configs=options.topic_configs,
        )
        if await self._decide(lambda: admin.create_topics([topic]), ErrorCode.TOPIC_ALREADY_EXISTS):
            self.shared.catalog.born(name, options.partitions)
            self.recorder.managed["created"] += 1

    async def _create_keyed(self, admin: Admin) -> None:
        options = self.options
        topic = NewTopic(
            KEYED_TOPIC,
            partitions=1,
            replication_factor=options.replication,
            configs=options.keyed_configs,
        )
        self.shared.has_keyed_topic = await self._decide(
            lambda: admin.create_topics([topic]), ErrorCode.TOPIC_ALREADY_EXISTS
        )

    async def _delete(self, admin: Admin, name: str) -> None:
        catalog = self.shared.catalog
        catalog.remove(name)
        if await self._decide(
            lambda: admin.delete_topics([name]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ):
            catalog.doomed.discard(name)
            self.recorder.managed["deleted"] += 1

    async def _grow(self, admin: Admin, name: str) -> None:
        count = self.shared.catalog.topics[name] + 1
        if count > self.options.partitions + _GROWTH_MAX:
            return
        growth = NewPartitions(name, count)
        if await self._decide(
            lambda: admin.create_partitions([growth]), ErrorCode.INVALID_PARTITIONS
        ):
            self.shared.catalog.add(name, count)
            self.recorder.managed["grown"] += 1

    async def _decide(
        self, ask: Callable[[], Awaitable[list[TopicResult]]], done_before: ErrorCode
    ) -> bool:
        """Repeat an admin operation until it succeeds, or fails with `done_before` because an
        earlier attempt succeeded. Then return True. Once the clients are stopping, make
        `_LAST_TRIES` more attempts, then return False."""
        last_tries = _LAST_TRIES
        while last_tries:
            last_tries -= self.is_stopping
            try:
                (result,) = await ask()
            except ClientError as error:
                self.recorder.refused[type(error).__name__] += 1
            else:
                if result.error is None or result.error.code == done_before:
                    return True
                self.recorder.refused[result.error.code.name] += 1
            await asyncio.sleep(_AGAIN_S)
        return False

    async def _elect_preferred(self, admin: Admin) -> None:
        await self._elect(admin, ElectionType.PREFERRED)

    async def _elect_whoever_is_left(self, admin: Admin) -> None:
        await self._elect(admin, ElectionType.UNCLEAN)

    async def _elect(self, admin: Admin, kind: ElectionType) -> None:
        what = f"{kind.name.lower()} election"
        faults = self.recorder.history.faults
        faults.append(Fault(self.recorder.now(), "invoke", what, "all"))
        try:
            outcomes = await admin.elect_leaders(kind)
        except ClientError as error:
            self.recorder.refused[type(error).__name__] += 1
        else:
            elected = sum(error is None for error in outcomes.values())
            self.recorder.managed[f"elected_{kind.name.lower()}"] += elected
        faults.append(Fault(self.recorder.now(), "ok", what, "all"))
