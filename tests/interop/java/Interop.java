/*
 * Drives the Java client against a broker: java Interop BOOTSTRAP SCENARIO JSON-ARGUMENTS.
 *
 * Prints one JSON object per line, so that a test compares whole values. The scenarios (produce, consume,
 * offsets, admin, telemetry, transactions, recover, group) take the same arguments and print the same lines as the programs
 * of the other languages.
 */

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Interop {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Duration LONG = Duration.ofSeconds(60);
    static final int SHORT_BYTES = 64;

    public static void main(String[] args) throws Exception {
        String bootstrap = args[0];
        JsonNode options = JSON.readTree(args[2]);
        switch (args[1]) {
            case "produce" -> produce(bootstrap, options);
            case "consume" -> consume(bootstrap, options);
            case "offsets" -> offsets(bootstrap, options);
            case "telemetry" -> telemetry(bootstrap, options);
            case "transactions" -> transactions(bootstrap, options);
            case "recover" -> recover(bootstrap, options);
            case "group" -> group(bootstrap, options);
            case "admin" -> new InteropAdmin(bootstrap, options).run();
            default -> throw new IllegalArgumentException(args[1]);
        }
    }

    static void print(String op, Object... pairs) throws Exception {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("op", op);
        for (int i = 0; i < pairs.length; i += 2) line.put((String) pairs[i], pairs[i + 1]);
        System.out.println(JSON.writeValueAsString(line));
    }

    static Properties config(String bootstrap, JsonNode options) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("client.id", options.path("client_id").asText("java"));
        options.path("config").fields().forEachRemaining(e -> config.put(e.getKey(), e.getValue().asText()));
        return config;
    }

    static KafkaProducer<byte[], byte[]> producer(String bootstrap, JsonNode options) {
        Properties config = config(bootstrap, options);
        config.putIfAbsent("max.request.size", "20000000");
        config.putIfAbsent("buffer.memory", "200000000");
        return new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(String bootstrap, JsonNode options) {
        Properties config = config(bootstrap, options);
        config.putIfAbsent("enable.auto.commit", "false");
        return new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static byte[] bytes(JsonNode node) {
        return node == null || node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    /** Short bytes as they are, long ones by their digest: a test compares either. */
    static String shown(byte[] bytes) throws Exception {
        if (bytes == null) return null;
        if (bytes.length <= SHORT_BYTES) return "b64:" + Base64.getEncoder().encodeToString(bytes);
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(bytes);
        return "sha256:" + HexFormat.of().formatHex(digest) + ":" + bytes.length;
    }

    static ProducerRecord<byte[], byte[]> record(String topic, JsonNode row) {
        List<Header> headers = new ArrayList<>();
        for (JsonNode h : row.path("headers")) headers.add(new RecordHeader(h.get(0).asText(), bytes(h.get(1))));
        Long timestamp = row.hasNonNull("timestamp") ? row.get("timestamp").asLong() : null;
        int partition = row.path("partition").asInt(0);
        return new ProducerRecord<>(topic, partition, timestamp, bytes(row.get("key")), bytes(row.get("value")), headers);
    }

    static void produce(String bootstrap, JsonNode options) throws Exception {
        JsonNode rows = JSON.readTree(new File(options.get("file").asText()));
        try (KafkaProducer<byte[], byte[]> producer = producer(bootstrap, options)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode row : rows) sent.add(producer.send(record(options.get("topic").asText(), row)));
            producer.flush();
            for (Future<RecordMetadata> future : sent) acknowledge(future);
        }
    }

    static void acknowledge(Future<RecordMetadata> future) throws Exception {
        try {
            RecordMetadata at = future.get();
            print("ack", "partition", at.partition(), "offset", at.hasOffset() ? at.offset() : -1);
        } catch (java.util.concurrent.ExecutionException e) {
            print("refused", "error", InteropAdmin.errorName(e.getCause()));
        }
    }

    static List<TopicPartition> partitions(KafkaConsumer<?, ?> consumer, String topic) {
        return consumer.partitionsFor(topic, LONG).stream().map(p -> new TopicPartition(topic, p.partition())).toList();
    }

    static void consume(String bootstrap, JsonNode options) throws Exception {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, options)) {
            List<TopicPartition> all = partitions(consumer, options.get("topic").asText());
            consumer.assign(all);
            consumer.seekToBeginning(all);
            Map<TopicPartition, Long> end = consumer.endOffsets(all);
            long deadline = System.currentTimeMillis() + LONG.toMillis();
            while (!reached(consumer, end)) {
                if (System.currentTimeMillis() > deadline) throw new IllegalStateException("not all was read");
                for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(200))) print(r);
            }
            long sum = end.values().stream().mapToLong(Long::longValue).sum();
            print("end", "partitions", all.size(), "end_offsets", sum);
        }
    }

    static boolean reached(KafkaConsumer<?, ?> consumer, Map<TopicPartition, Long> end) {
        return end.entrySet().stream().allMatch(e -> consumer.position(e.getKey()) >= e.getValue());
    }

    static void print(ConsumerRecord<byte[], byte[]> r) throws Exception {
        List<List<String>> headers = new ArrayList<>();
        for (Header h : r.headers()) {
            List<String> pair = new ArrayList<>();
            pair.add(h.key());
            pair.add(shown(h.value()));
            headers.add(pair);
        }
        print("record", "partition", r.partition(), "offset", r.offset(), "timestamp", r.timestamp(),
            "timestamp_type", r.timestampType().toString(), "key", shown(r.key()), "value", shown(r.value()), "headers", headers);
    }

    static void offsets(String bootstrap, JsonNode options) throws Exception {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, options)) {
            TopicPartition tp = new TopicPartition(options.get("topic").asText(), 0);
            print("range", "beginning", consumer.beginningOffsets(List.of(tp)).get(tp), "end", consumer.endOffsets(List.of(tp)).get(tp));
            for (JsonNode t : options.get("timestamps")) {
                OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(tp, t.asLong())).get(tp);
                print("at", "asked", t.asLong(), "offset", found == null ? -1 : found.offset(), "timestamp", found == null ? -1 : found.timestamp());
            }
        }
    }

    /** The client instance id comes from the broker: having one shows that the subscription call was answered. */
    static void telemetry(String bootstrap, JsonNode options) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer(bootstrap, options)) {
            try {
                print("instance", "id", producer.clientInstanceId(LONG).toString());
            } catch (IllegalStateException e) {
                print("instance", "id", null);
            }
        }
    }

    /** Commits and aborts in turn, and leaves the last transaction open when asked to: data for log dumps. */
    static void transactions(String bootstrap, JsonNode options) throws Exception {
        String topic = options.get("topic").asText();
        try (KafkaProducer<byte[], byte[]> producer = producer(bootstrap, options)) {
            producer.initTransactions();
            for (int i = 0; i < options.get("count").asInt(); i++) {
                producer.beginTransaction();
                for (int n = 0; n < 5; n++) {
                    byte[] value = ((i % 2 == 0 ? "committed-" : "aborted-") + i + "-" + n).getBytes();
                    producer.send(new ProducerRecord<>(topic, 0, ("k" + n).getBytes(), value));
                }
                producer.flush();
                if (i % 2 == 0) producer.commitTransaction();
                else producer.abortTransaction();
            }
            print("transactions", "done", options.get("count").asInt());
        }
    }

    /** Commits one record, waits for a file, then commits others; a transaction that fails is aborted and repeated. */
    static void recover(String bootstrap, JsonNode options) throws Exception {
        String topic = options.get("topic").asText();
        try (KafkaProducer<byte[], byte[]> producer = producer(bootstrap, options)) {
            producer.initTransactions();
            commit(producer, topic, "first", 1);
            while (!new File(options.get("file").asText()).exists()) Thread.sleep(20);
            while (!commit(producer, topic, "new", options.get("count").asInt())) producer.abortTransaction();
        }
    }

    /**
     * A failed batch completes its futures before the client has noted that it needs a new epoch. An abort in between
     * leaves the client in a state in which it can never begin again (as of 4.3), and only the client itself knows.
     */
    static void waitForErrorState(KafkaProducer<byte[], byte[]> producer) throws Exception {
        var field = KafkaProducer.class.getDeclaredField("transactionManager");
        field.setAccessible(true);
        Object manager = field.get(producer);
        var hasError = manager.getClass().getDeclaredMethod("hasError");
        hasError.setAccessible(true);
        long deadline = System.currentTimeMillis() + LONG.toMillis();
        while (!(boolean) hasError.invoke(manager)) {
            if (System.currentTimeMillis() > deadline) throw new IllegalStateException("the client has not noticed that a batch failed");
            Thread.sleep(5);
        }
    }

    static boolean commit(KafkaProducer<byte[], byte[]> producer, String topic, String word, int count) throws Exception {
        producer.beginTransaction();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (int n = 0; n < count; n++) sent.add(producer.send(new ProducerRecord<>(topic, 0, null, (word + "-" + n).getBytes())));
        producer.flush();
        try {
            for (Future<RecordMetadata> future : sent) future.get();
            producer.commitTransaction();
        } catch (java.util.concurrent.ExecutionException e) {
            print("aborted", "error", InteropAdmin.errorName(e.getCause()));
            waitForErrorState(producer);
            return false;
        }
        print("committed", "count", count);
        return true;
    }

    /** A member of a group: reads so many records, commits them, and tells where the group stands. */
    static void group(String bootstrap, JsonNode options) throws Exception {
        String topic = options.get("topic").asText();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, options)) {
            consumer.subscribe(List.of(topic));
            int left = options.get("count").asInt();
            long deadline = System.currentTimeMillis() + LONG.toMillis();
            while (left > 0) {
                if (System.currentTimeMillis() > deadline) throw new IllegalStateException("not all was read");
                for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(200))) {
                    print(r);
                    left--;
                }
            }
            consumer.commitSync();
            for (var e : consumer.committed(consumer.assignment()).entrySet())
                print("committed", "partition", e.getKey().partition(), "offset", e.getValue() == null ? -1 : e.getValue().offset());
        }
    }

    static <K extends Comparable<K>, V> Map<K, V> sorted(Map<K, V> map) {
        return new TreeMap<>(map);
    }
}
