import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.FileOutputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.internals.AbstractCoordinator;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a group that uses the Java client (see integration_tests/members): it writes what it
 * does into a log of operations until a line comes on stdin, then it leaves.
 */
public final class GroupMember implements ConsumerRebalanceListener {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, String> STRATEGIES = Map.of(
        "range", "org.apache.kafka.clients.consumer.RangeAssignor",
        "cooperative-sticky", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
    private final JsonNode told;
    private final boolean cooperative;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final OutputStream log;
    private final Set<TopicPartition> held = new HashSet<>();
    private final Map<TopicPartition, OffsetAndMetadata> pending = new HashMap<>();

    private GroupMember(JsonNode told) throws Exception {
        this.told = told;
        cooperative = text("strategy").startsWith("cooperative");
        log = new FileOutputStream(
            text("folder") + "/member-" + text("client") + ".ops.jsonl", true);
        Properties properties = new Properties();
        properties.put("bootstrap.servers", text("bootstrap"));
        properties.put("client.id", text("client"));
        properties.put("group.id", text("group"));
        if (!text("instance").isEmpty()) {
            properties.put("group.instance.id", text("instance"));
        }
        properties.put("partition.assignment.strategy", STRATEGIES.get(text("strategy")));
        properties.put("session.timeout.ms", text("session_ms"));
        properties.put("heartbeat.interval.ms", text("heartbeat_ms"));
        properties.put("request.timeout.ms", "8000");
        properties.put("default.api.timeout.ms", "30000");
        properties.put("reconnect.backoff.max.ms", "500");
        properties.put("metadata.max.age.ms", "1000");
        properties.put("fetch.max.wait.ms", "50");
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        consumer = new KafkaConsumer<>(properties, bytes, bytes);
    }

    public static void main(String[] arguments) throws Exception {
        boolean[] stop = {false};
        Thread listener = new Thread(() -> {
            try {
                System.in.read();
            } catch (java.io.IOException ended) {
                // as the end of the input
            }
            synchronized (stop) {
                stop[0] = true;
            }
        });
        listener.setDaemon(true);
        listener.start();
        GroupMember member = new GroupMember(JSON.readTree(arguments[0]));
        member.subscribe();
        while (true) {
            synchronized (stop) {
                if (stop[0]) {
                    break;
                }
            }
            member.read();
        }
        member.consumer.close();
        System.out.println("left");
        System.exit(0);
    }

    private void subscribe() {
        List<String> topics = new ArrayList<>();
        told.path("topics").forEach(topic -> topics.add(topic.asText()));
        consumer.subscribe(topics, this);
    }

    private void read() {
        ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
        for (TopicPartition place : records.partitions()) {
            ObjectNode done = JSON.createObjectNode();
            done.set("tp", describe(place));
            ArrayNode offsets = done.putArray("offs");
            for (ConsumerRecord<byte[], byte[]> record : records.records(place)) {
                offsets.add(record.offset());
                pending.put(place, new OffsetAndMetadata(record.offset() + 1));
            }
            write("processed", "ok", done);
        }
        commit();
    }

    private void commit() {
        if (pending.isEmpty()) {
            return;
        }
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>(pending);
        offsets.forEach((place, offset) -> writeCommit("invoke", place, offset, null));
        try {
            consumer.commitSync(offsets);
        } catch (KafkaException error) {
            offsets.forEach((place, offset) -> writeCommit("info", place, offset, error.toString()));
            return;
        }
        offsets.forEach((place, offset) -> writeCommit("ok", place, offset, null));
        pending.clear();
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        if (!cooperative) {
            held.clear();
        }
        held.addAll(partitions);
        hold();
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        commit();
        held.removeAll(partitions);
        hold();
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        held.removeAll(partitions);
        hold();
    }

    private void hold() {
        pending.keySet().retainAll(held);
        ConsumerGroupMetadata facts = consumer.groupMetadata();
        ObjectNode holding = JSON.createObjectNode();
        // A static member that starts again takes its own place within the generation.
        holding.put("member", facts.groupInstanceId().orElse(facts.memberId()));
        holding.put("generation", facts.generationId());
        ArrayNode places = holding.putArray("tps");
        StringBuilder names = new StringBuilder();
        for (TopicPartition place : held) {
            places.add(describe(place));
            names.append(' ').append(place.topic()).append('/').append(place.partition());
        }
        write("holds", "ok", holding);
        System.out.println("holds " + facts.generationId() + names);
    }

    private void writeCommit(
        String type, TopicPartition place, OffsetAndMetadata offset, String error) {
        ObjectNode commit = JSON.createObjectNode();
        commit.set("tp", describe(place));
        commit.put("off", offset.offset());
        if (error == null) {
            commit.put("generation", committedIn());
        } else {
            commit.put("err", error);
        }
        write("commit", type, commit);
    }

    /**
     * A commit carries the generation of the coordinator's last answer, which the thread of
     * heartbeats may have read; groupMetadata() tells of it only after the next poll.
     */
    private int committedIn() {
        try {
            Object delegate = field(KafkaConsumer.class, consumer, "delegate");
            Object coordinator = field(delegate.getClass(), delegate, "coordinator");
            Object known = field(AbstractCoordinator.class, coordinator, "generation");
            Object generation = field(known.getClass(), known, "generationId");
            return Math.max((int) generation, consumer.groupMetadata().generationId());
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException("another Java client than 3.9.1", error);
        }
    }

    private static Object field(Class<?> where, Object owner, String name)
        throws ReflectiveOperationException {
        java.lang.reflect.Field found = where.getDeclaredField(name);
        found.setAccessible(true);
        return found.get(owner);
    }

    private void write(String function, String type, ObjectNode more) {
        more.put("t", System.nanoTime());
        more.put("w", System.currentTimeMillis());
        more.put("p", text("client"));
        more.put("i", 1);
        more.put("f", function);
        more.put("type", type);
        more.put("group", text("group"));
        try {
            log.write((more.toString() + "\n").getBytes(StandardCharsets.UTF_8));
        } catch (java.io.IOException error) {
            throw new IllegalStateException("the log of operations cannot be written", error);
        }
    }

    private static ArrayNode describe(TopicPartition place) {
        return JSON.createArrayNode().add(place.topic()).add(place.partition());
    }

    private String text(String name) {
        return told.path(name).asText();
    }
}
