import java.time.Duration;
import java.util.*;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.Produced;

/** Counts the words of a topic into another with Kafka Streams, exactly once, until SIGTERM. */
public class WordCount {
    public static void main(String[] a) {
        String bootstrap = a[0], application = a[1], input = a[2], output = a[3], state = a[4], guarantee = a[5];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("application.id", application);
        settings.put("processing.guarantee", guarantee);
        settings.put("state.dir", state);
        settings.put("replication.factor", "3");
        settings.put("num.stream.threads", "1");
        settings.put("commit.interval.ms", "100");
        settings.put("cache.max.bytes.buffering", "0");
        settings.put("consumer.session.timeout.ms", "6000");
        settings.put("consumer.heartbeat.interval.ms", "500");
        settings.put("producer.transaction.timeout.ms", "10000");
        settings.put("producer.max.block.ms", "60000");
        settings.put("default.key.serde", Serdes.String().getClass().getName());
        settings.put("default.value.serde", Serdes.String().getClass().getName());

        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(input)
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word)
            .count()
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(output, Produced.with(Serdes.String(), Serdes.String()));

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
        streams.start();
    }
}
