//! Running jobs: cancels, progress and checkpoints.

use std::time::Duration;

use jobwire_core::job::{LockToken, LockedJob};
use jobwire_core::store::attempts::Attempt;
use jobwire_core::store::{Completion, Failure, Handoff, Operated};
use jobwire_core::{JobQuery, JobState, MAX_CHECKPOINT_BYTES, NewJob, Progress};

use super::world::{
    LEADER, SqlBench, World, done, give_up, ids, job_ids, node, retry_after, take, work,
};

pub(super) async fn a_cancel_deletes_what_waits_and_marks_what_runs<S: SqlBench>(w: &World<S>) {
    let (waits, runs) = (w.one(work()).await, w.one(work()).await);
    let worker = node();
    let job = w.hold(worker, &runs).await;
    let cancel = async |id| w.store.cancel(id).await.unwrap().0;
    assert_eq!(cancel(waits.id).await, Operated::Done);
    assert_eq!(w.state(waits.id).await, None);
    assert_eq!(cancel(waits.id).await, Operated::NotFound);

    let renew = async || {
        let held = [job.held()];
        let lease = Duration::from_secs(600);
        w.store.renew(worker, lease, &held).await.unwrap()
    };
    assert!(renew().await.cancelled.is_empty());
    assert_eq!(cancel(runs.id).await, Operated::Running);
    let marked = w.view(runs.id).await.unwrap();
    assert_eq!(marked.lock_owner, Some(worker.uuid()));
    let at = marked.cancelled_at.expect("it is cancelled");
    let renewed = renew().await;
    assert_eq!(renewed.renewed, [runs.id]);
    assert_eq!(renewed.cancelled, [runs.id]);
    // The first cancel counts.
    assert_eq!(cancel(runs.id).await, Operated::Running);
    assert_eq!(w.view(runs.id).await.unwrap().cancelled_at, Some(at));

    let settled = w.complete(worker, &job, &take(worker)).await;
    assert_eq!(settled.applied, [runs.id]);
    assert_eq!(w.rows("job_lease").await, 0);
}

/// The node may not know of the cancel yet.
pub(super) async fn a_cancelled_job_is_deleted_whatever_else_ends_its_lease<S: SqlBench>(
    w: &World<S>,
) {
    let hints = w.ready(vec![work(), work(), work(), work()]).await;
    let worker = node();
    let jobs = w.lock(worker, &hints).await.jobs;
    // Each has the stack of an earlier failure, except the last one, which is not cancelled.
    for hint in &hints[..3] {
        let stack = "INSERT INTO {s}job_exception (job_id, stack, written_at) VALUES";
        let stack = format!("{stack} ('{}', 'before', {{now}})", hint.id);
        w.store.execute(&stack).await;
        w.store.cancel(hint.id).await.unwrap();
    }
    let recorded = |failure: Failure| Failure {
        attempt: Some(Box::new(Attempt {
            job_type: "work".to_owned(),
            process_instance: None,
            tenant: None,
            ran: Duration::from_secs(1),
            outcome: "retry",
            reason: None,
            keep: Duration::from_secs(3_600),
        })),
        ..failure
    };
    let failed = [
        recorded(retry_after(&jobs[0], Duration::from_secs(1))),
        give_up(&jobs[1]),
        recorded(retry_after(&jobs[3], Duration::from_secs(1))),
    ];
    let mut settled = w.store.fail(worker, &failed, &Handoff::Hint).await.unwrap();
    settled.applied.sort_unstable();
    assert_eq!(settled.applied, [hints[0].id, hints[1].id, hints[3].id]);
    settled.cancelled.sort_unstable();
    assert_eq!(settled.cancelled, [hints[0].id, hints[1].id]);
    assert_eq!(w.state(hints[3].id).await, Some(JobState::Timer));
    let outcome = async |id| {
        let attempts = w.store.attempts(id, 10).await.unwrap();
        attempts
            .into_iter()
            .map(|of| (of.outcome, of.message, of.stack))
            .collect::<Vec<_>>()
    };
    // What the handler answered to its cancel is no failure.
    let cancelled: [(String, Option<String>, Option<String>); 1] =
        [("cancelled".to_owned(), None, None)];
    assert_eq!(outcome(hints[0].id).await, cancelled);
    let failed = outcome(hints[3].id).await;
    assert_eq!((&*failed[0].0, failed[0].1.is_some()), ("retry", true));
    let errors = w.store.errors(None, 10).await.unwrap();
    assert_eq!(errors.len(), 1);
    assert_eq!((errors[0].jobs, errors[0].attempts), (1, 1));

    let settled = w.release(worker, jobs[2].held()).await;
    assert_eq!(settled.applied, [hints[2].id]);
    assert_eq!(settled.cancelled, [hints[2].id]);
    assert!(settled.ready.is_empty());
    assert_eq!(w.find(JobQuery::default()).await, [hints[3].id]);
    assert_eq!(w.rows("job_lease").await, 0);
    assert_eq!(w.rows("job_exception").await, 1);
}

/// The handlers of both jobs answered `Ok`, one of them after a cancel that its node did not know.
pub(super) async fn a_cancelled_job_that_is_done_has_no_next_occurrence<S: SqlBench>(w: &World<S>) {
    let hints = w.ready(vec![work(), work()]).await;
    let worker = node();
    let jobs = w.lock(worker, &hints).await.jobs;
    let next = [work(), work()];
    let ids = next.each_ref().map(NewJob::id);
    w.store.cancel(jobs[0].job.id).await.unwrap();
    let both: Vec<Completion> = jobs
        .iter()
        .zip(next)
        .map(|(job, next)| Completion {
            next: Some(Box::new(next)),
            ..done(job)
        })
        .collect();
    let settled = w.store.complete(worker, &both, &Handoff::Hint).await;
    assert_eq!(settled.unwrap().applied.len(), 2);
    assert_eq!(w.find(JobQuery::default()).await, [ids[1]]);
    assert_eq!(w.rows("job_lease").await, 0);
}

pub(super) async fn a_cancelled_job_of_a_dead_node_does_not_run_again<S: SqlBench>(w: &World<S>) {
    let instance = |job: NewJob| job.instance("order-17");
    let hints = w
        .ready(vec![instance(work()), instance(work()), work(), work()])
        .await;
    let worker = node();
    for hint in [&hints[0], &hints[2], &hints[3]] {
        w.hold(worker, hint).await;
    }
    w.store.cancel(hints[0].id).await.unwrap();
    w.store.cancel(hints[2].id).await.unwrap();
    for hint in [&hints[0], &hints[2], &hints[3]] {
        w.expire(hint.id).await;
    }
    let mut report = w.lead(LEADER).await;
    report.cancelled.sort_unstable();
    assert_eq!(report.cancelled, [hints[0].id, hints[2].id]);
    let rescued: Vec<_> = report.rescued.iter().map(|job| job.ready.hint.id).collect();
    assert_eq!(rescued, [hints[3].id]);
    // The sibling that waited for the instance is told, and free.
    assert_eq!(ids(&report.freed), [hints[1].id]);
    let mut locked = job_ids(&w.lock(node(), &hints).await.jobs);
    locked.sort_unstable();
    assert_eq!(locked, [hints[1].id, hints[3].id]);
    assert_eq!(w.rows("job").await, 2);
    assert_eq!(w.rows("job_lease").await, 2);
}

/// A leader of an older version ends the lease and does not know the mark.
pub(super) async fn a_cancel_stays_when_the_job_changes_its_node<S: SqlBench>(w: &World<S>) {
    let hint = w.one(work()).await;
    w.hold(node(), &hint).await;
    w.store.cancel(hint.id).await.unwrap();
    w.store
        .execute("UPDATE {s}job_lease SET owner = NULL")
        .await;
    let other = node();
    let job = w.hold(other, &hint).await;
    let lease = Duration::from_secs(600);
    let renewed = w.store.renew(other, lease, &[job.held()]).await.unwrap();
    assert_eq!(renewed.cancelled, [hint.id]);
    // No occurrence follows, and no mark stays.
    let next = Completion {
        next: Some(Box::new(work())),
        ..done(&job)
    };
    let settled = w
        .store
        .complete(other, &[next], &take(other))
        .await
        .unwrap();
    assert!(settled.ready.is_empty(), "{settled:?}");
    assert!(w.find(JobQuery::default()).await.is_empty());
    assert_eq!(w.rows("job_lease").await, 0);
}

fn report(job: &LockedJob, progress: Progress) -> (LockToken, Progress) {
    (job.held(), progress)
}

pub(super) async fn progress_is_written_under_the_lock_and_shown<S: SqlBench>(w: &World<S>) {
    let hints = w.ready(vec![work(), work(), work()]).await;
    let (worker, stranger) = (node(), node());
    let jobs = w.lock(worker, &hints[..2]).await.jobs;
    let lost = w.hold(stranger, &hints[2]).await;
    assert!(w.view(hints[0].id).await.unwrap().progress.is_none());
    let reports = [
        report(&jobs[0], Progress::of(30, 120).text("rows")),
        report(&jobs[1], Progress::done(7)),
        report(&lost, Progress::percent(99)),
    ];
    let mut written = w.store.report_progress(worker, &reports).await.unwrap();
    written.sort_unstable();
    assert_eq!(written, [hints[0].id, hints[1].id]);
    let shown = async |id| w.view(id).await.unwrap().progress.map(|of| of.progress);
    assert_eq!(shown(hints[0].id).await, Some(reports[0].1.clone()));
    assert_eq!(shown(hints[1].id).await, Some(reports[1].1.clone()));
    assert_eq!(shown(hints[2].id).await, None);

    // A later report replaces it. It stays through a failure, and goes with the job.
    let later = [report(&jobs[0], Progress::percent(50))];
    w.store.report_progress(worker, &later).await.unwrap();
    assert_eq!(shown(hints[0].id).await, Some(later[0].1.clone()));
    w.fail(worker, retry_after(&jobs[0], Duration::from_secs(1)))
        .await;
    assert_eq!(shown(hints[0].id).await, Some(later[0].1.clone()));
    assert!(
        w.store
            .report_progress(worker, &later)
            .await
            .unwrap()
            .is_empty()
    );
    w.store.delete(hints[0].id).await.unwrap();
    assert_eq!(w.rows("job_progress").await, 1);
    let done = Completion {
        has_traces: true,
        cancelled: false,
        ..done(&jobs[1])
    };
    w.store
        .complete(worker, &[done], &take(worker))
        .await
        .unwrap();
    assert_eq!(w.rows("job_progress").await, 0);
}

pub(super) async fn a_checkpoint_outlives_the_node_and_every_move<S: SqlBench>(w: &World<S>) {
    let hint = w.one(work()).await;
    let first = node();
    let job = w.hold(first, &hint).await;
    let save = async |owner, job: &LockedJob, text: &str| {
        let held = job.held();
        w.store.save_checkpoint(owner, &held, text).await.unwrap()
    };
    let read = async || w.store.checkpoint(hint.id).await.unwrap();
    assert_eq!(read().await, None);
    assert!(save(first, &job, r#"{"row":1}"#).await);
    assert!(save(first, &job, r#"{"row":2}"#).await);
    assert_eq!(read().await.as_deref(), Some(r#"{"row":2}"#));
    assert!(w.view(hint.id).await.unwrap().checkpoint_at.is_some());

    // The node dies. Its later writes change nothing, before and after another node has the job.
    w.die(hint.id).await;
    assert!(!save(first, &job, r#"{"row":3}"#).await);
    let second = node();
    let again = w.hold(second, &hint).await;
    assert_eq!(read().await.as_deref(), Some(r#"{"row":2}"#));
    assert!(save(second, &again, r#"{"row":5}"#).await);
    assert!(!save(first, &job, r#"{"row":4}"#).await);
    let reports = [report(&job, Progress::percent(1))];
    assert!(
        w.store
            .report_progress(first, &reports)
            .await
            .unwrap()
            .is_empty()
    );

    // Through timer, dead letter and revival.
    w.fail(second, retry_after(&again, Duration::from_secs(1)))
        .await;
    assert_eq!(w.state(hint.id).await, Some(JobState::Timer));
    assert_eq!(read().await.as_deref(), Some(r#"{"row":5}"#));
    w.make_due(hint.id, 1).await;
    w.store.move_due_timers(10).await.unwrap();
    let again = w.hold(second, &hint).await;
    w.fail(second, give_up(&again)).await;
    w.store.retry(hint.id, 3).await.unwrap();
    let again = w.hold(second, &hint).await;
    assert_eq!(read().await.as_deref(), Some(r#"{"row":5}"#));

    // A cancel, too, takes it with the job.
    w.store.cancel(hint.id).await.unwrap();
    w.release(second, again.held()).await;
    assert_eq!(w.state(hint.id).await, None);
    assert_eq!(w.rows("job_progress").await, 0);
}

/// A completion that does not know of a row leaves it. Those that write it are bounded by the table.
pub(super) async fn rows_of_gone_jobs_are_pruned_and_others_stay<S: SqlBench>(w: &World<S>) {
    let hints = w.ready(vec![work(), work(), work()]).await;
    let worker = node();
    let jobs = w.lock(worker, &hints).await.jobs;
    for job in &jobs {
        let saved = w.store.save_checkpoint(worker, &job.held(), "17").await;
        assert!(saved.unwrap());
    }
    let large = format!("\"{}\"", "x".repeat(MAX_CHECKPOINT_BYTES));
    let refused = w
        .store
        .save_checkpoint(worker, &jobs[1].held(), &large)
        .await;
    assert!(refused.unwrap_err().is_row_fault());
    w.complete(worker, &jobs[0], &take(worker)).await;
    w.fail(worker, give_up(&jobs[1])).await;
    assert_eq!(w.rows("job_progress").await, 3);
    let kept = Duration::from_secs(3_600);
    assert_eq!(w.store.prune_history(kept, 10).await.unwrap(), 1);
    assert_eq!(w.store.prune_history(kept, 10).await.unwrap(), 0);
    assert_eq!(w.rows("job_progress").await, 2);
    for job in &jobs[1..] {
        let checkpoint = w.store.checkpoint(job.job.id).await.unwrap();
        assert_eq!(checkpoint.as_deref(), Some("17"));
    }
}
