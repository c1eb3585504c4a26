"""Starts and stops the simulated clients of a run, and starts the reads at the end of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from pybroker.model import TopicPartition
from pybroker.testing.history.model import History
from pybroker.testing.simulation.environment import Environment
from pybroker.testing.simulation.loop import Sockets
from pybroker.testing.simulation.machine import Machine
from pybroker.testing.simulation.workload.clients import Catalog, Client, Shared
from pybroker.testing.simulation.workload.groups import clients_of_groups
from pybroker.testing.simulation.workload.keyed import (
    PARTITION,
    KeyedFinalReader,
    keyed_clients,
)
from pybroker.testing.simulation.workload.options import WorkloadOptions
from pybroker.testing.simulation.workload.producers import ProducerClient
from pybroker.testing.simulation.workload.readers import (
    CommittedFinalReader,
    CommittedReaderClient,
    FinalReader,
    LogEndClient,
    ReaderClient,
    StableOffsetClient,
)
from pybroker.testing.simulation.workload.recorder import Recorder
from pybroker.testing.simulation.workload.topics import AdminClient
from pybroker.testing.simulation.workload.transactions import (
    FinalOffsetsClient,
    clients_of_loops,
    loop_groups,
    transactional_clients,
    transactional_ids,
)

FINAL_READERS = 2


class Workload:
    """The clients of a run. No method waits: the caller runs the `Environment` until `is_ready`,
    `is_quiet` or `is_read` is true.

    workload = Workload(environment, cluster.machine, cluster.network.sockets, cluster.bootstrap)
    workload.start()
    environment.run(30)
    workload.stop()
    environment.run(60, lambda: workload.is_quiet)
    workload.read_all()
    environment.run(90, lambda: workload.is_read)
    violations = judge(workload.history)
    """

    def __init__(
        self,
        environment: Environment,
        machine: Callable[[str], Machine],
        sockets: Callable[[Machine], Sockets],
        bootstrap: str,
        options: WorkloadOptions | None = None,
        *,
        name: str = "client",
    ) -> None:
        """Create the clients. Their names begin with `name`. `machine` returns the machine for a
        client's name. `sockets` returns the network operations of a machine."""
        options = options or WorkloadOptions()
        recorder = Recorder(environment)
        shared = Shared(environment, machine, sockets, bootstrap, options, recorder)
        self._shared = shared
        self._name = name
        self._clients: list[Client] = [
            AdminClient(shared, f"{name}-admin"),
            *(
                ProducerClient(shared, f"{name}-{kind.value}-{number}", kind)
                for number, kind in enumerate(options.producers)
            ),
            *(ReaderClient(shared, f"{name}-reader-{each}") for each in range(options.readers)),
            *(LogEndClient(shared, f"{name}-asker-{each}") for each in range(options.askers)),
        ]
        if options.has_transactions:
            self._clients += [
                *transactional_clients(shared, name),
                CommittedReaderClient(shared, f"{name}-committed-reader"),
                StableOffsetClient(shared, f"{name}-stable-asker"),
            ]
        self._clients += keyed_clients(shared, name)
        self._of_groups = [*clients_of_groups(shared, name), *clients_of_loops(shared, name)]
        self._final: list[FinalReader | FinalOffsetsClient] = []

    # state

    @property
    def history(self) -> History:
        return self._shared.recorder.history

    @property
    def catalog(self) -> Catalog:
        """Return the topics that exist, as far as the admin client knows."""
        return self._shared.catalog

    @property
    def acked(self) -> Counter[TopicPartition]:
        """Return the number of values acknowledged with acks=all, by partition."""
        return self._shared.recorder.acked

    @property
    def delivered(self) -> Counter[TopicPartition]:
        """Return the number of records that consumers have received, by partition."""
        return self._shared.recorder.delivered

    @property
    def positions(self) -> Counter[tuple[str, TopicPartition]]:
        """Return the offset after the last record that a group has processed, by group and
        partition."""
        return self._shared.recorder.positions

    @property
    def ends(self) -> Counter[TopicPartition]:
        """Return for each partition the offset after the last value acknowledged with acks=all."""
        return self._shared.recorder.ends

    @property
    def transacted(self) -> Counter[str]:
        """Return the number of committed transactions, by transactional id."""
        return self._shared.recorder.transacted

    @property
    def transactional_ids(self) -> list[str]:
        return transactional_ids(self._shared.options, self._name)

    @property
    def refused(self) -> Counter[str]:
        """Return the number of errors that clients received, by the name of the error."""
        return self._shared.recorder.refused

    @property
    def managed(self) -> Counter[str]:
        """Return the number of successful admin operations, by kind."""
        return self._shared.recorder.managed

    @property
    def failures(self) -> list[str]:
        """Return the unexpected errors that clients got. Each shows a bug of a client."""
        return self._shared.failures

    @property
    def machines(self) -> list[Machine]:
        return [client.machine for client in (*self._all, *self._final)]

    @property
    def is_ready(self) -> bool:
        """Return whether the topics of the clients exist."""
        options = self._shared.options
        has_keyed = self._shared.has_keyed_topic or not options.keyed_writers
        return has_keyed and self.catalog.topics.keys() >= {*options.topic_names}

    @property
    def is_quiet(self) -> bool:
        """Return whether all clients except group members have ended, as they do after `stop`. Once
        they have ended, the outcome of every send is known."""
        return all(client.has_ended for client in self._clients)

    @property
    def are_groups_quiet(self) -> bool:
        """Return whether all clients of consumer groups have ended. `stop_groups` tells these
        clients to end."""
        return all(client.has_ended for client in self._of_groups)

    @property
    def is_read(self) -> bool:
        """Return whether all reads that `read_all` has started are complete."""
        return all(reader.has_ended for reader in self._final)

    @property
    def _all(self) -> list[Client]:
        return [*self._clients, *self._of_groups]

    # control

    def start(self) -> None:
        for client in self._all:
            client.start()

    def spread(self) -> None:
        """From now on, change neither topics nor groups, and send values to all partitions
        equally."""
        self._shared.is_even = True

    def stop(self) -> None:
        """Let all clients except group members end. Group members continue to read until
        `stop_groups` is called. Within 15 s the outcome of every send is known."""
        self._shared.is_stopping = True

    def stop_groups(self) -> None:
        """Let all members leave their groups."""
        self._shared.groups_are_stopping = True

    def read_all(self, partitions: Sequence[TopicPartition] | None = None) -> None:
        """Read all records of these partitions (None: of all topics) with new clients. Call it
        after the cluster has recovered; otherwise the reads may never complete."""
        chosen = self.catalog.partitions() if partitions is None else [*partitions]
        begun = len(self._final)
        fresh: list[FinalReader | FinalOffsetsClient] = [
            FinalReader(self._shared, f"{self._name}-final-{begun + each}", chosen)
            for each in range(FINAL_READERS)
        ]
        if self._shared.options.has_transactions:
            name = f"{self._name}-committed-final-{begun}"
            fresh.append(CommittedFinalReader(self._shared, name, chosen))
            groups = loop_groups(self._shared.options, self._name)
            fresh.append(FinalOffsetsClient(self._shared, f"{self._name}-offsets-{begun}", groups))
        if self._shared.options.keyed_writers:
            name = f"{self._name}-keyed-final-{begun}"
            fresh.append(KeyedFinalReader(self._shared, name, [PARTITION]))
        self._final += fresh
        for reader in fresh:
            reader.start()
