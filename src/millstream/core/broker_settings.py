"""The settings of a broker, under Kafka's names. Rows marked ``inert`` are accepted and mean nothing here."""

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
    doc = "Default of the topic setting." if topic_setting is None else f"Default of {topic_setting}."
    return replace(TOPIC_SETTINGS[topic_setting or name], name=name, doc=doc, update=_ANY)


_IDENTITY = (
    Setting("node.id", _I, 0, "The id of this broker.", low=0),
    Setting("broker.id", _I, None, "The older name of node.id.", low=-1),
    Setting("broker.rack", _S, None, "The rack of this broker."),
    Setting("cluster.id", _S, None, "The cluster id for a new data directory; made up when not given."),
)

_ZOOKEEPER = (
    Setting(
        "zookeeper.connect",
        _S,
        None,
        "The ZooKeeper of the cluster: HOST:PORT[,HOST:PORT...][/CHROOT]. Without it the broker is alone.",
    ),
    Setting(
        "zookeeper.session.timeout.ms",
        _I,
        6000,
        "A broker not heard of for this long is taken for dead. Kafka's default is 18000.",
        low=100,
    ),
    Setting(
        "zookeeper.connection.timeout.ms",
        _I,
        None,
        "How long to wait for ZooKeeper at the start; the session timeout when not given.",
        low=1,
    ),
)

_LISTENERS = (
    Setting(
        "listeners",
        _LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "Where to listen: NAME://HOST:PORT, port 0 picks one.",
    ),
    Setting(
        "advertised.listeners",
        _LIST,
        None,
        "What clients are told to connect to; the listeners when not given.",
    ),
    Setting(
        "listener.security.protocol.map",
        _LIST,
        ("PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL"),
        "The protocol of each listener name.",
    ),
    Setting("inter.broker.listener.name", _S, None, "The listener that brokers use among themselves."),
    Setting("security.inter.broker.protocol", _S, "PLAINTEXT", "The protocol between brokers."),
)

_NETWORK = (
    Setting("connections.max.idle.ms", _L, 600000, "A connection silent for this long is closed."),
    Setting("max.connections", _I, INT_MAX, "The most connections at a time.", low=0, update=_ANY),
    Setting(
        "max.connections.per.ip", _I, INT_MAX, "The most connections from one address.", low=0, update=_ANY
    ),
    Setting(
        "max.connections.per.ip.overrides",
        _S,
        "",
        "Other limits for some addresses, as ip:limit,ip:limit.",
        update=_ANY,
    ),
    Setting(
        "socket.request.max.bytes",
        _I,
        104857600,
        "The largest request; a larger one closes the connection.",
        low=1,
    ),
    Setting("socket.send.buffer.bytes", _I, 102400, "SO_SNDBUF; -1 leaves it to the system."),
    Setting("socket.receive.buffer.bytes", _I, 102400, "SO_RCVBUF; -1 leaves it to the system."),
    Setting("socket.listen.backlog.size", _I, 50, "How many connections may wait to be accepted.", low=1),
    Setting("queued.max.requests", _I, 500, "The most requests of one connection in progress.", low=1),
    Setting(
        "queued.max.request.bytes",
        _L,
        None,
        "Maximum bytes of received requests that are not done. Above it, connections with large requests wait. "
        "A quarter of the memory when not given; -1 means no limit, which is Kafka's default.",
    ),
)

_TOPICS = (
    Setting("auto.create.topics.enable", _B, True, "Create a topic when a client first asks for it."),
    Setting("num.partitions", _I, 1, "The partition count of a topic that is created without one.", low=1),
    Setting(
        "default.replication.factor", _I, 1, "The replication factor of a topic that is created without one."
    ),
    Setting("delete.topic.enable", _B, True, "Whether topics may be deleted."),
    _topic_default("min.insync.replicas"),
    _topic_default("unclean.leader.election.enable"),
    Setting(
        "max.request.partition.size.limit",
        _I,
        2000,
        "The most partitions in one page of DescribeTopicPartitions.",
        low=1,
    ),
)

_LOG = (
    Setting("log.dirs", _LIST, None, "Directories for the data; log.dir when not given."),
    Setting("log.dir", _S, "data", "The one directory for the data."),
    Setting(
        "metadata.log.dir",
        _S,
        None,
        "Where the embedded metadata store lives; the first of log.dirs when not given.",
    ),
    _topic_default("log.segment.bytes", "segment.bytes"),
    Setting("log.roll.ms", _L, None, "Default of segment.ms.", update=_ANY),
    Setting("log.roll.hours", _I, 168, "The same in hours.", low=1),
    Setting("log.roll.jitter.ms", _L, None, "Default of segment.jitter.ms.", update=_ANY),
    Setting("log.roll.jitter.hours", _I, 0, "The same in hours.", low=0),
    Setting("log.retention.ms", _L, None, "Default of retention.ms.", update=_ANY),
    Setting("log.retention.minutes", _I, None, "The same in minutes."),
    Setting("log.retention.hours", _I, 168, "The same in hours."),
    Setting("log.retention.bytes", _L, -1, "Default of retention.bytes.", update=_ANY),
    Setting("log.retention.check.interval.ms", _L, 300000, "How often retention is applied.", low=1),
    _topic_default("log.cleanup.policy", "cleanup.policy"),
    _topic_default("log.index.size.max.bytes", "segment.index.bytes"),
    _topic_default("log.index.interval.bytes", "index.interval.bytes"),
    _topic_default("log.preallocate", "preallocate"),
    _topic_default("log.segment.delete.delay.ms", "file.delete.delay.ms"),
    _topic_default("log.flush.interval.messages", "flush.messages"),
    Setting("log.flush.interval.ms", _L, None, "Default of flush.ms.", update=_ANY),
    Setting(
        "log.flush.scheduler.interval.ms", _L, LONG_MAX, "How often logs are looked at for flushing by time."
    ),
    Setting(
        "log.flush.offset.checkpoint.interval.ms", _I, 60000, "How often recovery points are written.", low=0
    ),
    Setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        _I,
        60000,
        "How often log start offsets are written.",
        low=0,
    ),
    Setting(
        "log.writeback.bytes",
        _L,
        8388608,
        "Written bytes after which the kernel is asked to begin writing them out in the background (Millstream's own).",
        low=65536,
    ),
    Setting(
        "log.read.verification.enable",
        _B,
        True,
        "Verify the checksum and the offsets of every batch that was written before the last start, when it is first read. A damaged one is answered with CORRUPT_MESSAGE (Millstream's own).",
    ),
    Setting(
        "log.scrub.bytes.per.second",
        _L,
        1048576,
        "How fast the background scrub reads all logs to find damage; 0 turns it off (Millstream's own).",
        low=0,
        update=_ANY,
    ),
    Setting(
        "log.scrub.interval.ms",
        _L,
        604800000,
        "Time between the starts of two rounds of the background scrub (Millstream's own).",
        low=1000,
        update=_ANY,
    ),
    Setting(
        "log.initial.task.delay.ms",
        _L,
        30000,
        "Accepted for compatibility: the first check comes after one interval.",
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
        "The most a batch may decompress to where the broker has to decode it (Millstream's own).",
        low=1048576,
    ),
    Setting(
        "producer.id.expiration.ms",
        _I,
        86400000,
        "A silent producer's sequence state is dropped after this.",
        low=1,
        update=_ANY,
    ),
    Setting("producer.id.expiration.check.interval.ms", _I, 600000, "How often that is looked at.", low=1),
)

_CLEANER = (
    Setting("log.cleaner.enable", _B, True, "Whether compaction runs."),
    Setting(
        "log.cleaner.threads",
        _I,
        1,
        "One child process compacts, whatever this says.",
        low=0,
        inert=True,
        update=_ANY,
    ),
    Setting(
        "log.cleaner.backoff.ms",
        _L,
        15000,
        "How long compaction rests when nothing is dirty.",
        low=0,
        update=_ANY,
    ),
    Setting(
        "log.cleaner.dedupe.buffer.size",
        _L,
        134217728,
        "Bounds how many keys one pass can hold.",
        low=1048576,
        update=_ANY,
    ),
    Setting("log.cleaner.io.buffer.size", _I, 524288, "Read size of compaction.", low=0, update=_ANY),
    Setting("log.cleaner.io.buffer.load.factor", _D, 0.9, "How full the key map may become.", update=_ANY),
    Setting(
        "log.cleaner.io.max.bytes.per.second",
        _D,
        1.7976931348623157e308,
        "Throttle of compaction.",
        update=_ANY,
    ),
    _topic_default("log.cleaner.delete.retention.ms", "delete.retention.ms"),
    _topic_default("log.cleaner.min.cleanable.ratio", "min.cleanable.dirty.ratio"),
    _topic_default("log.cleaner.min.compaction.lag.ms", "min.compaction.lag.ms"),
    _topic_default("log.cleaner.max.compaction.lag.ms", "max.compaction.lag.ms"),
)

_FETCH = (
    Setting("fetch.max.bytes", _I, 57671680, "The most bytes of one fetch answer.", low=1024),
    Setting(
        "max.incremental.fetch.session.cache.slots",
        _I,
        1000,
        "How many fetch sessions are kept (KIP-227).",
        low=0,
    ),
    Setting(
        "replica.lag.time.max.ms",
        _L,
        30000,
        "A follower that is behind for this long leaves the in-sync set.",
    ),
    Setting(
        "replica.high.watermark.checkpoint.interval.ms",
        _L,
        5000,
        "How often high watermarks are written to disk.",
    ),
    Setting("controlled.shutdown.enable", _B, True, "Move leadership away before stopping."),
    Setting("auto.leader.rebalance.enable", _B, True, "Give leadership back to the preferred replicas."),
    Setting("leader.imbalance.check.interval.seconds", _L, 300, "How often that is looked at.", low=1),
    Setting(
        "leader.imbalance.per.broker.percentage",
        _I,
        10,
        "The share of a broker's preferred partitions that others may lead before that.",
    ),
)

_COORDINATORS = (
    Setting("offsets.topic.num.partitions", _I, 50, "Partitions of __consumer_offsets.", low=1),
    Setting(
        "offsets.topic.replication.factor",
        Type.SHORT,
        1,
        "Its replication factor; not given: three, or as many as there are brokers.",
        low=1,
    ),
    Setting("offsets.topic.segment.bytes", _I, 104857600, "Its segment size.", low=1048576),
    Setting("offsets.retention.minutes", _I, 10080, "Offsets of an empty group are kept this long.", low=1),
    Setting("offsets.retention.check.interval.ms", _L, 600000, "How often that is looked at.", low=1),
    Setting("offset.metadata.max.bytes", _I, 4096, "The most a client may note beside an offset."),
    Setting(
        "group.initial.rebalance.delay.ms",
        _I,
        3000,
        "How long the first rebalance of an empty group waits for more members.",
    ),
    Setting("group.min.session.timeout.ms", _I, 6000, "The shortest session a classic member may ask for."),
    Setting("group.max.session.timeout.ms", _I, 1800000, "The longest one."),
    Setting("group.max.size", _I, INT_MAX, "The most members of a classic group.", low=1),
    Setting(
        "group.consumer.session.timeout.ms",
        _I,
        45000,
        "The session of a consumer-protocol member (KIP-848).",
        low=1,
    ),
    Setting("group.consumer.min.session.timeout.ms", _I, 45000, "The shortest a group may set.", low=1),
    Setting("group.consumer.max.session.timeout.ms", _I, 60000, "The longest a group may set.", low=1),
    Setting(
        "group.consumer.heartbeat.interval.ms",
        _I,
        5000,
        "How often such a member says that it is alive.",
        low=1,
    ),
    Setting("group.consumer.min.heartbeat.interval.ms", _I, 5000, "The shortest a group may set.", low=1),
    Setting("group.consumer.max.heartbeat.interval.ms", _I, 15000, "The longest a group may set.", low=1),
    Setting(
        "group.consumer.assignment.interval.ms",
        _I,
        0,
        "Minimum time between two assignments of a group. Kafka's default is 1000 since 4.3, which saves work for groups of "
        "thousands of members that join one by one. 0 assigns at once: members of a small group do not wait a second.",
        low=0,
    ),
    Setting("group.consumer.min.assignment.interval.ms", _I, 0, "The shortest a group may set.", low=0),
    Setting("group.consumer.max.assignment.interval.ms", _I, 15000, "The longest a group may set.", low=0),
    Setting("group.consumer.max.size", _I, INT_MAX, "The most members of a consumer group.", low=1),
    Setting(
        "group.consumer.assignors",
        _LIST,
        ("uniform", "range"),
        "The assignors of the broker, the default first.",
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
        "A group's patterns are resolved again after this at the latest; new topics are seen with the next heartbeat.",
        low=10000,
    ),
    Setting("transaction.state.log.num.partitions", _I, 50, "Partitions of __transaction_state.", low=1),
    Setting(
        "transaction.state.log.replication.factor",
        Type.SHORT,
        1,
        "Its replication factor; not given: three, or as many as there are brokers.",
        low=1,
    ),
    Setting(
        "transaction.state.log.min.isr",
        _I,
        1,
        "Its min.insync.replicas; not given: one less than its replicas.",
        low=1,
    ),
    Setting("transaction.state.log.segment.bytes", _I, 104857600, "Its segment size.", low=1048576),
    Setting(
        "transaction.max.timeout.ms", _I, 900000, "The longest transaction a producer may ask for.", low=1
    ),
    Setting(
        "transactional.id.expiration.ms",
        _I,
        604800000,
        "An unused transactional id is forgotten after this.",
        low=1,
    ),
    Setting(
        "transactional.ids.memory.max.bytes",
        _L,
        None,
        "Memory for transactional ids, about 600 bytes each (Millstream's own). Above it, the ids that have been "
        "unused for the longest time expire before transactional.id.expiration.ms. One 32nd of the memory when not "
        "given; -1 means no limit, as in Kafka.",
    ),
    Setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        _I,
        10000,
        "How often overdue transactions are tried again.",
        low=1,
    ),
    Setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        _I,
        3600000,
        "How often unused ids are looked for.",
        low=1,
    ),
    Setting(
        "transaction.partition.verification.enable",
        _B,
        True,
        "Ask the coordinator before a transaction's first batch (KIP-890). Clients of transaction.version 2 are always asked for.",
        update=_ANY,
    ),
    Setting(
        "add.partitions.to.txn.retry.backoff.ms",
        _I,
        20,
        "How long a produce waits before it asks again to join a transaction while the one before still ends.",
        low=1,
    ),
    Setting(
        "add.partitions.to.txn.retry.backoff.max.ms",
        _I,
        100,
        "For how long it asks; then the client hears CONCURRENT_TRANSACTIONS.",
        low=0,
    ),
    Setting(
        "transaction.two.phase.commit.enable",
        _B,
        False,
        "Offers InitProducerId v6: transactions that wait for an outside decision (KIP-939).",
    ),
)

# Kafka's names that mean nothing in one event loop, or belong to what is not built here.
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
    Setting("request.timeout.ms", _I, 30000, "How long a broker waits for the controller to answer.", low=1),
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
        "replica.fetch.max.bytes", _I, 1048576, "The most that a follower fetches of one partition at once."
    ),
    Setting("replica.fetch.response.max.bytes", _I, 10485760, "The most that it fetches at once."),
    Setting("replica.fetch.wait.max.ms", _I, 500, "How long its fetch waits for records."),
    Setting("replica.fetch.min.bytes", _I, 1, "For how many bytes it waits."),
    Setting("replica.fetch.backoff.ms", _I, 1000, "How long it pauses after a failure."),
    Setting("replica.socket.timeout.ms", _I, 30000, "How long it waits for an answer."),
    Setting(
        "replica.selector.class",
        _S,
        None,
        "Who tells consumers where to read: RackAwareReplicaSelector sends them to a replica in their rack (KIP-392), LeaderSelector to the "
        "leader, as without one.",
        choices=(
            "org.apache.kafka.common.replica.LeaderSelector",
            "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        ),
    ),
    Setting(
        "leader.replication.throttled.rate",
        _L,
        LONG_MAX,
        "The most bytes per second that are sent to throttled replicas which are not in sync.",
        low=0,
        update=_ANY,
    ),
    Setting(
        "follower.replication.throttled.rate",
        _L,
        LONG_MAX,
        "The most bytes per second that are fetched for throttled replicas which are not in sync.",
        low=0,
        update=_ANY,
    ),
    Setting(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        _L,
        LONG_MAX,
        "The most bytes per second that are copied for replicas on their way between data directories of a broker.",
        low=0,
        update=_ANY,
    ),
    Setting("replication.quota.window.num", _I, 11, "Over how many windows these rates are measured.", low=1),
    Setting("replication.quota.window.size.seconds", _I, 1, "How long each of these windows is.", low=1),
    Setting(
        "offsets.commit.timeout.ms",
        _I,
        5000,
        "How long a coordinator's answer waits for its records to be replicated.",
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
