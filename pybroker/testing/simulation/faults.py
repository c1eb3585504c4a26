"""The faults that a simulation injects. Each function causes a fault. It returns a function that
ends the fault, or None if there is nothing to end."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from pybroker.testing.simulation.broker import OFFSETS, SimBroker
from pybroker.testing.simulation.cluster import SimCluster
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.kinds import BY_NAME
from pybroker.testing.simulation.links import Delay
from pybroker.testing.simulation.movers import Moves
from pybroker.testing.simulation.schedule import FaultEvent
from pybroker.testing.simulation.zookeeper_session import ZooKeeperSession

Undo = Callable[[], object]

_FLIPPED: Final = (".log", ".log", ".log", ".log", "index", "checkpoint", ".snapshot")
_WRITTEN_BEFORE_CRASH: Final = (0, 0, 1, 17, 61, 1000)
_HEARD_LATELY_S: Final = 0.5
_SILENT_DEATHS: Final = 0.3
_LITTLE_ROOM_BYTES: Final = 2_000


@dataclass(frozen=True, slots=True)
class Scene:
    """The context of one fault: the cluster, the entry in the schedule, the affected brokers, and a
    random stream of its own."""

    cluster: SimCluster
    event: FaultEvent
    brokers: list[SimBroker]
    """The affected brokers; empty for faults of ZooKeeper."""
    rng: random.Random
    moves: Moves

    @property
    def broker(self) -> SimBroker:
        return self.brokers[0]

    @property
    def peers(self) -> list[str]:
        return [
            each.machine.name for each in self.cluster.brokers.values() if each is not self.broker
        ]

    @property
    def zookeepers(self) -> list[str]:
        return list(self.cluster.zookeeper.members)

    @property
    def clients(self) -> list[str]:
        known = {self.broker.machine.name, *self.peers, *self.zookeepers}
        return [name for name in sorted(self.cluster.machines) if name not in known]

    @property
    def others(self) -> list[str]:
        return [*self.peers, *self.zookeepers, *self.clients]

    @property
    def directions(self) -> Iterator[tuple[str, str]]:
        """Yield (source, target) machine names for each direction that the fault affects."""
        first, second = (each.machine.name for each in self.brokers)
        yield first, second
        if ">" not in self.event.target:
            yield second, first


def _all_of(actions: Iterable[Undo]) -> Undo:
    kept = list(actions)

    def undo() -> None:
        for action in kept:
            action()

    return undo


# ---- processes and machines


def kill(scene: Scene) -> Undo:
    for broker in scene.brokers:
        broker.machine.kill()
    return _all_of(broker.start for broker in scene.brokers)


def crash(scene: Scene) -> Undo:
    broker = scene.broker
    point = broker.disk.kill_at(
        int(scene.event.parameter("operations")),
        broker.machine.kill,
        after_bytes=scene.rng.choice(_WRITTEN_BEFORE_CRASH),
    )

    def undo() -> None:
        point.when = lambda operation, path: False
        broker.start()

    return undo


def stop(scene: Scene) -> Undo:
    scene.broker.terminate()
    return scene.broker.start


def pause(scene: Scene) -> Undo | None:
    loop = scene.broker.machine.loop
    if loop is None:
        return None
    loop.pause()
    return loop.resume


def hiccups(scene: Scene) -> Undo:
    environment, machine, rng = scene.cluster.environment, scene.broker.machine, scene.rng
    each_s, most_s = scene.event.parameter("each_s"), scene.event.parameter("most_s")
    is_over = False

    def stop_shortly() -> None:
        loop = machine.loop
        if is_over:
            return
        if loop is not None and not loop.is_paused:
            loop.pause()
            environment.after(rng.random() * most_s, loop.resume)
        environment.after(most_s + rng.random() * each_s, stop_shortly)

    def undo() -> None:
        nonlocal is_over
        is_over = True

    stop_shortly()
    return undo


def power(scene: Scene) -> Undo:
    for broker in scene.brokers:
        broker.machine.lose_power()
    return _all_of(broker.start for broker in scene.brokers)


def wipe(scene: Scene) -> Undo:
    scene.broker.machine.kill()
    scene.broker.disk.replace_medium()
    return scene.broker.start


def clock(scene: Scene) -> None:
    scene.broker.machine.clock.jump_ms += int(1000 * scene.event.parameter("jump_s"))


# ---- links


def cut(scene: Scene) -> Undo:
    return _cut(scene, [*scene.directions])


def isolate(scene: Scene) -> Undo:
    return _cut_off(scene, scene.others)


def isolate_from_peers(scene: Scene) -> Undo:
    return _cut_off(scene, scene.peers)


def isolate_from_zookeeper(scene: Scene) -> Undo:
    return _cut_off(scene, scene.zookeepers)


def isolate_from_clients(scene: Scene) -> Undo:
    return _cut_off(scene, scene.clients)


def _cut_off(scene: Scene, names: list[str]) -> Undo:
    name = scene.broker.machine.name
    return _cut(scene, [pair for other in names for pair in ((name, other), (other, name))])


def _cut(scene: Scene, directions: list[tuple[str, str]]) -> Undo:
    links = scene.cluster.links
    for source, target in directions:
        links.cut(source, [target])
    return _all_of(partial(links.heal, source, [target]) for source, target in directions)


def slow(scene: Scene) -> Undo:
    return _slow(scene, [*scene.directions])


def slow_zookeeper(scene: Scene) -> Undo:
    name = scene.broker.machine.name
    return _slow(scene, [pair for zk in scene.zookeepers for pair in ((name, zk), (zk, name))])


def _slow(scene: Scene, directions: list[tuple[str, str]]) -> Undo:
    links, event = scene.cluster.links, scene.event
    delay = Delay(usual_s=event.parameter("usual_s"), most_s=event.parameter("most_s"))
    for source, target in directions:
        links.slow(source, target, delay)
    return _all_of(partial(links.slow, source, target, None) for source, target in directions)


def reset(scene: Scene) -> None:
    for other in scene.others:
        scene.cluster.network.reset(scene.broker.machine.name, other)


def lose_answers(scene: Scene) -> None:
    length = int(scene.event.parameter("bytes"))
    for other in scene.others:
        scene.cluster.network.reset_after(other, scene.broker.machine.name, length)


def half_open(scene: Scene) -> None:
    for connected in scene.cluster.network.host(scene.broker.machine).connected:
        connected.lose()


def double_connect(scene: Scene) -> None:
    for other in scene.others:
        scene.cluster.network.double_next(other, scene.broker.machine.name)
        scene.cluster.network.double_next(scene.broker.machine.name, other)


# ---- ZooKeeper


def expire(scene: Scene) -> None:
    """Expire a ZooKeeper session of the broker. Do nothing if the broker is paused or cut off from
    ZooKeeper: ZooKeeper could not notify the broker."""
    client = _session(scene)
    if client is None or client.member is None:
        return
    machine, passes = scene.broker.machine.name, scene.cluster.links.passes
    is_reached = passes(machine, client.member) and passes(client.member, machine)
    if is_reached and client.silence() < _HEARD_LATELY_S:
        scene.cluster.zookeeper.expire(client.session_id)


def lose_reply(scene: Scene) -> None:
    client = _session(scene)
    if client is not None:
        client.lose_reply(applied=scene.event.kind != "zk-lose-request")


def expire_at_write(scene: Scene) -> None:
    client = _session(scene)
    if client is not None:
        client.lose_reply(applied=False, expires=True)


def _session(scene: Scene) -> ZooKeeperSession | None:
    """Return the session that the fault affects: the session for committed offsets if the fault
    needs consumer groups, otherwise the main session."""
    purpose = OFFSETS if BY_NAME[scene.event.kind].needs_groups else ""
    return scene.cluster.zookeeper.client(scene.broker.machine.name, purpose)


def member_down(scene: Scene) -> Undo:
    return _down(scene, [_member(scene)])


def quorum_lost(scene: Scene) -> Undo:
    names = [*scene.cluster.zookeeper.members]
    return _down(scene, scene.rng.sample(names, len(names) // 2 + 1))


def _down(scene: Scene, names: list[str]) -> Undo:
    zookeeper, silently = scene.cluster.zookeeper, scene.rng.random() < _SILENT_DEATHS
    for name in names:
        zookeeper.down(name, silently=silently)
    return _all_of(partial(zookeeper.up, name) for name in names)


def member_lags(scene: Scene) -> Undo:
    zookeeper, name = scene.cluster.zookeeper, _member(scene)
    zookeeper.lag(name, scene.event.parameter("most_s"))
    return partial(zookeeper.lag, name, 0.0)


def _member(scene: Scene) -> str:
    names = [*scene.cluster.zookeeper.members]
    return names[(int(scene.event.target.partition("/")[2]) - 1) % len(names)]


# ---- disks


def disk_full(scene: Scene) -> Undo:
    broker = scene.broker
    broker.disk.capacity = broker.disk.used_bytes + scene.rng.randrange(_LITTLE_ROOM_BYTES)

    def undo() -> None:
        broker.disk.capacity = None
        broker.start()

    return undo


def sync_error(scene: Scene) -> Undo:
    broker = scene.broker
    broker.disk.fail("sync")

    def undo() -> None:
        broker.disk.mend()
        broker.machine.kill()
        broker.start()

    return undo


def slow_disk(scene: Scene) -> Undo:
    disk = scene.broker.disk
    disk.slow_s = scene.event.parameter("most_s")

    def undo() -> None:
        disk.slow_s = 0.0

    return undo


def flip(scene: Scene) -> Undo:
    scene.broker.machine.kill()
    scene.broker.disk.flip_random(scene.rng.choice(_FLIPPED))
    return scene.broker.start


# ---- log directories


def lose_directory(scene: Scene) -> Undo:
    """Kill the broker and empty one of its log directories, as if its disk was replaced. The
    returned function starts the broker again."""
    broker = scene.broker
    broker.machine.kill()
    path = scene.rng.choice(broker.log_dirs)
    disk = DiskView(broker.disk)
    disk.remove_tree(path)
    disk.make_dirs(path)
    disk.sync_dir(path.rpartition("/")[0])
    scene.cluster.environment.note(f"{broker.disk.name} has an empty {path}")
    return broker.start


def move_replicas(scene: Scene) -> Undo:
    return scene.moves.ask(scene.broker, scene.event.parameter("each_s"), scene.rng)


FAULTS: Final[Mapping[str, Callable[[Scene], Undo | None]]] = {
    "kill": kill,
    "crash": crash,
    "stop": stop,
    "pause": pause,
    "power": power,
    "blackout": power,
    "kill-all": kill,
    "wipe": wipe,
    "clock": clock,
    "hiccups": hiccups,
    "cut": cut,
    "isolate": isolate,
    "isolate-from-peers": isolate_from_peers,
    "isolate-from-zookeeper": isolate_from_zookeeper,
    "isolate-from-clients": isolate_from_clients,
    "slow": slow,
    "slow-zookeeper": slow_zookeeper,
    "reset": reset,
    "lose-answers": lose_answers,
    "half-open": half_open,
    "double-connect": double_connect,
    "expire": expire,
    "zk-lose-answer": lose_reply,
    "zk-lose-request": lose_reply,
    "zk-expire-write": expire_at_write,
    "expire-offsets": expire,
    "offsets-lose-answer": lose_reply,
    "offsets-expire-write": expire_at_write,
    "zk-down": member_down,
    "zk-lag": member_lags,
    "zk-quorum": quorum_lost,
    "disk-full": disk_full,
    "sync-error": sync_error,
    "slow-disk": slow_disk,
    "flip": flip,
    "lose-directory": lose_directory,
    "moves": move_replicas,
}
"""The implementation of each kind of fault, by its name."""


def heal(cluster: SimCluster) -> None:
    """End all faults of links, disks and ZooKeeper, and start all processes and machines that are
    down."""
    cluster.links.heal_all()
    cluster.network.cut_after.clear()
    cluster.zookeeper.heal()
    for broker in cluster.brokers.values():
        broker.disk.mend()
        if broker.machine.loop is not None:
            broker.machine.loop.resume()
    cluster.start()
