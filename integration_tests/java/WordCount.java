import java.time.Duration;
import java.util.Arrays;
import java.util.Locale;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;

/**
 * An instance of a Kafka Streams application, exactly once: it counts the words of the topic "text"
 * into "counts", and joins each word with the table "labels" to count the words of each label into
 * "label-counts". It prints its state changes, and runs until a line comes on stdin.
 *
 * Arguments: bootstrap servers, application id, folder of the state, number of partitions,
 * bytes of the cache of the state stores.
 */
public final class WordCount {
    private WordCount() { }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
        properties.put(StreamsConfig.STATE_DIR_CONFIG, arguments[2]);
        properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        properties.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 3);
        properties.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 200);
        properties.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        properties.put(
            StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, Long.parseLong(arguments[4]));
        properties.put(
            StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class.getName());
        properties.put(
            StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class.getName());
        properties.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        properties.put(StreamsConfig.consumerPrefix("session.timeout.ms"), "6000");
        properties.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), "1000");
        properties.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), "20000");

        KafkaStreams streams = new KafkaStreams(
            topology(Integer.parseInt(arguments[3])).build(), properties);
        streams.setStateListener((now, before) -> System.out.println("STATE " + now));
        streams.setUncaughtExceptionHandler(error -> {
            System.out.println("REPLACED A THREAD AFTER " + error);
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.start();
        System.in.read();
        System.out.println("CLOSED " + streams.close(Duration.ofSeconds(60)));
        System.exit(0);
    }

    private static StreamsBuilder topology(int partitions) {
        StreamsBuilder builder = new StreamsBuilder();
        KTable<String, String> labels = builder.table("labels");
        KStream<String, String> words = builder
            .stream("text", Consumed.with(Serdes.ByteArray(), Serdes.String()))
            .flatMapValues(
                line -> Arrays.asList(line.toLowerCase(Locale.ROOT).split("[^a-z0-9_]+")))
            .filter((key, word) -> !word.isEmpty())
            .selectKey((key, word) -> word)
            .repartition(Repartitioned.<String, String>as("words").withNumberOfPartitions(partitions)
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.String()));
        words.groupByKey()
            .count(Materialized.as("word-counts"))
            .toStream()
            .to("counts", Produced.with(Serdes.String(), Serdes.Long()));
        words.join(labels, (word, label) -> label,
                Joined.with(Serdes.String(), Serdes.String(), Serdes.String()))
            .groupBy((word, label) -> label, Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.as("label-counts"))
            .toStream()
            .to("label-counts", Produced.with(Serdes.String(), Serdes.Long()));
        return builder;
    }
}
