// graphile-worker as a contender of the comparison kit (../README.md describes each command).
//
// Settings: those of worker.graphile.org/docs/performance ("Quick stats"): 24 jobs at once, a pool of 25 connections, a
// local queue of 500, completion and failure in batches without delay; the same for all workloads. Bulk creation uses
// the SQL function add_jobs, as the project's own perfTest/init.js does; single creation uses addJob of its utilities.
import { appendFileSync, statSync, writeFileSync } from "node:fs";
import { performance } from "node:perf_hooks";
import { setTimeout as sleep } from "node:timers/promises";
import { makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";

process.env.NO_LOG_SUCCESS = "1"; // As in its own perfTest: a log line for each job would dominate the measurement.

const CONCURRENT_JOBS = 24;
/** Jobs per statement when filling. */
const FILLING = 5_000;
/** Connections of the creators that use one transaction for each job. */
const CREATORS = 16;

/** Microseconds since 1970. Date.now() counts milliseconds: wait for the next one and add performance.now(). */
const origin = (() => {
  const before = Date.now();
  while (Date.now() === before);
  return Date.now() * 1_000 - performance.now() * 1_000;
})();
const micros = () => Math.round(origin + performance.now() * 1_000);

const connect = (connections) => {
  const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: connections });
  pool.on("error", (error) => console.error(error));
  return pool;
};

const insert = (pool, from, to) => {
  const jobs = Array.from({ length: to - from }, (_, at) => ({ identifier: "noop", payload: { n: from + at } }));
  return pool.query(
    "SELECT 1 FROM graphile_worker.add_jobs(array(SELECT json_populate_recordset(null::graphile_worker.job_spec, $1::json)))",
    [JSON.stringify(jobs)],
  );
};

/** Returns the number of starts in the file of the worker, which is another process. */
const started = (path) => (statSync(path, { throwIfNoEntry: false })?.size ?? 0) / 12;

const commands = {
  async setup() {
    const utils = await makeWorkerUtils({ connectionString: process.env.DATABASE_URL });
    await utils.migrate();
    await utils.release();
  },

  async fill(jobs) {
    const pool = connect(2);
    for (let first = 0; first < Number(jobs); first += FILLING) {
      await insert(pool, first, Math.min(first + FILLING, Number(jobs)));
    }
    await pool.end();
  },

  /** Runs jobs until the process is asked to stop. */
  async work(path) {
    // A start: 4 bytes of number, 8 of microseconds, little-endian. Written every 10 ms.
    let buffer = Buffer.alloc(12 * 100_000);
    let used = 0;
    const flush = () => {
      if (used > 0) appendFileSync(path, buffer.subarray(0, used));
      used = 0;
    };
    setInterval(flush, 10);
    const runner = await run({
      taskList: {
        noop({ n }) {
          if (used === buffer.length) flush();
          used = buffer.writeUInt32LE(n, used);
          used = buffer.writeBigInt64LE(BigInt(micros()), used);
        },
      },
      noHandleSignals: true,
      preset: {
        worker: {
          connectionString: process.env.DATABASE_URL,
          concurrentJobs: CONCURRENT_JOBS,
          maxPoolSize: CONCURRENT_JOBS + 1,
          localQueue: { size: 500 },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
        },
      },
    });
    console.log("ready");
    await new Promise((stop) => process.once("SIGTERM", stop));
    await runner.stop();
    flush();
    process.exit(0);
  },

  /** Creates jobs with several clients as fast as possible, but pauses while too many jobs wait to be started. */
  async flow(seconds, clients, batch, ahead, path) {
    const pool = connect(Number(clients));
    let next = 0;
    const began = micros();
    const client = async () => {
      while (micros() - began < Number(seconds) * 1e6) {
        if (next - started(path) >= Number(ahead)) {
          await sleep(1);
          continue;
        }
        const first = next;
        next += Number(batch);
        await insert(pool, first, first + Number(batch));
      }
    };
    await Promise.all(Array.from({ length: Number(clients) }, client));
    console.log(`began ${began}\ncreated ${next}`);
    await pool.end();
  },

  /** Creates one job per transaction at a fixed rate, whether or not the previous one is committed. */
  async arrive(rate, jobs, path) {
    const pgPool = connect(CREATORS);
    const utils = await makeWorkerUtils({ pgPool });
    const commits = Buffer.alloc(20 * Number(jobs));
    const began = micros();
    const create = async (n, due) => {
      await utils.addJob("noop", { n });
      commits.writeUInt32LE(n, 20 * n);
      commits.writeBigInt64LE(BigInt(Math.round(due)), 20 * n + 4);
      commits.writeBigInt64LE(BigInt(micros()), 20 * n + 12);
    };
    const creating = [];
    for (let n = 0; n < Number(jobs); n++) {
      const due = began + (n * 1e6) / Number(rate);
      // A timer counts milliseconds: jobs that became due meanwhile are created at once.
      while (micros() < due) await sleep(Math.max(1, (due - micros()) / 1_000));
      creating.push(create(n, due));
    }
    await Promise.all(creating);
    writeFileSync(path, commits);
    await utils.release();
    await pgPool.end();
  },
};

const [command, ...given] = process.argv.slice(2);
await commands[command](...given);
