"""The dispatcher: turns a request frame into the buffers of its response."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, cast

from pybroker.deferred import Deferred
from pybroker.errors import CloseConnection
from pybroker.handlers.alter_configs import (
    handle_alter_configs,
    handle_incremental_alter_configs,
)
from pybroker.handlers.api_versions import handle_api_versions, unsupported_api_versions
from pybroker.handlers.configs import handle_describe_configs
from pybroker.handlers.context import Request, Services
from pybroker.handlers.control import (
    handle_leader_and_isr,
    handle_stop_replica,
    handle_update_metadata,
)
from pybroker.handlers.controlled_shutdown import handle_controlled_shutdown
from pybroker.handlers.coordinators import handle_find_coordinator
from pybroker.handlers.deletion import handle_delete_records
from pybroker.handlers.elect_leaders import handle_elect_leaders
from pybroker.handlers.fetch import handle_fetch
from pybroker.handlers.group_admin import (
    handle_delete_groups,
    handle_describe_groups,
    handle_list_groups,
)
from pybroker.handlers.groups import (
    handle_heartbeat,
    handle_join_group,
    handle_leave_group,
    handle_sync_group,
)
from pybroker.handlers.leader_epochs import handle_offset_for_leader_epoch
from pybroker.handlers.list_offsets import handle_list_offsets
from pybroker.handlers.log_dirs import handle_alter_replica_log_dirs, handle_describe_log_dirs
from pybroker.handlers.metadata import handle_describe_cluster, handle_metadata
from pybroker.handlers.metadata_cache import MetadataCache, Question, State
from pybroker.handlers.offsets import (
    handle_offset_commit,
    handle_offset_delete,
    handle_offset_fetch,
)
from pybroker.handlers.partition_expansion import handle_create_partitions
from pybroker.handlers.produce import handle_produce
from pybroker.handlers.produce_lane import ProduceLane, Taken
from pybroker.handlers.producer_ids import handle_init_producer_id
from pybroker.handlers.producer_states import handle_describe_producers
from pybroker.handlers.topics import handle_create_topics, handle_delete_topics
from pybroker.handlers.transaction_admin import (
    handle_describe_transactions,
    handle_list_transactions,
)
from pybroker.handlers.transactional_offsets import handle_txn_offset_commit
from pybroker.handlers.transactions import (
    handle_add_offsets_to_txn,
    handle_add_partitions_to_txn,
    handle_end_txn,
)
from pybroker.handlers.txn_markers import handle_write_txn_markers
from pybroker.handlers.unavailable import UNAVAILABLE
from pybroker.ports import Buffer
from pybroker.wire.api import APIS, Api, ApiKey
from pybroker.wire.codec import decode_request, encode_response
from pybroker.wire.fetch_path import decode_fetch_request, encode_fetch_response
from pybroker.wire.headers import RequestHeader, parse_request_header
from pybroker.wire.messages.cluster import ApiVersionsResponse
from pybroker.wire.messages.fetch import FetchResponse
from pybroker.wire.messages.metadata import MetadataRequest
from pybroker.wire.produce_path import decode_produce_request
from pybroker.wire.schema import Message

log = logging.getLogger(__name__)

Handler = Callable[[Services, Request, Message], Message | Awaitable[Message | None] | None]
Answer = list[Buffer] | None

_SIZE_AND_CORRELATION: Final = struct.Struct(">ii")
_JOINED_BYTES_MAX: Final = 8 * 1024

_BUILT: Final[dict[ApiKey, object]] = {
    ApiKey.PRODUCE: handle_produce,
    ApiKey.FETCH: handle_fetch,
    ApiKey.LIST_OFFSETS: handle_list_offsets,
    ApiKey.METADATA: handle_metadata,
    ApiKey.API_VERSIONS: handle_api_versions,
    ApiKey.LEADER_AND_ISR: handle_leader_and_isr,
    ApiKey.STOP_REPLICA: handle_stop_replica,
    ApiKey.UPDATE_METADATA: handle_update_metadata,
    ApiKey.CONTROLLED_SHUTDOWN: handle_controlled_shutdown,
    ApiKey.FIND_COORDINATOR: handle_find_coordinator,
    ApiKey.CREATE_TOPICS: handle_create_topics,
    ApiKey.DELETE_TOPICS: handle_delete_topics,
    ApiKey.CREATE_PARTITIONS: handle_create_partitions,
    ApiKey.DELETE_RECORDS: handle_delete_records,
    ApiKey.ELECT_LEADERS: handle_elect_leaders,
    ApiKey.DESCRIBE_PRODUCERS: handle_describe_producers,
    ApiKey.INIT_PRODUCER_ID: handle_init_producer_id,
    ApiKey.WRITE_TXN_MARKERS: handle_write_txn_markers,
    ApiKey.ALTER_REPLICA_LOG_DIRS: handle_alter_replica_log_dirs,
    ApiKey.DESCRIBE_LOG_DIRS: handle_describe_log_dirs,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: handle_offset_for_leader_epoch,
    ApiKey.DESCRIBE_CLUSTER: handle_describe_cluster,
    ApiKey.DESCRIBE_CONFIGS: handle_describe_configs,
    ApiKey.ALTER_CONFIGS: handle_alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: handle_incremental_alter_configs,
    ApiKey.JOIN_GROUP: handle_join_group,
    ApiKey.SYNC_GROUP: handle_sync_group,
    ApiKey.HEARTBEAT: handle_heartbeat,
    ApiKey.LEAVE_GROUP: handle_leave_group,
    ApiKey.OFFSET_COMMIT: handle_offset_commit,
    ApiKey.TXN_OFFSET_COMMIT: handle_txn_offset_commit,
    ApiKey.OFFSET_FETCH: handle_offset_fetch,
    ApiKey.OFFSET_DELETE: handle_offset_delete,
    ApiKey.DESCRIBE_GROUPS: handle_describe_groups,
    ApiKey.LIST_GROUPS: handle_list_groups,
    ApiKey.DELETE_GROUPS: handle_delete_groups,
    ApiKey.ADD_PARTITIONS_TO_TXN: handle_add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: handle_add_offsets_to_txn,
    ApiKey.END_TXN: handle_end_txn,
    ApiKey.DESCRIBE_TRANSACTIONS: handle_describe_transactions,
    ApiKey.LIST_TRANSACTIONS: handle_list_transactions,
}


def handler_table() -> Mapping[ApiKey, Handler]:
    """Return the handler of each API that ApiVersions advertises."""
    both = _BUILT.keys() & UNAVAILABLE.keys()
    missing = APIS.keys() - _BUILT.keys() - UNAVAILABLE.keys()
    if both or missing:
        raise AssertionError(f"APIs handled twice: {sorted(both)}; not handled: {sorted(missing)}")
    return cast("dict[ApiKey, Handler]", {**UNAVAILABLE, **_BUILT})


class Dispatcher:
    """Answers request frames, on the event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._check_lease = services.lease.check
        self._handlers = {int(key): handler for key, handler in handler_table().items()}
        self._apis = {int(key): api for key, api in APIS.items()}
        self.lane = ProduceLane(services)
        self._metadata_cache = MetadataCache()
        self._api_versions: dict[int, bytes] = {}

    def answer(
        self, frame: memoryview, listener: str, peer_host: str
    ) -> Answer | Awaitable[Answer]:
        """Return the buffers of the response frame (None: no response), or an awaitable of them.
        This method or the awaitable raises MalformedInput or CloseConnection if the connection has
        to be closed."""
        self._check_lease()
        taken = self.lane.answer(frame)
        if taken is not None:
            if isinstance(taken, Deferred):
                return taken.then(_encode_taken)
            return _encode_taken(taken)
        header, body_start = parse_request_header(frame)
        api = self._apis.get(header.api_key)
        if api is None:
            raise CloseConnection(f"API key {header.api_key} is not supported")
        if not api.supports(header.version):
            if api.key is ApiKey.API_VERSIONS:
                body = encode_response(api, 0, unsupported_api_versions())
                return _frame(api, 0, header.correlation_id, [body])
            raise CloseConnection(f"{api.key.name} version {header.version} is not supported")
        request = Request(header, listener, peer_host)
        if api.key is ApiKey.METADATA:
            return self._answer_metadata(api, request, frame[body_start:])
        message = _decode(api, header.version, frame[body_start:])
        result = self._handlers[header.api_key](self._services, request, message)
        if isinstance(result, Deferred | Awaitable):  # the first is the faster check
            return _answer_later(api, request, result)
        if api.key is ApiKey.API_VERSIONS:
            return self._answer_api_versions(api, request, cast("ApiVersionsResponse", result))
        return _encode(api, request, result)

    async def call(self, key: ApiKey, version: int, listener: str, message: Message) -> Message:
        """Handle a request of this broker to itself, and return the response."""
        request = Request(RequestHeader(key, version, 0, None), listener, "")
        result = self._handlers[key](self._services, request, message)
        response = await result if isinstance(result, Awaitable) else result
        assert response is not None
        return response

    def _answer_api_versions(
        self, api: Api, request: Request, result: ApiVersionsResponse
    ) -> Answer:
        if result.error_code != 0:
            return _encode(api, request, result)
        encoded = self._api_versions.get(request.version)
        if encoded is None:
            encoded = encode_response(api, request.version, result)
            self._api_versions[request.version] = encoded
        return _frame(api, request.version, request.header.correlation_id, [encoded])

    def _answer_metadata(
        self, api: Api, request: Request, body: memoryview
    ) -> Answer | Awaitable[Answer]:
        services = self._services
        state = State(services.metadata.version, services.controller_id)
        question = Question(request.version, request.listener, bytes(body))
        correlation_id = request.header.correlation_id
        encoded = self._metadata_cache.get(state, question)
        if encoded is None:
            message = cast("MetadataRequest", _decode(api, request.version, body))
            result = handle_metadata(services, request, message)
            if isinstance(result, Awaitable):
                return _answer_later(api, request, result)
            encoded = encode_response(api, request.version, result)
            self._metadata_cache.put(state, question, encoded)
        return _frame(api, request.version, correlation_id, [encoded])


def _encode_taken(taken: Taken) -> Answer:
    return taken if isinstance(taken, list) else _encode(APIS[ApiKey.PRODUCE], *taken)


def _answer_later(
    api: Api, request: Request, result: Awaitable[Message | None]
) -> Awaitable[Answer]:
    if isinstance(result, Deferred):
        return result.then(partial(_encode, api, request))
    return _answer_after(api, request, result)


async def _answer_after(api: Api, request: Request, result: Awaitable[Message | None]) -> Answer:
    try:
        message = await result
    except asyncio.CancelledError:
        log.debug("request cancelled, its connection has closed api=%s", api.key.name)
        raise
    return _encode(api, request, message)


def _decode(api: Api, version: int, body: memoryview) -> Message:
    if api.key is ApiKey.PRODUCE:
        return decode_produce_request(version, body)
    if api.key is ApiKey.FETCH:
        return decode_fetch_request(version, body)
    return decode_request(api, version, body)


def _encode(api: Api, request: Request, message: Message | None) -> Answer:
    if message is None:
        return None
    version = request.version
    if api.key is ApiKey.FETCH:
        buffers = encode_fetch_response(version, cast("FetchResponse", message))
    else:
        buffers = [encode_response(api, version, message)]
    return _frame(api, version, request.header.correlation_id, buffers)


def _frame(api: Api, version: int, correlation_id: int, body: list[Buffer]) -> list[Buffer]:
    """Return the response frame: the size, the response header, and the buffers of `body`."""
    tagged = b"\0" if api.response_header_version(version) else b""
    size = 4 + len(tagged) + sum(map(len, body))
    head = _SIZE_AND_CORRELATION.pack(size, correlation_id) + tagged
    # To copy a few bytes is cheaper than to write another buffer.
    return [head, *body] if size > _JOINED_BYTES_MAX else [b"".join((head, *body))]
