"""From the broker's options, as operators write them, to those of its rooms."""

from __future__ import annotations

import socket

from pybroker.broker.controlled_shutdown import ShutdownSettings
from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.controller.office import RebalanceSettings
from pybroker.handlers.context import BrokerOptions
from pybroker.replication.housekeeping import Intervals
from pybroker.server.limits import SYSTEMS_CHOICE, ServerLimits


def request_options(config: BrokerConfig) -> BrokerOptions:
    """What the handlers of requests go by."""
    return BrokerOptions(
        auto_create_topics=config.auto_create_topics_enable,
        delete_topics=config.delete_topic_enable,
        fetch_bytes_max=config.fetch_max_bytes,
        inter_broker_listener=config.inter_broker_listener,
        offset_metadata_max=config.offset_metadata_max_bytes,
    )


def rebalance_settings(config: BrokerConfig) -> RebalanceSettings | None:
    """None leaves leaders where they are."""
    if not config.auto_leader_rebalance_enable:
        return None
    return RebalanceSettings(
        imbalance_percentage=config.leader_imbalance_per_broker_percentage,
        interval_s=config.leader_imbalance_check_interval_seconds,
    )


def intervals(config: BrokerConfig) -> Intervals:
    """How often the logs are looked after."""
    return Intervals(
        high_watermark_checkpoint_ms=config.replica_high_watermark_checkpoint_interval_ms,
        retention_check_ms=config.log_retention_check_interval_ms,
    )


def server_limits(config: BrokerConfig) -> ServerLimits:
    """What the listeners let in."""
    return ServerLimits(
        request_bytes_max=config.socket_request_max_bytes,
        connections_max=config.max_connections,
        connections_per_ip_max=config.max_connections_per_ip,
        connections_per_ip_overrides=config.connections_per_ip_overrides,
        protected_listener=None
        if len(config.bound_listeners) == 1
        else config.inter_broker_listener,
        connections_per_second_max=config.max_connection_creation_rate,
        backlog=config.socket_listen_backlog_size
        if "socket.listen.backlog.size" in config.given
        else socket.SOMAXCONN,
        idle_ms_max=config.connections_max_idle_ms,
        read_ms_max=config.pybroker_request_read_timeout_ms,
        request_memory_bytes_max=config.queued_max_request_bytes,
        receive_buffer_bytes=config.socket_receive_buffer_bytes
        if "socket.receive.buffer.bytes" in config.given
        else SYSTEMS_CHOICE,
        send_buffer_bytes=config.socket_send_buffer_bytes
        if "socket.send.buffer.bytes" in config.given
        else SYSTEMS_CHOICE,
    )


def shutdown_settings(config: BrokerConfig) -> ShutdownSettings:
    """Of the hand-over before a stop."""
    return ShutdownSettings(
        enable=config.controlled_shutdown_enable,
        attempts_max=config.controlled_shutdown_max_retries,
        backoff_s=config.controlled_shutdown_retry_backoff_ms / 1000,
        attempt_s=config.controller_socket_timeout_ms / 1000,
    )
