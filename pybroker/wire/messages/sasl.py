"""Authentication: SaslHandshake (17) 0-1, SaslAuthenticate (36) 0-2.

SaslHandshake 1 tells that the mechanism's messages follow inside SaslAuthenticate; it is never
flexible. SaslAuthenticate: 1 session lifetime (KIP-368). 2 flexible.
"""

from __future__ import annotations

from pybroker.wire.schema import Message, int16, int64, message, octets, string, string_array


@message
class SaslHandshakeRequest(Message):
    """Chooses a SASL mechanism."""

    mechanism: str = string("The mechanism that the client wants, as in PLAIN.")


@message
class SaslHandshakeResponse(Message):
    """Whether the mechanism is offered, and all that are."""

    error_code: int = int16("The error, or 0.")
    mechanisms: list[str] = string_array("The mechanisms that the listener offers.")


@message
class SaslAuthenticateRequest(Message):
    """Carries one message of the SASL mechanism."""

    auth_bytes: bytes = octets("The mechanism's message.")


@message
class SaslAuthenticateResponse(Message):
    """Carries the answer of the SASL mechanism."""

    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error in words, or null.", nullable_since=0, default=None
    )
    auth_bytes: bytes = octets("The mechanism's answer.")
    session_lifetime_ms: int = int64(
        "After how many ms to authenticate again; 0 never (KIP-368).", since=1, ignorable=True
    )
