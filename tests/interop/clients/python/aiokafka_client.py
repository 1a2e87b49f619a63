"""The programs of the client matrix with aiokafka. clients/README.md has the contract."""

import asyncio
import signal
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType


def say(*words: object) -> None:
    print(*words, flush=True)


async def produce(bootstrap: str, topic: str, compression: str, first: str, count: str) -> None:
    codec = None if compression == "none" else compression
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, enable_idempotence=True, compression_type=codec, linger_ms=5
    ) as producer:
        sent = [await send(producer, topic, number) for number in range(int(first), int(first) + int(count))]
        await asyncio.gather(*sent)


async def send(producer: AIOKafkaProducer, topic: str, number: int) -> asyncio.Future:
    return await producer.send(topic, b"v%d" % number, key=b"k%d" % number, headers=[("n", b"h%d" % number)])


class Assigned(ConsumerRebalanceListener):
    def on_partitions_revoked(self, revoked: list) -> None:
        pass

    def on_partitions_assigned(self, assigned: list) -> None:
        say("assigned", ",".join(str(place.partition) for place in sorted(assigned)))


async def consume(bootstrap: str, topic: str, group: str, isolation: str) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=6000,
        heartbeat_interval_ms=500,
        isolation_level=isolation,
    ) as consumer:
        consumer.subscribe([topic], listener=Assigned())
        while not stopped.is_set():
            batches = await consumer.getmany(timeout_ms=200)
            for record in [record for records in batches.values() for record in records]:
                header = dict(record.headers)["n"]
                say(
                    "record",
                    record.partition,
                    record.offset,
                    record.key.decode(),
                    record.value.decode(),
                    header.decode(),
                )
            if batches:
                await consumer.commit()


async def transact(bootstrap: str, topic: str, transactional_id: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id) as producer:
        for number, end in enumerate([producer.abort_transaction, producer.commit_transaction]):
            await producer.begin_transaction()
            for i in range(10):
                await send(producer, topic, number * 10 + i)
            await producer.flush()
            await end()


async def create(bootstrap: str, topic: str, old_topic: str) -> None:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    await client.create_topics([NewTopic(topic, num_partitions=4, replication_factor=3)])
    await client.delete_topics([old_topic])
    await client.close()


async def describe(bootstrap: str, topic: str) -> None:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    (described,) = await client.describe_topics([topic])
    say("partitions", len(described["partitions"]))
    await client.close()


async def configure(bootstrap: str, topic: str, backoff: str) -> None:
    await describe(bootstrap, topic)
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    await client.create_partitions({topic: NewPartitions(6)})
    say("broker", (await described(client, ConfigResourceType.BROKER, "1"))["log.segment.bytes"])
    settings = {"retention.ms": "100000", "max.message.bytes": "200000"}
    await client.alter_configs(
        [
            ConfigResource(ConfigResourceType.TOPIC, topic, settings),
            ConfigResource(ConfigResourceType.BROKER, "1", {"log.cleaner.backoff.ms": backoff}),
        ]
    )
    found = await described(client, ConfigResourceType.TOPIC, topic)
    say("topic", found["retention.ms"], found["max.message.bytes"])
    await client.close()


async def described(client: AIOKafkaAdminClient, kind: ConfigResourceType, name: str) -> dict[str, str]:
    answers = await client.describe_configs([ConfigResource(kind, name)])
    ((*_, entries),) = [resource for answer in answers for resource in answer.resources]
    return {entry[0]: entry[1] for entry in entries}


if __name__ == "__main__":
    asyncio.run(globals()[sys.argv[1]](*sys.argv[2:]))
