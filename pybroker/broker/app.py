"""The composition root of a broker: creates its components, and starts and stops them in order.

The caller provides a ZooKeeper session, recovered logs and bound sockets.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

from pybroker.admin.view import Rooms, SessionWatch
from pybroker.applog.rate_limit import LogLimit
from pybroker.broker.controlled_shutdown import ControlledShutdown, asking_controller
from pybroker.broker.controller_journal import ControllerJournal
from pybroker.broker.environment import BrokerEnvironment
from pybroker.broker.group_coordination import CoordinationRooms, GroupCoordination
from pybroker.broker.leader_discovery import new_discovery
from pybroker.broker.lifecycle import Lifecycle, Service
from pybroker.broker.live_config import LiveConfig
from pybroker.broker.log_directory_failures import DirectoryFailures
from pybroker.broker.membership import Membership
from pybroker.broker.shutdown import close_connections, end_logs_last, unregister
from pybroker.broker.start_steps import settle_replicas, wait_for_cluster, wait_for_topics
from pybroker.broker.topic_logs import read_log_configs
from pybroker.broker.transaction_coordination import TransactionCoordination
from pybroker.broker.transaction_verification import Verifying
from pybroker.broker.zookeeper_lease import ZooKeeperLease
from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.controller.controller import Controller
from pybroker.coordinator.controller.policies import policy_of
from pybroker.coordinator.controller.services import ControllerSettings, RebalanceSettings
from pybroker.coordinator.transactions.producer_ids import ProducerIds
from pybroker.coordinator.zookeeper import registry
from pybroker.coordinator.zookeeper.late_session import LateSession
from pybroker.coordinator.zookeeper.loss_receipts import LossReceipts
from pybroker.coordinator.zookeeper.repeating import repeat_unanswered
from pybroker.errors import CoordError, MalformedNode, StartupError
from pybroker.handlers.context import Services, TopicAdmin
from pybroker.handlers.dispatch import Dispatcher
from pybroker.handlers.fetch_sessions import FetchSessionCache
from pybroker.handlers.gate import Gate
from pybroker.handlers.metadata_view import MetadataView
from pybroker.handlers.metering import Metering
from pybroker.handlers.topic_admin import ZooKeeperTopicAdmin
from pybroker.model import Broker, Endpoint
from pybroker.peers.broker_channel import new_channel
from pybroker.peers.leader_channel import Follower, new_fetchers
from pybroker.peers.local_channel import LocalBrokerChannel, ProvenEpochs
from pybroker.ports import BrokerChannel
from pybroker.replication.authority import Authority
from pybroker.replication.fetchers import ReplicaFetchers
from pybroker.replication.full_disks import FullDisks
from pybroker.replication.group_commit import GroupCommit
from pybroker.replication.health.log_end_reports import LogEndReports
from pybroker.replication.health.power_loss import in_sync_again
from pybroker.replication.health.unhealthy_replicas import UnhealthyReplicas
from pybroker.replication.housekeeping import Housekeeping
from pybroker.replication.isr_changes import IsrChanges
from pybroker.replication.manager import ReplicaManager
from pybroker.replication.mover import ReplicaMover
from pybroker.replication.purgatory import Purgatory
from pybroker.replication.scrubber import Scrubber
from pybroker.server.listener import Server
from pybroker.storage.log_config import LogConfig
from pybroker.storage.manager import LogManager

log = logging.getLogger(__name__)


class BrokerApp:
    """A broker between `start` and `stop`. If the broker cannot go on, it calls `lost` with the
    reason. The owner must then call `stop`."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        broker_id: int,
        cluster_id: str,
        advertised: Callable[[BrokerConfig], tuple[Endpoint, ...]],
        logs: LogManager,
        env: BrokerEnvironment,
        lost: Callable[[str], None],
    ) -> None:
        self._config = config
        self._advertised = advertised
        self._broker = Broker(broker_id, advertised(config), rack=config.broker_rack)
        self._cluster_id = cluster_id
        self._logs = logs
        self._env = env
        self._lifecycle = Lifecycle()
        self.metadata = MetadataView()
        self._registered = self._broker
        self._fetchers = self._new_fetchers()
        self.replicas = self._new_replicas()
        end_logs_last(self._lifecycle, logs, env.blocking, self.replicas)
        self._log_end_reports = LogEndReports(env.coord, self.replicas, self._incarnation)
        self._isr_changes = IsrChanges(
            coord=env.coord, replicas=self.replicas, clock=env.clock, metrics=env.metrics
        )
        self._commands = self._new_commands()
        self.journal = ControllerJournal(logs.directories[0], env.disk, env.blocking)
        self.controller = self._new_controller()
        self.live = self._live_config()
        self._mover = ReplicaMover(logs=logs, replicas=self.replicas, blocking=env.blocking)
        self._directory_failures = DirectoryFailures(
            coord=env.coord, broker_id=broker_id, logs=logs, replicas=self.replicas, lost=lost
        )
        self.unhealthy_replicas = self._new_unhealthy_replicas()
        self._membership = self._new_membership(lost)
        self._discovery = new_discovery(config, broker_id, self.metadata, self.replicas, env.clock)
        self.lease = self._new_lease()
        self._group_commit = GroupCommit(logs=logs, replicas=self.replicas, blocking=env.blocking)
        self._full_disks = FullDisks(
            logs=logs, replicas=self.replicas, blocking=env.blocking, clock=env.clock
        )
        self._housekeeping = self._new_housekeeping()
        self._scrubber = self._new_scrubber()
        self._producer_ids = ids = ProducerIds(env.coord, broker_id)
        self._log_limit = LogLimit(env.clock)
        self._offsets = LateSession(env.connect_offsets)
        rooms = self._coordination_rooms()
        self._transactions = TransactionCoordination(rooms, ids.next_id, lambda: self.dispatcher)
        self.verifying = Verifying(rooms, self._transactions, lambda: self.live.current)
        self.groups = GroupCoordination(rooms, self.verifying.verification.of_partition)
        self.dispatcher = Dispatcher(self._services(cluster_id, rooms.topics))
        self._gate = Gate(self.dispatcher.answer)
        self._metering = Metering(self._gate.answer, env.metrics.requests, env.clock)
        self._server = self._new_server()
        self._session = SessionWatch()
        env.coord.add_listener(self._session.heard)
        self._controlled_shutdown = self._new_controlled_shutdown()
        env.coord.add_listener(self._controlled_shutdown.session_changed)

    async def start(self, sockets: Mapping[str, socket.socket]) -> None:
        """Register the broker and answer clients on `sockets` (listener name -> bound socket).
        Raise StartupError if the broker id is taken, ZooKeeper does not answer, or no controller
        sends metadata."""
        try:
            existing = await self._join(sockets)
        except (CoordError, MalformedNode) as error:
            text = f"broker {self._broker.id} cannot register in ZooKeeper: {type(error).__name__}"
            raise StartupError(f"{text}: {error}") from error
        await self._start_services()
        await wait_for_cluster(self.metadata, self.controller, self._broker.id)
        await wait_for_topics(self.metadata, self._env.coord, existing)
        self._gate.open()
        self._metering.answering = self.dispatcher.answer

    async def stop(self) -> None:
        """Leave the cluster and make the logs durable. Failures are logged, not raised. May be
        called after a failed start, and more than once."""
        await self._lifecycle.stop()

    async def _join(self, sockets: Mapping[str, socket.socket]) -> Collection[str]:
        """Start the components that the registration needs, and register the broker. Return the
        names of the existing topics. Raise StartupError, CoordError or MalformedNode."""
        coord, limit_s = self._env.coord, self._config.zookeeper_wait_ms / 1000
        again = partial(repeat_unanswered, clock=self._env.clock, limit_s=limit_s)
        start, push = self._lifecycle.start, self._lifecycle.push
        # These start at the first request that needs them.
        push("offsets-session", self._offsets.close)
        push("producer-ids", self._producer_ids.close)
        push("transaction-verifier", self.verifying.stop)
        await start("group-commit", self._group_commit.start, self._group_commit.stop)
        settle = partial(settle_replicas, coord, self._broker.id, self._env.clock)
        existing = await again("replicas", partial(settle, self._logs, self.unhealthy_replicas))
        follow = partial(again, "configuration", self.live.start)
        await start("configuration", follow, self.live.stop)
        accept = partial(self._server.open, list(sockets.items()))
        await start("connections", accept, partial(close_connections, self._server, self.replicas))
        push("registration", partial(unregister, coord, self._broker))
        join = partial(again, "registration", self._membership.join)
        await start("membership", join, self._membership.leave)
        # After the start of the membership, which knows whether the broker is registered.
        coord.add_listener(self.lease.session_changed)
        return existing

    async def _start_services(self) -> None:
        """Start the services that run while the broker is registered. No start function may
        suspend: another task would then run while only some services are started."""
        services: tuple[tuple[str, Service], ...] = (
            ("controller-journal", self.journal),
            ("controller", self.controller),
            # Before the lease, which calls the discovery.
            ("discovery", self._discovery),
            ("zookeeper-lease", self.lease),
            ("directory-failures", self._directory_failures),
            ("unhealthy-replicas", self.unhealthy_replicas.loop),
            ("full-disks", self._full_disks),
            ("housekeeping", self._housekeeping),
            ("scrubber", self._scrubber),
            ("log-end-reports", self._log_end_reports.loop),
            ("isr-changes", self._isr_changes),
            ("mover", self._mover),
        )
        start, push = self._lifecycle.start, self._lifecycle.push
        for name, service in services:
            await start(name, service.start, service.stop)
        # The fetchers start at the first command of a controller.
        push("fetchers", self._fetchers.stop)
        # Connections have been open since before the registration, but the gate passes requests on
        # only now. This stop closes them before the services that answer requests stop.
        close = partial(close_connections, self._server, self.replicas)
        await start("requests", self._gate.let_brokers_in, close)
        # The groups start after the requests, so they stop first: waiting members are answered
        # before the connections close.
        await start("groups", self.groups.start, self.groups.stop)
        await start("transactions", self._transactions.start, self._transactions.stop)
        # Started last, so stopped first: other brokers lead before any component closes here.
        push("controlled-shutdown", self._hand_over)

    async def _hand_over(self) -> None:
        """Ask the controller to elect other leaders for this broker's partitions."""
        if self._membership.is_registered:
            self.replicas.leadership_yield.leaves = True
            await self._controlled_shutdown.run()

    def rooms(self) -> Rooms:
        """Return the parts of this broker that the admin pages and metrics show."""
        return Rooms(
            broker_id=self._broker.id,
            cluster_id=self._cluster_id,
            replicas=self.replicas,
            metadata=self.metadata,
            controller=self.controller,
            logs=self._logs,
            metrics=self._env.metrics,
            session=self._session,
            groups=self.groups.numbers,
            transactions=self._transactions.numbers,
            progress=self.groups.lags.report,
            is_registered=lambda: self._membership.is_registered,
            connections=self._server.connections_by_listener,
            unsent_bytes=lambda: self._server.unsent_bytes,
            layers=lambda: self.live.layers,
            journal=self.journal.read,
            full_directories=lambda: self._full_disks.full,
            free_bytes=self._full_disks.free_bytes,
        )

    # the components and their connections

    def _channel(self, broker: Broker) -> BrokerChannel:
        if broker.id == self._broker.id:
            return self._commands
        return new_channel(self._config, self._broker.id, broker)

    async def _register(self) -> Broker:
        registered = await registry.register_broker(
            self._env.coord,
            self._broker,
            clock=self._env.clock,
            session_timeout_ms=self._config.zookeeper_session_timeout_ms,
            earlier_session_ids=self._env.earlier_session_ids(),
        )
        self._registered = registered
        await self._env.blocking.run(self._logs.record_incarnation, registered.incarnation)
        self._directory_failures.registered()
        return registered

    def _new_replicas(self) -> ReplicaManager:
        replicas = ReplicaManager(
            broker_id=self._broker.id,
            logs=self._logs,
            blocking=self._env.blocking,
            clock=self._env.clock,
            topic_configs=self._topic_log_configs,
            fetches=Purgatory(),
            produces=Purgatory(),
            metrics=self._env.metrics,
            fetchers=self._fetchers,
            exists=self.metadata.exists,
        )
        replicas.lag_max_s = self._config.replica_lag_time_max_ms / 1000
        return replicas

    def _new_controller(self) -> Controller:
        return Controller(
            coord=self._env.coord,
            broker_id=self._broker.id,
            clock=self._env.clock,
            rng=self._env.rng,
            channels=self._channel,
            settings=ControllerSettings(
                delete_topic_enable=self._config.delete_topic_enable,
                rebalance=RebalanceSettings.of(self._config),
                journal=self.journal.note,
                elections=self._env.metrics.elections,
                policy_of=lambda overrides: policy_of(self.live.current, overrides),
            ),
        )

    def _new_controlled_shutdown(self) -> ControlledShutdown:
        config = self._config
        return ControlledShutdown(
            broker_id=self._broker.id,
            broker_epoch=lambda: self.replicas.broker_epoch,
            controller=self.controller,
            metadata=self.metadata,
            ask=asking_controller(config),
            config=config,
        )

    def _new_membership(self, lost: Callable[[str], None]) -> Membership:
        coord, clock = self._env.coord, self._env.clock
        return Membership(
            coord=coord,
            register=self._register,
            update=lambda: registry.update_registration(coord, self._broker, clock=clock),
            replicas=self.replicas,
            controller=self.controller,
            lost=lost,
        )

    def _new_lease(self) -> ZooKeeperLease:
        config, replicas, env = self._config, self.replicas, self._env

        def changed(level: Authority) -> None:
            replicas.lease = level
            self._discovery.changed(level)

        return ZooKeeperLease(
            clock=env.clock,
            silence=env.coord.silence,
            session_s=lambda: config.zookeeper_session_timeout_ms / 1000,
            is_registered=lambda: self._membership.is_registered,
            knows_roles=lambda: (
                replicas.roles_epoch >= replicas.broker_epoch or not replicas.partitions
            ),
            fences=config.pybroker_zookeeper_loss == "fence",
            changed=changed,
        )

    def _incarnation(self) -> int:
        """Return this broker's incarnation (KIP-903), which grows with every registration. Return
        -1 until the first LeaderAndIsr request of the current registration.

        With -1, the broker must send no fetch as a follower: a topic may have been deleted and
        created again, and a log here may still be that of the deleted topic.
        """
        is_registered = self._membership.is_registered
        knows_roles = is_registered and self.replicas.roles_epoch >= self._registered.epoch
        return self._registered.incarnation if knows_roles else -1

    def _incarnation_raised(self, incarnation: int) -> None:
        newest = max(incarnation, self._registered.incarnation)
        self._registered = replace(self._registered, incarnation=newest)
        self._log_end_reports.again()

    def _new_fetchers(self) -> ReplicaFetchers:
        env = self._env
        return new_fetchers(
            self._config,
            Follower(self._broker.id, self._incarnation),
            self.metadata.broker,
            health=self._logs.health,
            losses=LossReceipts(env.coord, self._broker.id),
            blocking=env.blocking,
            clock=env.clock,
            metrics=env.metrics,
        )

    def _new_housekeeping(self) -> Housekeeping:
        return Housekeeping(
            logs=self._logs,
            replicas=self.replicas,
            blocking=self._env.blocking,
            new_cleaner_thread=self._env.new_cleaner_thread,
            clock=self._env.clock,
            config=lambda: self.live.current,
            cleaner_counters=self._env.metrics.cleaner,
        )

    def _new_commands(self) -> LocalBrokerChannel:
        on_facts = partial(in_sync_again, self._logs.health, self._broker.id)
        return LocalBrokerChannel(self.replicas, self.metadata, on_facts)

    def _new_unhealthy_replicas(self) -> UnhealthyReplicas:
        return UnhealthyReplicas(
            coord=self._env.coord,
            broker_id=self._broker.id,
            logs=self._logs,
            replicas=self.replicas,
            live=lambda: self.metadata.brokers,
            changed=self._directory_failures.replicas_changed,
            raised=self._incarnation_raised,
        )

    def _new_scrubber(self) -> Scrubber:
        return Scrubber(
            logs=self._logs,
            replicas=self.replicas,
            blocking=self._env.blocking,
            clock=self._env.clock,
            bytes_per_second=self._config.pybroker_log_scrub_io_max_bytes_per_second,
            interval_s=self._config.pybroker_log_scrub_interval_ms / 1000,
            found=self.unhealthy_replicas.found,
        )

    def _new_server(self) -> Server:
        return Server(
            handle=self._metering.answer,
            config=self._config,
            clock=self._env.clock,
            metrics=self._env.metrics,
        )

    def _live_config(self) -> LiveConfig:
        return LiveConfig(
            static=self._config,
            broker_id=self._broker.id,
            coord=self._env.coord,
            clock=self._env.clock,
            replicas=self.replicas,
            on_change=self._reconfigure,
            on_topics=self.controller.policies_changed,
        )

    async def _topic_log_configs(self, topics: Collection[str]) -> dict[str, LogConfig]:
        opened = self.replicas.partitions.items()
        held = {key.topic: each.log.config for key, each in opened}
        coord = self._env.coord
        return await read_log_configs(coord, lambda: self.live.current, topics, held.get)

    def _reconfigure(self, old: BrokerConfig, new: BrokerConfig) -> None:
        """Apply the changed options of the broker. `LiveConfig` applies the options of logs."""
        if new.advertised != old.advertised:
            log.info("advertised listeners=%s", ",".join(map(str, new.advertised)))
            self._broker = replace(self._broker, endpoints=self._advertised(new))
            self._membership.endpoints_changed()
        self._server.reconfigure(new)
        self._logs.producer_id_expiration_ms = new.producer_id_expiration_ms
        self.replicas.lag_max_s = new.replica_lag_time_max_ms / 1000
        if new.background_threads != old.background_threads:
            self._env.resize_blocking(new.background_threads)

    def _coordination_rooms(self) -> CoordinationRooms:
        env, live = self._env, self.live
        return CoordinationRooms(
            broker_id=self._broker.id,
            config=self._config,
            coord=env.coord,
            offsets=self._offsets,
            replicas=self.replicas,
            metadata=self.metadata,
            topics=ZooKeeperTopicAdmin(
                coord=env.coord, layers=lambda: live.layers, metadata=self.metadata, rng=env.rng
            ),
            lease=self.lease,
            lead_now=self._isr_changes.lead_now,
            clock=env.clock,
            rng=env.rng,
            blocking=env.blocking,
            log_limit=self._log_limit,
            metrics=env.metrics,
        )

    def _services(self, cluster_id: str, topics: TopicAdmin) -> Services:
        config, env = self._config, self._env
        return Services(
            broker_id=self._broker.id,
            cluster_id=cluster_id,
            config=config,
            replicas=self.replicas,
            metadata=self.metadata,
            controller=self.controller,
            commands=self._commands,
            lead_now=self._isr_changes.lead_now,
            prove_controller=ProvenEpochs(env.coord).prove,
            topics=topics,
            group_topic=self.groups.topic,
            groups=self.groups.service,
            transaction_topic=self._transactions.topic,
            transactions=self._transactions.service,
            classic_offsets=self.groups.classic_offsets,
            mover=self._mover,
            configs=self.live,
            producer_ids=self._producer_ids.next_id,
            verification=self.verifying.verification,
            clock=env.clock,
            blocking=env.blocking,
            metrics=env.metrics,
            fetch_sessions=FetchSessionCache(
                slots_max=config.max_incremental_fetch_session_cache_slots,
                rng=env.rng,
                counters=env.metrics.fetch_sessions,
            ),
            log_limit=self._log_limit,
            lease=self.lease,
            unsent_bytes=lambda: self._server.unsent_bytes,
        )
