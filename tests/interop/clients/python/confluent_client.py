"""The programs of the client matrix with confluent-kafka (librdkafka). clients/README.md has the contract.

The second word of the name of a group, after a colon, is its assignor: `g:cooperative-sticky`.
"""

import signal
import sys

from confluent_kafka import Consumer, Producer, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)


def say(*words: object) -> None:
    print(*words, flush=True)


def produce(bootstrap: str, topic: str, compression: str, first: str, count: str) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "compression.type": compression, "enable.idempotence": True, "linger.ms": 5}
    )
    for number in range(int(first), int(first) + int(count)):
        send(producer, topic, number)
    assert producer.flush(60) == 0


def send(producer: Producer, topic: str, number: int) -> None:
    producer.produce(topic, f"v{number}", f"k{number}", headers=[("n", b"h%d" % number)], on_delivery=delivered)


def delivered(error: object, message: object) -> None:
    if error is not None:
        raise SystemExit(f"not delivered: {error}")


def consume(bootstrap: str, topic: str, group: str, isolation: str) -> None:
    stopped: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            "isolation.level": isolation,
            "check.crcs": True,
            "partition.assignment.strategy": group.partition(":")[2] or "range",
        }
    )
    consumer.subscribe([topic])
    held = None
    while not stopped:
        messages = consumer.consume(500, timeout=0.2)
        now = sorted(place.partition for place in consumer.assignment())
        if now != held:
            say("assigned", ",".join(map(str, now)))
            held = now
        for message in messages:
            if message.error():
                raise SystemExit(str(message.error()))
            key, value, header = message.key(), message.value(), dict(message.headers())["n"]
            say("record", message.partition(), message.offset(), key.decode(), value.decode(), header.decode())
        if messages:
            consumer.commit(asynchronous=False)
    consumer.close()


def transact(bootstrap: str, topic: str, transactional_id: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(60)
    for number, end in enumerate([producer.abort_transaction, producer.commit_transaction]):
        producer.begin_transaction()
        for i in range(10):
            send(producer, topic, number * 10 + i)
        producer.flush(60)
        end(60)


def create(bootstrap: str, topic: str, old_topic: str) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap})
    client.create_topics([NewTopic(topic, 4, 3)])[topic].result(60)
    client.delete_topics([old_topic])[old_topic].result(60)


def describe(bootstrap: str, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap})
    described = client.describe_topics(TopicCollection([topic]))[topic].result(60)
    say("partitions", len(described.partitions))


def configure(bootstrap: str, topic: str, backoff: str) -> None:
    describe(bootstrap, topic)
    client = AdminClient({"bootstrap.servers": bootstrap})
    client.create_partitions([NewPartitions(topic, 6)])[topic].result(60)
    say("broker", described(client, ResourceType.BROKER, "1")["log.segment.bytes"].value)
    whole = ConfigResource(ResourceType.TOPIC, topic, set_config={"retention.ms": "100000"})
    client.alter_configs([whole])[whole].result(60)
    for kind, name, key, value in (
        (ResourceType.TOPIC, topic, "max.message.bytes", "200000"),
        (ResourceType.BROKER, "1", "log.cleaner.backoff.ms", backoff),
    ):
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        change = ConfigResource(kind, name, incremental_configs=[entry])
        client.incremental_alter_configs([change])[change].result(60)
    found = described(client, ResourceType.TOPIC, topic)
    say("topic", found["retention.ms"].value, found["max.message.bytes"].value)


def described(client: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(kind, name)
    return client.describe_configs([resource])[resource].result(60)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
