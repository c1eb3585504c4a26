"""Sends and retries requests to the coordinators of several groups, or of several transactional
ids."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeGuard, TypeVar

from pybroker.client.backoff import Deadline
from pybroker.client.cluster import Address, Cluster
from pybroker.client.connection import Connection
from pybroker.client.errors import ClientError, DeadlinePassed, ResponseError
from pybroker.client.leader_calls import request_limit_s, response_error
from pybroker.client.metadata import Node
from pybroker.errors import ErrorCode
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse

T = TypeVar("T")

AskCoordinator = Callable[
    [Connection, Node, tuple[str, ...], float], Awaitable[Mapping[str, T | ClientError]]
]
"""A function that sends to a coordinator one request for several groups, with a time limit in
seconds. It returns a result for each group, or a ClientError for a group that failed."""

GROUP: Final = 0
TRANSACTION: Final = 1
"""The types of keys in FindCoordinator. A key is a group id or a transactional id."""
SEVERAL_KEYS_VERSION: Final = 4

_TOO_LATE = DeadlinePassed("the group's coordinator did not respond within the time limit")
_NOT_ANSWERED = ResponseError(
    ErrorCode.UNKNOWN_SERVER_ERROR, "the coordinator's response has no result for the group"
)


async def ask_coordinators(
    cluster: Cluster,
    groups: Iterable[str],
    ask: AskCoordinator[T | ClientError],
    *,
    deadline: Deadline,
    repeatable: bool = True,
    key_type: int = GROUP,
) -> dict[str, T | ClientError]:
    """Find the coordinators of the groups, and send each coordinator one request, with `ask`.
    Return each group's result or error. Retriable errors are retried until the deadline. A request
    that the coordinator may have processed is retried only if `repeatable`. With `key_type`
    TRANSACTION, `groups` are transactional ids."""
    wanted = list(dict.fromkeys(groups))
    final: dict[str, T | ClientError] = {}
    problems: dict[str, ClientError] = {}

    def note(group: str, answer: T | ClientError, may_repeat: bool) -> None:
        if not _may_retry(answer, may_repeat):
            final[group] = answer
        elif group not in problems or deadline.remaining_s() > 0:  # else the deadline cut it short
            problems[group] = answer

    async def one(node: Node, chosen: tuple[str, ...]) -> None:
        answers: Mapping[str, T | ClientError]
        try:
            connection = await cluster.connection(node.id)
            answers = await ask(connection, node, chosen, request_limit_s(cluster, deadline))
        except ClientError as error:
            answers = dict.fromkeys(chosen, error)
        for group in chosen:
            note(group, answers.get(group, _NOT_ANSWERED), repeatable)

    failures = 0
    doubted: Address | None = None
    while True:
        missing = [group for group in wanted if group not in final]
        by_node: dict[Node, list[str]] = {}
        located = await find_coordinators(
            cluster, missing, deadline, last=doubted, key_type=key_type
        )
        for group, found in located.items():
            if isinstance(found, Node):
                by_node.setdefault(found, []).append(group)
            else:
                note(group, found, True)
        await asyncio.gather(*(one(node, tuple(chosen)) for node, chosen in by_node.items()))
        if len(final) == len(wanted):
            break
        # A broker that is isolated from the cluster still returns itself as the coordinator.
        doubted = next(((node.host, node.port) for node in by_node), None)
        failures += 1
        pause = cluster.pause_s(failures)
        if deadline.remaining_s() <= pause:
            break
        await _before_retry(cluster, pause, deadline)
    return {
        group: final[group] if group in final else problems.get(group, _TOO_LATE)
        for group in wanted
    }


def _may_retry(answer: object, may_repeat: bool) -> TypeGuard[ClientError]:
    """Return whether `answer` is an error after which the request may be sent again."""
    return isinstance(answer, ClientError) and answer.retriable and (answer.definite or may_repeat)


async def _before_retry(cluster: Cluster, pause_s: float, deadline: Deadline) -> None:
    await asyncio.sleep(pause_s)
    try:
        await cluster.refreshed(deadline.remaining_s())
    except (TimeoutError, ClientError):
        pass


async def find_coordinators(
    cluster: Cluster,
    groups: Sequence[str],
    deadline: Deadline,
    *,
    last: Address | None = None,
    key_type: int = GROUP,
) -> dict[str, Node | ClientError]:
    """Ask one broker for the groups' coordinators. Return each group's coordinator or error. The
    broker at `last` is asked only if no other broker is reachable."""
    if not groups:
        return {}
    try:
        connection = await cluster.any_connection(last=last)
        if connection.version_of(ApiKey.FIND_COORDINATOR) >= SEVERAL_KEYS_VERSION:
            return await _find_several(cluster, connection, groups, deadline, key_type)
    except ClientError as error:
        return dict.fromkeys(groups, error)
    found: dict[str, Node | ClientError] = {}
    for group in groups:
        try:
            found[group] = await _find_one(cluster, connection, group, deadline, key_type)
        except ClientError as error:
            found[group] = error
    return found


async def _find_several(
    cluster: Cluster,
    connection: Connection,
    groups: Sequence[str],
    deadline: Deadline,
    key_type: int,
) -> dict[str, Node | ClientError]:
    answer = await connection.send(
        ApiKey.FIND_COORDINATOR,
        FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(groups)),
        FindCoordinatorResponse,
        timeout_s=request_limit_s(cluster, deadline),
    )
    found: dict[str, Node | ClientError] = dict.fromkeys(groups, _NOT_ANSWERED)
    for row in answer.coordinators:
        error = response_error(row.error_code, row.error_message)
        found[row.key] = error or Node(row.node_id, row.host, row.port)
    return found


async def _find_one(
    cluster: Cluster, connection: Connection, group: str, deadline: Deadline, key_type: int
) -> Node | ClientError:
    answer = await connection.send(
        ApiKey.FIND_COORDINATOR,
        FindCoordinatorRequest(key=group, key_type=key_type),
        FindCoordinatorResponse,
        timeout_s=request_limit_s(cluster, deadline),
    )
    error = response_error(answer.error_code, answer.error_message)
    return error or Node(answer.node_id, answer.host, answer.port)
