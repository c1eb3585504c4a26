"""Tests of listener options: bound addresses, advertised addresses, and refused values."""

from __future__ import annotations

import pytest

from pybroker.config.listeners import (
    Listener,
    ListenerPlan,
    advertised_warnings,
    endpoints,
    plan_listeners,
)
from pybroker.model import Endpoint

MAP = "PLAINTEXT:PLAINTEXT,SSL:SSL,INTERNAL:PLAINTEXT,ADMIN:PLAINTEXT"


def plan(listeners: str, advertised: str | None = None, **rest: str) -> ListenerPlan:
    return plan_listeners(
        listeners=listeners,
        advertised_listeners=advertised,
        protocol_map=rest.get("protocol_map", MAP),
        inter_broker_name=rest.get("inter"),
        inter_broker_protocol=rest.get("protocol", "PLAINTEXT"),
    )


def shown(listeners: tuple[Listener, ...]) -> str:
    return ",".join(str(listener) for listener in listeners)


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("PLAINTEXT://:9092", "PLAINTEXT://:9092"),
        ("plaintext://h:9092", "PLAINTEXT://h:9092"),
        (
            "PLAINTEXT://:9092, INTERNAL://127.0.0.1:19092",
            "PLAINTEXT://:9092,INTERNAL://127.0.0.1:19092",
        ),
        ("PLAINTEXT://[::1]:9092", "PLAINTEXT://[::1]:9092"),
        ("PLAINTEXT://h:0,INTERNAL://h:0", "PLAINTEXT://h:0,INTERNAL://h:0"),
        (
            "PLAINTEXT://127.0.0.1:9092,INTERNAL://[::1]:9092",
            "PLAINTEXT://127.0.0.1:9092,INTERNAL://[::1]:9092",
        ),
    ],
)
def test_listeners_are_read(text: str, bound: str) -> None:
    result = plan(text)
    assert result.faults == ()
    assert shown(result.bound) == shown(result.advertised) == bound


@pytest.mark.parametrize(
    ("listeners", "advertised", "fault"),
    [
        ("", None, "at least one"),
        ("PLAINTEXT://h", None, "expected NAME://HOST:PORT, found PLAINTEXT://h"),
        ("PLAINTEXT:9092", None, "expected NAME://HOST:PORT"),
        ("PLAINTEXT://::1:9092", None, "expected NAME://HOST:PORT"),
        ("PLAINTEXT://[::zz]:9092", None, "IPv6 address in brackets, found ::zz"),
        ("PLAINTEXT://h:70000", None, "port from 0 to 65535"),
        ("PLAINTEXT://h:-1", None, "port from 0 to 65535"),
        ("PLAINTEXT://:9092,PLAINTEXT://:9093", None, "name PLAINTEXT is used twice"),
        ("PLAINTEXT://:9092,INTERNAL://:9092", None, "port 9092 is used twice"),
        ("OTHER://:9092", None, "OTHER has no protocol"),
        ("SSL://:9092", None, "SSL, which is not available"),
        ("PLAINTEXT://0.0.0.0:9092", None, "clients cannot connect to 0.0.0.0"),
        ("PLAINTEXT://[::]:9092", None, "clients cannot connect to ::"),
        ("PLAINTEXT://:9092", "PLAINTEXT://0.0.0.0:9092", "advertised.listeners=PLAINTEXT"),
        ("PLAINTEXT://:9092", "", "advertised.listeners=: expected at least one"),
        (
            "PLAINTEXT://:9092",
            "PLAINTEXT://h:1,ADMIN://h:2",
            "ADMIN is not a name in listeners",
        ),
        ("ADMIN://:9092", None, "listener PLAINTEXT, but only ADMIN is advertised"),
    ],
)
def test_a_bad_listener_is_one_clear_fault(
    listeners: str, advertised: str | None, fault: str
) -> None:
    faults = plan(listeners, advertised).faults
    assert len(faults) == 1
    assert fault in faults[0]


def test_every_fault_is_named_at_once() -> None:
    assert len(plan("SSL://:1,PLAINTEXT://h,ADMIN://:99999", "FOO://h:1").faults) == 4


@pytest.mark.parametrize("text", ["A", ":PLAINTEXT", "A:B:C", "A:TLS", "A:SSL,A:PLAINTEXT"])
def test_a_bad_protocol_map_is_a_fault(text: str) -> None:
    faults = plan("PLAINTEXT://:1", protocol_map=f"PLAINTEXT:PLAINTEXT,{text}").faults
    assert faults
    assert faults[0].startswith("listener.security.protocol.map=")


def test_the_inter_broker_listener_is_configurable() -> None:
    both = "PLAINTEXT://:1,INTERNAL://:2"
    assert plan(both).inter_broker == "PLAINTEXT"
    assert plan(both, inter="internal").inter_broker == "INTERNAL"
    assert "NOPE" in plan(both, inter="NOPE").faults[0]


def test_a_listener_may_stay_unadvertised_and_ports_may_be_advertised_twice() -> None:
    result = plan("PLAINTEXT://:1,ADMIN://:2,INTERNAL://:3", "PLAINTEXT://a:9,INTERNAL://b:9")
    assert result.faults == ()
    assert shown(result.advertised) == "PLAINTEXT://a:9,INTERNAL://b:9"


@pytest.mark.parametrize(
    ("bound", "advertised", "warned"),
    [
        ("PLAINTEXT://:1", "PLAINTEXT://localhost:1", True),
        ("PLAINTEXT://0.0.0.0:1", "PLAINTEXT://127.0.0.1:1", True),
        ("PLAINTEXT://10.0.0.1:1", "PLAINTEXT://[::1]:1", True),
        ("PLAINTEXT://127.0.0.1:1", "PLAINTEXT://localhost:1", False),
        ("PLAINTEXT://:1", "PLAINTEXT://example:1", False),
    ],
)
def test_advertising_loopback_to_other_machines_is_warned_of(
    bound: str, advertised: str, warned: bool
) -> None:
    result = plan(bound, advertised)
    assert bool(advertised_warnings(result.bound, result.advertised)) is warned


def test_registered_endpoints_have_a_host_and_a_port() -> None:
    result = plan("PLAINTEXT://:0,INTERNAL://127.0.0.1:7")
    assert endpoints(result.advertised, {"PLAINTEXT": 5, "INTERNAL": 7}, "machine") == (
        Endpoint("PLAINTEXT", "machine", 5, "PLAINTEXT"),
        Endpoint("INTERNAL", "127.0.0.1", 7, "PLAINTEXT"),
    )
