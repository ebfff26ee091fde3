//! Records what handlers do, over its own connection, before they continue.
//!
//! A record that the database has not stored is tried again until it is stored. So both records of
//! a handler that ended are there, and a completion without them is a fault. Records that come at
//! the same time share a statement.

use crate::history::Answer;
use jobwire_core::{Fence, JobId, NodeId};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

/// The maximum number of records in one statement.
const BATCH: usize = 256;
/// A write that takes longer is tried again on another connection.
const DEADLINE: Duration = Duration::from_secs(5);

/// A step of a handler.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// The handler starts.
    Start,
    /// The handler ends.
    End(Answer),
}

#[derive(Debug)]
struct Record {
    step: Step,
    run: Uuid,
    job: JobId,
    owner: NodeId,
    fence: Fence,
    uptime: Option<i64>,
    written: oneshot::Sender<()>,
}

/// Writes records.
#[derive(Clone, Debug)]
pub struct Recorder(mpsc::Sender<Record>);

impl Recorder {
    /// Starts a recorder with its own connection.
    ///
    /// # Errors
    /// If the URL is invalid.
    pub fn start(url: &str) -> Result<Recorder, sqlx::Error> {
        let options: PgConnectOptions = url.parse()?;
        let options = options.application_name("chaos-recorder");
        let (send, receive) = mpsc::channel(BATCH * 4);
        tokio::spawn(write_all(options, receive));
        Ok(Recorder(send))
    }

    /// Writes one record and waits until it is stored. A caller that stops waiting may still find
    /// it stored.
    pub async fn write(&self, step: Step, run: Uuid, job: JobId, owner: NodeId, fence: Fence) {
        let (written, wait) = oneshot::channel();
        let record = Record {
            step,
            run,
            job,
            owner,
            fence,
            uptime: uptime(),
            written,
        };
        if self.0.send(record).await.is_ok() {
            let _ = wait.await;
        }
    }
}

async fn write_all(options: PgConnectOptions, mut records: mpsc::Receiver<Record>) {
    let mut connection = None;
    let mut batch = Vec::with_capacity(BATCH);
    while records.recv_many(&mut batch, BATCH).await > 0 {
        loop {
            // A handler that was dropped meanwhile must not be recorded as started.
            batch.retain(|record: &Record| !record.written.is_closed());
            let written = tokio::time::timeout(DEADLINE, write(&options, &mut connection, &batch));
            if matches!(written.await, Ok(Ok(()))) {
                break;
            }
            connection = None;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for record in batch.drain(..) {
            let _ = record.written.send(());
        }
    }
}

async fn write(
    options: &PgConnectOptions,
    connection: &mut Option<PgConnection>,
    batch: &[Record],
) -> Result<(), sqlx::Error> {
    if batch.is_empty() {
        return Ok(());
    }
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(options.connect().await?),
    };
    let (mut what, mut answers) = (Vec::new(), Vec::new());
    for record in batch {
        let (step, answer) = match record.step {
            Step::Start => ("start", None),
            Step::End(answer) => ("end", Some(word(answer))),
        };
        what.push(step);
        answers.push(answer);
    }
    let mut transaction = connection.begin().await?;
    sqlx::query(
        "INSERT INTO chaos.history (what, job, owner, fence, answer, run, uptime)
         SELECT * FROM unnest($1::text[], $2::uuid[], $3::uuid[], $4::bigint[], $5::text[], $6::uuid[], $7::bigint[])
         ON CONFLICT (run, what) WHERE run IS NOT NULL DO NOTHING",
    )
    .bind(what)
    .bind(batch.iter().map(|r| r.job.uuid()).collect::<Vec<_>>())
    .bind(batch.iter().map(|r| r.owner.uuid()).collect::<Vec<_>>())
    .bind(batch.iter().map(|r| r.fence.number()).collect::<Vec<_>>())
    .bind(answers)
    .bind(batch.iter().map(|r| r.run).collect::<Vec<_>>())
    .bind(batch.iter().map(|r| r.uptime).collect::<Vec<_>>())
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await
}

/// Returns the time since the start of the machine in milliseconds, to ten milliseconds, where the
/// system tells it. A library that shifts clocks does not know this one.
fn uptime() -> Option<i64> {
    let text = std::fs::read_to_string("/proc/uptime").ok()?;
    let (seconds, rest) = text.split_whitespace().next()?.split_once('.')?;
    let (seconds, hundredths): (i64, i64) = (seconds.parse().ok()?, rest.parse().ok()?);
    Some(seconds * 1_000 + hundredths * 10)
}

/// Returns the stored form of an answer.
#[must_use]
pub fn word(answer: Answer) -> &'static str {
    match answer {
        Answer::Done => "done",
        Answer::Failed => "failed",
        Answer::Unrecoverable => "unrecoverable",
        Answer::Again => "again",
    }
}

/// Returns the answer of a stored word.
#[must_use]
pub fn answer(word: &str) -> Option<Answer> {
    [
        Answer::Done,
        Answer::Failed,
        Answer::Unrecoverable,
        Answer::Again,
    ]
    .into_iter()
    .find(|answer| self::word(*answer) == word)
}
