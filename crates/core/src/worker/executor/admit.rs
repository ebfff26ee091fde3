//! The admission of a job that has a slot of the node: checks that it has a slot of its type, gets a
//! permit of its limit, and checks that its handler can run it.
//!
//! [`quarantine`](crate::worker::quarantine) decides first, because it changes the job's slots. A
//! suspect gets its permit before its node ends its other jobs for it.

use std::sync::Arc;
use std::time::Duration;

use super::completion::{completion_with, say_no_date};
use super::failure::failure;
use super::run::Run;
use super::stopped::interrupted;
use crate::job::new_job::InvalidJob;
use crate::job::query::JobQuery;
use crate::job::sealed::{SealError, opened};
use crate::job::series;
use crate::job::series::fate::{self, Instead};
use crate::job::{Job, LockToken};
use crate::store::permits::Asking;
use crate::store::{Destination, Failure};
use crate::worker::context::NodeContext;
use crate::worker::finished::Ending;
use crate::worker::handler::HandlerError;
use crate::worker::lease_book::Lease;
use crate::worker::limit::Limit;
use crate::worker::permits::{Answered, Permit};
use crate::worker::slots::{TypeSlot, TypeSlots};
use crate::worker::unreadable;

/// The wait before the next try of a job that this node returns: an encrypted one without a cipher,
/// or one whose limit can't be asked.
const LATER: Duration = Duration::from_secs(10);
/// The longest wait of an occurrence between two attempts to compute its date.
const LATEST: Duration = Duration::from_secs(300);

/// What a job has got before its admission.
#[derive(Default)]
pub(super) struct Given {
    /// The permit of its limit, if it is a suspect.
    pub(super) permit: Option<Permit>,
    /// The slot of its type, if it was taken before the lock.
    pub(super) type_slot: Option<TypeSlot>,
}

/// Admits a job to its handler. Returns its ending if it does not run.
pub(super) async fn admit<'a>(
    node: &'a Arc<NodeContext>,
    job: &'a Arc<Job>,
    held: &'a LockToken,
    lease: &'a Arc<Lease>,
    given: Given,
) -> Result<Run<'a>, Ending> {
    let Some((registration, type_slots)) = node.handler_and_slots(&job.job_type) else {
        // The lock statement asks only for types that this node serves.
        return Err(Ending::Release);
    };
    let mut run = Run::new(node, job, held, lease, registration);
    run._type_slot = type_slot(type_slots.as_ref(), given.type_slot)?;
    if let Some(ending) = ending_without_run(&run).await {
        return Err(ending);
    }
    match opened(node.options.encryption.as_ref(), job) {
        Ok(None) => {}
        Ok(Some(plain)) => run.opened = Arc::new(plain),
        Err(error @ SealError::NoCipher { .. }) => return Err(without_cipher(&run, &error)),
        Err(error) => {
            let error = HandlerError::retry(format!("{error}; the handler did not run"));
            return Err(failure(&run, error, "retry"));
        }
    }
    if let Some(limit) = &run.registration.options.limit {
        run.permit = match given.permit {
            Some(permit) => Some(permit),
            // Boxed because most types have no limit.
            None => Some(Box::pin(permit(&run, limit)).await?),
        };
        // The wait for the permit may have outlasted the lease.
        if !node.leases.trusts(held) {
            return Err(Ending::Lost);
        }
    }
    Ok(run)
}

/// Gets the slot of its type and the permit for a job that is not admitted yet, where its type has such
/// limits. A job whose key can't be told gets no permit: [`admit`] ends it.
pub(super) async fn given_of(
    node: &Arc<NodeContext>,
    job: &Arc<Job>,
    held: &LockToken,
    lease: &Arc<Lease>,
    has_type_slot: Option<TypeSlot>,
) -> Result<Given, Ending> {
    let Some((registration, type_slots)) = node.handler_and_slots(&job.job_type) else {
        return Ok(Given::default());
    };
    let limit = registration.options.limit.clone();
    let type_slot = type_slot(type_slots.as_ref(), has_type_slot)?;
    let mut run = Run::new(node, job, held, lease, registration);
    let plain = opened(node.options.encryption.as_ref(), job);
    let is_readable = job.unreadable.is_none() && plain.is_ok();
    if let Ok(Some(plain)) = plain {
        run.opened = Arc::new(plain);
    }
    let permit = match limit {
        Some(limit) if is_readable => Some(permit(&run, &limit).await?),
        _ => None,
    };
    Ok(Given { permit, type_slot })
}

/// Gets a permit for another start of the handler of this run, if each start needs one. A permit under
/// which the handler has not started is kept: the job could wait for it for ever.
pub(super) async fn permit_again(run: &mut Run<'_>) -> Result<(), Ending> {
    let held = run.permit.as_ref();
    let limit = run.registration.options.limit.as_ref();
    if let Some(limit) = limit.filter(|_| held.is_some_and(Permit::is_used_up)) {
        run.permit = Some(permit(run, limit).await?);
    }
    Ok(())
}

/// Returns the ending of an encrypted job on a node without a cipher. This is a mistake of the node,
/// so the job spends no attempt, and waits for a node that can open it.
fn without_cipher(run: &Run<'_>, error: &SealError) -> Ending {
    let job = run.job;
    if let Some(more) = run.node.reports.throttled_lines.now("cipher") {
        tracing::warn!(
            job = %job.id, job_type = %job.job_type, %error, more,
            "this node can't open encrypted jobs, so it returns them"
        );
    }
    returned(run)
}

/// Returns the wait before the next attempt to compute the date of an occurrence: a tenth of the time
/// that it has waited already, so that many of them do not keep the nodes busy.
fn wait_for_date(job: &Job) -> Duration {
    let waited = job.ready_at.signed_duration_since(job.created_at);
    let tenth = waited.to_std().unwrap_or_default() / 10;
    tenth.clamp(LATER, LATEST)
}

/// Returns the ending of a job that is tried again later, without an attempt.
fn returned(run: &Run<'_>) -> Ending {
    returned_for(run, LATER)
}

/// Returns the ending of a job that is tried again after `delay`, without an attempt.
fn returned_for(run: &Run<'_>, delay: Duration) -> Ending {
    let job = run.job;
    Ending::Failed {
        failure: Box::new(Failure {
            held: run.held.clone(),
            to: Destination::Retry {
                delay,
                since: None,
                retries: job.retries,
                failures: job.failures,
            },
            message: None,
            stack: None,
            attempt: None,
        }),
        outcome: "snooze",
    }
}

/// Returns the slot of the type, if the type has its own limit. A job that finds none free does not
/// wait for one: it would keep its lease, its instance and its slot of the node from others.
fn type_slot(
    slots: Option<&Arc<TypeSlots>>,
    held: Option<TypeSlot>,
) -> Result<Option<TypeSlot>, Ending> {
    let Some(slots) = slots else {
        return Ok(None);
    };
    // The handler may have been replaced since the job got its slot.
    let held = held.filter(|slot| slot.is_of(slots));
    let slot = held.or_else(|| slots.try_take());
    slot.map(Some).ok_or(Ending::Full)
}

/// Gets a permit for the job. A job that gets none waits in the database, without a lease and a slot.
async fn permit(run: &Run<'_>, limit: &Limit) -> Result<Permit, Ending> {
    let Run {
        node, job, held, ..
    } = *run;
    let panicked = |message| {
        let message = format!("the function of the limit's key panicked: {message}");
        failure(run, HandlerError::retry(message), "panic")
    };
    let key = limit.key(&run.opened).map_err(panicked)?;
    let asking = Asking {
        held: held.clone(),
        job_type: job.job_type.clone(),
        seq: job.seq,
        fair_key: limit.fair_key(&run.opened).map_err(panicked)?,
    };
    let answer = match node.permits.ask(key, limit.terms(), asking) {
        Ok(permit) => return Ok(permit),
        Err(answer) => answer,
    };
    // The request may end the lease: the job then waits in the database.
    run.lease.ends(true);
    let answered = tokio::select! {
        biased;
        answered = answer => answered,
        () = run.lease.stop.token().cancelled() => return Err(interrupted(run)),
        () = node.signals.stop_jobs.cancelled() => return Err(Ending::Release),
    };
    Err(match answered {
        Ok(Answered::Granted(permit)) => {
            run.lease.ends(false);
            return Ok(permit);
        }
        Ok(Answered::Parked { cancelled }) => Ending::Parked { cancelled },
        Ok(Answered::Lost) => Ending::Lost,
        // A row of the key is locked, or refused. The job holds no slot meanwhile.
        Ok(Answered::Refused) => returned(run),
        // The task that sends requests died.
        Ok(Answered::Unknown) | Err(_) => Ending::Left,
    })
}

/// Returns the ending of a job whose handler cannot or need not run.
async fn ending_without_run(run: &Run<'_>) -> Option<Ending> {
    let Run {
        node, job, held, ..
    } = *run;
    if !node.leases.trusts(held) {
        return Some(Ending::Lost);
    }
    if let Some(fault) = &job.unreadable {
        return Some(unreadable::end(node, job, held, fault));
    }
    let invalid = match occurrence(run) {
        Ok(Occurrence::Runs) => return None,
        Ok(Occurrence::Over(ending)) => {
            // Boxed because it is rare.
            let may_have_begun = job.due_at.is_some() && Box::pin(became_ready_again(run)).await;
            return Some(ending).filter(|_| !may_have_begun);
        }
        Ok(Occurrence::Undated(ending)) => return Some(ending),
        Err(invalid) => invalid,
    };
    if let Some(more) = node.reports.throttled_lines.now("can't run") {
        tracing::warn!(
            job = %job.id, job_type = %job.job_type, %invalid, more,
            "the job can't run and becomes a dead letter"
        );
    }
    let error = HandlerError::unrecoverable(format!("{invalid}; the job did not run"));
    Some(failure(run, error, "dead-letter"))
}

/// Returns whether the job has become ready more than once: its holder died or released it, it was
/// retried, or its hint was lost. Then it may have begun, and it is no longer late by its date alone.
async fn became_ready_again(run: &Run<'_>) -> bool {
    // A process without a transport retried it, so its row counts no earlier hint.
    if run.job.failures > 0 || run.job.exception_message.is_some() {
        return true;
    }
    let filter = JobQuery::default().id(run.job.id).limit(1);
    match run.node.store.find(&filter).await {
        Ok(found) => found.iter().any(|view| view.hints > Some(1)),
        Err(error) => {
            tracing::info!(
                job = %run.job.id, %error,
                "could not tell whether this late occurrence has begun before; it runs"
            );
            true
        }
    }
}

/// The fate of an occurrence of a series.
enum Occurrence {
    /// Its handler runs.
    Runs,
    /// It does not run: its series has ended, its schedule begins later, or it was missed and is
    /// skipped.
    Over(Ending),
    /// It has no date yet. It never runs, however often it became ready.
    Undated(Ending),
}

/// Returns the fate of the job as an occurrence of its series.
///
/// # Errors
/// The job can't run: its repetition can't be read, or has no occurrence.
fn occurrence(run: &Run<'_>) -> Result<Occurrence, InvalidJob> {
    let Run {
        node, job, held, ..
    } = *run;
    let Some(repeat) = series::repeat(job)? else {
        return Ok(Occurrence::Runs);
    };
    let ends = |next| Ending::Done(completion_with(held, job, next));
    // Uses the database's clock, which set `ready_at`.
    let now = job.ready_at;
    let is_undated = repeat.pending.is_some();
    if fate::has_ended(job, &repeat, now) {
        let over = ends(None);
        return Ok(if is_undated {
            Occurrence::Undated(over)
        } else {
            Occurrence::Over(over)
        });
    }
    Ok(
        match fate::instead(job, &repeat, now, node.store.calendars())? {
            Instead::Runs => Occurrence::Runs,
            Instead::Replaced(next) if is_undated => {
                Occurrence::Undated(ends(next.map(|next| *next)))
            }
            Instead::Replaced(next) => Occurrence::Over(ends(next.map(|next| *next))),
            Instead::Waits(fault) => {
                say_no_date(run, &fault);
                Occurrence::Undated(returned_for(run, wait_for_date(job)))
            }
            Instead::WaitsAs(next, fault) => {
                say_no_date(run, &fault);
                Occurrence::Undated(ends(Some(*next)))
            }
        },
    )
}
