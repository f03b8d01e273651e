"""The settings of a broker, under Kafka's names.

Rows marked ``inert`` are accepted for compatibility and have no effect.
"""

from __future__ import annotations

from dataclasses import replace

from millstream.core.settings import INT_MAX, LONG_MAX, Setting, Type, Update, Value, table
from millstream.core.topic_settings import TOPIC_SETTINGS

_B, _S, _I, _L, _D, _LIST = Type.BOOLEAN, Type.STRING, Type.INT, Type.LONG, Type.DOUBLE, Type.LIST
_ANY = Update.CLUSTER_WIDE


def _inert(name: str, type_: Type, default: Value, update: Update = Update.READ_ONLY) -> Setting:
    doc = "Accepted for compatibility; has no effect here."
    return Setting(name, type_, default, doc, inert=True, update=update)


def _topic_default(name: str, topic_setting: str | None = None) -> Setting:
    """The broker setting behind a topic setting: the same type, default and bounds."""
    doc = (
        "Default of the topic setting." if topic_setting is None else f"Default of {topic_setting}."
    )
    return replace(TOPIC_SETTINGS[topic_setting or name], name=name, doc=doc, update=_ANY)


_IDENTITY = (
    Setting("node.id", _I, 0, "The id of this broker.", low=0),
    Setting("broker.id", _I, None, "The older name of node.id.", low=-1),
    Setting("broker.rack", _S, None, "The rack of this broker."),
    Setting("cluster.id", _S, None, "The cluster id for a new data directory; random by default."),
)

_ZOOKEEPER = (
    Setting(
        "zookeeper.connect",
        _S,
        None,
        "The ZooKeeper of the cluster: HOST:PORT[,HOST:PORT...][/CHROOT]. Without it, the broker runs alone.",
    ),
    Setting(
        "zookeeper.session.timeout.ms",
        _I,
        6000,
        "Time after which a silent broker counts as dead. Kafka's default is 18000.",
        low=100,
    ),
    Setting(
        "zookeeper.connection.timeout.ms",
        _I,
        None,
        "How long to wait for ZooKeeper at startup; default: the session timeout.",
        low=1,
    ),
)

_LISTENERS = (
    Setting(
        "listeners",
        _LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "Addresses to listen on: NAME://HOST:PORT. Port 0 picks a free port.",
    ),
    Setting(
        "advertised.listeners",
        _LIST,
        None,
        "Addresses that clients should connect to; default: the listeners.",
    ),
    Setting(
        "listener.security.protocol.map",
        _LIST,
        ("PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL"),
        "The protocol of each listener name.",
    ),
    Setting(
        "inter.broker.listener.name", _S, None, "The listener for connections between brokers."
    ),
    Setting("security.inter.broker.protocol", _S, "PLAINTEXT", "The protocol between brokers."),
)

_NETWORK = (
    Setting(
        "connections.max.idle.ms", _L, 600000, "Time after which an idle connection is closed."
    ),
    Setting("max.connections", _I, INT_MAX, "Maximum number of connections.", low=0, update=_ANY),
    Setting(
        "max.connections.per.ip",
        _I,
        INT_MAX,
        "Maximum number of connections from one address.",
        low=0,
        update=_ANY,
    ),
    Setting(
        "max.connections.per.ip.overrides",
        _S,
        "",
        "Limits for single addresses, as ip:limit,ip:limit.",
        update=_ANY,
    ),
    Setting(
        "socket.request.max.bytes",
        _I,
        104857600,
        "Maximum size of a request; a larger one closes the connection.",
        low=1,
    ),
    Setting("socket.send.buffer.bytes", _I, 102400, "SO_SNDBUF; -1 leaves it to the system."),
    Setting("socket.receive.buffer.bytes", _I, 102400, "SO_RCVBUF; -1 leaves it to the system."),
    Setting(
        "socket.listen.backlog.size",
        _I,
        50,
        "Maximum number of connections waiting to be accepted.",
        low=1,
    ),
    Setting(
        "queued.max.requests",
        _I,
        500,
        "Maximum number of requests in progress per connection.",
        low=1,
    ),
    Setting(
        "queued.max.request.bytes",
        _L,
        None,
        "Maximum bytes of received requests in progress. Above it, connections with large requests "
        "wait. Default: a quarter of the memory. -1 means no limit, which is Kafka's default.",
    ),
)

_TOPICS = (
    Setting(
        "auto.create.topics.enable", _B, True, "Create a topic when a client first requests it."
    ),
    Setting("num.partitions", _I, 1, "Number of partitions of a topic created without one.", low=1),
    Setting(
        "default.replication.factor", _I, 1, "Replication factor of a topic created without one."
    ),
    Setting("delete.topic.enable", _B, True, "Whether topics may be deleted."),
    _topic_default("min.insync.replicas"),
    _topic_default("unclean.leader.election.enable"),
    Setting(
        "max.request.partition.size.limit",
        _I,
        2000,
        "Maximum partitions in one page of DescribeTopicPartitions.",
        low=1,
    ),
)

_LOG = (
    Setting("log.dirs", _LIST, None, "Directories for the data; default: log.dir."),
    Setting("log.dir", _S, "data", "Directory for the data, if log.dirs is not set."),
    Setting(
        "metadata.log.dir",
        _S,
        None,
        "Directory of the embedded metadata store; default: the first of log.dirs.",
    ),
    _topic_default("log.segment.bytes", "segment.bytes"),
    Setting("log.roll.ms", _L, None, "Default of segment.ms.", update=_ANY),
    Setting("log.roll.hours", _I, 168, "The same, in hours.", low=1),
    Setting("log.roll.jitter.ms", _L, None, "Default of segment.jitter.ms.", update=_ANY),
    Setting("log.roll.jitter.hours", _I, 0, "The same, in hours.", low=0),
    Setting("log.retention.ms", _L, None, "Default of retention.ms.", update=_ANY),
    Setting("log.retention.minutes", _I, None, "The same, in minutes."),
    Setting("log.retention.hours", _I, 168, "The same, in hours."),
    Setting("log.retention.bytes", _L, -1, "Default of retention.bytes.", update=_ANY),
    Setting("log.retention.check.interval.ms", _L, 300000, "Interval of retention checks.", low=1),
    _topic_default("log.cleanup.policy", "cleanup.policy"),
    _topic_default("log.index.size.max.bytes", "segment.index.bytes"),
    _topic_default("log.index.interval.bytes", "index.interval.bytes"),
    _topic_default("log.preallocate", "preallocate"),
    _topic_default("log.segment.delete.delay.ms", "file.delete.delay.ms"),
    _topic_default("log.flush.interval.messages", "flush.messages"),
    Setting("log.flush.interval.ms", _L, None, "Default of flush.ms.", update=_ANY),
    Setting(
        "log.flush.scheduler.interval.ms",
        _L,
        LONG_MAX,
        "Interval of the checks for time-based flushes.",
    ),
    Setting(
        "log.flush.offset.checkpoint.interval.ms",
        _I,
        60000,
        "Interval at which recovery points are written.",
        low=0,
    ),
    Setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        _I,
        60000,
        "Interval at which log start offsets are written.",
        low=0,
    ),
    Setting(
        "log.writeback.bytes",
        _L,
        8388608,
        "Bytes after which the kernel is asked to start writing them back (Millstream only).",
        low=65536,
    ),
    Setting(
        "log.read.verification.enable",
        _B,
        True,
        "Verify the checksum and offsets of every batch written before the last startup when it is "
        "first read. A damaged batch is answered with CORRUPT_MESSAGE (Millstream only).",
    ),
    Setting(
        "log.scrub.bytes.per.second",
        _L,
        1048576,
        "Rate at which the background scrub reads all logs to find damage; 0 turns it off (Millstream only).",
        low=0,
        update=_ANY,
    ),
    Setting(
        "log.scrub.interval.ms",
        _L,
        604800000,
        "Time between the starts of two rounds of the background scrub (Millstream only).",
        low=1000,
        update=_ANY,
    ),
    Setting(
        "log.initial.task.delay.ms",
        _L,
        30000,
        "Accepted for compatibility. The first check runs after one interval.",
        low=0,
        inert=True,
    ),
    Setting(
        "num.recovery.threads.per.data.dir",
        _I,
        2,
        "Threads that load and recover a directory.",
        low=1,
        update=_ANY,
        inert=True,
    ),
    _topic_default("compression.type"),
    _topic_default("compression.gzip.level"),
    _topic_default("compression.lz4.level"),
    _topic_default("compression.zstd.level"),
    _topic_default("message.max.bytes", "max.message.bytes"),
    _topic_default("log.message.timestamp.type", "message.timestamp.type"),
    _topic_default("log.message.timestamp.before.max.ms", "message.timestamp.before.max.ms"),
    _topic_default("log.message.timestamp.after.max.ms", "message.timestamp.after.max.ms"),
    _topic_default("log.message.validation.deep", "message.validation.deep"),
    Setting(
        "record.decompressed.max.bytes",
        _L,
        67108864,
        "Maximum decompressed size of a batch that the broker has to decode (Millstream only).",
        low=1048576,
    ),
    Setting(
        "producer.id.expiration.ms",
        _I,
        86400000,
        "Time after which the sequence state of an idle producer expires.",
        low=1,
        update=_ANY,
    ),
    Setting(
        "producer.id.expiration.check.interval.ms", _I, 600000, "Interval of that check.", low=1
    ),
)

_CLEANER = (
    Setting("log.cleaner.enable", _B, True, "Whether compaction runs."),
    Setting(
        "log.cleaner.threads",
        _I,
        1,
        "Ignored: one child process compacts.",
        low=0,
        inert=True,
        update=_ANY,
    ),
    Setting(
        "log.cleaner.backoff.ms",
        _L,
        15000,
        "Pause of compaction when no log is dirty.",
        low=0,
        update=_ANY,
    ),
    Setting(
        "log.cleaner.dedupe.buffer.size",
        _L,
        134217728,
        "Memory for the keys of one compaction pass.",
        low=1048576,
        update=_ANY,
    ),
    Setting(
        "log.cleaner.io.buffer.size",
        _I,
        524288,
        "Read buffer size of compaction.",
        low=0,
        update=_ANY,
    ),
    Setting(
        "log.cleaner.io.buffer.load.factor",
        _D,
        0.9,
        "Maximum fill ratio of the key map.",
        update=_ANY,
    ),
    Setting(
        "log.cleaner.io.max.bytes.per.second",
        _D,
        1.7976931348623157e308,
        "Maximum I/O rate of compaction.",
        update=_ANY,
    ),
    _topic_default("log.cleaner.delete.retention.ms", "delete.retention.ms"),
    _topic_default("log.cleaner.min.cleanable.ratio", "min.cleanable.dirty.ratio"),
    _topic_default("log.cleaner.min.compaction.lag.ms", "min.compaction.lag.ms"),
    _topic_default("log.cleaner.max.compaction.lag.ms", "max.compaction.lag.ms"),
)

_FETCH = (
    Setting("fetch.max.bytes", _I, 57671680, "Maximum bytes of a fetch response.", low=1024),
    Setting(
        "max.incremental.fetch.session.cache.slots",
        _I,
        1000,
        "Maximum number of fetch sessions (KIP-227).",
        low=0,
    ),
    Setting(
        "replica.lag.time.max.ms",
        _L,
        30000,
        "Time after which a lagging follower leaves the ISR.",
    ),
    Setting(
        "replica.high.watermark.checkpoint.interval.ms",
        _L,
        5000,
        "Interval at which high watermarks are written to disk.",
    ),
    Setting("controlled.shutdown.enable", _B, True, "Hand over leadership before shutdown."),
    Setting(
        "auto.leader.rebalance.enable", _B, True, "Return leadership to the preferred replicas."
    ),
    Setting("leader.imbalance.check.interval.seconds", _L, 300, "Interval of that check.", low=1),
    Setting(
        "leader.imbalance.per.broker.percentage",
        _I,
        10,
        "Share of a broker's preferred partitions that others may lead before that happens.",
    ),
)

_COORDINATORS = (
    Setting("offsets.topic.num.partitions", _I, 50, "Partitions of __consumer_offsets.", low=1),
    Setting(
        "offsets.topic.replication.factor",
        Type.SHORT,
        1,
        "Its replication factor; default: three, or the number of brokers if fewer.",
        low=1,
    ),
    Setting("offsets.topic.segment.bytes", _I, 104857600, "Its segment size.", low=1048576),
    Setting(
        "offsets.retention.minutes",
        _I,
        10080,
        "How long the offsets of an empty group are kept.",
        low=1,
    ),
    Setting("offsets.retention.check.interval.ms", _L, 600000, "Interval of that check.", low=1),
    Setting(
        "offset.metadata.max.bytes", _I, 4096, "Maximum size of the metadata of a committed offset."
    ),
    Setting(
        "group.initial.rebalance.delay.ms",
        _I,
        3000,
        "How long the first rebalance of an empty group waits for more members.",
    ),
    Setting(
        "group.min.session.timeout.ms", _I, 6000, "Minimum session timeout of a classic member."
    ),
    Setting(
        "group.max.session.timeout.ms", _I, 1800000, "Maximum session timeout of a classic member."
    ),
    Setting("group.max.size", _I, INT_MAX, "Maximum members of a classic group.", low=1),
    Setting(
        "group.consumer.session.timeout.ms",
        _I,
        45000,
        "Session timeout of a consumer-protocol member (KIP-848).",
        low=1,
    ),
    Setting(
        "group.consumer.min.session.timeout.ms", _I, 45000, "Minimum that a group may set.", low=1
    ),
    Setting(
        "group.consumer.max.session.timeout.ms", _I, 60000, "Maximum that a group may set.", low=1
    ),
    Setting(
        "group.consumer.heartbeat.interval.ms",
        _I,
        5000,
        "Heartbeat interval of such a member.",
        low=1,
    ),
    Setting(
        "group.consumer.min.heartbeat.interval.ms", _I, 5000, "Minimum that a group may set.", low=1
    ),
    Setting(
        "group.consumer.max.heartbeat.interval.ms",
        _I,
        15000,
        "Maximum that a group may set.",
        low=1,
    ),
    Setting(
        "group.consumer.assignment.interval.ms",
        _I,
        0,
        "Minimum time between two assignments of a group. Kafka's default is 1000 since 4.3, which "
        "saves work if thousands of members join one by one. 0 assigns at once, so that members of "
        "a small group do not wait a second.",
        low=0,
    ),
    Setting(
        "group.consumer.min.assignment.interval.ms", _I, 0, "Minimum that a group may set.", low=0
    ),
    Setting(
        "group.consumer.max.assignment.interval.ms",
        _I,
        15000,
        "Maximum that a group may set.",
        low=0,
    ),
    Setting("group.consumer.max.size", _I, INT_MAX, "Maximum members of a consumer group.", low=1),
    Setting(
        "group.consumer.assignors",
        _LIST,
        ("uniform", "range"),
        "The assignors of the broker; the first is the default.",
    ),
    Setting(
        "group.consumer.migration.policy",
        _S,
        "bidirectional",
        "Whether a live group may change between the classic and the consumer protocol.",
        choices=("upgrade", "downgrade", "bidirectional", "disabled"),
    ),
    Setting(
        "group.consumer.regex.refresh.interval.ms",
        _I,
        600000,
        "Maximum time until a group's patterns are resolved again. New topics are seen with the "
        "next heartbeat.",
        low=10000,
    ),
    Setting(
        "transaction.state.log.num.partitions", _I, 50, "Partitions of __transaction_state.", low=1
    ),
    Setting(
        "transaction.state.log.replication.factor",
        Type.SHORT,
        1,
        "Its replication factor; default: three, or the number of brokers if fewer.",
        low=1,
    ),
    Setting(
        "transaction.state.log.min.isr",
        _I,
        1,
        "Its min.insync.replicas; default: one less than its replicas.",
        low=1,
    ),
    Setting("transaction.state.log.segment.bytes", _I, 104857600, "Its segment size.", low=1048576),
    Setting(
        "transaction.max.timeout.ms",
        _I,
        900000,
        "Maximum transaction timeout of a producer.",
        low=1,
    ),
    Setting(
        "transactional.id.expiration.ms",
        _I,
        604800000,
        "Time after which an unused transactional id expires.",
        low=1,
    ),
    Setting(
        "transactional.ids.memory.max.bytes",
        _L,
        None,
        "Memory for transactional ids, about 600 bytes each (Millstream only). Above it, the ids "
        "unused for the longest time expire before transactional.id.expiration.ms. Default: one "
        "32nd of the memory. -1 means no limit, as in Kafka.",
    ),
    Setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        _I,
        10000,
        "Interval at which overdue transactions are retried.",
        low=1,
    ),
    Setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        _I,
        3600000,
        "Interval of the check for unused ids.",
        low=1,
    ),
    Setting(
        "transaction.partition.verification.enable",
        _B,
        True,
        "Ask the coordinator before a transaction's first batch (KIP-890). With transaction.version "
        "2 this always happens.",
        update=_ANY,
    ),
    Setting(
        "add.partitions.to.txn.retry.backoff.ms",
        _I,
        20,
        "Pause before a produce retries to join a transaction while the previous one still ends.",
        low=1,
    ),
    Setting(
        "add.partitions.to.txn.retry.backoff.max.ms",
        _I,
        100,
        "Total time of these retries; then the client gets CONCURRENT_TRANSACTIONS.",
        low=0,
    ),
    Setting(
        "transaction.two.phase.commit.enable",
        _B,
        False,
        "Offer InitProducerId v6: transactions that wait for an external decision (KIP-939).",
    ),
)

# Kafka's settings for threads, which one event loop does not have, and for missing features.
_INERT = (
    _inert("num.network.threads", _I, 3, _ANY),
    _inert("num.io.threads", _I, 8, _ANY),
    _inert("background.threads", _I, 10, _ANY),
    _inert("num.replica.fetchers", _I, 1, _ANY),
    _inert("num.replica.alter.log.dirs.threads", _I, None),
    _inert("process.roles", _LIST, ()),
    _inert("controller.quorum.voters", _LIST, ()),
    _inert("controller.quorum.bootstrap.servers", _LIST, ()),
    _inert("controller.listener.names", _S, None),
    Setting(
        "request.timeout.ms",
        _I,
        30000,
        "How long a broker waits for a response of the controller.",
        low=1,
    ),
    _inert("metric.reporters", _LIST, ()),
    _inert("metrics.num.samples", _I, 2),
    _inert("metrics.recording.level", _S, "INFO"),
    _inert("metrics.sample.window.ms", _L, 30000),
    _inert("log.dir.failure.timeout.ms", _L, 30000),
    _inert("log.local.retention.bytes", _L, -2),
    _inert("log.local.retention.ms", _L, -2),
    _inert("remote.log.storage.system.enable", _B, False),
    _inert("socket.connection.setup.timeout.ms", _L, 10000),
    _inert("fetch.purgatory.purge.interval.requests", _I, 1000),
    _inert("producer.purgatory.purge.interval.requests", _I, 1000),
    _inert("delete.records.purgatory.purge.interval.requests", _I, 1),
    Setting(
        "replica.fetch.max.bytes",
        _I,
        1048576,
        "Maximum bytes of one partition in a follower's fetch.",
    ),
    Setting(
        "replica.fetch.response.max.bytes", _I, 10485760, "Maximum bytes of a follower's fetch."
    ),
    Setting("replica.fetch.wait.max.ms", _I, 500, "How long a follower's fetch waits for records."),
    Setting("replica.fetch.min.bytes", _I, 1, "Minimum bytes of a follower's fetch."),
    Setting("replica.fetch.backoff.ms", _I, 1000, "Pause of a follower after a failed fetch."),
    Setting("replica.socket.timeout.ms", _I, 30000, "How long a follower waits for a response."),
    Setting(
        "replica.selector.class",
        _S,
        None,
        "Selects the replica that a consumer reads: RackAwareReplicaSelector, one in its rack "
        "(KIP-392); LeaderSelector, the leader, which is the default.",
        choices=(
            "org.apache.kafka.common.replica.LeaderSelector",
            "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        ),
    ),
    Setting(
        "leader.replication.throttled.rate",
        _L,
        LONG_MAX,
        "Maximum bytes per second sent to throttled replicas that are not in sync.",
        low=0,
        update=_ANY,
    ),
    Setting(
        "follower.replication.throttled.rate",
        _L,
        LONG_MAX,
        "Maximum bytes per second fetched for throttled replicas that are not in sync.",
        low=0,
        update=_ANY,
    ),
    Setting(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        _L,
        LONG_MAX,
        "Maximum bytes per second for copying replicas between data directories of a broker.",
        low=0,
        update=_ANY,
    ),
    Setting(
        "replication.quota.window.num",
        _I,
        11,
        "Number of windows over which these rates are measured.",
        low=1,
    ),
    Setting(
        "replication.quota.window.size.seconds", _I, 1, "Length of each of these windows.", low=1
    ),
    Setting(
        "offsets.commit.timeout.ms",
        _I,
        5000,
        "How long a coordinator's response waits for its records to be replicated.",
        low=1,
    ),
    _inert("replica.socket.receive.buffer.bytes", _I, 65536),
    _inert("offsets.topic.compression.codec", _I, 0),
    _inert("offsets.load.buffer.size", _I, 5242880),
    _inert("group.coordinator.threads", _I, 4),
    _inert("group.coordinator.rebalance.protocols", _LIST, ("classic", "consumer", "streams")),
    _inert("share.coordinator.state.topic.replication.factor", Type.SHORT, 1),
    _inert("share.coordinator.state.topic.min.isr", Type.SHORT, 1),
    _inert("confluent.support.metrics.enable", _B, False),
)

BROKER_SETTINGS = table(
    (
        *_IDENTITY,
        *_ZOOKEEPER,
        *_LISTENERS,
        *_NETWORK,
        *_TOPICS,
        *_LOG,
        *_CLEANER,
        *_FETCH,
        *_COORDINATORS,
        *_INERT,
    )
)
