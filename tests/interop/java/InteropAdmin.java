/*
 * The admin scenario: one call after another on a topic of its own, one JSON line per call.
 *
 * Nothing is asserted here: the test knows what Apache Kafka answers to the same calls.
 */

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.ListOffsetsResult;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.protocol.Errors;

class InteropAdmin {
    private final String bootstrap;
    private final JsonNode options;
    private final String topic;
    private final TopicPartition first;
    private Admin admin;
    private int node;

    InteropAdmin(String bootstrap, JsonNode options) {
        this.bootstrap = bootstrap;
        this.options = options;
        this.topic = options.get("topic").asText();
        this.first = new TopicPartition(topic, 0);
    }

    static String errorName(Throwable e) {
        return Errors.forException(e).name();
    }

    /** "NONE", or the name of the protocol error. */
    private static String outcome(KafkaFuture<?> future) throws InterruptedException {
        try {
            future.get();
            return "NONE";
        } catch (ExecutionException e) {
            return errorName(e.getCause());
        }
    }

    void run() throws Exception {
        try (Admin opened = Admin.create(Interop.config(bootstrap, options))) {
            admin = opened;
            cluster();
            createTopics();
            describeTopics();
            createPartitions();
            configs();
            records();
            logDirs();
            resourcesAndFeatures();
            deleteTopics();
        }
    }

    private void cluster() throws Exception {
        var cluster = admin.describeCluster();
        var nodes = cluster.nodes().get();
        node = nodes.iterator().next().id();
        Interop.print("describe_cluster", "nodes", nodes.size(), "controller_known", cluster.controller().get() != null,
            "cluster_id_length", cluster.clusterId().get().length());
    }

    private void createTopics() throws Exception {
        NewTopic wanted = new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "3600000"));
        CreateTopicsResult made = admin.createTopics(List.of(wanted));
        made.all().get();
        Interop.print("create_topic", "partitions", made.numPartitions(topic).get(), "replication_factor", made.replicationFactor(topic).get(),
            "has_id", !made.topicId(topic).get().equals(Uuid.ZERO_UUID), "retention_ms", made.config(topic).get().get("retention.ms").value());
        Interop.print("create_again", "error", outcome(admin.createTopics(List.of(wanted)).all()));
        NewTopic wrong = new NewTopic(topic + "-wrong", 1, (short) 1).configs(Map.of("retention.ms", "soon"));
        Interop.print("create_wrong_config", "error", outcome(admin.createTopics(List.of(wrong)).all()));
        NewTopic wide = new NewTopic(topic + "-wide", 1, (short) 9);
        Interop.print("create_replication_9", "error", outcome(admin.createTopics(List.of(wide)).all()));
        NewTopic odd = new NewTopic("a b", 1, (short) 1);
        Interop.print("create_bad_name", "error", outcome(admin.createTopics(List.of(odd)).all()));
        NewTopic tried = new NewTopic(topic + "-tried", Optional.of(3), Optional.empty());
        var validated = admin.createTopics(List.of(tried), new CreateTopicsOptions().validateOnly(true));
        Interop.print("validate_only", "partitions", validated.numPartitions(tried.name()).get());
    }

    private TopicDescription described() throws Exception {
        return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
    }

    private void describeTopics() throws Exception {
        TopicDescription it = described();
        Interop.print("describe_topic", "partitions", it.partitions().size(), "internal", it.isInternal(), "has_id", !it.topicId().equals(Uuid.ZERO_UUID),
            "led_by_its_replica", it.partitions().stream().allMatch(p -> p.leader().id() == node && p.replicas().size() == 1 && p.isr().size() == 1));
        var byId = admin.describeTopics(TopicCollection.ofTopicIds(List.of(it.topicId()))).allTopicIds().get();
        Interop.print("describe_topic_by_id", "same_name", byId.get(it.topicId()).name().equals(topic));
        Interop.print("describe_unknown", "error", outcome(admin.describeTopics(List.of(topic + "-nowhere")).allTopicNames()));
        Interop.print("list_topics", "has_it", admin.listTopics().names().get().contains(topic));
    }

    private void createPartitions() throws Exception {
        Interop.print("create_partitions", "error", outcome(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all()));
        Interop.print("fewer_partitions", "error", outcome(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all()));
        Interop.print("partitions_now", "count", described().partitions().size());
    }

    private Config config(ConfigResource resource) throws Exception {
        return admin.describeConfigs(List.of(resource)).all().get().get(resource);
    }

    private static String entry(Config config, String name) {
        ConfigEntry e = config.get(name);
        return e.value() + " " + e.source();
    }

    /** A change of a broker's settings may take a moment to be seen in the topics; it is given one. */
    private String settled(ConfigResource resource, String name, String expected) throws Exception {
        for (int i = 0; i < 100 && !config(resource).get(name).value().equals(expected); i++) Thread.sleep(50);
        return entry(config(resource), name);
    }

    private String alter(ConfigResource resource, String name, String value, AlterConfigOp.OpType type) throws Exception {
        Map<ConfigResource, Collection<AlterConfigOp>> ops = Map.of(resource, List.of(new AlterConfigOp(new ConfigEntry(name, value), type)));
        return outcome(admin.incrementalAlterConfigs(ops).all());
    }

    private void configs() throws Exception {
        ConfigResource it = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Config before = config(it);
        Interop.print("describe_configs", "retention_ms", entry(before, "retention.ms"), "segment_bytes", entry(before, "segment.bytes"),
            "cleanup_policy", entry(before, "cleanup.policy"));
        Interop.print("alter_set", "error", alter(it, "retention.ms", "7200000", AlterConfigOp.OpType.SET), "retention_ms", entry(config(it), "retention.ms"));
        Interop.print("alter_append", "error", alter(it, "cleanup.policy", "compact", AlterConfigOp.OpType.APPEND), "cleanup_policy", config(it).get("cleanup.policy").value());
        Interop.print("alter_subtract", "error", alter(it, "cleanup.policy", "compact", AlterConfigOp.OpType.SUBTRACT), "cleanup_policy", config(it).get("cleanup.policy").value());
        Interop.print("alter_delete", "error", alter(it, "retention.ms", "", AlterConfigOp.OpType.DELETE), "retention_ms", entry(config(it), "retention.ms"));
        Interop.print("alter_unknown", "error", alter(it, "no.such.setting", "1", AlterConfigOp.OpType.SET));
        Interop.print("alter_wrong_value", "error", alter(it, "retention.ms", "soon", AlterConfigOp.OpType.SET));
        Interop.print("alter_append_number", "error", alter(it, "retention.ms", "1", AlterConfigOp.OpType.APPEND));
        ConfigResource nowhere = new ConfigResource(ConfigResource.Type.TOPIC, topic + "-nowhere");
        Interop.print("describe_configs_unknown", "error", outcome(admin.describeConfigs(List.of(nowhere)).all()));
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, String.valueOf(node));
        ConfigResource everywhere = new ConfigResource(ConfigResource.Type.BROKER, "");
        Interop.print("broker_configs", "many", config(broker).entries().size() > 50);
        Interop.print("broker_default_set", "error", alter(everywhere, "log.retention.ms", "604000000", AlterConfigOp.OpType.SET),
            "topic_sees", settled(it, "retention.ms", "604000000"));
        Interop.print("broker_default_delete", "error", alter(everywhere, "log.retention.ms", "", AlterConfigOp.OpType.DELETE),
            "topic_sees", settled(it, "retention.ms", "604800000"));
        Interop.print("broker_read_only", "error", alter(broker, "log.dirs", "elsewhere", AlterConfigOp.OpType.SET));
    }

    private ListOffsetsResult.ListOffsetsResultInfo offset(OffsetSpec spec) throws Exception {
        return admin.listOffsets(Map.of(first, spec)).partitionResult(first).get();
    }

    private void records() throws Exception {
        long start = System.currentTimeMillis() - 60_000;
        try (KafkaProducer<byte[], byte[]> producer = Interop.producer(bootstrap, options)) {
            for (int i = 0; i < 10; i++) producer.send(new ProducerRecord<>(topic, 0, start + (i == 6 ? 500 : i), null, new byte[20])).get();
        }
        List<ProducerState> producers = admin.describeProducers(List.of(first)).partitionResult(first).get().activeProducers();
        Interop.print("describe_producers", "count", producers.size(), "last_sequence", producers.get(0).lastSequence());
        long low = admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(4))).lowWatermarks().get(first).get().lowWatermark();
        Interop.print("delete_records", "low_watermark", low);
        Interop.print("delete_records_beyond", "error", outcome(admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(99))).all()));
        Interop.print("list_offsets", "earliest", offset(OffsetSpec.earliest()).offset(), "latest", offset(OffsetSpec.latest()).offset(),
            "max_timestamp", offset(OffsetSpec.maxTimestamp()).offset(), "max_timestamp_ms", offset(OffsetSpec.maxTimestamp()).timestamp() - start,
            "for_timestamp", offset(OffsetSpec.forTimestamp(start + 5)).offset(),
            "beyond", offset(OffsetSpec.forTimestamp(start + 3_600_000)).offset(),
            "earliest_local", offset(OffsetSpec.earliestLocal()).offset(), "latest_tiered", offset(OffsetSpec.latestTiered()).offset());
    }

    private void logDirs() throws Exception {
        Map<String, LogDirDescription> dirs = admin.describeLogDirs(List.of(node)).allDescriptions().get().get(node);
        long size = dirs.values().stream().filter(d -> d.replicaInfos().containsKey(first)).mapToLong(d -> d.replicaInfos().get(first).size()).sum();
        Interop.print("describe_log_dirs", "dirs", dirs.size(), "size_known", size > 0, "free_known", dirs.values().stream().allMatch(d -> d.usableBytes().isPresent()));
        TopicPartitionReplica replica = new TopicPartitionReplica(topic, 0, node);
        Interop.print("alter_log_dir_unknown", "error", outcome(admin.alterReplicaLogDirs(Map.of(replica, "/no/such/directory")).all()));
    }

    private void resourcesAndFeatures() throws Exception {
        List<String> types = new ArrayList<>();
        for (ConfigResource r : admin.listConfigResources().all().get()) {
            if (r.name().equals(topic) || r.type() == ConfigResource.Type.BROKER) types.add(r.type().name());
        }
        types.sort(null);
        Interop.print("list_config_resources", "types", types);
        Interop.print("describe_features", "finalized_known", admin.describeFeatures().featureMetadata().get().finalizedFeatures() != null);
        var update = Map.of("no.such.version", new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE));
        Interop.print("update_features_unknown", "error", outcome(admin.updateFeatures(update, new UpdateFeaturesOptions()).all()));
    }

    private void deleteTopics() throws Exception {
        Uuid id = described().topicId();
        Interop.print("delete_topic_by_id", "error", outcome(admin.deleteTopics(TopicCollection.ofTopicIds(Set.of(id))).all()));
        Interop.print("delete_topic_again", "error", outcome(admin.deleteTopics(List.of(topic)).all()));
        Interop.print("describe_deleted", "error", outcome(admin.describeTopics(List.of(topic)).allTopicNames()));
    }
}
