"""A simulated ZooKeeper with processes that use it, and a nemesis that hurts all of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

from pybroker.testing.simulation.links import Links
from pybroker.testing.simulation.loop import ProcessLoop
from pybroker.testing.simulation.machine import Machine
from pybroker.testing.simulation.world import World
from pybroker.testing.simulation.zookeeper import ZooKeeper

Main = Callable[[ProcessLoop], Coroutine[Any, Any, object]]
PATIENCE_S: Final = 1000.0


class Stage:
    """`play` runs a coroutine in a process of its own, to its end."""

    def __init__(self, seed: str = "1") -> None:
        self.world = World(seed, keep_lines=True)
        self.links = Links(self.world)
        self.zookeeper = ZooKeeper(self.world, self.links)
        self.machines: list[Machine] = []

    def machine(self) -> Machine:
        machine = Machine(self.world, f"m{len(self.machines) + 1}")
        self.machines.append(machine)
        return machine

    def play(self, main: Main) -> None:
        done: list[BaseException | None] = []

        async def whole(loop: ProcessLoop) -> None:
            try:
                await main(loop)
            except BaseException as error:
                done.append(error)
            else:
                done.append(None)

        loop = self.machine().start(whole, None)
        assert self.world.run(self.world.now + PATIENCE_S, lambda: bool(done)), "it hangs"
        assert loop.failures == []
        if done[0] is not None:
            raise done[0]

    def close(self) -> None:
        for machine in self.machines:
            machine.bury()


class Nemesis:
    """Does something bad now and then, to all of the `victims` and to the members, and undoes it
    after a while."""

    def __init__(self, stage: Stage, victims: list[Machine], restart: Callable[[Machine], None]):
        self._stage = stage
        self._victims = victims
        self._restart = restart
        self._rng: random.Random = stage.world.rng("nemesis")
        self._ends_at = 0.0
        self.did: set[str] = set()

    def run(self, seconds: float) -> None:
        """Everything is whole again by then."""
        self._ends_at = self._stage.world.now + seconds
        self._stage.world.after(1.0, self._next)

    def _next(self) -> None:
        world = self._stage.world
        if world.now < self._ends_at - 6:
            name = self._rng.choice(
                ["kill", "pause", "cut", "break", "ambiguity", "expire", "down", "split", "lag"]
            )
            self.did.add(name)
            getattr(self, f"_{name}")()
            world.after(self._rng.random() * 1.5, self._next)

    def _later(self, action: Callable[..., object], *args: object) -> None:
        self._stage.world.after(0.05 + self._rng.random() ** 2 * 5, action, *args)

    def _kill(self) -> None:
        victim = self._rng.choice(self._victims)
        if victim.loop is not None:
            victim.kill()
            self._later(self._restart, victim)

    def _pause(self) -> None:
        loop = self._rng.choice(self._victims).loop
        if loop is not None:
            loop.pause()
            self._later(loop.resume)

    def _sever(self, one: str, others: list[str]) -> None:
        links, ways = self._stage.links, self._rng.randint(1, 3)
        if ways & 1:
            links.cut(one, others)
            self._later(links.heal, one, others)
        if ways & 2:
            for other in others:
                links.cut(other, [one])
                self._later(links.heal, other, [one])

    def _cut(self) -> None:
        members = [*self._stage.zookeeper.members]
        others = self._rng.sample(members, self._rng.randint(1, 3))
        self._sever(self._rng.choice(self._victims).name, others)

    def _split(self) -> None:
        one, *others = self._rng.sample([*self._stage.zookeeper.members], 3)
        self._sever(one, others)

    def _break(self) -> None:
        client = self._stage.zookeeper.client(self._rng.choice(self._victims).name)
        if client is not None:
            client.break_connection()

    def _ambiguity(self) -> None:
        client = self._stage.zookeeper.client(self._rng.choice(self._victims).name)
        if client is not None:
            client.lose_reply(applied=self._rng.random() < 0.7)

    def _expire(self) -> None:
        client = self._stage.zookeeper.client(self._rng.choice(self._victims).name)
        if client is not None:
            client.expire()

    def _down(self) -> None:
        zookeeper = self._stage.zookeeper
        name = self._rng.choice([*zookeeper.members])
        zookeeper.down(name, silently=self._rng.random() < 0.5)
        self._later(zookeeper.up, name)

    def _lag(self) -> None:
        zookeeper = self._stage.zookeeper
        name = self._rng.choice([*zookeeper.members])
        zookeeper.lag(name, self._rng.random())
        self._later(zookeeper.lag, name, 0.0)
