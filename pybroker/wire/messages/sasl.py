"""Authentication: SaslHandshake (17), versions 0-1, and SaslAuthenticate (36), versions 0-2.

After SaslHandshake version 1, the client sends the messages of the mechanism in SaslAuthenticate
requests.
"""

from __future__ import annotations

from pybroker.wire.schema import Message, int16, int64, message, octets, string, string_array


@message
class SaslHandshakeRequest(Message):
    """Selects a SASL mechanism."""

    mechanism: str = string("The mechanism that the client selects, for example PLAIN.")


@message
class SaslHandshakeResponse(Message):
    """Whether the broker accepts the client's mechanism, and the mechanisms that the listener
    offers."""

    error_code: int = int16("The error, or 0.")
    mechanisms: list[str] = string_array("The mechanisms that the listener offers.")


@message
class SaslAuthenticateRequest(Message):
    """Carries one message of the SASL mechanism."""

    auth_bytes: bytes = octets("A message of the SASL mechanism from the client.")


@message
class SaslAuthenticateResponse(Message):
    """Carries the reply of the SASL mechanism."""

    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", nullable_since=0, default=None
    )
    auth_bytes: bytes = octets("A message of the SASL mechanism from the broker.")
    session_lifetime_ms: int = int64(
        "The session lifetime, in ms, until the client must reauthenticate; 0 unlimited (KIP-368).",
        since=1,
        ignorable=True,
    )
