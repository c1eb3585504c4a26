// A member of a group that uses kafkajs (see integration_tests/members): it writes what it does into
// a log of operations until a line comes on stdin, then it leaves.
// usage: node member.js SETTINGS   (NODE_PATH names the folder that holds the packages)
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const readline = require("node:readline");
const { Kafka, PartitionAssigners, logLevel } = require("kafkajs");

const told = JSON.parse(process.argv[2]);
const file = fs.openSync(path.join(told.folder, `member-${told.client}.ops.jsonl`), "a");
const kafka = new Kafka({
  brokers: told.bootstrap.split(","),
  clientId: told.client,
  logLevel: logLevel.NOTHING,
  connectionTimeout: 2000,
  requestTimeout: 8000,
  retry: { initialRetryTime: 50, maxRetryTime: 500, retries: 100 },
});
// The events of kafkajs do not tell the generation of a new assignment; the group itself knows it.
const ConsumerGroup = require("kafkajs/src/consumer/consumerGroup");
const joinAndSync = ConsumerGroup.prototype.joinAndSync;
let group = null;
let held = new Set();

ConsumerGroup.prototype.joinAndSync = async function () {
  await joinAndSync.call(this);
  group = this;
  const places = this.assigned().flatMap(({ topic, partitions }) =>
    partitions.map((number) => [topic, Number(number)])
  );
  held = new Set(places.map(String));
  write("holds", "ok", { member: this.memberId, generation: this.generationId, tps: places });
  const names = places.map(([topic, number]) => `${topic}/${number}`);
  console.log(`holds ${this.generationId} ${names.join(" ")}`);
};

function write(f, type, more) {
  const head = { w: Date.now(), p: told.client, i: 1, f, type, group: told.group };
  const rest = JSON.stringify({ ...head, ...more }).slice(1);
  fs.writeSync(file, `{"t":${process.hrtime.bigint()},${rest}\n`);
}

async function take({ batch, resolveOffset, heartbeat, isRunning, isStale }) {
  const tp = [batch.topic, batch.partition];
  if (!held.has(String(tp)) || !isRunning() || isStale()) return;
  const offs = batch.messages.map((message) => Number(message.offset));
  write("processed", "ok", { tp, offs });
  const off = offs[offs.length - 1] + 1;
  write("commit", "invoke", { tp, off, generation: group.generationId });
  try {
    const [topic, partition] = tp;
    await consumer.commitOffsets([{ topic, partition, offset: String(off) }]);
  } catch (error) {
    write("commit", "info", { tp, off, err: String(error) });
    // Thrown on, this would end the consumer for ever; a heartbeat finds out, and joins again.
    await heartbeat();
    return;
  }
  write("commit", "ok", { tp, off, generation: group.generationId });
  resolveOffset(String(off - 1));
  await heartbeat();
}

const consumer = kafka.consumer({
  groupId: told.group,
  partitionAssigners: [PartitionAssigners.roundRobin],
  sessionTimeout: told.session_ms,
  rebalanceTimeout: 20000,
  heartbeatInterval: told.heartbeat_ms,
  maxWaitTimeInMs: 100,
  metadataMaxAge: 1000,
});

async function main() {
  await consumer.connect();
  await consumer.subscribe({ topics: told.topics, fromBeginning: true });
  await consumer.run({ autoCommit: false, eachBatchAutoResolve: false, eachBatch: take });
  for await (const _ of readline.createInterface({ input: process.stdin })) break;
  await consumer.disconnect();
  console.log("left");
  process.exit(0);
}

main().catch((error) => {
  console.log(String(error && error.stack));
  process.exit(1);
});
