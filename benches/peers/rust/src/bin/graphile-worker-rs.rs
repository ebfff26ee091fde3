//! graphile_worker, the crate, as a contender of the comparison kit (../../../README.md describes
//! each command).
//!
//! `drain` uses the settings of the crate's own `benches/perf_test.rs`: 500 jobs at once, a local
//! queue of 5,000, completion in batches after 5 ms, polling every 5 ms, a pool of 100 connections.
//! `latency` uses those of its documentation's "Throughput-oriented worker"
//! (docs/src/configuration/worker-options.md in the package): 16 at once, the same batches, polling
//! every 500 ms; notifications wake it, as by default. It uses no local queue: a worker that takes
//! the last job of one just before a notification of new jobs waits for the queue's TTL (five
//! minutes) before it fetches again. At 1,000 jobs a second that happened within two seconds.

use std::env;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, Worker, WorkerContext,
    WorkerUtils,
};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::task::JoinSet;

const SCHEMA: &str = "graphile_worker";
/// Jobs per statement when filling.
const FILLING: u32 = 5_000;
/// Connections of the creators that use one transaction for each job.
const CREATORS: u32 = 16;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Clone, Serialize, Deserialize)]
struct Noop {
    n: u32,
}

impl TaskHandler for Noop {
    const IDENTIFIER: &'static str = "noop";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        if let Some(starts) = context.get_ext::<Starts>() {
            starts.note(self.n);
        }
        Ok::<(), String>(())
    }
}

/// The jobs that started; written every 10 ms: 4 bytes of number, 8 of microseconds, little-endian.
#[derive(Clone, Debug)]
struct Starts(Arc<Mutex<(Vec<u8>, File)>>);

impl Starts {
    fn open(path: &str) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self(Arc::new(Mutex::new((Vec::new(), file)))))
    }

    fn note(&self, n: u32) {
        let mut inner = self.0.lock().expect("no thread panics while it holds the lock");
        inner.0.extend_from_slice(&n.to_le_bytes());
        inner.0.extend_from_slice(&micros().to_le_bytes());
    }

    fn flush(&self) -> Result<()> {
        let mut inner = self.0.lock().expect("no thread panics while it holds the lock");
        let (buffer, file) = &mut *inner;
        file.write_all(buffer)?;
        buffer.clear();
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let text = |at: usize| arguments.get(at).map_or("", String::as_str);
    let number = |at: usize| {
        text(at)
            .parse::<u32>()
            .map_err(|e| format!("argument {at}: {e}"))
    };
    match text(0) {
        "setup" => Ok(utils(connect(2).await?).migrate().await?),
        "fill" => fill(number(1)?).await,
        "work" => work(text(1), text(2)).await,
        "flow" => flow(number(1)?, number(2)?, number(3)?, number(4)?, text(5)).await,
        "arrive" => arrive(number(1)?, number(2)?, text(3)).await,
        other => Err(format!("no command {other:?}").into()),
    }
}

async fn fill(jobs: u32) -> Result<()> {
    let utils = utils(connect(2).await?);
    for first in (0..jobs).step_by(FILLING as usize) {
        insert(&utils, first, jobs.min(first + FILLING)).await?;
    }
    Ok(())
}

/// Runs jobs until the process is asked to stop; graphile_worker handles the signal.
async fn work(path: &str, profile: &str) -> Result<()> {
    let starts = Starts::open(path)?;
    let batch = Duration::from_millis(5);
    let options = Worker::options()
        .schema(SCHEMA)
        .complete_job_batch_delay(batch)
        .fail_job_batch_delay(batch)
        .add_extension(starts.clone())
        .define_job::<Noop>();
    let options = match profile {
        "drain" => options
            .pg_pool(connect(100).await?)
            .concurrency(500)
            .poll_interval(Duration::from_millis(5))
            .local_queue(LocalQueueConfig::default().with_size(5_000)),
        "latency" => options
            .pg_pool(connect(20).await?)
            .concurrency(16)
            .poll_interval(Duration::from_millis(500)),
        other => return Err(format!("no profile {other:?}").into()),
    };
    let worker = options.init().await?;
    let flushing = starts.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(10)).await;
            flushing.flush().expect("the starts can be written");
        }
    });
    println!("ready");
    worker.run().await?;
    starts.flush()
}

/// Creates jobs with several clients as fast as possible, but pauses while too many jobs wait to be
/// started.
async fn flow(seconds: u32, clients: u32, batch: u32, ahead: u32, path: &str) -> Result<()> {
    let utils = utils(connect(clients).await?);
    let next = Arc::new(AtomicU32::new(0));
    let (began, until) = (
        micros(),
        Instant::now() + Duration::from_secs(seconds.into()),
    );
    let mut all = JoinSet::new();
    for _ in 0..clients {
        let (utils, next, path) = (utils.clone(), next.clone(), path.to_owned());
        all.spawn(async move {
            while Instant::now() < until {
                // The worker, another process, writes twelve bytes for each job.
                let started = std::fs::metadata(&path).map_or(0, |file| file.len() / 12);
                if u64::from(next.load(Ordering::SeqCst)) >= started + u64::from(ahead) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    continue;
                }
                let first = next.fetch_add(batch, Ordering::SeqCst);
                insert(&utils, first, first + batch).await?;
            }
            Result::Ok(())
        });
    }
    while let Some(ended) = all.join_next().await {
        ended??;
    }
    println!("began {began}\ncreated {}", next.load(Ordering::SeqCst));
    Ok(())
}

/// Creates one job per transaction at a fixed rate, whether or not the previous one is committed.
async fn arrive(rate: u32, jobs: u32, path: &str) -> Result<()> {
    let utils = utils(connect(CREATORS).await?);
    let (began, began_micros) = (tokio::time::Instant::now(), micros());
    let mut all = JoinSet::new();
    for n in 0..jobs {
        let after = Duration::from_secs(n.into()) / rate;
        tokio::time::sleep_until(began + after).await;
        let utils = utils.clone();
        all.spawn(async move {
            utils.add_job(Noop { n }, JobSpec::default()).await?;
            let due = began_micros + u64::try_from(after.as_micros())?;
            let mut note = n.to_le_bytes().to_vec();
            note.extend_from_slice(&due.to_le_bytes());
            note.extend_from_slice(&micros().to_le_bytes());
            Result::Ok(note)
        });
    }
    let mut commits = Vec::new();
    while let Some(note) = all.join_next().await {
        commits.extend(note??);
    }
    Ok(std::fs::write(path, commits)?)
}

async fn connect(connections: u32) -> Result<PgPool> {
    let options = PgPoolOptions::new()
        .max_connections(connections)
        // A creator that can't keep up must show it by its latency.
        .acquire_timeout(Duration::from_secs(600));
    Ok(options.connect(&env::var("DATABASE_URL")?).await?)
}

fn utils(pool: PgPool) -> WorkerUtils {
    WorkerUtils::new(pool, SCHEMA)
}

async fn insert(utils: &WorkerUtils, from: u32, to: u32) -> Result<()> {
    let plain = JobSpec::default();
    let jobs: Vec<(Noop, &JobSpec)> = (from..to).map(|n| (Noop { n }, &plain)).collect();
    utils.add_jobs(&jobs).await?;
    Ok(())
}

fn micros() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}
