"""From the broker's options to those of components that count in other units."""

from __future__ import annotations

from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.controller.office import RebalanceSettings


def rebalance_settings(config: BrokerConfig) -> RebalanceSettings | None:
    """None leaves leaders where they are."""
    if not config.auto_leader_rebalance_enable:
        return None
    return RebalanceSettings(
        imbalance_percentage=config.leader_imbalance_per_broker_percentage,
        interval_s=config.leader_imbalance_check_interval_seconds,
    )
