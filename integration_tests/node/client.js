// kafkajs for tests: one JSON command a line on stdin, one line "RESULT {json}" each.
// usage: node client.js BOOTSTRAP   (NODE_PATH names the folder that holds the packages)
"use strict";

const readline = require("node:readline");
const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = require("kafkajs");
const snappy = require("kafkajs-snappy");

CompressionCodecs[CompressionTypes.Snappy] = snappy;

const codecs = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
};

const kafka = new Kafka({ brokers: [process.argv[2]], logLevel: logLevel.ERROR });

function bytes(text) {
  return text === null ? null : Buffer.from(text, "base64");
}

async function create({ topic, partitions }) {
  const admin = kafka.admin();
  await admin.connect();
  await admin.createTopics({ topics: [{ topic, numPartitions: partitions }] });
  await admin.disconnect();
  return {};
}

async function produce({ topic, codec, idempotent, records }) {
  const producer = kafka.producer({ idempotent });
  await producer.connect();
  const messages = records.map((record) => ({
    partition: 0,
    key: bytes(record.key),
    value: bytes(record.value),
    timestamp: String(record.timestamp),
    headers: Object.fromEntries(record.headers.map(([name, value]) => [name, bytes(value)])),
  }));
  const [answer] = await producer.send({ topic, acks: -1, compression: codecs[codec], messages });
  await producer.disconnect();
  return { offsets: messages.map((_, index) => Number(answer.baseOffset) + index) };
}

const commands = { create, produce };

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    let result;
    try {
      const command = JSON.parse(line);
      result = await commands[command.do](command);
    } catch (failure) {
      result = { error: String(failure) };
    }
    console.log("RESULT " + JSON.stringify(result));
  }
}

main();
