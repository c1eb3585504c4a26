"""Sends and retries requests to the leaders of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from pybroker.client.backoff import Deadline
from pybroker.client.cluster import Cluster, leaders
from pybroker.client.connection import Connection
from pybroker.client.errors import ClientError, Closed, DeadlinePassed, ResponseError
from pybroker.client.leaderless import LeaderlessWatch
from pybroker.client.metadata import ClusterView, error_code
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition

T = TypeVar("T")

AskLeader = Callable[
    [Connection, tuple[TopicPartition, ...], float], Awaitable[Mapping[TopicPartition, T]]
]
"""A function that sends to a leader one request for several partitions, with a time limit in
seconds. It returns a result for each partition, or a ClientError for a partition that failed."""


async def ask_leaders(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    ask: AskLeader[T | ClientError],
    *,
    deadline: Deadline,
    repeatable: bool = True,
    once: bool = False,
) -> dict[TopicPartition, T | ClientError]:
    """Call `ask` for each leader. Errors are retried until the deadline, unless `once`. A request
    that a broker may have processed is retried only if `repeatable`. A partition fails after
    leaderless.timeout.ms without a leader."""
    wanted = list(dict.fromkeys(partitions))
    cluster.watch({topic_partition.topic for topic_partition in wanted})
    final: dict[TopicPartition, T | ClientError] = {}
    problems: dict[TopicPartition, ClientError] = {}

    async def one(node: int, chosen: list[TopicPartition]) -> None:
        answers: Mapping[TopicPartition, T | ClientError]
        try:
            connection = await cluster.connection(node)
            limit_s = request_limit_s(cluster, deadline)
            answers = await ask(connection, tuple(chosen), limit_s)
        except ClientError as error:
            answers = dict.fromkeys(chosen, error)
        for topic_partition in chosen:
            answer = answers.get(topic_partition, _NOT_ANSWERED)
            if not isinstance(answer, ClientError):
                final[topic_partition] = answer
            elif answer.retriable and (answer.definite or repeatable):
                problems[topic_partition] = answer
            else:
                final[topic_partition] = answer

    failures, watch = 0, LeaderlessWatch(cluster.clock)
    while True:
        missing = [item for item in wanted if item not in final]
        by_node, without_leader = leaders(cluster.view, missing)
        for topic_partition in without_leader:
            problems[topic_partition] = _no_leader(cluster.view, topic_partition)
        watch.look(cluster.view, without_leader)
        given_up = watch.leaderless(cluster.options.leaderless_timeout_ms)
        final.update({topic_partition: problems[topic_partition] for topic_partition in given_up})
        await asyncio.gather(*(one(node, chosen) for node, chosen in by_node.items()))
        if once or len(final) == len(wanted):
            break
        failures += 1
        if deadline.remaining_s() <= cluster.pause_s(failures):
            break
        await asyncio.sleep(cluster.pause_s(failures))
        try:
            await cluster.refreshed(deadline.remaining_s())
        except Closed as error:
            problems |= dict.fromkeys(missing, error)
            break
        except (TimeoutError, ClientError):
            pass
    return {
        item: final[item] if item in final else problems.get(item, _TOO_LATE) for item in wanted
    }


def response_error(number: int, sentence: str | None = None) -> ResponseError | None:
    """Return the error with this number in a response; None for 0. `sentence` is the broker's
    message, if any."""
    return ResponseError(error_code(number), broker_sentence=sentence or "") if number else None


def request_limit_s(cluster: Cluster, deadline: Deadline) -> float:
    """Return the time limit of the next request in seconds: the lower of request.timeout.ms and the
    time until the deadline."""
    return max(min(deadline.remaining_s(), cluster.options.request_timeout_ms / 1_000), 0.001)


_TOO_LATE = DeadlinePassed("the partition's leader did not respond within the time limit")
_NOT_ANSWERED = ResponseError(
    ErrorCode.UNKNOWN_SERVER_ERROR, "the broker's response has no result for the partition"
)


def _no_leader(view: ClusterView, topic_partition: TopicPartition) -> ClientError:
    topic = view.topics.get(topic_partition.topic)
    if topic is not None and topic.error != ErrorCode.NONE:
        return ResponseError(topic.error)
    if topic is not None and topic_partition.partition not in topic.partitions:
        return ResponseError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return ResponseError(ErrorCode.LEADER_NOT_AVAILABLE, view.leader_problem(topic_partition))
