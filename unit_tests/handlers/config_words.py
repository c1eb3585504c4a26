"""Helpers of the tests about configurations."""

from __future__ import annotations

import json
from typing import Any

from pybroker.coordinator.zookeeper import paths
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import CreateOp, SetOp
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from unit_tests.handlers.bench import BROKER_ID, Bench, code, the_only
from unit_tests.patience import until

TOPIC, BROKER, LOGGER = 2, 4, 8
ME = str(BROKER_ID)
SET, DELETE, APPEND, SUBTRACT = range(4)
Resource = tuple[int, str]
Operation = tuple[int, str, str | None]


async def describe(
    bench: Bench, *resources: Resource, keys: list[str] | None = None, version: int = 4
) -> list[DescribeConfigsResult]:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for kind, name in resources
        ]
    )
    if version >= 1:
        request.include_synonyms = True
    if version >= 3:
        request.include_documentation = True
    answer = await bench.ask(ApiKey.DESCRIBE_CONFIGS, version, request)
    results: list[DescribeConfigsResult] = answer.results
    assert [(item.resource_type, item.resource_name) for item in results] == list(resources)
    return results


async def option(bench: Bench, resource: Resource, name: str) -> DescribeConfigsResourceResult:
    (result,) = await describe(bench, resource, keys=[name])
    assert code(result) is ErrorCode.NONE
    return the_only(result.configs)


async def shown(bench: Bench, resource: Resource, name: str) -> tuple[str | None, int]:
    """Return the value and the source of an option."""
    found = await option(bench, resource, name)
    return found.value, found.config_source


async def change(
    bench: Bench,
    resource: Resource,
    *operations: Operation,
    validate_only: bool = False,
    version: int = 1,
) -> tuple[ErrorCode, str | None]:
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsResource(
                resource_type=resource[0],
                resource_name=resource[1],
                configs=[
                    IncrementalAlterableConfig(name=name, config_operation=kind, value=text)
                    for kind, name, text in operations
                ],
            )
        ],
        validate_only=validate_only,
    )
    answer = await bench.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, request)
    result = the_only(answer.responses)
    return code(result), result.error_message


async def replace(
    bench: Bench,
    resource: Resource,
    values: dict[str, str | None],
    *,
    validate_only: bool = False,
    version: int = 2,
) -> tuple[ErrorCode, str | None]:
    request = AlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=resource[0],
                resource_name=resource[1],
                configs=[AlterableConfig(name=name, value=text) for name, text in values.items()],
            )
        ],
        validate_only=validate_only,
    )
    answer = await bench.ask(ApiKey.ALTER_CONFIGS, version, request)
    result = the_only(answer.responses)
    return code(result), result.error_message


def stored(bench: Bench, entity: str) -> Any:
    found = bench.tree.node(f"/config/{entity}")
    return None if found is None else json.loads(found[0])["config"]


def notes(bench: Bench) -> int:
    return sum(path.startswith(paths.CONFIG_CHANGE_PREFIX) for path in bench.tree.paths())


def write_as_a_tool(bench: Bench, entity: str, data: bytes) -> None:
    """Write a configuration as Apache's kafka-configs does through ZooKeeper: first the node, then
    the notification."""
    path = f"/config/{entity}"
    exists = bench.tree.node(path) is not None
    note = json.dumps({"version": 2, "entity_path": entity}).encode()
    session = bench.coord.session_id
    bench.tree.apply([SetOp(path, data) if exists else CreateOp(path, data)], session)
    bench.tree.apply([CreateOp(paths.CONFIG_CHANGE_PREFIX, note, sequence=True)], session)


def config(**values: str) -> bytes:
    texts = {name.replace("_", "."): text for name, text in values.items()}
    return json.dumps({"version": 1, "config": texts}).encode()


async def until_largest_is(bench: Bench, size: int) -> None:
    """Wait until `max.message.bytes` of topic t is `size`."""
    log = bench.logs.log(TopicPartition("t", 0))
    assert log is not None
    await until(lambda: log.config.max_message_bytes == size)
