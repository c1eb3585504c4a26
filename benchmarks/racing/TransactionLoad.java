import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Producers that each write one transaction after the other, as fast as they can.
 *
 * Arguments: bootstrap servers, topic, number of producers, records a transaction, seconds of
 * warm-up, seconds of measurement. Prints one line: "TRANSACTIONS n SECONDS s P50 ms P99 ms", where
 * the percentiles are those of the calls of commitTransaction that began after the warm-up.
 */
public final class TransactionLoad {
    private static final byte[] VALUE = new byte[100];

    private TransactionLoad() { }

    public static void main(String[] arguments) throws Exception {
        int producers = Integer.parseInt(arguments[2]);
        int records = Integer.parseInt(arguments[3]);
        long warmUpNanos = (long) (Double.parseDouble(arguments[4]) * 1e9);
        long nanos = (long) (Double.parseDouble(arguments[5]) * 1e9);
        Arrays.fill(VALUE, (byte) 'v');
        List<long[]> found = new ArrayList<>();
        AtomicReference<Throwable> failed = new AtomicReference<>();
        CountDownLatch ready = new CountDownLatch(producers);
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < producers; number++) {
            int own = number;
            Thread thread = new Thread(() -> {
                try {
                    long[] times = run(arguments, own, records, warmUpNanos, nanos, ready);
                    synchronized (found) {
                        found.add(times);
                    }
                } catch (Throwable error) {
                    failed.set(error);
                    ready.countDown();
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        if (failed.get() != null) {
            failed.get().printStackTrace();
            System.exit(1);
        }
        long[] all = found.stream().flatMapToLong(Arrays::stream).sorted().toArray();
        System.out.printf(
            "TRANSACTIONS %d SECONDS %.3f P50 %.3f P99 %.3f%n", all.length, nanos / 1e9,
            all[all.length / 2] / 1e6, all[(int) (all.length * 0.99)] / 1e6);
    }

    private static long[] run(
            String[] arguments, int own, int records, long warmUpNanos, long nanos,
            CountDownLatch ready) throws Exception {
        Map<String, Object> options = Map.of(
            "bootstrap.servers", arguments[0],
            "transactional.id", "load-" + own,
            "linger.ms", 0,
            "key.serializer", ByteArraySerializer.class,
            "value.serializer", ByteArraySerializer.class);
        List<Long> times = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(options)) {
            producer.initTransactions();
            ready.countDown();
            ready.await();
            long begun = System.nanoTime();
            while (System.nanoTime() - begun < warmUpNanos + nanos) {
                producer.beginTransaction();
                for (int number = 0; number < records; number++) {
                    producer.send(new ProducerRecord<>(arguments[1], VALUE));
                }
                long before = System.nanoTime();
                producer.commitTransaction();
                long after = System.nanoTime();
                if (before - begun >= warmUpNanos && after - begun <= warmUpNanos + nanos) {
                    times.add(after - before);
                }
            }
        }
        return times.stream().mapToLong(Long::longValue).toArray();
    }
}
