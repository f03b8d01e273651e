"""Broker settings of Apache Kafka that this broker does not have: ignored, or refused.

With the rows of ``broker_settings.py`` these are all names that Apache Kafka 3.9 and 4.3 define,
so that a file written for Kafka starts this broker. A setting that only tunes Kafka is ignored, and
a line at startup names it. A setting that promises security, durability or a role that nothing
here provides is refused: ignoring it would break the promise silently.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ignored:
    """Names without an effect here, and the reason."""

    reason: str
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Refused:
    """Names and prefixes (which end with a dot) that stop the broker, and the reason.

    ``harmless`` has values in lower case that promise nothing, for example the default of Kafka.
    An empty value never promises anything.
    """

    reason: str
    names: tuple[str, ...]
    harmless: frozenset[str] = frozenset()


def _ignored(reason: str, names: str) -> Ignored:
    return Ignored(reason, frozenset(names.split()))


def _refused(reason: str, names: str, harmless: str = "") -> Refused:
    return Refused(reason, tuple(names.split()), frozenset(harmless.split()))


IGNORED = (
    _ignored(
        "KRaft's controllers: the controller here is elected in ZooKeeper",
        """
        broker.heartbeat.interval.ms broker.session.timeout.ms
        controller.performance.always.log.threshold.ms controller.performance.sample.period.ms
        controller.quorum.append.linger.ms controller.quorum.auto.join.enable
        controller.quorum.election.backoff.max.ms controller.quorum.election.timeout.ms
        controller.quorum.fetch.max.bytes controller.quorum.fetch.snapshot.max.bytes
        controller.quorum.fetch.timeout.ms controller.quorum.request.timeout.ms
        controller.quorum.retry.backoff.ms controller.socket.timeout.ms early.start.listeners
        eligible.leader.replicas.enable initial.broker.registration.timeout.ms
        internal.metadata.delete.delay.millis internal.metadata.log.segment.bytes
        internal.metadata.max.batch.size.in.bytes
        metadata.log.max.record.bytes.between.snapshots metadata.log.max.snapshot.interval.ms
        metadata.log.segment.bytes metadata.log.segment.min.bytes metadata.log.segment.ms
        metadata.max.idle.interval.ms metadata.max.retention.bytes metadata.max.retention.ms
        server.max.startup.time.ms unclean.leader.election.interval.ms
        unstable.feature.versions.enable zookeeper.metadata.migration.enable
        zookeeper.metadata.migration.min.batch.size
        """,
    ),
    _ignored(
        "earlier versions of Kafka",
        """
        broker.id.generation.enable controlled.shutdown.max.retries
        controlled.shutdown.retry.backoff.ms group.coordinator.new.enable
        inter.broker.protocol.version log.message.downconversion.enable log.message.format.version
        log.message.timestamp.difference.max.ms offsets.commit.required.acks
        reserved.broker.max.id
        """,
    ),
    _ignored(
        "threads, buffers and plugins of the Java broker",
        """
        alter.log.dirs.replication.quota.window.num
        alter.log.dirs.replication.quota.window.size.seconds auto.include.jmx.reporter
        config.providers group.coordinator.append.linger.ms group.coordinator.background.threads
        group.coordinator.cached.buffer.max.bytes group.consumer.assignor.offload.enable
        kafka.metrics.polling.interval.secs kafka.metrics.reporters
        socket.connection.setup.timeout.max.ms telemetry.max.bytes
        transaction.state.log.load.buffer.size unstable.api.versions.enable
        zookeeper.clientCnxnSocket zookeeper.max.in.flight.requests
        """,
    ),
    _ignored(
        "share groups, which do not exist here yet",
        """
        errors.deadletterqueue.auto.create.topics.enable
        errors.deadletterqueue.topic.name.prefix group.share.assignment.interval.ms
        group.share.assignor.offload.enable group.share.assignors group.share.delivery.count.limit
        group.share.enable group.share.heartbeat.interval.ms
        group.share.initialize.retry.interval.ms group.share.max.assignment.interval.ms
        group.share.max.delivery.count.limit group.share.max.groups
        group.share.max.heartbeat.interval.ms group.share.max.partition.max.record.locks
        group.share.max.record.lock.duration.ms group.share.max.session.timeout.ms
        group.share.max.share.sessions group.share.max.size group.share.min.assignment.interval.ms
        group.share.min.delivery.count.limit group.share.min.heartbeat.interval.ms
        group.share.min.partition.max.record.locks group.share.min.record.lock.duration.ms
        group.share.min.session.timeout.ms group.share.partition.max.record.locks
        group.share.persister.class.name group.share.record.lock.duration.ms
        group.share.session.timeout.ms share.coordinator.append.linger.ms
        share.coordinator.cached.buffer.max.bytes
        share.coordinator.cold.partition.snapshot.interval.ms share.coordinator.load.buffer.size
        share.coordinator.snapshot.update.records.per.snapshot
        share.coordinator.state.topic.compression.codec
        share.coordinator.state.topic.num.partitions
        share.coordinator.state.topic.prune.interval.ms
        share.coordinator.state.topic.segment.bytes share.coordinator.threads
        share.coordinator.write.timeout.ms share.fetch.purgatory.purge.interval.requests
        """,
    ),
    _ignored(
        "streams groups (KIP-1071), which do not exist here",
        """
        group.streams.assignment.interval.ms group.streams.assignor.offload.enable
        group.streams.heartbeat.interval.ms group.streams.initial.rebalance.delay.ms
        group.streams.max.assignment.interval.ms group.streams.max.heartbeat.interval.ms
        group.streams.max.session.timeout.ms group.streams.max.size
        group.streams.max.standby.replicas group.streams.min.assignment.interval.ms
        group.streams.min.heartbeat.interval.ms group.streams.min.session.timeout.ms
        group.streams.num.standby.replicas group.streams.session.timeout.ms
        """,
    ),
    _ignored(
        "quotas, which are not enforced and cannot be set here",
        """
        controller.quota.window.num controller.quota.window.size.seconds quota.window.num
        quota.window.size.seconds
        """,
    ),
    _ignored(
        "tiered storage, which does not exist here",
        """
        follower.fetch.last.tiered.offset.enable log.remote.copy.lag.bytes log.remote.copy.lag.ms
        remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms
        remote.log.index.file.cache.total.size.bytes remote.log.index.file.cache.ttl.ms
        remote.log.manager.copier.thread.pool.size remote.log.manager.copy.max.bytes.per.second
        remote.log.manager.copy.quota.window.num
        remote.log.manager.copy.quota.window.size.seconds
        remote.log.manager.expiration.thread.pool.size
        remote.log.manager.fetch.max.bytes.per.second remote.log.manager.fetch.quota.window.num
        remote.log.manager.fetch.quota.window.size.seconds
        remote.log.manager.follower.thread.pool.size remote.log.manager.task.interval.ms
        remote.log.manager.task.retry.backoff.max.ms remote.log.manager.task.retry.backoff.ms
        remote.log.manager.task.retry.jitter remote.log.manager.thread.pool.size
        remote.log.metadata.custom.metadata.max.bytes remote.log.metadata.manager.impl.prefix
        remote.log.reader.max.pending.tasks remote.log.reader.threads
        remote.log.storage.manager.impl.prefix
        """,
    ),
)

IGNORED_NAMES = frozenset(name for ignored in IGNORED for name in ignored.names)

_TIERED = "tiered storage does not exist here, and records would be kept on local disks only"

REFUSED = (
    _refused(
        "TLS is not supported yet; every listener is PLAINTEXT",
        "ssl. security.providers",
        harmless="none",
    ),
    _refused(
        "SASL is not supported yet; every client would be let in without a login",
        "sasl. connections.max.reauth.ms connection.failed.authentication.delay.ms delegation.token.",
    ),
    _refused(
        "there are no ACLs yet; every client may do everything",
        "authorizer.class.name super.users principal.builder.class",
    ),
    _refused(
        "there are no ACLs yet; every client may do everything",
        "allow.everyone.if.no.acl.found",
        harmless="true",
    ),
    _refused(
        "policies and quota callbacks are Java classes, which this broker cannot load",
        "alter.config.policy.class.name create.topic.policy.class.name client.quota.callback.class",
    ),
    _refused(
        "connections are not limited per second here; max.connections limits their number",
        "max.connection.creation.rate",
        harmless="2147483647",
    ),
    _refused(
        "the connection to ZooKeeper is not encrypted, and nodes there get no ACLs",
        "zookeeper.ssl. zookeeper.set.acl",
        harmless="false",
    ),
    _refused(
        "dynamic settings are not encrypted in ZooKeeper",
        "password.encoder.",
    ),
    _refused(
        "requests of the controller have no listener of their own here",
        "control.plane.listener.name",
    ),
    _refused("log directories cannot be cordoned here", "cordoned.log.dirs"),
    _refused(
        _TIERED,
        """
        remote.log.storage.manager.class.name remote.log.storage.manager.class.path
        remote.log.metadata.manager.class.name remote.log.metadata.manager.class.path
        remote.log.metadata.manager.listener.name rsm.config. rlmm.config.
        """,
    ),
)

# Values of settings that have a row and no effect, but would promise something.
REFUSED_VALUES = {"remote.log.storage.system.enable": ("true", _TIERED)}


def refusal(name: str, text: str) -> str | None:
    """Return why a setting must not be ignored, or None. Settings of one listener count too."""
    value = text.strip().lower()
    if name in REFUSED_VALUES:
        refused_value, reason = REFUSED_VALUES[name]
        return reason if value == refused_value else None
    plain = _without_listener(name)
    for refused in REFUSED:
        for pattern in refused.names:
            if plain == pattern or (pattern.endswith(".") and plain.startswith(pattern)):
                return None if not value or value in refused.harmless else refused.reason
    return None


def is_known_to_kafka(name: str) -> bool:
    """Return whether Kafka has a setting of this name that this broker ignores or refuses."""
    plain = _without_listener(name)
    return name in IGNORED_NAMES or any(
        plain == pattern or (pattern.endswith(".") and plain.startswith(pattern))
        for refused in REFUSED
        for pattern in refused.names
    )


def _without_listener(name: str) -> str:
    """Return the name without ``listener.name.LISTENER.`` and, after that, a SASL mechanism."""
    parts = name.split(".")
    if parts[:2] != ["listener", "name"] or len(parts) < 4:
        return name
    rest = parts[3:]
    starts = {pattern.split(".")[0] for refused in REFUSED for pattern in refused.names}
    while len(rest) > 1 and rest[0] not in starts:
        rest = rest[1:]
    return ".".join(rest)
