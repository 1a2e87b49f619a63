// The programs of the client matrix with kafkajs. clients/README.md has the contract.
const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, logLevel } = require("kafkajs")
const lz4 = require("lz4js")
const zstd = require("@bokuweb/zstd-wasm")

CompressionCodecs[CompressionTypes.Snappy] = require("kafkajs-snappy")
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async ({ buffer }) => Buffer.from(lz4.compress(buffer)),
  decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async ({ buffer }) => Buffer.from(zstd.compress(buffer)),
  decompress: async (buffer) => Buffer.from(zstd.decompress(buffer)),
})
const codecs = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}

const client = (bootstrap) => new Kafka({ brokers: bootstrap.split(","), logLevel: logLevel.ERROR })

const records = (first, count) =>
  Array.from({ length: count }, (_, i) => first + i).map((i) => ({ key: `k${i}`, value: `v${i}`, headers: { n: `h${i}` } }))

async function produce(bootstrap, topic, compression, first, count) {
  const producer = client(bootstrap).producer({ idempotent: true })
  await producer.connect()
  await producer.send({ topic, compression: codecs[compression], messages: records(Number(first), Number(count)) })
  await producer.disconnect()
}

async function consume(bootstrap, topic, group, isolation) {
  const consumer = client(bootstrap).consumer({
    groupId: group,
    sessionTimeout: 6000,
    heartbeatInterval: 500,
    readUncommitted: isolation === "read_uncommitted",
    maxWaitTimeInMs: 200,
  })
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    console.log("assigned", (payload.memberAssignment[topic] || []).sort().join(","))
  })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  process.on("SIGTERM", () => consumer.disconnect().then(() => process.exit(0)))
  await consumer.run({
    autoCommit: false,
    eachBatch: async ({ batch, resolveOffset, commitOffsetsIfNecessary, uncommittedOffsets, heartbeat }) => {
      for (const { offset, key, value, headers } of batch.messages) {
        console.log("record", batch.partition, offset, key.toString(), value.toString(), headers.n.toString())
        resolveOffset(offset)
      }
      await commitOffsetsIfNecessary(uncommittedOffsets())
      await heartbeat()
    },
  })
}

async function transact(bootstrap, topic, transactionalId) {
  const producer = client(bootstrap).producer({ idempotent: true, maxInFlightRequests: 1, transactionalId })
  await producer.connect()
  for (const [number, end] of ["abort", "commit"].entries()) {
    const transaction = await producer.transaction()
    await transaction.send({ topic, messages: records(number * 10, 10) })
    await transaction[end]()
  }
  await producer.disconnect()
}

async function create(bootstrap, topic, oldTopic) {
  const asked = client(bootstrap).admin()
  await asked.connect()
  await asked.createTopics({ topics: [{ topic, numPartitions: 4, replicationFactor: 3 }], waitForLeaders: false })
  await asked.deleteTopics({ topics: [oldTopic] })
  await asked.disconnect()
}

async function describe(bootstrap, topic) {
  const asked = client(bootstrap).admin()
  await asked.connect()
  const { topics } = await asked.fetchTopicMetadata({ topics: [topic] })
  console.log("partitions", topics[0].partitions.length)
  await asked.disconnect()
}

async function configure(bootstrap, topic, backoff) {
  await describe(bootstrap, topic)
  const asked = client(bootstrap).admin()
  await asked.connect()
  await asked.createPartitions({ topicPartitions: [{ topic, count: 6 }] })
  const described = async (type, name) => {
    const { resources } = await asked.describeConfigs({ resources: [{ type, name }] })
    return Object.fromEntries(resources[0].configEntries.map(({ configName, configValue }) => [configName, configValue]))
  }
  console.log("broker", (await described(ConfigResourceTypes.BROKER, "1"))["log.segment.bytes"])
  const entries = (settings) => Object.entries(settings).map(([name, value]) => ({ name, value }))
  await asked.alterConfigs({
    resources: [
      {
        type: ConfigResourceTypes.TOPIC,
        name: topic,
        configEntries: entries({ "retention.ms": "100000", "max.message.bytes": "200000" }),
      },
      { type: ConfigResourceTypes.BROKER, name: "1", configEntries: entries({ "log.cleaner.backoff.ms": backoff }) },
    ],
  })
  const found = await described(ConfigResourceTypes.TOPIC, topic)
  console.log("topic", found["retention.ms"], found["max.message.bytes"])
  await asked.disconnect()
}

const [verb, ...words] = process.argv.slice(2)
process.env.KAFKAJS_NO_PARTITIONER_WARNING = "1"
zstd
  .init()
  .then(() => ({ produce, consume, transact, create, configure })[verb](...words))
  .catch((error) => {
    console.error(error)
    process.exit(1)
  })
