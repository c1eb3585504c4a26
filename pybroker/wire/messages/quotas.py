"""Quotas (KIP-546): DescribeClientQuotas (48), AlterClientQuotas (49), versions 0-1 each.

1 flexible.
"""

from __future__ import annotations

from pybroker.wire.schema import (
    Message,
    array,
    boolean,
    float64,
    int8,
    int16,
    int32,
    message,
    string,
)


@message
class ComponentData(Message):
    """One element of `DescribeClientQuotasRequest.components`."""

    entity_type: str = string("user, client-id or ip.")
    match_type: int = int8("0 the exact name, 1 the default entity, 2 any name.")
    match: str | None = string(
        "The name for match type 0, else null.", nullable_since=0, default=None
    )


@message
class DescribeClientQuotasRequest(Message):
    """Asks for the quotas of users, clients and addresses (KIP-546)."""

    components: list[ComponentData] = array(ComponentData, "Conditions on the entities.")
    strict: bool = boolean("Whether entities with further parts are left out.")


@message
class EntityData(Message):
    """One element of `DescribedQuotaEntry.entity`."""

    entity_type: str = string("user, client-id or ip.")
    entity_name: str | None = string(
        "The entity's name; null is the default entity.", nullable_since=0, default=None
    )


@message
class ValueData(Message):
    """One element of `DescribedQuotaEntry.values`."""

    key: str = string("The limit's name, as in producer_byte_rate.")
    value: float = float64("The limit.")


@message
class DescribedQuotaEntry(Message):
    """One element of `DescribeClientQuotasResponse.entries`."""

    entity: list[EntityData] = array(EntityData, "The entity of the quota.")
    values: list[ValueData] = array(ValueData, "The limits.")


@message
class DescribeClientQuotasResponse(Message):
    """The quotas."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error in words, or null.", nullable_since=0, default=None
    )
    entries: list[DescribedQuotaEntry] | None = array(
        DescribedQuotaEntry, "The quotas found; null on error.", nullable_since=0, default=None
    )


@message
class OpData(Message):
    """One element of `AlteredQuotaEntry.ops`."""

    key: str = string("The limit's name, as in producer_byte_rate.")
    value: float = float64("The limit; ignored on removal.")
    remove: bool = boolean("Whether to remove the limit.")


@message
class AlteredQuotaEntry(Message):
    """One element of `AlterClientQuotasRequest.entries`."""

    entity: list[EntityData] = array(EntityData, "The entity of the quota.")
    ops: list[OpData] = array(OpData, "The changes.")


@message
class AlterClientQuotasRequest(Message):
    """Changes the quotas of users, clients and addresses (KIP-546)."""

    entries: list[AlteredQuotaEntry] = array(AlteredQuotaEntry, "The changes.")
    validate_only: bool = boolean("Whether only to check what would happen.")


@message
class AlterClientQuotasResult(Message):
    """One element of `AlterClientQuotasResponse.entries`."""

    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error in words, or null.", nullable_since=0, default=None
    )
    entity: list[EntityData] = array(EntityData, "The entity of the quota.")


@message
class AlterClientQuotasResponse(Message):
    """Whether each entity was changed."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    entries: list[AlterClientQuotasResult] = array(
        AlterClientQuotasResult, "One result for each entity."
    )
