"""Listeners in the syntax of Kafka's options: `NAME://host:port`. This module does no I/O."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pybroker.model import Endpoint

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
AVAILABLE_PROTOCOLS: Final = ("PLAINTEXT",)
PORT_MAX: Final = 65_535

_LISTENER = re.compile(r"([^:/\s]+)://(\[[0-9a-zA-Z%._:-]*\]|[0-9a-zA-Z%._-]*):(-?[0-9]{1,10})")
_WILDCARDS: Final = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Listener:
    """The address of a listener. An empty host means all interfaces (to bind) or this machine's
    name (to advertise). Port 0 means any free port."""

    name: str
    host: str
    port: int
    protocol: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        return self.host in ("", *_WILDCARDS)

    @property
    def is_loopback(self) -> bool:
        if self.host.lower() == "localhost":
            return True
        address = _address(self.host)
        return address is not None and address.is_loopback


@dataclass(frozen=True, slots=True)
class ListenerPlan:
    """The result of all listener options together: the addresses to bind, the addresses to
    advertise, the name of the inter-broker listener, and the faults of the options."""

    bound: tuple[Listener, ...]
    advertised: tuple[Listener, ...]
    inter_broker: str
    faults: tuple[str, ...] = ()


def plan_listeners(
    *,
    listeners: str,
    advertised_listeners: str | None,
    protocol_map: str,
    inter_broker_name: str | None,
    inter_broker_protocol: str,
) -> ListenerPlan:
    """Parse all listener options together, as Kafka does. If `advertised_listeners` is None, each
    listener is advertised with the address to which it is bound."""
    protocols, faults = parse_protocol_map(protocol_map)
    bound, more = parse_listeners("listeners", listeners, protocols, distinct_ports=True)
    faults += more
    if advertised_listeners is None:
        option, text, advertised = "listeners", listeners, bound
    else:
        option, text = "advertised.listeners", advertised_listeners
        advertised, more = parse_listeners(option, text, protocols, distinct_ports=False)
        faults += more
    if not faults:
        faults += _advertised_faults(option, text, advertised, bound)
    if inter_broker_name is None:
        inter_broker = inter_broker_protocol
        setting = f"security.inter.broker.protocol={inter_broker_protocol}"
    else:
        inter_broker = inter_broker_name.strip().upper()
        setting = f"inter.broker.listener.name={inter_broker_name}"
    names = [listener.name for listener in advertised]
    if not faults and inter_broker not in names:
        faults.append(
            f"{setting}: brokers connect to the listener {inter_broker}, but only "
            f"{', '.join(names)} is advertised; set inter.broker.listener.name to one of these"
        )
    return ListenerPlan(bound, advertised, inter_broker, tuple(faults))


def parse_protocol_map(text: str) -> tuple[dict[str, str], list[str]]:
    """Return the security protocol of each listener name in `listener.security.protocol.map`, and
    the faults of the text."""
    protocols: dict[str, str] = {}
    faults = []
    prefix = f"listener.security.protocol.map={text}"
    for pair in _items(text):
        name, _, protocol = (part.strip().upper() for part in pair.rpartition(":"))
        if not name:
            faults.append(f"{prefix}: expected NAME:PROTOCOL,..., found {pair}")
        elif protocol not in PROTOCOLS:
            faults.append(f"{prefix}: protocol {protocol}: expected one of {', '.join(PROTOCOLS)}")
        elif name in protocols:
            faults.append(f"{prefix}: expected one protocol for the listener {name}, found two")
        else:
            protocols[name] = protocol
    return protocols, faults


def parse_listeners(
    option: str, text: str, protocols: Mapping[str, str], *, distinct_ports: bool
) -> tuple[tuple[Listener, ...], list[str]]:
    """Parse `text`, the value of `option`. Return the listeners and the faults. With
    `distinct_ports`, two equal ports are a fault."""
    found: list[Listener] = []
    problems: list[str] = []
    for item in _items(text):
        listener = _listener(item, protocols)
        if isinstance(listener, str):
            problems.append(listener)
        elif any(listener.name == other.name for other in found):
            problems.append(f"the listener name {listener.name} is used twice")
        elif distinct_ports and any(_conflict(listener, other) for other in found):
            problems.append(f"the port {listener.port} is used twice")
        else:
            found.append(listener)
    if not found and not problems:
        problems.append("expected at least one NAME://HOST:PORT")
    return tuple(found), [f"{option}={text}: {problem}" for problem in problems]


def advertised_warnings(bound: Iterable[Listener], advertised: Sequence[Listener]) -> list[str]:
    """Return a warning for each listener that accepts connections from other machines, but
    advertises a loopback address."""
    by_name = {listener.name: listener for listener in advertised}
    return [
        f"listener {listener.name} accepts connections from other machines but advertises "
        f"{by_name[listener.name].host}, so clients there will fail; set advertised.listeners"
        for listener in bound
        if listener.name in by_name
        and not listener.is_loopback
        and by_name[listener.name].is_loopback
    ]


def endpoints(
    advertised: Iterable[Listener], bound_ports: Mapping[str, int], machine_name: str
) -> tuple[Endpoint, ...]:
    """Return the endpoints with which a broker registers. `machine_name` replaces an empty host,
    and `bound_ports` (listener name -> port) replaces port 0."""
    filled = (
        replace(
            listener,
            host=listener.host or machine_name,
            port=listener.port or bound_ports[listener.name],
        )
        for listener in advertised
    )
    return tuple(
        Endpoint(listener.name, listener.host, listener.port, listener.protocol)
        for listener in filled
    )


def _advertised_faults(
    option: str, text: str, advertised: Sequence[Listener], bound: Sequence[Listener]
) -> list[str]:
    """Return a sentence for each address that cannot be advertised, and for each name that is not
    among the listeners to bind."""
    names = {listener.name for listener in bound}
    faults = []
    for listener in advertised:
        if listener.host in _WILDCARDS:
            faults.append(
                f"{option}={text}: clients cannot connect to {listener.host}; set "
                "advertised.listeners to an address that they can reach"
            )
        if listener.name not in names:
            faults.append(
                f"{option}={text}: {listener.name} is not a name in listeners, expected one"
            )
    return faults


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _listener(item: str, protocols: Mapping[str, str]) -> Listener | str:
    """Return the listener in `item` (NAME://HOST:PORT). If `item` is invalid, return the reason."""
    match = _LISTENER.fullmatch(item)
    if match is None:
        return f"expected NAME://HOST:PORT, found {item}"
    name, host, port = match[1].upper(), match[2].strip("[]"), int(match[3])
    if not 0 <= port <= PORT_MAX:
        return f"expected a port from 0 to {PORT_MAX}, found {port}"
    if match[2].startswith("[") and _address(host) is None:
        return f"expected an IPv6 address in brackets, found {host}"
    protocol = protocols.get(name)
    if protocol is None:
        return f"listener {name} has no protocol in listener.security.protocol.map"
    if protocol not in AVAILABLE_PROTOCOLS:
        only = " or ".join(AVAILABLE_PROTOCOLS)
        return f"listener {name} uses {protocol}, which is not available; use {only}"
    return Listener(name, host, port, protocol)


def _conflict(first: Listener, second: Listener) -> bool:
    """Return whether the ports of the listeners conflict. Equal ports conflict, with two
    exceptions: port 0 (any port), and listeners of which one has an IPv4 and the other an IPv6
    address (KIP-797)."""
    if first.port != second.port or first.port == 0:
        return False
    versions = {getattr(_address(listener.host), "version", 0) for listener in (first, second)}
    return versions != {4, 6}
