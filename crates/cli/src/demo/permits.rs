//! A town hall handles applications for permits. Each application is a process instance with eight
//! jobs:
//!
//! | job | kind | special cases |
//! | --- | --- | --- |
//! | `receive-application` | exclusive, in its transaction; creates the next two | every tenth has a duplicate whose transaction rolls back |
//! | `send-receipt` | concurrent | every ninth fails once and is retried |
//! | `check-documents` | exclusive, in its transaction; creates the next three | |
//! | `ask-advice`, twice | exclusive | every twentieth fails once and is retried |
//! | `decide` | timer, one second later; exclusive, in its transaction; creates the next two | |
//! | `deliver-decision` | concurrent | one can never be delivered, one fails too often: dead letters |
//! | `archive` | timer, one second later; exclusive, in its transaction | |
//!
//! Jobs that run in their transaction write a row in `event_log`, so the account can be checked:
//! the jobs that such a job created exist if and only if its row exists.

mod handlers;
mod tally;

use std::sync::Arc;
use std::time::{Duration, Instant};

use jobwire_core::{Client, CommitHook, JobId, NewJob, SqlStore, StoreError};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::connect::{Creator, Database};
use crate::error::Error;

use super::account::Account;
use super::progress::{self, Progress};
use super::stage::Stage;
use tally::Tally;

/// The time within which the applications arrive.
const ARRIVALS: Duration = Duration::from_secs(8);
/// One of this many applications has a duplicate that is rolled back.
const ROLLED_BACK: u32 = 10;
/// The interval at which the number of remaining jobs is read from the database.
const LOOK: Duration = Duration::from_millis(200);
/// The time without progress after which the run fails.
const STANDSTILL: Duration = Duration::from_secs(120);

/// The payload of every job of this process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Application {
    /// Its number, from 1.
    number: u32,
}

/// The run to which jobs belong.
#[derive(Clone, Copy, Debug)]
struct Run {
    id: Uuid,
    applications: u32,
}

impl Run {
    fn instance(&self, number: u32) -> String {
        let run = self.id.simple().to_string();
        format!("permit-{}-{number}", run.get(..8).unwrap_or(&run))
    }

    /// Creates a job of an application.
    fn job(&self, job_type: &'static str, number: u32) -> NewJob {
        NewJob::of(job_type, &Application { number })
            .instance(self.instance(number))
            .process_definition("permit")
            .element(job_type)
            .correlation_id(self.id)
    }
}

/// Runs the demonstration.
pub(super) async fn run(stage: &mut Stage, applications: u32) -> Result<Account, Error> {
    let run = Run {
        id: stage.run,
        applications,
    };
    let tally = Arc::new(Tally::default());
    let shared = tally.clone();
    let hook = stage
        .start_here(|handlers| handlers::add(handlers, run, &shared))
        .await?;
    introduce(applications);
    let began_at = stage.clock.now() - chrono::Duration::seconds(1);
    let began = Instant::now();
    let citizens = arrive(stage, run, &tally, hook);
    wait(stage, run, &tally, citizens).await?;
    let seconds = began.elapsed().as_secs_f64();
    tally.account(stage, run, began_at, seconds).await
}

/// Introduces the demonstration, on standard error.
fn introduce(applications: u32) {
    let seconds = ARRIVALS.as_secs();
    progress::say(&format!(
        "A town hall receives {applications} applications for permits within {seconds} s. Each becomes a process
instance of {} jobs: most run one at a time and in order, two wait for a due date.
On purpose, some jobs fail and are retried, two become dead letters, and every tenth
application is rolled back once: the jobs of that transaction must not exist.
The arrivals are paced, so the rate is no measurement (`jobwire bench drain` measures).
At the end, an account compares what ran with what the database has.",
        tally::JOBS_EACH
    ));
}

/// Creates the applications, each in its own transaction.
fn arrive(
    stage: &Stage,
    run: Run,
    tally: &Arc<Tally>,
    hook: CommitHook,
) -> JoinHandle<Result<(), StoreError>> {
    let tally = tally.clone();
    let stop = stage.stop.clone();
    let creator = stage.database.creator(Some(hook));
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(ARRIVALS / run.applications.max(1));
        for number in 1..=run.applications {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => return Ok(()),
            }
            if number.is_multiple_of(ROLLED_BACK) {
                tally.rolled_back(lose(&creator, run, number).await?);
            }
            let job = run.job("receive-application", number);
            let id = job.id();
            creator.create_all(vec![job]).await?;
            tally.committed(id);
        }
        Ok(())
    })
}

/// Creates an application whose transaction is rolled back, as if the connection broke.
async fn lose(creator: &Creator, run: Run, number: u32) -> Result<JobId, StoreError> {
    let job = run.job("receive-application", number);
    match creator {
        Creator::Postgres(jobs) => undone(jobs, job).await,
        Creator::Sqlite(jobs) => undone(jobs, job).await,
    }
}

async fn undone<S: SqlStore>(jobs: &Client<S>, job: NewJob) -> Result<JobId, StoreError> {
    let mut tx = jobs.begin().await?;
    let id = tx.create(job).await?;
    tx.rollback().await?;
    Ok(id)
}

async fn wait(
    stage: &Stage,
    run: Run,
    tally: &Tally,
    citizens: JoinHandle<Result<(), StoreError>>,
) -> Result<(), Error> {
    let mut progress = Progress::start("permits");
    let all = u64::from(run.applications) * tally::JOBS_EACH;
    let mut citizens = Some(citizens);
    let mut last = (0, 0);
    let mut moved = Instant::now();
    loop {
        tokio::time::sleep(LOOK).await;
        // Checks arrivals before the remaining jobs, so that the run does not end too early.
        if citizens.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(ended) = citizens.take()
        {
            ended
                .await
                .map_err(|e| Error::Failed(format!("the applications stopped arriving: {e}")))??;
        }
        let left = stage.unfinished().await?;
        let done = tally.ended();
        progress.show(done, all, &tally.in_short());
        if citizens.is_none() && left == 0 {
            return Ok(());
        }
        if last != (done, left) {
            (last, moved) = ((done, left), Instant::now());
        }
        if moved.elapsed() > STANDSTILL {
            return Err(Error::Failed(format!(
                "no progress for {STANDSTILL:?}: {done} jobs have run and {left} have not"
            )));
        }
    }
}

/// Returns whether this job exists.
async fn exists(database: &Database, id: JobId) -> Result<bool, StoreError> {
    Ok(database.store().get(id).await?.is_some())
}
