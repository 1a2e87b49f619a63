import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.*;

/** The programs of the client matrix with Java clients from 0.10 on. clients/README.md has the contract.
 *
 * It compiles against 0.10.2, which knows no headers: they are reached by reflection. What needs a later client is in
 * ModernClient. */
public class Client {
    static final String STRING = StringSerializer.class.getName();

    public static void main(String[] a) throws Exception {
        switch (a[0]) {
            case "produce" -> produce(a[1], a[2], a[3], Integer.parseInt(a[4]), Integer.parseInt(a[5]));
            case "consume" -> consume(a[1], a[2], a[3], a[4]);
            default -> throw new IllegalArgumentException(a[0]);
        }
    }

    static Properties settings(String bootstrap, String... pairs) {
        Properties found = new Properties();
        found.put("bootstrap.servers", bootstrap);
        for (int i = 0; i < pairs.length; i += 2) found.put(pairs[i], pairs[i + 1]);
        return found;
    }

    static ProducerRecord<String, String> record(String topic, int number) {
        ProducerRecord<String, String> made = new ProducerRecord<>(topic, "k" + number, "v" + number);
        try {
            Object headers = ProducerRecord.class.getMethod("headers").invoke(made);
            Class.forName("org.apache.kafka.common.header.Headers").getMethod("add", String.class, byte[].class)
                .invoke(headers, "n", ("h" + number).getBytes(StandardCharsets.UTF_8));
        } catch (ReflectiveOperationException older) {
            // this client sends no headers
        }
        return made;
    }

    static String header(ConsumerRecord<String, String> record) {
        try {
            Object headers = ConsumerRecord.class.getMethod("headers").invoke(record);
            Object header = Class.forName("org.apache.kafka.common.header.Headers")
                .getMethod("lastHeader", String.class).invoke(headers, "n");
            return new String((byte[]) Class.forName("org.apache.kafka.common.header.Header").getMethod("value")
                .invoke(header), StandardCharsets.UTF_8);
        } catch (ReflectiveOperationException older) {
            return "-";
        }
    }

    static void produce(String bootstrap, String topic, String compression, int first, int count) throws Exception {
        Properties settings = settings(bootstrap, "acks", "all", "compression.type", compression, "linger.ms", "5",
            "key.serializer", STRING, "value.serializer", STRING);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = first; i < first + count; i++) sent.add(producer.send(record(topic, i)));
            for (Future<RecordMetadata> one : sent) one.get();
        }
    }

    static void consume(String bootstrap, String topic, String group, String isolation) throws Exception {
        String string = StringDeserializer.class.getName();
        Properties settings = settings(bootstrap, "group.id", group, "auto.offset.reset", "earliest",
            "enable.auto.commit", "false", "session.timeout.ms", "6000", "heartbeat.interval.ms", "500",
            "key.deserializer", string, "value.deserializer", string, "isolation.level", isolation);
        if (System.getenv("CLIENT_RACK") != null) settings.put("client.rack", System.getenv("CLIENT_RACK"));
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings);
        CountDownLatch closed = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            consumer.wakeup();
            try { closed.await(); } catch (InterruptedException ended) { }
        }));
        try {
            consumer.subscribe(List.of(topic), new Assigned());
            while (true) {
                ConsumerRecords<String, String> records = consumer.poll(200);
                for (ConsumerRecord<String, String> r : records)
                    System.out.println("record " + r.partition() + " " + r.offset() + " " + r.key() + " " + r.value()
                        + " " + header(r));
                if (!records.isEmpty()) consumer.commitSync();
            }
        } catch (WakeupException stopped) {
            // by the shutdown hook
        } finally {
            consumer.close();
            closed.countDown();
        }
    }

    static class Assigned implements ConsumerRebalanceListener {
        public void onPartitionsRevoked(Collection<TopicPartition> revoked) { }

        public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
            StringJoiner held = new StringJoiner(",");
            assigned.stream().map(TopicPartition::partition).sorted().forEach(p -> held.add(p.toString()));
            System.out.println("assigned " + held);
        }
    }
}
