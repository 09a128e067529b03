// Jobs of BullMQ: `enqueue N` enqueues N jobs, `work` runs a worker until SIGTERM.
"use strict";

const { Queue, Worker } = require("bullmq");

const NAME = "noop";
const BULK = 1000;
const connection = { host: "127.0.0.1", port: Number(process.env.PEERS_PORT) };

const enqueue = async (count) => {
  const queue = new Queue(NAME, { connection });
  for (let first = 0; first < count; first += BULK) {
    const length = Math.min(BULK, count - first);
    const jobs = Array.from({ length }, (_, place) => ({ name: NAME, data: { number: first + place } }));
    await queue.addBulk(jobs);
  }
  await queue.close();
};

const work = () => {
  const { append } = require("./appending.cjs");
  const { concurrency } = JSON.parse(process.env.PEERS_SETTINGS);
  const worker = new Worker(NAME, async (job) => append(job.data.number), {
    connection: { ...connection, maxRetriesPerRequest: null },
    concurrency,
  });
  worker.on("error", (error) => console.error(error));
  process.on("SIGTERM", async () => {
    await worker.close();
    process.exit(0);
  });
};

const [command, count] = process.argv.slice(2);
if (command === "enqueue") {
  enqueue(Number(count));
} else {
  work();
}
