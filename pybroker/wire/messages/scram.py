"""SCRAM credentials (KIP-554): DescribeUserScramCredentials (50) and AlterUserScramCredentials
(51), version 0 each. Both are flexible.
"""

from __future__ import annotations

from pybroker.wire.schema import Message, array, int8, int16, int32, message, octets, string


@message
class UserName(Message):
    """A user to describe: an element of `DescribeUserScramCredentialsRequest.users`."""

    name: str = string("The user name.")


@message
class DescribeUserScramCredentialsRequest(Message):
    """Requests the SCRAM mechanisms for which users have credentials (KIP-554)."""

    users: list[UserName] | None = array(
        UserName,
        "The users to describe; null or empty for all users.",
        nullable_since=0,
        default=None,
    )


@message
class CredentialInfo(Message):
    """A credential of the user, without secrets: an element of
    `DescribeUserScramCredentialsResult.credential_infos`."""

    mechanism: int = int8("The mechanism: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512.")
    iterations: int = int32("The number of hash iterations.")


@message
class DescribeUserScramCredentialsResult(Message):
    """A user, and information about the user's credentials: an element of
    `DescribeUserScramCredentialsResponse.results`."""

    user: str = string("The user name.")
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", nullable_since=0, default=None
    )
    credential_infos: list[CredentialInfo] = array(
        CredentialInfo, "The mechanisms and iterations of the user's credentials."
    )


@message
class DescribeUserScramCredentialsResponse(Message):
    """The SCRAM mechanisms of each user, without secrets."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", nullable_since=0, default=None
    )
    results: list[DescribeUserScramCredentialsResult] = array(
        DescribeUserScramCredentialsResult, "One result for each user."
    )


@message
class ScramCredentialDeletion(Message):
    """A credential to remove: an element of `AlterUserScramCredentialsRequest.deletions`."""

    name: str = string("The user name.")
    mechanism: int = int8("The mechanism: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512.")


@message
class ScramCredentialUpsertion(Message):
    """A credential to add or replace: an element of
    `AlterUserScramCredentialsRequest.upsertions`."""

    name: str = string("The user name.")
    mechanism: int = int8("The mechanism: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512.")
    iterations: int = int32("The number of hash iterations.")
    salt: bytes = octets("The salt, random bytes from the client.")
    salted_password: bytes = octets("The salted and hashed password.")


@message
class AlterUserScramCredentialsRequest(Message):
    """Adds, replaces and removes SCRAM credentials (KIP-554)."""

    deletions: list[ScramCredentialDeletion] = array(
        ScramCredentialDeletion, "The credentials to remove."
    )
    upsertions: list[ScramCredentialUpsertion] = array(
        ScramCredentialUpsertion, "The credentials to add or replace."
    )


@message
class AlterUserScramCredentialsResult(Message):
    """The result for one user: an element of `AlterUserScramCredentialsResponse.results`."""

    user: str = string("The user name.")
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", nullable_since=0, default=None
    )


@message
class AlterUserScramCredentialsResponse(Message):
    """The result for each user whose credentials the request changes."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    results: list[AlterUserScramCredentialsResult] = array(
        AlterUserScramCredentialsResult, "One result for each user."
    )
