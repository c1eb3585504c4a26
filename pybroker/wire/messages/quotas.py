"""Quotas (KIP-546): DescribeClientQuotas (48) and AlterClientQuotas (49), versions 0-1 each.

Change in version 1: flexible.
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
    """A condition that an entity must match: an element of
    `DescribeClientQuotasRequest.components`."""

    entity_type: str = string("The entity type: user, client-id or ip.")
    match_type: int = int8("The match type: 0 exact name, 1 default entity, 2 any name.")
    match: str | None = string(
        "The entity name for match type 0; null for the other match types.",
        nullable_since=0,
        default=None,
    )


@message
class DescribeClientQuotasRequest(Message):
    """Requests the quotas of users, client ids and IP addresses (KIP-546)."""

    components: list[ComponentData] = array(
        ComponentData, "The conditions that an entity must match."
    )
    strict: bool = boolean("Whether entities with additional entity types are excluded.")


@message
class EntityData(Message):
    """The type and the name of one part of an entity: an element of
    `DescribedQuotaEntry.entity`."""

    entity_type: str = string("The entity type: user, client-id or ip.")
    entity_name: str | None = string(
        "The entity name; null for the default entity.", nullable_since=0, default=None
    )


@message
class ValueData(Message):
    """A quota and its value: an element of `DescribedQuotaEntry.values`."""

    key: str = string("The quota name, for example producer_byte_rate.")
    value: float = float64("The quota value.")


@message
class DescribedQuotaEntry(Message):
    """An entity with its quotas: an element of `DescribeClientQuotasResponse.entries`."""

    entity: list[EntityData] = array(EntityData, "The entity to which the quota applies.")
    values: list[ValueData] = array(ValueData, "The quotas of the entity.")


@message
class DescribeClientQuotasResponse(Message):
    """The quotas of the matching entities."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", nullable_since=0, default=None
    )
    entries: list[DescribedQuotaEntry] | None = array(
        DescribedQuotaEntry,
        "The quotas of the matching entities; null on error.",
        nullable_since=0,
        default=None,
    )


@message
class OpData(Message):
    """A change of one quota: an element of `AlteredQuotaEntry.ops`."""

    key: str = string("The quota name, for example producer_byte_rate.")
    value: float = float64("The quota value; ignored if the quota is removed.")
    remove: bool = boolean("Whether to remove the quota.")


@message
class AlteredQuotaEntry(Message):
    """An entity with the changes of its quotas: an element of
    `AlterClientQuotasRequest.entries`."""

    entity: list[EntityData] = array(EntityData, "The entity to which the quota applies.")
    ops: list[OpData] = array(OpData, "The quotas to change.")


@message
class AlterClientQuotasRequest(Message):
    """Changes the quotas of users, client ids and IP addresses (KIP-546)."""

    entries: list[AlteredQuotaEntry] = array(AlteredQuotaEntry, "The entities with their changes.")
    validate_only: bool = boolean(
        "Whether the broker only validates the request and changes nothing."
    )


@message
class AlterClientQuotasResult(Message):
    """The result for one entity: an element of `AlterClientQuotasResponse.entries`."""

    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", nullable_since=0, default=None
    )
    entity: list[EntityData] = array(EntityData, "The entity to which the quota applies.")


@message
class AlterClientQuotasResponse(Message):
    """The result for each entity whose quotas the request changes."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    entries: list[AlterClientQuotasResult] = array(
        AlterClientQuotasResult, "One result for each entity of the request."
    )
