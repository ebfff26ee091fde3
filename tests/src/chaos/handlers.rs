//! The handlers of a chaos node. Each records its start and its end (see [`Recorder`]). Those that
//! work in the completing transaction also write a row there, which proves that it committed
//! exactly once.

use super::recorder::{Recorder, Step};
use super::workload::{BURST, Kind, RATE, TIMEOUT, moment};
use crate::history::Answer;
use crate::history::permits::Bound;
use async_trait::async_trait;
use chrono::Utc;
use jobwire_core::{
    Client, Handler, HandlerError, HandlerOptions, HandlerResult, Handlers, Job, Limit, NewJob,
    Outcome, PgStore, Running, Verdict,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Returns the limit of a kind, for each key of the payload.
fn limit(kind: Kind) -> Option<Limit> {
    let rate = |number: usize, millis: i64| {
        Limit::rate(number as u32, Duration::from_millis(millis.unsigned_abs()))
    };
    let field = |name: &'static str| {
        move |job: &Job| {
            let payload: Value = job.decode().unwrap_or_default();
            payload[name].to_string()
        }
    };
    let limit = match (kind, kind.bound()?) {
        (Kind::Burst, _) => rate(RATE.0, RATE.1).burst(BURST as u32),
        (Kind::Fair, Bound::Running(number)) => {
            Limit::running(number as u32).fair_per_key(field("part"))
        }
        (_, Bound::Running(number)) => Limit::running(number as u32),
        (_, Bound::Rate { number, millis }) => rate(number, millis),
    };
    Some(limit.per_key(field("key")))
}

/// Returns the handlers of these kinds. With `gate`, each waits after its start until `chaos.gate`
/// has a row.
#[must_use]
pub fn handlers(kinds: &[Kind], recorder: &Recorder, store: &PgStore, gate: bool) -> Handlers {
    let mut handlers = Handlers::default();
    for &kind in kinds {
        let mut options = HandlerOptions::default();
        if kind.in_transaction() {
            options = options.in_transaction();
        }
        if kind == Kind::Hanging {
            options = options.timeout(TIMEOUT);
        }
        options.limit = limit(kind);
        let handler = Recorded {
            kind,
            recorder: recorder.clone(),
            jobs: Client::without_hints(store.clone()),
            gate,
        };
        handlers.register(kind.job_type(), options, Arc::new(handler));
    }
    handlers
}

struct Recorded {
    kind: Kind,
    recorder: Recorder,
    jobs: Client<PgStore>,
    gate: bool,
}

#[async_trait]
impl Handler for Recorded {
    async fn run(&self, job: Running) -> HandlerResult<Outcome> {
        let run = Uuid::new_v4();
        let (id, owner, fence) = (job.job.id, job.node, job.fence);
        self.recorder
            .write(Step::Start, run, id, owner, fence)
            .await;
        if self.gate {
            self.until_open().await;
        }
        let result = self.work(&job).await;
        let answer = match &result {
            Ok(Outcome::Done) => Answer::Done,
            Ok(_) => Answer::Again,
            Err(error) => match error.verdict {
                Verdict::Retry(_) | Verdict::RetryAt(_) => Answer::Failed,
                Verdict::Unrecoverable => Answer::Unrecoverable,
                _ => Answer::Again,
            },
        };
        self.recorder
            .write(Step::End(answer), run, id, owner, fence)
            .await;
        result
    }
}

impl Recorded {
    async fn until_open(&self) {
        loop {
            let open = sqlx::query_scalar("SELECT EXISTS (SELECT FROM chaos.gate)")
                .fetch_one(self.jobs.store().pool())
                .await;
            if matches!(open, Ok(true)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn work(&self, job: &Running) -> HandlerResult<Outcome> {
        let payload: Value = job.job.decode()?;
        let number = |field: &str| payload[field].as_f64().unwrap_or(0.0);
        match self.kind {
            Kind::Noop | Kind::Repeating | Kind::Rare | Kind::Rated | Kind::Burst => {}
            Kind::Slow
            | Kind::Long
            | Kind::Exclusive
            | Kind::Limited
            | Kind::Crowded
            | Kind::Fair => {
                let time = Duration::from_millis(number("ms") as u64);
                tokio::select! {
                    () = tokio::time::sleep(time) => {}
                    // Asked to stop: no attempt may be spent.
                    () = job.stop.cancelled() => return Err(HandlerError::conflict("asked to stop")),
                }
            }
            Kind::Failing if f64::from(job.job.failures) < number("fails") => {
                return Err(HandlerError::retry("fails on purpose"));
            }
            Kind::Panicking if f64::from(job.job.failures) < number("fails") => {
                #[allow(clippy::panic, reason = "what this job is for")]
                {
                    panic!("panics on purpose");
                }
            }
            Kind::Hanging if f64::from(job.job.failures) < number("fails") => {
                std::future::pending::<()>().await;
            }
            Kind::Failing | Kind::Panicking | Kind::Hanging => {}
            Kind::Doomed => return Err(HandlerError::unrecoverable("doomed")),
            Kind::Snoozing => {
                if Utc::now() < moment(number("until") as i64) {
                    return Ok(Outcome::Snooze(Duration::from_millis(300)));
                }
            }
            Kind::Effect | Kind::ExclusiveEffect => leave_row(job).await?,
            Kind::Parent => {
                leave_row(job).await?;
                let children = (0..number("children") as u32)
                    .map(|_| {
                        NewJob::of(
                            Kind::Noop.job_type(),
                            &json!({ "parent": job.job.id.to_string() }),
                        )
                    })
                    .collect();
                let mut guard = job.transaction::<PgStore>().await?;
                let created = guard.create_many(children).await;
                created.map_err(|error| HandlerError::conflict(error.to_string()))?;
            }
            Kind::Outside => {
                // This job may run twice and then creates two jobs, each of which runs once.
                let job = NewJob::of(Kind::Noop.job_type(), &json!({ "outside": true }));
                self.jobs.create(job).await.map_err(|error| {
                    HandlerError::conflict(format!("the job could not be created: {error}"))
                })?;
            }
        }
        Ok(Outcome::Done)
    }
}

async fn leave_row(job: &Running) -> Result<(), HandlerError> {
    let mut guard = job.transaction::<PgStore>().await?;
    let written = sqlx::query(
        "INSERT INTO chaos.history (what, job, owner, fence) VALUES ('effect', $1, $2, $3)",
    )
    .bind(job.job.id.uuid())
    .bind(job.node.uuid())
    .bind(job.fence.number())
    .execute(&mut *guard)
    .await;
    // An outage of the database must not count as a failed attempt.
    written.map_err(|error| HandlerError::conflict(error.to_string()))?;
    Ok(())
}
