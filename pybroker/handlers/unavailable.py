"""Answers requests of the APIs that the broker advertises but does not implement. Each response has
an error code, such as SECURITY_DISABLED for ACLs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from pybroker.errors import ErrorCode
from pybroker.handlers.context import Request, Services
from pybroker.wire.api import ApiKey
from pybroker.wire.messages import (
    acls,
    quotas,
    reassignment,
    sasl,
    scram,
)
from pybroker.wire.schema import Message

NO_COORDINATOR: Final = ErrorCode.COORDINATOR_NOT_AVAILABLE
NO_AUTHORIZER: Final = ErrorCode.SECURITY_DISABLED
NO_SASL: Final = ErrorCode.ILLEGAL_SASL_STATE
NOT_HERE: Final = ErrorCode.UNSUPPORTED_VERSION
_NOT_HERE_TEXT: Final = "this broker does not support the request"


def _create_acls(request: acls.CreateAclsRequest) -> Message:
    return acls.CreateAclsResponse(
        results=[
            acls.AclCreationResult(error_code=NO_AUTHORIZER, error_message=NO_AUTHORIZER.text)
            for _ in request.creations
        ]
    )


def _delete_acls(request: acls.DeleteAclsRequest) -> Message:
    return acls.DeleteAclsResponse(
        filter_results=[
            acls.DeleteAclsFilterResult(error_code=NO_AUTHORIZER, error_message=NO_AUTHORIZER.text)
            for _ in request.filters
        ]
    )


def _alter_client_quotas(request: quotas.AlterClientQuotasRequest) -> Message:
    return quotas.AlterClientQuotasResponse(
        entries=[
            quotas.AlterClientQuotasResult(
                error_code=NOT_HERE, error_message=_NOT_HERE_TEXT, entity=entry.entity
            )
            for entry in request.entries
        ]
    )


def _describe_scram(request: scram.DescribeUserScramCredentialsRequest) -> Message:
    """Return an error for each user. An error for the whole response would abort the process of a
    client with librdkafka 2.15."""
    asked = Counter(user.name for user in request.users or [])
    return scram.DescribeUserScramCredentialsResponse(
        results=[_no_credentials(user, times) for user, times in asked.items()]
    )


def _no_credentials(user: str, times: int) -> scram.DescribeUserScramCredentialsResult:
    code = ErrorCode.RESOURCE_NOT_FOUND
    if not user:
        words = "Username must not be empty"
    elif times > 1:
        code = ErrorCode.DUPLICATE_RESOURCE
        words = (
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        )
    else:
        words = f"Attempt to describe a user credential that does not exist: {user}"
    return scram.DescribeUserScramCredentialsResult(user=user, error_code=code, error_message=words)


def _alter_scram(request: scram.AlterUserScramCredentialsRequest) -> Message:
    users = dict.fromkeys(
        [item.name for item in request.deletions] + [item.name for item in request.upsertions]
    )
    return scram.AlterUserScramCredentialsResponse(
        results=[
            scram.AlterUserScramCredentialsResult(
                user=user, error_code=NOT_HERE, error_message=_NOT_HERE_TEXT
            )
            for user in users
        ]
    )


def _failing(response: Callable[..., Message], code: ErrorCode) -> Callable[[Any], Message]:
    """Return a function that answers any request with the error `code`."""

    def answer(request: Any) -> Message:
        return response(error_code=code)

    return answer


_ANSWERS: Final[dict[ApiKey, Callable[[Any], Message]]] = {
    ApiKey.DESCRIBE_ACLS: _failing(acls.DescribeAclsResponse, NO_AUTHORIZER),
    ApiKey.CREATE_ACLS: _create_acls,
    ApiKey.DELETE_ACLS: _delete_acls,
    ApiKey.SASL_HANDSHAKE: _failing(sasl.SaslHandshakeResponse, NO_SASL),
    ApiKey.SASL_AUTHENTICATE: _failing(sasl.SaslAuthenticateResponse, NO_SASL),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _failing(
        reassignment.AlterPartitionReassignmentsResponse, NOT_HERE
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _failing(
        reassignment.ListPartitionReassignmentsResponse, NOT_HERE
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _failing(quotas.DescribeClientQuotasResponse, NOT_HERE),
    ApiKey.ALTER_CLIENT_QUOTAS: _alter_client_quotas,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _describe_scram,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _alter_scram,
}


def _handler(
    answer: Callable[[Any], Message],
) -> Callable[[Services, Request, Any], Message]:
    def handle(services: Services, request: Request, message: Any) -> Message:
        return answer(message)

    return handle


UNAVAILABLE: Final = {key: _handler(answer) for key, answer in _ANSWERS.items()}
"""API -> handler, for the APIs that the broker advertises but does not implement."""
