//! The failure of an attempt, and the time of the next one.

use std::borrow::Cow;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::run::Run;
use crate::job::new_job::MAX_COUNT;
use crate::job::retry::{BadRetryPolicy, RetryFrom, RetryPolicy};
use crate::job::text::storable;
use crate::job::{Job, JobKind};
use crate::store::{Destination, Failure};
use crate::worker::finished::Ending;
use crate::worker::handler::{HandlerError, HandlerOptions, Verdict};
use crate::worker::options::NodeOptions;

/// The wait before the next attempt after a conflict.
const CONFLICT_WAIT: Duration = Duration::from_millis(100);
/// The maximum number of bytes of a stored message. A stack may have sixteen times as many.
pub(super) const MESSAGE_BYTES: usize = 4_000;

/// Returns the ending of a failed attempt. The error's verdict and the retry policy decide it.
pub(super) fn failure(run: &Run<'_>, error: HandlerError, outcome: &'static str) -> Ending {
    let job = run.job;
    let to = destination(run, &error);
    let outcome = match &to {
        Destination::DeadLetter => {
            tracing::warn!(
                job = %job.id, job_type = %job.job_type, outcome, error = %error.message,
                "the job failed and becomes a dead letter; fix the cause named in the error, then \
                 retry it with `Client::retry` (`jobwire jobs retry`)"
            );
            "dead-letter"
        }
        Destination::Retry { retries, .. } | Destination::RetryAt { retries, .. } => {
            tracing::info!(
                job = %job.id, job_type = %job.job_type, outcome, attempts_left = retries, error = %error.message,
                "the attempt failed"
            );
            outcome
        }
    };
    Ending::Failed {
        failure: Box::new(Failure {
            held: run.held.clone(),
            to,
            message: Some(storable(error.message, MESSAGE_BYTES)),
            stack: error.stack.map(|s| storable(s, MESSAGE_BYTES * 16)),
            attempt: None,
        }),
        outcome,
    }
}

/// Returns the destination of a failed job.
fn destination(run: &Run<'_>, error: &HandlerError) -> Destination {
    let job = run.job;
    match error.verdict {
        Verdict::Conflict => Destination::Retry {
            delay: CONFLICT_WAIT,
            since: None,
            retries: job.retries,
            failures: job.failures,
        },
        Verdict::RetryAt(_) if job.retries <= 1 => Destination::DeadLetter,
        Verdict::RetryAt(at) => Destination::RetryAt {
            due_at: storable_date(at),
            retries: job.retries - 1,
            failures: counted(job),
        },
        Verdict::Retry(wait) => {
            let failures = counted(job);
            // Also for the last attempt, so that a policy that can't be read is told.
            let (delay, since) = match wait {
                Some(wait) => (wait, None),
                None => by_policy(run, error, failures),
            };
            if job.retries <= 1 {
                return Destination::DeadLetter;
            }
            Destination::Retry {
                delay,
                since,
                retries: job.retries - 1,
                failures,
            }
        }
        // A cancelled job does not come here.
        Verdict::Unrecoverable | Verdict::Cancel => Destination::DeadLetter,
    }
}

/// Returns the failures of a job with this one.
fn counted(job: &Job) -> i32 {
    job.failures.saturating_add(1).min(MAX_COUNT)
}

/// Returns the date as one that every store can keep. Dates before 1970 are in the past, and the last
/// date is later than any leap second.
pub(super) fn storable_date(at: DateTime<Utc>) -> DateTime<Utc> {
    at.clamp(DateTime::UNIX_EPOCH, DateTime::<Utc>::MAX_UTC)
}

/// Returns the wait by the retry policy that applies, and the date from which it counts.
fn by_policy(
    run: &Run<'_>,
    error: &HandlerError,
    failures: i32,
) -> (Duration, Option<DateTime<Utc>>) {
    let (handler, node) = (&run.registration.options, &run.node.options);
    let (policy, unreadable) = policy(run.job, error, handler, node);
    if let Some(bad) = unreadable
        && let Some(more) = run.node.reports.throttled_lines.now("retry policy")
    {
        tracing::warn!(
            job = %run.job.id, job_type = %run.job.job_type, %bad, more,
            "the job's retry policy can't be read; using the policy of its type"
        );
    }
    (policy.wait(failures), counts_from(run.job, node))
}

/// Returns the date from which the wait of a policy counts; `None` counts from now.
fn counts_from(job: &Job, node: &NodeOptions) -> Option<DateTime<Utc>> {
    match node.retry_from {
        RetryFrom::Now => None,
        RetryFrom::DueDate => job.due_at,
    }
}

/// Returns the retry policy that applies: the first of that of the handler's function, of the job,
/// of the handler, and of the node for jobs of this kind. Returns the error of the job's policy,
/// too, if it can't be read.
fn policy<'o>(
    job: &Job,
    error: &HandlerError,
    handler: &'o HandlerOptions,
    node: &'o NodeOptions,
) -> (Cow<'o, RetryPolicy>, Option<BadRetryPolicy>) {
    let function = handler.retry_by.as_ref();
    if let Some(chosen) = function.and_then(|function| function.choose(job, error)) {
        return (Cow::Owned(chosen), None);
    }
    let unreadable = match job.retry_policy.as_deref().map(RetryPolicy::parse) {
        Some(Ok(own)) => return (Cow::Owned(own), None),
        Some(Err(bad)) => Some(bad),
        None => None,
    };
    let of_node = match job.kind {
        JobKind::History => &node.history_retry,
        _ => &node.retry,
    };
    let policy = handler.retry.as_ref().unwrap_or(of_node);
    (Cow::Borrowed(policy), unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Lane;
    use crate::job::new_job::NewJob;

    fn job(new: NewJob) -> Job {
        new.into_job(1, Utc::now(), Lane::default()).unwrap()
    }

    #[test]
    fn the_most_specific_retry_policy_applies() {
        let seconds = |n| RetryPolicy::fixed(Duration::from_secs(n));
        let node = NodeOptions::default()
            .retry(seconds(1))
            .history_retry(seconds(2));
        let plain = HandlerOptions::default();
        let of_type = HandlerOptions::default().retry(seconds(3));
        let by_function = of_type.clone().retry_by(move |job, error| {
            let is_known = error.message == "busy" && job.job_type == "work";
            is_known.then(|| seconds(5))
        });
        let applies = |handler, new, message| {
            let (job, error) = (job(new), HandlerError::retry(message));
            let (policy, _) = policy(&job, &error, handler, &node);
            policy.wait(1).as_secs()
        };
        let bare = || NewJob::of("work", &1);
        let own = || bare().retry_policy(seconds(4));
        assert_eq!(applies(&plain, bare(), ""), 1);
        assert_eq!(applies(&plain, bare().history(), ""), 2);
        assert_eq!(applies(&of_type, bare(), ""), 3);
        assert_eq!(applies(&of_type, bare().history(), ""), 3);
        assert_eq!(applies(&of_type, own(), ""), 4);
        assert_eq!(applies(&by_function, own(), "busy"), 5);
        assert_eq!(applies(&by_function, own(), "no luck"), 4);
        assert_eq!(applies(&by_function, bare(), "no luck"), 3);
    }

    #[test]
    fn a_handlers_own_policy_counts_even_if_it_is_the_default_one() {
        let node = NodeOptions::default().retry(RetryPolicy::fixed(Duration::from_secs(1)));
        let ten = HandlerOptions::default().retry(RetryPolicy::default());
        let (job, error) = (job(NewJob::of("work", &1)), HandlerError::retry(""));
        assert_eq!(*policy(&job, &error, &ten, &node).0, RetryPolicy::default());
    }

    #[test]
    fn the_old_due_date_counts_by_option_only() {
        let due = DateTime::<Utc>::UNIX_EPOCH;
        let timer = job(NewJob::of("work", &1).due(due));
        let from_now = NodeOptions::default();
        assert_eq!(counts_from(&timer, &from_now), None);
        let from_date = NodeOptions::default().retry_from(RetryFrom::DueDate);
        assert_eq!(counts_from(&timer, &from_date), Some(due));
        assert_eq!(counts_from(&job(NewJob::of("work", &1)), &from_date), None);
    }

    #[test]
    fn what_can_not_be_read_or_panics_leaves_the_next_policy() {
        let (error, node) = (HandlerError::retry(""), NodeOptions::default());
        let wait = RetryPolicy::fixed(Duration::from_secs(3));
        let handler = HandlerOptions::default().retry(wait.clone());
        let handler = handler.retry_by(|job, _| if job.retries == 3 { panic!() } else { None });
        let mut job = job(NewJob::of("work", &1));
        job.retry_policy = Some("soon".to_owned());
        let (applies, unreadable) = policy(&job, &error, &handler, &node);
        assert_eq!(*applies, wait);
        assert!(unreadable.is_some());
    }
}
