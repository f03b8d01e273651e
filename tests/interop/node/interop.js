/*
 * Drives KafkaJS against a broker: node interop.js BOOTSTRAP SCENARIO JSON-ARGUMENTS.
 *
 * Prints one JSON object per line, as the programs of the other languages beside it. KafkaJS has no consumer without
 * a group; so "consume" speaks through its cluster and broker objects, which is what its consumer does underneath.
 */

const crypto = require('node:crypto')
const fs = require('node:fs')
const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = require('kafkajs')
const lz4 = require('lz4js')
const fzstd = require('fzstd')
const zstd = require('@bokuweb/zstd-wasm')

const SHORT_BYTES = 64
const FETCH_BYTES = 20000000

CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')
/** Java reads only frames whose blocks stand alone. This encoder has one block up to 4 MB, but does not say so. */
function lz4Frame(data) {
  const frame = Buffer.from(lz4.compress(data))
  Buffer.from([0x60, 0x70, 0x73]).copy(frame, 4)
  return frame
}
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async encoder => lz4Frame(encoder.buffer),
  decompress: async buffer => Buffer.from(lz4.decompress(buffer)),
})
// One package compresses, the other reads frames that do not tell their size: Java streams such.
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => zstd.init().then(() => Buffer.from(zstd.compress(encoder.buffer, 3))),
  decompress: async buffer => Buffer.from(fzstd.decompress(buffer)),
})
const CODECS = { none: 0, gzip: 1, snappy: 2, lz4: 3, zstd: 4 }

const say = (op, fields) => process.stdout.write(JSON.stringify({ op, ...fields }) + '\n')
const bytes = text => (text === null || text === undefined ? null : Buffer.from(text, 'base64'))

function shown(value) {
  if (value === null || value === undefined) return null
  if (value.length <= SHORT_BYTES) return 'b64:' + value.toString('base64')
  return `sha256:${crypto.createHash('sha256').update(value).digest('hex')}:${value.length}`
}

function connect(bootstrap, options, retries = 8) {
  return new Kafka({ brokers: [bootstrap], clientId: options.client_id || 'node', logLevel: logLevel.NOTHING, retry: { initialRetryTime: 100, retries } })
}

/** KafkaJS keeps headers as an object: a repeated name has a list of values. */
function headersOf(row) {
  const headers = {}
  for (const [name, value] of row.headers || []) {
    headers[name] = name in headers ? [].concat(headers[name], [bytes(value)]) : bytes(value)
  }
  return headers
}

function message(row) {
  return {
    key: bytes(row.key), value: bytes(row.value), partition: row.partition || 0, headers: headersOf(row),
    ...(row.timestamp === null || row.timestamp === undefined ? {} : { timestamp: String(row.timestamp) }),
  }
}

async function produce(bootstrap, options) {
  const config = options.config || {}
  const producer = connect(bootstrap, options).producer({
    idempotent: config['enable.idempotence'] === 'true',
    createPartitioner: () => ({ message }) => message.partition,
  })
  await producer.connect()
  const acks = config.acks === '1' ? 1 : -1
  const messages = JSON.parse(fs.readFileSync(options.file)).map(message)
  try {
    const compression = CODECS[config['compression.type'] || 'none']
    const results = await producer.send({ topic: options.topic, acks, compression, messages })
    const next = new Map(results.map(r => [r.partition, BigInt(r.baseOffset)]))
    for (const { partition } of messages) {
      say('ack', { partition, offset: Number(next.get(partition)) })
      next.set(partition, next.get(partition) + 1n)
    }
  } catch (error) {
    say('refused', { error: errorName(error) })
  }
  await producer.disconnect()
}

/** The private cluster object of a client: it knows the brokers and speaks Fetch. */
async function clusterOf(kafka, topic) {
  const create = Object.getOwnPropertySymbols(kafka).find(s => String(s).includes('createCluster'))
  const cluster = kafka[create]({ metadataMaxAge: 60000, allowAutoTopicCreation: false })
  await cluster.connect()
  await cluster.addTargetTopic(topic)
  return cluster
}

async function consume(bootstrap, options) {
  const kafka = connect(bootstrap, options)
  const admin = kafka.admin()
  await admin.connect()
  const ends = await admin.fetchTopicOffsets(options.topic)
  await admin.disconnect()
  const cluster = await clusterOf(kafka, options.topic)
  const leader = new Map(cluster.findTopicPartitionMetadata(options.topic).map(p => [p.partitionId, p.leader]))
  for (const { partition, low, high } of ends.sort((a, b) => a.partition - b.partition)) {
    const broker = await cluster.findBroker({ nodeId: leader.get(partition) })
    await readPartition(broker, options.topic, partition, BigInt(low), BigInt(high))
  }
  say('end', { partitions: ends.length, end_offsets: Number(ends.reduce((sum, e) => sum + BigInt(e.high), 0n)) })
  await cluster.disconnect()
}

async function readPartition(broker, topic, partition, from, upto) {
  let next = from
  while (next < upto) {
    const partitions = [{ partition, fetchOffset: String(next), maxBytes: FETCH_BYTES }]
    const answer = await broker.fetch({ maxWaitTime: 500, minBytes: 1, maxBytes: FETCH_BYTES, isolationLevel: 0, topics: [{ topic, partitions }] })
    const [{ messages, errorCode }] = answer.responses[0].partitions
    if (errorCode !== 0) throw new Error(`fetch: error ${errorCode}`)
    for (const m of messages) {
      // A batch comes whole, so that it may begin before the offset that was asked for.
      if (BigInt(m.offset) < next) continue
      if (!m.isControlRecord) sayRecord(partition, m)
      next = BigInt(m.offset) + 1n
    }
  }
}

function sayRecord(partition, m) {
  const headers = Object.entries(m.headers).flatMap(([name, v]) => [].concat(v === null ? [null] : v).map(x => [name, shown(x)]))
  say('record', {
    partition, offset: Number(m.offset), timestamp: Number(m.timestamp),
    timestamp_type: ['CreateTime', 'LogAppendTime'][m.batchContext.timestampType], key: shown(m.key), value: shown(m.value), headers,
  })
}

async function offsets(bootstrap, options) {
  const admin = connect(bootstrap, options).admin()
  await admin.connect()
  const [{ low, high }] = await admin.fetchTopicOffsets(options.topic)
  say('range', { beginning: Number(low), end: Number(high) })
  for (const asked of options.timestamps) {
    const [{ offset }] = await admin.fetchTopicOffsetsByTimestamp(options.topic, asked)
    // "Nothing that late" becomes the end offset in this client, and the timestamp is not told.
    say('at', { asked, offset: offset === high ? -1 : Number(offset) })
  }
  await admin.disconnect()
}

function errorName(error) {
  const inner = error.errors ? error.errors[0] : error.cause && error.cause.type ? error.cause : error
  return inner.type || (error.originalError && error.originalError.type) || `${error.name}: ${error.message}`
}

const outcome = promise => promise.then(() => 'NONE', errorName)

async function admin(bootstrap, options) {
  // An unknown topic is worth another try for this client: few, or the refusals take long.
  const admin = connect(bootstrap, options, 2).admin()
  await admin.connect()
  const cluster = await admin.describeCluster()
  say('describe_cluster', { nodes: cluster.brokers.length, controller_known: cluster.controller !== null, cluster_id_length: cluster.clusterId.length })
  await adminTopics(admin, options.topic)
  await adminConfigs(admin, options.topic)
  await adminRecords(admin, options)
  say('delete_topic', { error: await outcome(admin.deleteTopics({ topics: [options.topic] })) })
  say('delete_topic_again', { error: await outcome(admin.deleteTopics({ topics: [options.topic] })) })
  await admin.disconnect()
}

async function adminTopics(admin, topic) {
  const create = (name, numPartitions, replicationFactor, configEntries = []) =>
    outcome(admin.createTopics({ topics: [{ topic: name, numPartitions, replicationFactor, configEntries }] }))
  say('create_topic_plain', { error: await create(topic, 2, 1, [{ name: 'retention.ms', value: '3600000' }]) })
  // This client tells "exists already" by answering false.
  say('create_again', { made: await admin.createTopics({ topics: [{ topic, numPartitions: 2 }] }) })
  say('create_wrong_config', { error: await create(`${topic}-wrong`, 1, 1, [{ name: 'retention.ms', value: 'soon' }]) })
  say('create_replication_9', { error: await create(`${topic}-wide`, 1, 9) })
  const describe = async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions
  say('describe_topic', { partitions: (await describe()).length, led_by_its_replica: (await describe()).every(p => p.isr.length === 1 && p.leader === p.replicas[0]) })
  say('list_topics', { has_it: (await admin.listTopics()).includes(topic) })
  const increase = count => outcome(admin.createPartitions({ topicPartitions: [{ topic, count }] }))
  say('create_partitions', { error: await increase(4) })
  say('fewer_partitions', { error: await increase(3) })
  say('partitions_now', { count: (await describe()).length })
}

async function adminConfigs(admin, topic) {
  const sources = { 1: 'DYNAMIC_TOPIC_CONFIG', 5: 'DEFAULT_CONFIG' }
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
  const entry = async name => {
    const found = (await admin.describeConfigs({ resources: [resource] })).resources[0].configEntries.find(e => e.configName === name)
    return `${found.configValue} ${sources[found.configSource]}`
  }
  say('describe_configs', { retention_ms: await entry('retention.ms'), segment_bytes: await entry('segment.bytes'), cleanup_policy: await entry('cleanup.policy') })
  const alter = (name, value) => outcome(admin.alterConfigs({ resources: [{ ...resource, configEntries: [{ name, value }] }] }))
  say('alter_set', { error: await alter('retention.ms', '7200000'), retention_ms: await entry('retention.ms') })
  say('alter_unknown', { error: await alter('no.such.setting', '1') })
}

async function adminRecords(admin, { topic }) {
  say('delete_records', { error: await outcome(admin.deleteTopicRecords({ topic, partitions: [{ partition: 1, offset: '-1' }] })) })
}

const scenarios = { produce, consume, offsets, admin }
const [bootstrap, scenario, options] = process.argv.slice(2)
scenarios[scenario](bootstrap, JSON.parse(options)).catch(error => {
  console.error(error)
  process.exit(1)
})
