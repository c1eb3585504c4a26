import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A program that consumes, transforms and produces in transactions (see
 * integration_tests/transformers.py): each transaction has the records of one poll and their
 * offsets, with the metadata of the group (KIP-447). Some transactions are aborted, and their
 * records are read again. After an error the program continues with a new consumer and producer.
 *
 * Arguments: bootstrap servers, group, transactional id, topic of the input, topic of the output,
 * records of a transaction, and the number n of which one transaction in n is aborted.
 */
public final class Transformer {
    private static final byte[] ABORTED = "aborted ".getBytes(StandardCharsets.UTF_8);
    private final String[] told;
    private final int abortOneIn;
    private int transactions;

    private Transformer(String[] told) {
        this.told = told;
        abortOneIn = Integer.parseInt(told[6]);
    }

    public static void main(String[] arguments) {
        Transformer transformer = new Transformer(arguments);
        while (true) {
            try (KafkaProducer<byte[], byte[]> producer = transformer.newProducer();
                KafkaConsumer<byte[], byte[]> consumer = transformer.newConsumer()) {
                transformer.work(consumer, producer);
            } catch (KafkaException error) {
                System.out.println("ERROR " + error);
            }
        }
    }

    private KafkaConsumer<byte[], byte[]> newConsumer() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", told[0]);
        properties.put("group.id", told[1]);
        properties.put("max.poll.records", told[5]);
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        properties.put("isolation.level", "read_committed");
        properties.put("session.timeout.ms", "4000");
        properties.put("heartbeat.interval.ms", "500");
        properties.put("default.api.timeout.ms", "20000");
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        return new KafkaConsumer<>(properties, bytes, bytes);
    }

    private KafkaProducer<byte[], byte[]> newProducer() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", told[0]);
        properties.put("transactional.id", told[2]);
        properties.put("transaction.timeout.ms", "10000");
        properties.put("max.block.ms", "20000");
        ByteArraySerializer bytes = new ByteArraySerializer();
        return new KafkaProducer<>(properties, bytes, bytes);
    }

    private void work(
        KafkaConsumer<byte[], byte[]> consumer, KafkaProducer<byte[], byte[]> producer) {
        producer.initTransactions();
        consumer.subscribe(List.of(told[3]));
        System.out.println("READY");
        while (true) {
            ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
            if (records.isEmpty()) {
                continue;
            }
            transactions++;
            boolean aborts = transactions % abortOneIn == 0;
            producer.beginTransaction();
            send(records, producer, aborts);
            producer.sendOffsetsToTransaction(beyond(records), consumer.groupMetadata());
            if (aborts) {
                producer.flush();
                producer.abortTransaction();
                for (TopicPartition place : records.partitions()) {
                    consumer.seek(place, records.records(place).get(0).offset());
                }
            } else {
                producer.commitTransaction();
            }
        }
    }

    private void send(ConsumerRecords<byte[], byte[]> records,
        KafkaProducer<byte[], byte[]> producer, boolean aborts) {
        for (ConsumerRecord<byte[], byte[]> record : records) {
            byte[] value = aborts ? join(ABORTED, record.value()) : record.value();
            producer.send(new ProducerRecord<>(told[4], record.partition(), null, value));
        }
    }

    private static Map<TopicPartition, OffsetAndMetadata> beyond(
        ConsumerRecords<byte[], byte[]> records) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (ConsumerRecord<byte[], byte[]> record : records) {
            offsets.put(
                new TopicPartition(record.topic(), record.partition()),
                new OffsetAndMetadata(record.offset() + 1));
        }
        return offsets;
    }

    private static byte[] join(byte[] first, byte[] second) {
        byte[] joined = java.util.Arrays.copyOf(first, first.length + second.length);
        System.arraycopy(second, 0, joined, first.length, second.length);
        return joined;
    }
}
