import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.protocol.Errors;

/**
 * The Java AdminClient for tests: one JSON command a line on stdin, one line "RESULT {json}" each.
 * A broker's error is told by its code.
 */
public final class AdminCalls {
    private static final ObjectMapper JSON = new ObjectMapper();
    private final Admin admin;

    private AdminCalls(Admin admin) {
        this.admin = admin;
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        try (Admin admin = Admin.create(properties)) {
            AdminCalls calls = new AdminCalls(admin);
            BufferedReader commands =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = commands.readLine(); line != null; line = commands.readLine()) {
                ObjectNode result = JSON.createObjectNode();
                try {
                    calls.run(JSON.readTree(line), result);
                } catch (ExecutionException failure) {
                    result.put("code", Errors.forException(failure.getCause()).code());
                    result.put("message", failure.getCause().toString());
                } catch (Exception failure) {
                    result.put("error", failure.toString());
                }
                System.out.println("RESULT " + JSON.writeValueAsString(result));
            }
        }
    }

    private void run(JsonNode command, ObjectNode result) throws Exception {
        String topic = command.path("topic").asText();
        switch (command.path("do").asText()) {
            case "create" -> create(topic, command);
            case "delete" -> admin.deleteTopics(List.of(topic)).all().get();
            case "topics" -> admin.listTopics().names().get().forEach(result.withArray("found")::add);
            case "partitions" -> result.put("found", partitions(topic));
            case "grow" -> admin.createPartitions(
                Map.of(topic, NewPartitions.increaseTo(command.path("count").asInt()))).all().get();
            case "configs" -> configs(resource(command), result.putObject("found"));
            case "change" -> change(resource(command), command);
            case "replace" -> replace(resource(command), command);
            case "delete_records" -> deleteRecords(command, result);
            case "offsets" -> offsets(command, result.putArray("found"));
            case "cluster" -> cluster(result);
            case "log_dirs" -> logDirs(command.path("broker").asInt(), topic, result.putObject("found"));
            case "directories" -> admin.describeLogDirs(List.of(command.path("broker").asInt()))
                .allDescriptions().get().get(command.path("broker").asInt()).keySet()
                .forEach(result.withArray("found")::add);
            case "move" -> admin.alterReplicaLogDirs(Map.of(
                new TopicPartitionReplica(
                    topic, command.path("partition").asInt(), command.path("broker").asInt()),
                command.path("path").asText())).all().get();
            case "producers" -> producers(partition(command), result.putArray("found"));
            default -> throw new IllegalArgumentException("unknown command: " + command);
        }
    }

    private static TopicPartition partition(JsonNode command) {
        return new TopicPartition(
            command.path("topic").asText(), command.path("partition").asInt());
    }

    private static ConfigResource resource(JsonNode command) {
        return command.has("broker")
            ? new ConfigResource(ConfigResource.Type.BROKER, command.path("broker").asText())
            : new ConfigResource(ConfigResource.Type.TOPIC, command.path("topic").asText());
    }

    private static Map<String, String> options(JsonNode command) {
        Map<String, String> found = new HashMap<>();
        command.path("configs").fields().forEachRemaining(
            entry -> found.put(
                entry.getKey(), entry.getValue().isNull() ? null : entry.getValue().asText()));
        return found;
    }

    private void create(String topic, JsonNode command) throws Exception {
        NewTopic wanted = new NewTopic(
            topic, Optional.of(command.path("partitions").asInt()), Optional.empty());
        admin.createTopics(List.of(wanted.configs(options(command)))).all().get();
    }

    private int partitions(String topic) throws Exception {
        return admin.describeTopics(List.of(topic)).allTopicNames().get()
            .get(topic).partitions().size();
    }

    private void configs(ConfigResource resource, ObjectNode found) throws Exception {
        DescribeConfigsOptions everything =
            new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        Config config =
            admin.describeConfigs(List.of(resource), everything).all().get().get(resource);
        for (ConfigEntry entry : config.entries()) {
            ObjectNode row = found.putObject(entry.name());
            row.put("value", entry.value());
            row.put("source", entry.source().name());
            row.put("type", entry.type().name());
            row.put("documented", entry.documentation() != null);
            ArrayNode synonyms = row.putArray("synonyms");
            entry.synonyms().forEach(synonym -> synonyms.add(synonym.source().name()));
        }
    }

    private void change(ConfigResource resource, JsonNode command) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        options(command).forEach((name, value) -> changes.add(new AlterConfigOp(
            new ConfigEntry(name, value),
            value == null ? AlterConfigOp.OpType.DELETE : AlterConfigOp.OpType.SET)));
        admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get();
    }

    @SuppressWarnings("deprecation")
    private void replace(ConfigResource resource, JsonNode command) throws Exception {
        List<ConfigEntry> entries = new ArrayList<>();
        options(command).forEach((name, value) -> entries.add(new ConfigEntry(name, value)));
        admin.alterConfigs(Map.of(resource, new Config(entries))).all().get();
    }

    private void deleteRecords(JsonNode command, ObjectNode result) throws Exception {
        TopicPartition partition = partition(command);
        RecordsToDelete before = RecordsToDelete.beforeOffset(command.path("before").asLong());
        result.put("found", admin.deleteRecords(Map.of(partition, before))
            .lowWatermarks().get(partition).get().lowWatermark());
    }

    private void offsets(JsonNode command, ArrayNode found) throws Exception {
        TopicPartition partition = partition(command);
        for (OffsetSpec moment : List.of(OffsetSpec.earliest(), OffsetSpec.latest())) {
            found.add(admin.listOffsets(Map.of(partition, moment))
                .partitionResult(partition).get().offset());
        }
    }

    private void cluster(ObjectNode result) throws Exception {
        DescribeClusterResult cluster = admin.describeCluster();
        result.put("id", cluster.clusterId().get());
        result.put("controller", cluster.controller().get().id());
        for (Node node : cluster.nodes().get()) {
            result.withArray("found").add(node.id());
        }
    }

    private void logDirs(int broker, String topic, ObjectNode found) throws Exception {
        Map<String, LogDirDescription> dirs =
            admin.describeLogDirs(List.of(broker)).allDescriptions().get().get(broker);
        dirs.forEach((path, dir) -> dir.replicaInfos().forEach((partition, replica) -> {
            if (partition.topic().equals(topic) && !replica.isFuture()) {
                found.put(String.valueOf(partition.partition()), path);
            }
        }));
    }

    private void producers(TopicPartition partition, ArrayNode found) throws Exception {
        for (ProducerState state : admin.describeProducers(List.of(partition))
                .partitionResult(partition).get().activeProducers()) {
            found.addArray().add(state.producerEpoch()).add(state.lastSequence());
        }
    }
}
