"""Sends some offset commits of a group member again, at once or in a later generation. The member
id in a late commit is valid: only the generation shows that the commit is late."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from pybroker.background import TaskOwner
from pybroker.client.coordinator_link import CoordinatorLink
from pybroker.client.errors import ClientError
from pybroker.client.groups.decisions import Identity
from pybroker.client.groups.offsets import Offsets, commit_request
from pybroker.client.metadata import error_code
from pybroker.errors import ErrorCode
from pybroker.testing.history.model import Commit
from pybroker.testing.simulation.workload.recorder import Recorder
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.offsets import OffsetCommitResponse

_TWICE: Final = 0.1
"""The share of commits that are sent twice."""
_LATE: Final = 0.3
"""The share of generations from which a commit is sent late."""
_DELAY_MEAN_S: Final = 0.2
_REQUEST_S: Final = 2.0


class LateCommits:
    """Sends some commits of one group member a second time, at once or in a later generation.
    `current` returns the member's present identity."""

    def __init__(
        self,
        link: CoordinatorLink,
        current: Callable[[], Identity],
        recorder: Recorder,
        client: str,
        rng: random.Random,
    ) -> None:
        self._link = link
        self._current = current
        self._recorder = recorder
        self._client = client
        self._rng = rng
        self._tasks = TaskOwner()
        self._last: tuple[Identity, Offsets] | None = None
        """The last commit of the present generation."""
        self._open: list[Commit] = []

    def sent(self, offsets: Offsets) -> None:
        """Record that the member commits these offsets. At random, send this commit again, or the
        last commit of the previous generation."""
        identity = self._current()
        if self._last is not None and self._last[0].generation < identity.generation:
            if self._rng.random() < _LATE:
                self._tasks.start(self._send_later(*self._last), "a late commit")
            self._last = None
        if identity.member_id and offsets:
            self._last = identity, dict(offsets)
            if self._rng.random() < _TWICE:
                self._tasks.start(self._send(identity, dict(offsets)), "a doubled commit")

    def killed(self) -> None:
        for commit in self._open:
            self._recorder.commit_ended(commit, "info", "killed")
        self._open.clear()

    async def _send_later(self, identity: Identity, offsets: Offsets) -> None:
        await asyncio.sleep(self._rng.expovariate(1 / _DELAY_MEAN_S))
        await self._send(identity, offsets)

    async def _send(self, identity: Identity, offsets: Offsets) -> None:
        group = self._link.key
        begun = {
            key: self._recorder.commit_begun(
                group, self._client, identity.generation, key, each.offset
            )
            for key, each in offsets.items()
        }
        self._open += begun.values()
        codes = {}
        try:
            response = await self._link.send(
                ApiKey.OFFSET_COMMIT,
                lambda version: commit_request(group, identity, offsets, version),
                OffsetCommitResponse,
                timeout_s=_REQUEST_S,
            )
            codes = {
                (topic.name, row.partition_index): error_code(row.error_code)
                for topic in response.topics
                for row in topic.partitions
            }
        except ClientError as error:
            self._recorder.refused[type(error).__name__] += 1
        finally:
            for key, commit in begun.items():
                if commit in self._open:
                    self._open.remove(commit)
                code = codes.get(key)
                outcome = "ok" if code is ErrorCode.NONE else "info"
                text = "" if code is ErrorCode.NONE else str(code)
                self._recorder.commit_ended(commit, outcome, text)
