"""Broker options that have no row in `broker_options.py`. They are options of Kafka 3.9 and of some
earlier versions. NOT_IMPLEMENTED options cause a warning. Some values of REFUSED options prevent
the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

NOT_IMPLEMENTED: Final[frozenset[str]] = frozenset(
    """
auto.include.jmx.reporter broker.heartbeat.interval.ms
broker.session.timeout.ms client.quota.callback.class control.plane.listener.name
controller.listener.names controller.quorum.append.linger.ms controller.quorum.bootstrap.servers
controller.quorum.election.backoff.max.ms controller.quorum.election.timeout.ms
controller.quorum.fetch.timeout.ms controller.quorum.request.timeout.ms
controller.quorum.retry.backoff.ms controller.quorum.voters
delegation.token.expiry.check.interval.ms delegation.token.expiry.time.ms
delegation.token.master.key delegation.token.max.lifetime.ms delegation.token.secret.key
early.start.listeners eligible.leader.replicas.enable group.consumer.assignors
group.consumer.heartbeat.interval.ms group.consumer.max.heartbeat.interval.ms
group.consumer.max.session.timeout.ms group.consumer.max.size group.consumer.migration.policy
group.consumer.min.heartbeat.interval.ms group.consumer.min.session.timeout.ms
group.consumer.session.timeout.ms group.coordinator.append.linger.ms group.coordinator.new.enable
group.coordinator.rebalance.protocols group.coordinator.threads group.share.delivery.count.limit
group.share.enable group.share.heartbeat.interval.ms group.share.max.groups
group.share.max.heartbeat.interval.ms group.share.max.record.lock.duration.ms
group.share.max.session.timeout.ms group.share.max.size group.share.min.heartbeat.interval.ms
group.share.min.record.lock.duration.ms group.share.min.session.timeout.ms
group.share.partition.max.record.locks group.share.record.lock.duration.ms
group.share.session.timeout.ms initial.broker.registration.timeout.ms
kafka.metrics.polling.interval.secs kafka.metrics.reporters log.dir.failure.timeout.ms
log.initial.task.delay.ms log.local.retention.bytes log.local.retention.ms
metadata.log.dir metadata.log.max.record.bytes.between.snapshots
metadata.log.max.snapshot.interval.ms metadata.log.segment.bytes metadata.log.segment.min.bytes
metadata.log.segment.ms metadata.max.idle.interval.ms metadata.max.retention.bytes
metadata.max.retention.ms password.encoder.cipher.algorithm password.encoder.iterations
password.encoder.key.length password.encoder.keyfactory.algorithm password.encoder.old.secret
password.encoder.secret principal.builder.class quota.consumer.default
quota.producer.default remote.fetch.max.wait.ms remote.log.index.file.cache.total.size.bytes
remote.log.manager.copier.thread.pool.size remote.log.manager.copy.max.bytes.per.second
remote.log.manager.copy.quota.window.num remote.log.manager.copy.quota.window.size.seconds
remote.log.manager.expiration.thread.pool.size remote.log.manager.fetch.max.bytes.per.second
remote.log.manager.fetch.quota.window.num remote.log.manager.fetch.quota.window.size.seconds
remote.log.manager.task.interval.ms remote.log.manager.task.retry.backoff.max.ms
remote.log.manager.task.retry.backoff.ms remote.log.manager.task.retry.jitter
remote.log.manager.thread.pool.size remote.log.metadata.custom.metadata.max.bytes
remote.log.metadata.manager.class.name remote.log.metadata.manager.class.path
remote.log.metadata.manager.impl.prefix remote.log.metadata.manager.listener.name
remote.log.reader.max.pending.tasks remote.log.reader.threads remote.log.storage.manager.class.name
remote.log.storage.manager.class.path remote.log.storage.manager.impl.prefix
remote.log.storage.system.enable replica.lag.max.messages sasl.client.callback.handler.class
sasl.enabled.mechanisms sasl.jaas.config sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.principal.to.local.rules
sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
sasl.mechanism.controller.protocol sasl.mechanism.inter.broker.protocol
sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience
sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.refresh.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
sasl.oauthbearer.token.endpoint.url sasl.server.callback.handler.class sasl.server.max.receive.size
security.providers server.max.startup.time.ms ssl.allow.dn.changes ssl.allow.san.changes
ssl.cipher.suites ssl.client.auth ssl.enabled.protocols ssl.endpoint.identification.algorithm
ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain
ssl.keystore.key ssl.keystore.location ssl.keystore.password ssl.keystore.type
ssl.principal.mapping.rules ssl.protocol ssl.provider ssl.secure.random.implementation
ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location
ssl.truststore.password ssl.truststore.type telemetry.max.bytes unstable.api.versions.enable
unstable.feature.versions.enable zookeeper.clientCnxnSocket zookeeper.metadata.migration.enable
zookeeper.metadata.migration.min.batch.size zookeeper.ssl.cipher.suites zookeeper.ssl.crl.enable
zookeeper.ssl.enabled.protocols zookeeper.ssl.endpoint.identification.algorithm
zookeeper.ssl.keystore.location zookeeper.ssl.keystore.password zookeeper.ssl.keystore.type
zookeeper.ssl.ocsp.enable zookeeper.ssl.protocol zookeeper.ssl.truststore.location
zookeeper.ssl.truststore.password zookeeper.ssl.truststore.type zookeeper.sync.time.ms
""".split()
)

PLUGIN_PREFIXES: Final = ("confluent.", "cruise.control.", "listener.name.", "rlmm.", "rsm.")
"""A name with one of these prefixes belongs to a plugin or to a single listener. It never counts as
a misspelled name."""


def _is_set(text: str) -> bool:
    return bool(text.strip())


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"


_NO_POLICY: Final = "policies are Java classes, which this broker cannot run; remove the option"

REFUSED: Final[Mapping[str, tuple[Callable[[str], bool], str]]] = {
    "authorizer.class.name": (
        _is_set,
        "no authorizer is available, so every client could do everything; remove the option",
    ),
    "alter.config.policy.class.name": (_is_set, _NO_POLICY),
    "create.topic.policy.class.name": (_is_set, _NO_POLICY),
    "zookeeper.set.acl": (_is_true, "this broker cannot set ACLs in ZooKeeper; remove the option"),
    "zookeeper.ssl.client.enable": (
        _is_true,
        "this broker cannot use TLS to ZooKeeper; remove the option",
    ),
    "process.roles": (
        _is_set,
        "this is an option of KRaft, but this broker uses ZooKeeper; remove the option",
    ),
    "node.id": (_is_set, "this is an option of KRaft; set broker.id instead"),
    "port": (_is_set, "removed from Kafka; use listeners=PLAINTEXT://HOST:PORT"),
    "host.name": (_is_set, "removed from Kafka; use listeners=PLAINTEXT://HOST:PORT"),
    "advertised.port": (_is_set, "removed from Kafka; use advertised.listeners"),
    "advertised.host.name": (_is_set, "removed from Kafka; use advertised.listeners"),
}
"""Options that must not be ignored: without them the broker would be unprotected, unreachable, or
of another kind than the operator asked for. Option name -> a function that says whether a value is
refused, and the reason. With a refused value the start fails."""
