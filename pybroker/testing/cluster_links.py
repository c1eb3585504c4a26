"""The proxies of a test's cluster: between each broker and ZooKeeper, and in front of each broker
for clients and other brokers. A proxy identifies a broker by the process at the other end of the
connection."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum

from pybroker.coordinator.zookeeper.connect_string import ConnectString
from pybroker.testing.cluster_parts import BROKERS, CLIENTS, BrokerProcess, ClusterError
from pybroker.testing.relay import ANYBODY, Direction, Relay, Tap
from pybroker.testing.sockets import owner_of_port


class Side(Enum):
    """The data that a cut holds back: data to the broker, data from the broker, or both."""

    BOTH = "both"
    IN = "in"
    OUT = "out"

    def of_target(self) -> frozenset[Direction]:
        """Return the directions to cut in the proxy in front of the isolated broker. Other brokers
        and clients connect to the isolated broker through this proxy."""
        return _DIRECTIONS[self]

    def of_caller(self) -> frozenset[Direction]:
        """Return the directions to cut in a proxy through which the isolated broker connects to
        ZooKeeper or to another broker."""
        return _DIRECTIONS[_SEEN_FROM_THE_OTHER[self]]


_DIRECTIONS = {
    Side.BOTH: frozenset(Direction),
    Side.IN: frozenset({Direction.TO_TARGET}),
    Side.OUT: frozenset({Direction.FROM_TARGET}),
}
_SEEN_FROM_THE_OTHER = {Side.BOTH: Side.BOTH, Side.IN: Side.OUT, Side.OUT: Side.IN}


def _anybody(port: int) -> str:
    """Return the same peer name for every client, because a cut or tap always affects all
    clients."""
    return ANYBODY


class Links:
    """The proxies on all links of a cluster, from `start` to `close`."""

    def __init__(self, brokers: Mapping[int, BrokerProcess], zookeeper: ConnectString) -> None:
        self._brokers = brokers
        self._chroot = zookeeper.chroot
        self._relays: dict[tuple[int, str], Relay] = {}
        """The relay in front of each listener, by broker id and listener name."""
        self._zookeeper: dict[int, list[Relay]] = {
            broker: [Relay(host) for host in zookeeper.hosts] for broker in brokers
        }
        for broker, process in brokers.items():
            for name in (CLIENTS, BROKERS):
                self._relays[broker, name] = Relay(
                    (process.place.host, process.ports[name]),
                    port=process.advertised[name],
                    peer_of=self._name_of if name == BROKERS else _anybody,
                )
        self.cut_off: Collection[int] = frozenset()
        """The ids of the brokers for which `cut` was called since the last `heal`."""

    async def start(self) -> None:
        """Start all proxies. Raises OSError if one of the ports is in use."""
        for relay in self._all():
            await relay.start()

    async def close(self) -> None:
        """Close all proxies. Idempotent."""
        for relay in self._all():
            await relay.close()

    def zookeeper_of(self, broker: int) -> str:
        """Return the broker's zookeeper.connect: the address of the proxy between the broker and
        ZooKeeper."""
        hosts = ",".join(f"127.0.0.1:{relay.port}" for relay in self._zookeeper[broker])
        return hosts + self._chroot

    def cut(self, broker: int, others: Iterable[int | str], side: Side) -> None:
        """Hold back the data between a broker and each peer in `others`: `"zookeeper"`, `"clients"`
        or broker ids. Raises ClusterError for an unknown peer."""
        self._known(broker)
        for other in others:
            if other == "zookeeper":
                for relay in self._zookeeper[broker]:
                    relay.cut(directions=side.of_caller())
            elif other == "clients":
                self._relays[broker, CLIENTS].cut(directions=side.of_target())
            else:
                peer = self._known(other)
                self._relays[broker, BROKERS].cut(str(peer), side.of_target())
                self._relays[peer, BROKERS].cut(str(broker), side.of_caller())
        self.cut_off = frozenset({*self.cut_off, broker})

    def delay(self, seconds: float, jitter: float, to: str | None) -> None:
        """Delay the data as `Cluster.delay` does. Raises ClusterError for an unknown `to`."""
        kinds = {
            None: self._all(),
            "zookeeper": [relay for each in self._zookeeper.values() for relay in each],
            "clients": [relay for (_, name), relay in self._relays.items() if name == CLIENTS],
            "brokers": [relay for (_, name), relay in self._relays.items() if name == BROKERS],
        }
        if to not in kinds:
            raise ClusterError(f'`to` is {to!r}, expected "zookeeper", "clients" or "brokers"')
        for relay in kinds[to]:
            relay.delay(seconds, jitter)

    def reset(self, broker: int) -> None:
        """Reset all connections of a broker."""
        self._known(broker)
        for relay in self._zookeeper[broker]:
            relay.reset()
        for (other, _), relay in self._relays.items():
            relay.reset(ANYBODY if other == broker else str(broker))

    def tap(self, broker: int, other: str, make: Callable[[], Tap] | None) -> None:
        """Reset the connections between a broker and `other` (`"zookeeper"` or `"clients"`), and
        pass new connections' data through taps (`relay.Tap`) that `make` returns. None means no
        taps."""
        self._known(broker)
        if other == "zookeeper":
            for relay in self._zookeeper[broker]:
                relay.tap(make)
        elif other == "clients":
            self._relays[broker, CLIENTS].tap(make)
        else:
            raise ClusterError(f'`from_` is {other!r}, expected "zookeeper" or "clients"')

    def heal(self) -> None:
        """End all cuts, delays and taps of all links."""
        for relay in self._all():
            relay.heal()
        self.cut_off = frozenset()

    def _all(self) -> list[Relay]:
        return [*self._relays.values(), *(r for each in self._zookeeper.values() for r in each)]

    def _known(self, broker: int | str) -> int:
        if not isinstance(broker, int) or broker not in self._brokers:
            raise ClusterError(
                f'{broker!r} is no peer of a broker, expected "zookeeper", "clients" or a broker id'
            )
        return broker

    def _name_of(self, port: int) -> str:
        pids = {
            process.child.pid: broker
            for broker, process in self._brokers.items()
            if process.child is not None and process.is_running
        }
        owner = owner_of_port(port, pids)
        return ANYBODY if owner is None else str(pids[owner])
