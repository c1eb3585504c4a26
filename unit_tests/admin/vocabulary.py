"""A broker for the pages: real logs, the cluster metadata of the test, and no running tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pybroker.admin.view import (
    BrokerView,
    GroupNumbers,
    Phase,
    Rooms,
    SessionWatch,
    TransactionNumbers,
)
from pybroker.config.broker_config import BrokerConfig
from pybroker.config.layered_config import LayeredConfig
from pybroker.group_lag import ProgressReport
from pybroker.handlers.metadata_view import MetadataView
from pybroker.metrics import Metrics
from pybroker.model import Broker, PartitionFacts, UpdateMetadata
from unit_tests.replication.vocabulary import ME, Replicas


@dataclass
class FakeController:
    """A replacement of the controller, with the state that the pages show."""

    controller_id: int | None = ME
    is_active: bool = True
    unclean_elections: int = 0


@dataclass
class Shown:
    """The broker ME and its pages. A test may change each field before it requests a page."""

    home: Path
    metadata: MetadataView = field(default_factory=MetadataView)
    metrics: Metrics = field(default_factory=Metrics)
    controller: FakeController = field(default_factory=FakeController)
    session: SessionWatch = field(default_factory=SessionWatch)
    registered: bool = True
    groups: GroupNumbers = field(default_factory=lambda: GroupNumbers({}, 0, 0, 0.0, 0.0))
    transactions: TransactionNumbers = field(
        default_factory=lambda: TransactionNumbers(0, 0, 0, 0.0, 0.0, 0, 0, 0)
    )
    progress: ProgressReport | None = None
    given: dict[str, str] = field(default_factory=dict)
    """Damage that was found in logs in use."""
    full: list[str] = field(default_factory=list)
    free: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.replicas = Replicas(self.home, metrics=self.metrics)
        self.view = BrokerView(BrokerConfig.parse(self.given), Phase.RUNNING)
        self.view.rooms = Rooms(
            broker_id=ME,
            cluster_id="cluster",
            replicas=self.replicas.manager,
            metadata=self.metadata,
            controller=self.controller,
            logs=self.replicas.logs,
            metrics=self.metrics,
            session=self.session,
            groups=lambda: self.groups,
            transactions=lambda: self.transactions,
            progress=self._progress,
            is_registered=lambda: self.registered,
            connections=lambda: {"PLAINTEXT": 3},
            unsent_bytes=lambda: 17,
            layers=lambda: LayeredConfig(self.view.config),
            journal=self._journal,
            full_directories=lambda: self.full,
            free_bytes=self._free_bytes,
        )

    async def _free_bytes(self) -> dict[str, int]:
        return self.free

    async def _progress(self) -> ProgressReport | None:
        return self.progress

    async def _journal(self, partition: str | None, limit: int) -> list[dict[str, object]]:
        return [{"partition": partition, "limit": limit}]

    def knows(self, *partitions: PartitionFacts, brokers: tuple[int, ...] = (ME,)) -> None:
        """Apply cluster metadata with these partitions and brokers."""
        live = tuple(Broker(each, ()) for each in brokers)
        self.metadata.apply(UpdateMetadata(ME, 1, -1, partitions, live))

    async def hosts(self, *partitions: PartitionFacts) -> None:
        """Apply cluster metadata with these partitions and brokers, and open the replicas of ME."""
        self.knows(*partitions)
        await self.replicas.told(*(each for each in partitions if ME in each.replicas))
