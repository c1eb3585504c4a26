"""Tests of the versions that Kafka 3.9.1 accepts. They were taken from its
`MetadataVersion.fromVersionString`."""

from __future__ import annotations

import re

import pytest

from pybroker.config.broker_config import BrokerConfig
from pybroker.config.kafka_versions import VERSION, VERSION_NAMES
from pybroker.config.topic_config import topic_config_faults
from pybroker.errors import ConfigError

ALL_STEPS = [
    "0.8.0", "0.8.1", "0.8.2", "0.9.0", "0.10.0-IV0", "0.10.0-IV1", "0.10.1-IV0", "0.10.1-IV1",
    "0.10.1-IV2", "0.10.2-IV0", "0.11.0-IV0", "0.11.0-IV1", "0.11.0-IV2", "1.0-IV0", "1.1-IV0",
    "2.0-IV0", "2.0-IV1", "2.1-IV0", "2.1-IV1", "2.1-IV2", "2.2-IV0", "2.2-IV1", "2.3-IV0",
    "2.3-IV1", "2.4-IV0", "2.4-IV1", "2.5-IV0", "2.6-IV0", "2.7-IV0", "2.7-IV1", "2.7-IV2",
    "2.8-IV0", "2.8-IV1", "3.0-IV0", "3.0-IV1", "3.1-IV0", "3.2-IV0", "3.3-IV0", "3.3-IV1",
    "3.3-IV2", "3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1",
    "3.6-IV2", "3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0",
    "4.0-IV0", "4.0-IV1",
]  # fmt: skip
"""Kafka's `MetadataVersion.values()`."""
ACCEPTED = [
    "0.8.0", "0.8.2.2", "0.9.0", "0.10.0.0", "0.10.0.0-IV1", "0.10.0-IV1", "0.10.0-IV1.x",
    "0.10.2", "0.11.0", "1.0", "1.0.0", "2.8", "2.8.1", "2.8..x", "2.8.x.", "2.8-IV1.5",
    "2.8.1-IV0", "3.9", "3.9.1", "4.0-IV0",
]  # fmt: skip
REFUSED = [
    "0.8", "0.9", "0.10", "0.", "0.7.0", "0.10.0-IV2", "1", "2.8.", "2.8..", "2.8-IV2",
    "3.9-IV1", "3.10", "4.0", "4.0-IV3", "4.1", ".", "new",
]  # fmt: skip


def test_all_names_are_known() -> None:
    short = {name.partition("-")[0] for name in ALL_STEPS} - {"4.0"}
    assert {*ALL_STEPS, *short} == VERSION_NAMES


@pytest.mark.parametrize("text", [*ACCEPTED, *ALL_STEPS])
def test_a_topic_and_a_broker_accept_what_kafka_accepts(text: str) -> None:
    assert topic_config_faults(BrokerConfig(), {"message.format.version": text}) == []
    for name in ("log.message.format.version", "inter.broker.protocol.version"):
        assert BrokerConfig.parse({name: text}).given == {name: text}


@pytest.mark.parametrize("text", ["", " 2.8", "2.8 ", *REFUSED])
def test_versions_that_kafka_refuses_are_refused(text: str) -> None:
    assert not re.fullmatch(VERSION, text)
    (fault,) = topic_config_faults(BrokerConfig(), {"message.format.version": text})
    assert "a version of Kafka such as 3.0, 2.8.1 or 3.0-IV1" in fault
    with pytest.raises(ConfigError, match="a version of Kafka"):
        BrokerConfig.parse({"inter.broker.protocol.version": text})
