import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.config.ConfigResource;

/** What Java clients have since 0.11: transactions and administration. */
public class ModernClient {
    public static void main(String[] a) throws Exception {
        switch (a[0]) {
            case "transact" -> transact(a[1], a[2], a[3]);
            case "create" -> create(a[1], a[2], a[3]);
            case "configure" -> configure(a[1], a[2], a[3]);
            default -> Client.main(a);
        }
    }

    static void transact(String bootstrap, String topic, String id) {
        Properties settings = Client.settings(bootstrap, "transactional.id", id, "key.serializer", Client.STRING,
            "value.serializer", Client.STRING);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            for (int number = 0; number < 2; number++) {
                producer.beginTransaction();
                for (int i = 0; i < 10; i++) producer.send(Client.record(topic, number * 10 + i));
                producer.flush();
                if (number == 0) producer.abortTransaction(); else producer.commitTransaction();
            }
        }
    }

    static void create(String bootstrap, String topic, String oldTopic) throws Exception {
        try (AdminClient client = AdminClient.create(Client.settings(bootstrap))) {
            client.createTopics(List.of(new NewTopic(topic, 4, (short) 3))).all().get();
            client.deleteTopics(List.of(oldTopic)).all().get();
        }
    }

    static void describe(String bootstrap, String topic) throws Exception {
        try (AdminClient client = AdminClient.create(Client.settings(bootstrap))) {
            System.out.println("partitions " + client.describeTopics(List.of(topic)).all().get().get(topic)
                .partitions().size());
        }
    }

    static void configure(String bootstrap, String topic, String backoff) throws Exception {
        describe(bootstrap, topic);
        ConfigResource ofTopic = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        ConfigResource ofBroker = new ConfigResource(ConfigResource.Type.BROKER, "1");
        try (AdminClient client = AdminClient.create(Client.settings(bootstrap))) {
            client.createPartitions(Map.of(topic, NewPartitions.increaseTo(6))).all().get();
            System.out.println("broker " + described(client, ofBroker).get("log.segment.bytes").value());
            if (INCREMENTAL == null) {  // such a client also sends changes of a broker's configuration to any broker
                alter(client, ofTopic, "retention.ms", "100000", "max.message.bytes", "200000");
            } else {
                alter(client, ofTopic, "retention.ms", "100000");
                INCREMENTAL.set(client, ofTopic, "max.message.bytes", "200000");
                INCREMENTAL.set(client, ofBroker, "log.cleaner.backoff.ms", backoff);
            }
            Config found = described(client, ofTopic);
            System.out.println("topic " + found.get("retention.ms").value() + " "
                + found.get("max.message.bytes").value());
        }
    }

    /** How a key is set alone, which clients have since 2.3. */
    interface Incremental {
        void set(AdminClient client, ConfigResource resource, String key, String value) throws Exception;
    }

    static final Incremental INCREMENTAL = incremental();

    static Incremental incremental() {
        try {
            return (Incremental) Class.forName("IncrementalClient").getDeclaredConstructor().newInstance();
        } catch (ReflectiveOperationException older) {
            return null;
        }
    }

    static Config described(AdminClient client, ConfigResource resource) throws Exception {
        return client.describeConfigs(List.of(resource)).all().get().get(resource);
    }

    static void alter(AdminClient client, ConfigResource resource, String... pairs) throws Exception {
        List<ConfigEntry> entries = new ArrayList<>();
        for (int i = 0; i < pairs.length; i += 2) entries.add(new ConfigEntry(pairs[i], pairs[i + 1]));
        client.alterConfigs(Map.of(resource, new Config(entries))).all().get();
    }
}
