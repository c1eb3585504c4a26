"""Real brokers and clients on simulated machines."""

from __future__ import annotations

from pybroker.client import Admin, NewTopic, Producer
from pybroker.testing.simulation.cluster import SimCluster
from pybroker.testing.simulation.loop import ProcessLoop
from pybroker.testing.simulation.world import World

VALUES = 40


def run(seed: str) -> str:
    """A topic, some records, a leader that is killed in between; gives the digest of the trace."""
    world = World(seed)
    with SimCluster(world, 3) as cluster:
        produce_while_a_leader_dies(world, cluster)
    return world.digest


def produce_while_a_leader_dies(world: World, cluster: SimCluster) -> None:
    cluster.start()
    assert cluster.run_until_ready(), [each.reasons for each in cluster.brokers.values()]
    client = cluster.machine("client")
    offsets: list[int] = []

    async def main(_loop: ProcessLoop) -> None:
        rng = world.rng("client")
        async with Admin(cluster.bootstrap, clock=client.clock, rng=rng) as admin:
            wanted = NewTopic("orders", partitions=2, replication_factor=3)
            for result in await admin.create_topics([wanted]):
                result.check()
        async with Producer(cluster.bootstrap, acks="all", clock=client.clock, rng=rng) as producer:
            for number in range(VALUES):
                delivery = await producer.send("orders", b"%d" % number, partition=0)
                offsets.append((await delivery).offset)

    client.start(main, cluster.network.sockets(client))
    assert cluster.run_until(lambda: len(offsets) == VALUES // 2, 20)
    leader = next(
        broker
        for broker in cluster.brokers.values()
        if broker.app is not None
        and any(each.is_leader for each in broker.app.replicas.partitions.values())
    )
    leader.machine.kill()
    assert cluster.run_until(lambda: len(offsets) == VALUES, 30)
    leader.start()
    assert cluster.run_until_ready()
    for broker in cluster.brokers.values():
        broker.terminate()
    assert cluster.run_until(lambda: not any(b.is_running for b in cluster.brokers.values()), 30)
    assert all(b.reasons == [] for b in cluster.brokers.values())
    assert offsets == list(range(VALUES))


def test_brokers_and_clients_run_unchanged_and_the_same_seed_gives_the_same_run() -> None:
    first, other = run("1"), run("2")
    assert first == run("1") != other
