"""ApiVersions: returns the supported versions of all APIs, the same for every client."""

from __future__ import annotations

import re
from typing import Final

from pybroker.errors import ErrorCode
from pybroker.handlers.context import Request, Services
from pybroker.wire.api import APIS, ApiKey, api_versions_rows
from pybroker.wire.messages.cluster import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FIRST_VERSION_WITH_SOFTWARE: Final = 3


def handle_api_versions(
    services: Services, request: Request, message: ApiVersionsRequest
) -> ApiVersionsResponse:
    """Return the supported versions of all APIs, or INVALID_REQUEST if the client's software name
    or version is malformed (KIP-511)."""
    if request.version >= _FIRST_VERSION_WITH_SOFTWARE and not (
        _SOFTWARE.fullmatch(message.client_software_name)
        and _SOFTWARE.fullmatch(message.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(api_keys=_rows())


def unsupported_api_versions() -> ApiVersionsResponse:
    """Return the response to an ApiVersions request of an unsupported version. It lists the
    supported versions of ApiVersions. The caller must encode it in version 0."""
    api = APIS[ApiKey.API_VERSIONS]
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[
            ApiVersion(
                api_key=ApiKey.API_VERSIONS,
                min_version=api.min_version,
                max_version=api.max_version,
            )
        ],
    )


def _rows() -> list[ApiVersion]:
    return [
        ApiVersion(api_key=key, min_version=low, max_version=high)
        for key, low, high in api_versions_rows()
    ]
