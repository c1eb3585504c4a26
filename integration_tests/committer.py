"""A client without group membership that commits and fetches offsets by raw requests, and returns
the broker's answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from integration_tests.wire_client import Connection, ConnectionClosed
from pybroker.client.metadata import error_code
from pybroker.errors import ErrorCode
from pybroker.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from pybroker.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from unit_tests.patience import ATTEMPT_S, wait_until

COMMIT_VERSION: Final = 8
FETCH_VERSION: Final = 7
MOVED: Final = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}


def commit_request(group: str, topic: str, offsets: Mapping[int, int]) -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=f"at {offset}"
        )
        for partition, offset in offsets.items()
    ]
    topics = [OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    return OffsetCommitRequest(group_id=group, topics=topics)


def fetch_request(group: str, topic: str, *partitions: int) -> OffsetFetchRequest:
    topics = [OffsetFetchRequestTopic(name=topic, partition_indexes=list(partitions))]
    return OffsetFetchRequest(group_id=group, topics=topics)


def only_code(answer: OffsetCommitResponse) -> ErrorCode:
    """Return the error code of all partitions, which must be the same."""
    (code,) = {part.error_code for topic in answer.topics for part in topic.partitions}
    return error_code(code)


ANSWER_S: Final = 4 * ATTEMPT_S
"""The timeout in seconds of an answer, longer than a broker waits for ZooKeeper."""


class Committer:
    """A client that commits offsets of one topic for one group. It reconnects to the coordinator
    when necessary. `bootstrap` is comma-separated.
    """

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._bootstrap = bootstrap.split(",")
        self.group = group
        self.topic = topic
        self._connection: Connection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def coordinator(self) -> tuple[int, str]:
        """Return the coordinator's id and address."""
        found: list[tuple[int, str]] = []

        def look() -> bool:
            for address in self._bootstrap:
                with suppress(OSError, ConnectionClosed), Connection(address) as connection:
                    connection.set_timeout(ATTEMPT_S)
                    request = FindCoordinatorRequest(key=self.group)
                    answer = connection.ask(2, request, FindCoordinatorResponse)
                    if answer.error_code == ErrorCode.NONE:
                        found.append((answer.node_id, f"{answer.host}:{answer.port}"))
                        return True
            return False

        wait_until(look, what=f"a coordinator of {self.group}")
        return found[-1]

    def try_commit(self, offsets: Mapping[int, int]) -> ErrorCode | None:
        """Commit once and return the error code; None if the outcome is unknown."""
        try:
            request = commit_request(self.group, self.topic, offsets)
            answer = self._connected().ask(COMMIT_VERSION, request, OffsetCommitResponse)
        except (OSError, ConnectionClosed):
            self.close()
            return None
        code = only_code(answer)
        if code in MOVED:
            self.close()
        return code

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Repeat the commit until it is acknowledged."""
        wait_until(
            lambda: self.try_commit(offsets) is ErrorCode.NONE, what=f"the commit of {offsets}"
        )

    def try_fetch(self, *partitions: int) -> dict[int, tuple[int, str | None]] | None:
        """Fetch once. Return partition -> (offset, metadata); None without an answer."""
        try:
            request = fetch_request(self.group, self.topic, *partitions)
            answer = self._connected().ask(FETCH_VERSION, request, OffsetFetchResponse)
        except (OSError, ConnectionClosed):
            self.close()
            return None
        if answer.error_code != ErrorCode.NONE:
            self.close()
            return None
        parts = [part for topic in answer.topics for part in topic.partitions]
        assert {part.error_code for part in parts} == {ErrorCode.NONE}
        return {part.partition_index: (part.committed_offset, part.metadata) for part in parts}

    def fetch_with_text(self, *partitions: int) -> dict[int, tuple[int, str | None]]:
        """Repeat the fetch until there is an answer. Return partition -> (offset, metadata)."""
        found: list[dict[int, tuple[int, str | None]]] = []

        def ask() -> bool:
            answer = self.try_fetch(*partitions)
            if answer is not None:
                found.append(answer)
            return answer is not None

        wait_until(ask, what=f"the committed offsets of group {self.group}")
        return found[-1]

    def fetch(self, *partitions: int) -> dict[int, int]:
        """Repeat the fetch until there is an answer. Return partition -> offset."""
        found = self.fetch_with_text(*partitions)
        return {partition: offset for partition, (offset, _) in found.items()}

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(self.coordinator()[1])
            self._connection.set_timeout(ANSWER_S)
        return self._connection
