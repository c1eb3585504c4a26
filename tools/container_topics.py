"""A thread that creates the topics in KAFKA_CREATE_TOPICS when the container's broker answers.
Failures are only logged.

The thread connects to the broker's own listener: the advertised listener may be unreachable from
inside the container.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable
from typing import Final

from pybroker.client.connection import Connection
from pybroker.client.errors import ClientError
from pybroker.config.listeners import Listener
from pybroker.errors import ErrorCode
from pybroker.tools.container_environment import CREATE_TOPICS, WantedTopic
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

log = logging.getLogger(__name__)

WAIT_SECONDS_MAX: Final = 600.0
_PAUSE_SECONDS: Final = 0.25
_ANSWER_SECONDS_MAX: Final = 60.0
_LATER: Final = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT})
"""Error codes after which the creation of a topic is tried again."""


def create_when_started(topics: Iterable[WantedTopic], listener: Listener) -> None:
    """Start the thread that creates the topics. The thread never keeps the process alive."""
    wanted = tuple(topics)
    if wanted:
        threading.Thread(
            target=lambda: asyncio.run(_create_all(wanted, listener)),
            name="create-topics",
            daemon=True,
        ).start()


async def _create_all(wanted: tuple[WantedTopic, ...], listener: Listener) -> None:
    left = {topic.name: topic for topic in wanted}
    try:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while left:
                try:
                    await _create(left, listener)
                except ClientError:
                    pass  # the broker has not started yet
                if left:
                    await asyncio.sleep(_PAUSE_SECONDS)
    except TimeoutError:
        names = ", ".join(left)
        log.error(
            "%s: these topics were not created within %d s: %s",
            CREATE_TOPICS,
            WAIT_SECONDS_MAX,
            names,
        )


async def _create(left: dict[str, WantedTopic], listener: Listener) -> None:
    """Send the broker one request to create all topics in `left`. Afterwards `left` contains only
    the topics whose creation has to be tried again. Raises ClientError."""
    connection = await Connection.open(
        listener.host, listener.port, client_id="create-topics", timeout_s=_ANSWER_SECONDS_MAX
    )
    try:
        answer = await connection.send(
            ApiKey.CREATE_TOPICS,
            request_for(left.values()),
            CreateTopicsResponse,
            timeout_s=_ANSWER_SECONDS_MAX,
        )
    finally:
        await connection.close()
    for result in answer.topics:
        if result.error_code in _LATER:
            continue
        topic = left.pop(result.name, None)
        if topic is None:
            continue
        if not result.error_code:
            log.info("topic created topic=%s variable=%s", topic.name, CREATE_TOPICS)
        elif result.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
            reason = result.error_message or f"error {result.error_code}"
            log.error("%s: topic %s cannot be created: %s", CREATE_TOPICS, topic.name, reason)


def request_for(topics: Iterable[WantedTopic]) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replicas,
                assignments=[],
                configs=[CreatableTopicConfig(name="cleanup.policy", value=topic.cleanup_policy)]
                if topic.cleanup_policy
                else [],
            )
            for topic in topics
        ],
        timeout_ms=int(_ANSWER_SECONDS_MAX * 1000) // 2,
    )
