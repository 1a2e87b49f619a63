"""The programs of the client matrix with kafka-python 2.0.2 to 3.x. clients/README.md has the contract."""

import signal
import sys
from collections.abc import Iterator

from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, __version__
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewPartitions, NewTopic

# kafka-python 3.0.12 forgets an assignment that comes while a poll ends, so its polls are long.
POLL_MS = 500 if __version__.startswith("2.") else 3_000


def say(*words: object) -> None:
    print(*words, flush=True)


def produce(bootstrap: str, topic: str, compression: str, first: str, count: str) -> None:
    codec = None if compression == "none" else compression
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", compression_type=codec, linger_ms=5)
    sent = [send(producer, topic, number) for number in range(int(first), int(first) + int(count))]
    producer.flush(60)
    for future in sent:
        future.get(timeout=60)
    producer.close()


def send(producer: KafkaProducer, topic: str, number: int):  # type: ignore[no-untyped-def]
    return producer.send(topic, b"v%d" % number, key=b"k%d" % number, headers=[("n", b"h%d" % number)])


class Assigned(ConsumerRebalanceListener):
    def __init__(self, consumer: KafkaConsumer) -> None:
        self.consumer = consumer

    def on_partitions_revoked(self, revoked: list) -> None:
        pass

    def on_partitions_assigned(self, assigned: list) -> None:
        say("assigned", ",".join(str(place.partition) for place in sorted(assigned)))


def consume(bootstrap: str, topic: str, group: str, isolation: str) -> None:
    settings = {} if isolation == "read_uncommitted" else {"isolation_level": isolation}
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=6000,
        heartbeat_interval_ms=500,
        **settings,
    )
    consumer.subscribe([topic], listener=Assigned(consumer))
    for record in until_stopped(consumer):
        header = dict(record.headers).get("n", b"-")
        say("record", record.partition, record.offset, record.key.decode(), record.value.decode(), header.decode())
    consumer.close()


def until_stopped(consumer: KafkaConsumer) -> Iterator:
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    while not stopped:
        batch = consumer.poll(timeout_ms=POLL_MS)
        for records in batch.values():
            yield from records
        if batch:
            consumer.commit()


def transact(bootstrap: str, topic: str, transactional_id: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
    producer.init_transactions()
    for number, end in enumerate([producer.abort_transaction, producer.commit_transaction]):
        producer.begin_transaction()
        for i in range(10):
            send(producer, topic, number * 10 + i)
        producer.flush(60)
        end()
    producer.close()


def create(bootstrap: str, topic: str, old_topic: str) -> None:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    client.create_topics([NewTopic(topic, num_partitions=4, replication_factor=3)])
    client.delete_topics([old_topic])
    client.close()


def describe(bootstrap: str, topic: str) -> None:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    (described,) = client.describe_topics([topic])
    say("partitions", len(described["partitions"]))
    client.close()


def configure(bootstrap: str, topic: str, backoff: str) -> None:
    describe(bootstrap, topic)
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    client.create_partitions({topic: NewPartitions(6)})
    say("broker", described(client, ConfigResourceType.BROKER, "1")["log.segment.bytes"])
    if __version__.startswith("2."):  # it sends changes of a broker's configuration to any broker, and has no others
        settings = {"retention.ms": "100000", "max.message.bytes": "200000"}
        client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, settings)])
    else:
        for kind, name, key, value, incremental in (
            (ConfigResourceType.TOPIC, topic, "retention.ms", "100000", False),
            (ConfigResourceType.TOPIC, topic, "max.message.bytes", "200000", True),
            (ConfigResourceType.BROKER, "1", "log.cleaner.backoff.ms", backoff, True),
        ):
            client.alter_configs([ConfigResource(kind, name, {key: value})], incremental=incremental)
    found = described(client, ConfigResourceType.TOPIC, topic)
    say("topic", found["retention.ms"], found["max.message.bytes"])
    client.close()


def described(client: KafkaAdminClient, kind: ConfigResourceType, name: str) -> dict[str, str]:
    resource = ConfigResource(kind, name)
    if __version__.startswith("2."):
        ((*_, entries),) = client.describe_configs([resource])[0].resources
        return {entry[0]: entry[1] for entry in entries}
    ((found,),) = [named.values() for named in client.describe_configs([resource], config_filter="all").values()]
    return {key: entry["value"] for key, entry in found.items()}


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
