"""Tests of APIs that the broker does not implement: every version answers with the right code,
for every item of the request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pybroker.errors import ErrorCode
from pybroker.handlers.unavailable import UNAVAILABLE
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.messages.scram import DescribeUserScramCredentialsRequest, UserName
from pybroker.wire.schema import Message, wire_fields
from unit_tests.handlers.bench import Bench, code
from unit_tests.wire.vocabulary import Case

NO_COORDINATOR = ErrorCode.COORDINATOR_NOT_AVAILABLE
NO_AUTHORIZER = ErrorCode.SECURITY_DISABLED
NO_SASL = ErrorCode.ILLEGAL_SASL_STATE
NOT_HERE = ErrorCode.UNSUPPORTED_VERSION

EXPECTED = {
    ApiKey.DESCRIBE_ACLS: NO_AUTHORIZER,
    ApiKey.CREATE_ACLS: NO_AUTHORIZER,
    ApiKey.DELETE_ACLS: NO_AUTHORIZER,
    ApiKey.SASL_HANDSHAKE: NO_SASL,
    ApiKey.SASL_AUTHENTICATE: NO_SASL,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ErrorCode.RESOURCE_NOT_FOUND,
}
"""The expected codes; all other APIs answer NOT_HERE."""

PARTITIONS = "topics.partitions.partition_index"
SAME_ITEMS: dict[ApiKey, list[tuple[str, str]]] = {
    ApiKey.CREATE_ACLS: [("creations", "results")],
    ApiKey.DELETE_ACLS: [("filters", "filter_results")],
    ApiKey.ALTER_CLIENT_QUOTAS: [("entries", "entries")],
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: [("users.name", "results.user")],
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: [("deletions.name|upsertions.name", "results.user")],
}
"""The path of the items in a request, and the path of their results in the answer."""


def items(message: Message) -> Iterator[Message]:
    """Yield the message and all messages nested in it."""
    yield message
    for field in wire_fields(type(message)):
        value = getattr(message, field.name)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Message):
                yield from items(item)


def named(found: Any, path: str) -> list[Any]:
    """Return the values at the end of a path of fields, through all lists on the path. For a
    message, return only that it exists. "|" joins two such lists, with each value once."""
    if isinstance(found, list):
        return [value for item in found for value in named(item, path)]
    if found is None:
        return []
    if "|" in path:
        both = [value for each in path.split("|") for value in named(found, each)]
        return list(dict.fromkeys(both))
    if not path:
        return ["there"] if isinstance(found, Message) else [found]
    name, _, rest = path.partition(".")
    return named(getattr(found, name), rest)


@pytest.mark.parametrize("key", sorted(UNAVAILABLE))
async def test_every_version_answers_every_item_with_the_code(bench: Bench, key: ApiKey) -> None:
    api = APIS[key]
    for version in range(api.min_version, api.max_version + 1):
        for request in Case(api, api.request, version).samples(8):
            check(key, request, await bench.ask(key, version, request))


def check(key: ApiKey, request: Message, answer: Message) -> None:
    expected = EXPECTED.get(key, NOT_HERE)
    for asked, answered in SAME_ITEMS.get(key, []):
        assert named(answer, answered) == named(request, asked)
    codes = {code(item) for item in items(answer) if hasattr(item, "error_code")}
    codes -= {ErrorCode.DUPLICATE_RESOURCE}
    assert codes <= {expected, ErrorCode.NONE}
    empty = not any(named(request, asked) for asked, _ in SAME_ITEMS.get(key, []))
    if not empty or key not in SAME_ITEMS:
        assert expected in codes or key is ApiKey.DESCRIBE_LOG_DIRS


async def test_users_without_credentials_are_answered_one_by_one(bench: Bench) -> None:
    async def described(*users: str) -> list[tuple[str, ErrorCode, str | None]]:
        request = DescribeUserScramCredentialsRequest(users=[UserName(name=user) for user in users])
        answer = await bench.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, request)
        assert code(answer) is ErrorCode.NONE
        return [(each.user, code(each), each.error_message) for each in answer.results]

    assert await described() == []
    missing, doubled = ErrorCode.RESOURCE_NOT_FOUND, ErrorCode.DUPLICATE_RESOURCE
    assert await described("ann", "bob", "ann", "") == [
        (
            "ann",
            doubled,
            "Cannot describe SCRAM credentials for the same user twice in a single request: ann",
        ),
        ("bob", missing, "Attempt to describe a user credential that does not exist: bob"),
        ("", missing, "Username must not be empty"),
    ]


def test_each_unimplemented_api_has_an_expected_answer_or_is_not_advertised() -> None:
    assert EXPECTED.keys() <= UNAVAILABLE.keys()
    assert SAME_ITEMS.keys() <= UNAVAILABLE.keys()
