// The loads of `klamm bench data` that Kafka's own tools do not offer. Java runs this file from source.
//
//   DataLoad transactions BOOTSTRAP TOPIC RECORDS SIZE PER_TRANSACTION
//   DataLoad group        BOOTSTRAP TOPIC RECORDS MEMBERS
//   DataLoad latency      BOOTSTRAP TOPIC PER_SECOND SECONDS
//
// Each prints one line of JSON. Clients have their default settings, except where the load says otherwise.

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class DataLoad {
    static final Duration POLL = Duration.ofMillis(100);
    static final int WARM_UP_SECONDS = 3;

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[1];
        String topic = arguments[2];
        int[] numbers = Arrays.stream(arguments).skip(3).mapToInt(Integer::parseInt).toArray();
        switch (arguments[0]) {
            case "transactions" -> transactions(bootstrap, topic, numbers[0], numbers[1], numbers[2]);
            case "group" -> group(bootstrap, topic, numbers[0], numbers[1]);
            case "latency" -> latency(bootstrap, topic, numbers[0], numbers[1]);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    static Properties properties(String bootstrap, String... pairs) {
        Properties result = new Properties();
        result.put("bootstrap.servers", bootstrap);
        for (int i = 0; i < pairs.length; i += 2) {
            result.put(pairs[i], pairs[i + 1]);
        }
        return result;
    }

    static KafkaProducer<byte[], byte[]> producer(String bootstrap, String... pairs) {
        Properties settings = properties(bootstrap, pairs);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(String bootstrap, String... pairs) {
        Properties settings = properties(bootstrap, pairs);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static void transactions(String bootstrap, String topic, int records, int size, int perTransaction) {
        byte[] value = new byte[size];
        new Random(1).nextBytes(value);
        try (KafkaProducer<byte[], byte[]> producer = producer(bootstrap, "transactional.id", "bench-" + topic)) {
            producer.initTransactions();
            long began = System.nanoTime();
            for (int sent = 0; sent < records; ) {
                producer.beginTransaction();
                for (int n = 0; n < perTransaction && sent < records; n++, sent++) {
                    producer.send(new ProducerRecord<>(topic, value));
                }
                producer.commitTransaction();
            }
            print("records", records, "milliseconds", millis(began));
        }
    }

    static void group(String bootstrap, String topic, int records, int members) throws InterruptedException {
        AtomicLong consumed = new AtomicLong();
        AtomicLong firstRecord = new AtomicLong(Long.MAX_VALUE);
        AtomicLong lastRecord = new AtomicLong();
        AtomicLong slowestJoin = new AtomicLong();
        List<Thread> threads = new ArrayList<>();
        for (int member = 0; member < members; member++) {
            Thread thread = new Thread(() -> {
                try (KafkaConsumer<byte[], byte[]> consumer =
                        consumer(bootstrap, "group.id", "bench-" + topic, "auto.offset.reset", "earliest")) {
                    long began = System.nanoTime();
                    boolean isFirst = true;
                    consumer.subscribe(List.of(topic));
                    while (consumed.get() < records) {
                        int count = consumer.poll(POLL).count();
                        if (count == 0) {
                            continue;
                        }
                        long now = System.nanoTime();
                        if (isFirst) {
                            slowestJoin.accumulateAndGet(now - began, Math::max);
                            firstRecord.accumulateAndGet(now, Math::min);
                            isFirst = false;
                        }
                        lastRecord.accumulateAndGet(now, Math::max);
                        consumed.addAndGet(count);
                    }
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        long took = (lastRecord.get() - firstRecord.get()) / 1_000_000;
        print("records", consumed.get(), "milliseconds", took, "join_milliseconds", slowestJoin.get() / 1_000_000);
    }

    static void latency(String bootstrap, String topic, int perSecond, int seconds) throws InterruptedException {
        int expected = perSecond * (seconds + WARM_UP_SECONDS);
        long[] nanos = new long[expected];
        AtomicLong received = new AtomicLong();
        KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap);
        List<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
            .map(info -> new TopicPartition(topic, info.partition()))
            .collect(Collectors.toList());
        consumer.assign(partitions);
        consumer.seekToEnd(partitions);
        partitions.forEach(consumer::position);
        Thread reader = new Thread(() -> {
            while (received.get() < expected) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                    nanos[(int) received.getAndIncrement()] = System.nanoTime() - ByteBuffer.wrap(record.value()).getLong();
                }
            }
        });
        reader.start();
        try (KafkaProducer<byte[], byte[]> producer = producer(bootstrap, "acks", "all")) {
            long began = System.nanoTime();
            for (int sent = 0; sent < expected; sent++) {
                long due = began + sent * 1_000_000_000L / perSecond;
                for (long now = System.nanoTime(); now < due; now = System.nanoTime()) {
                    LockSupport.parkNanos(due - now);
                }
                // The time when it was due, not when it was sent: a producer that is held up must not hide that.
                producer.send(new ProducerRecord<>(topic, ByteBuffer.allocate(100).putLong(due).array()));
            }
            producer.flush();
        }
        reader.join();
        consumer.close();
        long[] counted = Arrays.stream(nanos).skip((long) perSecond * WARM_UP_SECONDS).sorted().toArray();
        print("records", counted.length,
            "p50_microseconds", counted[counted.length / 2] / 1000,
            "p99_microseconds", counted[counted.length * 99 / 100] / 1000);
    }

    static long millis(long began) {
        return (System.nanoTime() - began) / 1_000_000;
    }

    static void print(Object... pairs) {
        List<String> fields = new ArrayList<>();
        for (int i = 0; i < pairs.length; i += 2) {
            fields.add("\"" + pairs[i] + "\": " + pairs[i + 1]);
        }
        System.out.println("{" + String.join(", ", fields) + "}");
    }
}
