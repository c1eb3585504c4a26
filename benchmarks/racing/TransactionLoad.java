import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.LongStream;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Producers that each write one transaction after the other.
 *
 * Arguments: bootstrap servers, topic, number of producers, records a transaction, seconds of
 * warm-up, seconds of measurement, rate. With rate 0 every producer begins a transaction as soon as
 * the previous one has returned. With another rate the producers together begin that many
 * transactions a second, at times that are fixed beforehand. A producer that is late begins at once.
 * The warm-up always runs at full speed.
 *
 * Prints one line: "TRANSACTIONS n SECONDS s COMMIT p50 p99 WHOLE p50 p99", with percentiles in ms.
 * COMMIT is the time of a call of commitTransaction. WHOLE is the time from the beginning of the
 * transaction until commitTransaction has returned. At a fixed rate it counts from the time at which
 * the transaction should have begun.
 */
public final class TransactionLoad {
    private static final byte[] VALUE = new byte[100];
    private static final long PAUSE_NANOS = TimeUnit.SECONDS.toNanos(1);

    private final String[] arguments;
    private final int producers;
    private final int records;
    private final long warmUpNanos;
    private final long nanos;
    private final double rate;
    private final CountDownLatch ready;
    private final List<Times> found = new ArrayList<>();

    private record Times(long commit, long whole) { }

    private TransactionLoad(String[] arguments) {
        this.arguments = arguments;
        producers = Integer.parseInt(arguments[2]);
        records = Integer.parseInt(arguments[3]);
        warmUpNanos = (long) (Double.parseDouble(arguments[4]) * 1e9);
        nanos = (long) (Double.parseDouble(arguments[5]) * 1e9);
        rate = Double.parseDouble(arguments[6]);
        ready = new CountDownLatch(producers);
    }

    public static void main(String[] arguments) throws Exception {
        Arrays.fill(VALUE, (byte) 'v');
        new TransactionLoad(arguments).runAll();
    }

    private void runAll() throws InterruptedException {
        AtomicReference<Throwable> failed = new AtomicReference<>();
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < producers; number++) {
            int own = number;
            Thread thread = new Thread(() -> {
                try {
                    List<Times> times = run(own);
                    synchronized (found) {
                        found.addAll(times);
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
        System.out.printf(
            "TRANSACTIONS %d SECONDS %.3f COMMIT %s WHOLE %s%n", found.size(), nanos / 1e9,
            percentiles(found.stream().mapToLong(Times::commit)),
            percentiles(found.stream().mapToLong(Times::whole)));
    }

    private static String percentiles(LongStream times) {
        long[] all = times.sorted().toArray();
        return String.format(
            "%.3f %.3f", all[all.length / 2] / 1e6, all[(int) (all.length * 0.99)] / 1e6);
    }

    private List<Times> run(int own) throws InterruptedException {
        Map<String, Object> options = Map.of(
            "bootstrap.servers", arguments[0],
            "transactional.id", "load-" + own,
            "linger.ms", 0,
            "key.serializer", ByteArraySerializer.class,
            "value.serializer", ByteArraySerializer.class);
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(options)) {
            producer.initTransactions();
            ready.countDown();
            ready.await();
            long begun = System.nanoTime() + warmUpNanos;
            return rate > 0 ? atFixedRate(producer, own, begun) : atFullSpeed(producer, begun);
        }
    }

    /** Return the times of the transactions whose commit began after begun and ended in time. */
    private List<Times> atFullSpeed(KafkaProducer<byte[], byte[]> producer, long begun) {
        List<Times> times = new ArrayList<>();
        while (System.nanoTime() - begun < nanos) {
            Times took = transaction(producer, System.nanoTime());
            long after = System.nanoTime();
            if (after - took.commit() >= begun && after - begun <= nanos) {
                times.add(took);
            }
        }
        return times;
    }

    /** Return the times of all transactions: each producer has every producers-th of the schedule. */
    private List<Times> atFixedRate(KafkaProducer<byte[], byte[]> producer, int own, long begun)
            throws InterruptedException {
        while (System.nanoTime() < begun) {
            transaction(producer, begun);
        }
        List<Times> times = new ArrayList<>();
        for (int number = own; number / rate * 1e9 < nanos; number += producers) {
            long intended = begun + PAUSE_NANOS + (long) (number / rate * 1e9);
            TimeUnit.NANOSECONDS.sleep(intended - System.nanoTime());
            times.add(transaction(producer, intended));
        }
        return times;
    }

    private Times transaction(KafkaProducer<byte[], byte[]> producer, long intended) {
        producer.beginTransaction();
        for (int number = 0; number < records; number++) {
            producer.send(new ProducerRecord<>(arguments[1], VALUE));
        }
        long before = System.nanoTime();
        producer.commitTransaction();
        long after = System.nanoTime();
        return new Times(after - before, after - intended);
    }
}
