import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The Java client for tests: one JSON command a line on stdin, one line "RESULT {json}" each. */
public final class Client {
    private static final ObjectMapper JSON = new ObjectMapper();
    private final String bootstrap;

    private Client(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] arguments) throws Exception {
        Client client = new Client(arguments[0]);
        BufferedReader commands =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            ObjectNode result = JSON.createObjectNode();
            try {
                client.run(JSON.readTree(line), result);
            } catch (Exception failure) {
                result.put("error", failure.toString());
            }
            System.out.println("RESULT " + JSON.writeValueAsString(result));
        }
    }

    private void run(JsonNode command, ObjectNode result) throws Exception {
        String topic = command.path("topic").asText();
        switch (command.path("do").asText()) {
            case "create" -> create(topic, command.path("partitions").asInt());
            case "produce" -> produce(topic, command, result);
            case "read" -> read(topic, command, result);
            case "read_all" -> readAll(topic, command, result.putArray("records"));
            case "offset_for_time" -> offsetForTime(topic, command, result);
            default -> throw new IllegalArgumentException("unknown command: " + command);
        }
    }

    private Properties properties() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        return properties;
    }

    private void create(String topic, int partitions) throws Exception {
        try (Admin admin = Admin.create(properties())) {
            NewTopic wanted =
                new NewTopic(topic, Optional.of(partitions), Optional.empty());
            admin.createTopics(List.of(wanted)).all().get();
        }
    }

    private void produce(String topic, JsonNode command, ObjectNode result) throws Exception {
        Properties properties = properties();
        properties.put("compression.type", command.path("codec").asText());
        properties.put("enable.idempotence", command.path("idempotent").asBoolean());
        properties.put("acks", "all");
        properties.put("linger.ms", "100");
        properties.put("batch.size", "900000");
        ByteArraySerializer bytes = new ByteArraySerializer();
        ArrayNode offsets = result.putArray("offsets");
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(properties, bytes, bytes)) {
            List<Future<RecordMetadata>> answers = new ArrayList<>();
            for (JsonNode record : command.path("records")) {
                ProducerRecord<byte[], byte[]> wanted = new ProducerRecord<>(
                    topic, 0, record.path("timestamp").asLong(),
                    bytes(record.path("key")), bytes(record.path("value")));
                for (JsonNode header : record.path("headers")) {
                    wanted.headers().add(header.get(0).asText(), bytes(header.get(1)));
                }
                answers.add(producer.send(wanted));
            }
            for (Future<RecordMetadata> answer : answers) {
                offsets.add(answer.get().offset());
            }
        }
    }

    private KafkaConsumer<byte[], byte[]> consumer() {
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        return new KafkaConsumer<>(properties(), bytes, bytes);
    }

    private void read(String topic, JsonNode command, ObjectNode result) {
        TopicPartition partition = new TopicPartition(topic, 0);
        ArrayNode records = result.putArray("records");
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, command.path("offset").asLong());
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            long deadline = System.nanoTime() + Duration.ofSeconds(20).toNanos();
            while (consumer.position(partition) < end) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("read only " + records.size() + " records");
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    records.add(describe(record));
                }
            }
        }
    }

    /** Every partition from its beginning, until so many records have come. */
    private void readAll(String topic, JsonNode command, ArrayNode records) {
        List<TopicPartition> partitions = new ArrayList<>();
        for (int number = 0; number < command.path("partitions").asInt(); number++) {
            partitions.add(new TopicPartition(topic, number));
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long deadline = System.nanoTime() + Duration.ofSeconds(40).toNanos();
            while (records.size() < command.path("count").asInt()) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("read only " + records.size() + " records");
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    records.addArray()
                        .add(record.partition()).add(record.offset()).add(text(record.value()));
                }
            }
        }
    }

    private static ObjectNode describe(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode described = JSON.createObjectNode();
        described.put("offset", record.offset());
        described.put("timestamp", record.timestamp());
        described.put("key", text(record.key()));
        described.put("value", text(record.value()));
        ArrayNode headers = described.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(text(header.value()));
        }
        return described;
    }

    private void offsetForTime(String topic, JsonNode command, ObjectNode result) {
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            OffsetAndTimestamp found = consumer.offsetsForTimes(
                Map.of(partition, command.path("timestamp").asLong())).get(partition);
            result.put("offset", found == null ? -1 : found.offset());
        }
    }

    private static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
