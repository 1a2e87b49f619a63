import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.producer.KafkaProducer;

/** What Java clients have since 0.11: transactions and administration. */
public class ModernClient {
    public static void main(String[] a) throws Exception {
        switch (a[0]) {
            case "transact" -> transact(a[1], a[2], a[3]);
            case "create" -> create(a[1], a[2]);
            case "describe" -> describe(a[1], a[2]);
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

    static void create(String bootstrap, String topic) throws Exception {
        try (AdminClient client = AdminClient.create(Client.settings(bootstrap))) {
            client.createTopics(List.of(new NewTopic(topic, 4, (short) 3))).all().get();
        }
    }

    static void describe(String bootstrap, String topic) throws Exception {
        try (AdminClient client = AdminClient.create(Client.settings(bootstrap))) {
            System.out.println("partitions " + client.describeTopics(List.of(topic)).all().get().get(topic)
                .partitions().size());
        }
    }
}
