// A transactional producer of kafkajs that copies records of one input partition: one JSON command a
// line on stdin, one line "RESULT {json}" each.
// usage: node takeover.js BOOTSTRAP TRANSACTIONAL_ID INPUT OUTPUT GROUP
"use strict";

const readline = require("node:readline");
const { Kafka, logLevel } = require("kafkajs");

const [bootstrap, transactionalId, input, output, groupId] = process.argv.slice(2);
const kafka = new Kafka({ brokers: bootstrap.split(","), logLevel: logLevel.NOTHING });
const producer = kafka.producer({ transactionalId, idempotent: true, maxInFlightRequests: 1 });
let transaction;

async function start() {
  await producer.connect();
  return {};
}

async function copy({ values, beyond }) {
  transaction = await producer.transaction();
  for (const value of values) {
    await transaction.send({ topic: output, acks: -1, messages: [{ partition: 0, value }] });
  }
  const partitions = [{ partition: 0, offset: String(beyond) }];
  await transaction.sendOffsets({ consumerGroupId: groupId, topics: [{ topic: input, partitions }] });
  return {};
}

async function commit() {
  await transaction.commit();
  return {};
}

async function committed() {
  const admin = kafka.admin();
  await admin.connect();
  const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [input] });
  await admin.disconnect();
  return { offset: Number(partitions[0].offset) };
}

const commands = { start, copy, commit, committed };

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    let result;
    try {
      const command = JSON.parse(line);
      result = await commands[command.do](command);
    } catch (failure) {
      result = { error: failure.type || String(failure) };
    }
    console.log("RESULT " + JSON.stringify(result));
  }
}

main();
