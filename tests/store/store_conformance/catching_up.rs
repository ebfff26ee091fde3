//! Occurrences that were missed while no node ran.

use std::time::Duration;

use jobwire_core::chrono::{DateTime, Utc};
use jobwire_core::{HandlerError, JobQuery, JobState, NewJob, Outcome, Running};
use jobwire_harness::eventually;
use jobwire_harness::world::{SOON, quick};

use super::bed::{Bed, noting};
use super::world::{SqlBench, World};

const HOUR: Duration = Duration::from_secs(3_600);
/// Four and a half periods.
const DOWNTIME: u32 = 4 * 3_600 + 1_800;

/// What a node did after a downtime.
struct CaughtUp {
    /// For each occurrence that ran, the minutes from the first missed date to its own.
    ran: Vec<String>,
    /// The first missed date.
    missed: DateTime<Utc>,
    /// The date and the repetition of the occurrence that waits then.
    next: DateTime<Utc>,
    repeat: Option<String>,
}

/// Creates a timer that repeats each hour, lets its date pass by four and a half hours, and starts a
/// node.
async fn after_downtime<S: SqlBench>(w: &World<S>, suffix: &str) -> CaughtUp {
    let job = NewJob::of("note", &())
        .delay(HOUR)
        .repeat_text(format!("R7/PT1H{suffix}"));
    let id = job.id();
    w.create(vec![job]).await;
    w.make_due(id, DOWNTIME).await;
    let missed = w.view(id).await.unwrap().due_at.unwrap();
    let bed = Bed::new(w);
    let noting = {
        let notes = bed.notes.clone();
        move |job: Running<()>| {
            let after = job.job.due_at.unwrap() - missed;
            notes.add(after.num_minutes().to_string());
            async { Ok(Outcome::Done) }
        }
    };
    let node = bed.node(quick()).handler("note", noting);
    let node = node.start().await.unwrap();
    let next = eventually("an occurrence that waits for its date", SOON, async || {
        let left = w.store.find(&JobQuery::default()).await.ok()?;
        let [next] = &left[..] else {
            return None;
        };
        let waits = next.state == JobState::Timer && next.due_at? > Utc::now();
        waits.then(|| next.clone())
    })
    .await;
    node.stop().await;
    let (_, job, _) = w.store.get(next.id).await.unwrap().unwrap();
    CaughtUp {
        ran: bed.notes.all(),
        missed,
        next: next.due_at.unwrap(),
        repeat: job.repeat,
    }
}

/// The late occurrence runs. The series, which has no start, begins anew.
pub(super) async fn once_runs_one_of_the_missed_occurrences<S: SqlBench>(w: &World<S>) {
    let now = Utc::now();
    let after = after_downtime(w, "[catch-up=once]").await;
    assert_eq!(after.ran, ["0"]);
    assert_eq!(after.repeat.as_deref(), Some("R6/PT3600S"));
    assert!(after.next >= now + HOUR, "{}", after.next);
}

pub(super) async fn without_a_suffix_one_of_the_missed_occurrences_runs<S: SqlBench>(w: &World<S>) {
    let after = after_downtime(w, "").await;
    assert_eq!(after.ran, ["0"]);
    assert_eq!(after.repeat.as_deref(), Some("R6/PT3600S"));
}

/// Each occurrence has its own date, and the next one follows on it.
pub(super) async fn all_runs_each_missed_occurrence<S: SqlBench>(w: &World<S>) {
    let after = after_downtime(w, "[catch-up=all]").await;
    assert_eq!(after.ran, ["0", "60", "120", "180", "240"]);
    assert_eq!(after.repeat.as_deref(), Some("R2/PT3600S[catch-up=all]"));
    assert_eq!(after.next, after.missed + HOUR * 5);
}

/// Skipped occurrences are not counted.
pub(super) async fn skip_runs_none_of_the_missed_occurrences<S: SqlBench>(w: &World<S>) {
    let after = after_downtime(w, "[catch-up=skip]").await;
    assert!(after.ran.is_empty(), "{:?}", after.ran);
    assert_eq!(after.repeat.as_deref(), Some("R7/PT3600S[catch-up=skip]"));
    assert_eq!(after.next, after.missed + HOUR * 5);
}

/// The job became ready an hour ago, and no consumer was free before now. The series goes on from now.
pub(super) async fn a_wait_in_the_lane_is_no_reason_for_a_second_late_run<S: SqlBench>(
    w: &World<S>,
) {
    let job = NewJob::of("note", &())
        .due(Utc::now() - Duration::from_secs(4_200))
        .repeat_text("R7/PT10M");
    let id = job.id();
    w.create(vec![job]).await;
    let since = Utc::now() - HOUR;
    w.make_old(3_600).await;
    assert!(w.view(id).await.unwrap().ready_at < since + Duration::from_secs(60));
    let bed = Bed::new(w);
    let node = bed.node(quick()).handler("note", |_: Running<()>| async {
        Ok::<_, HandlerError>(Outcome::Done)
    });
    let node = node.start().await.unwrap();
    let next = eventually("the next occurrence", SOON, async || {
        let left = w.store.find(&JobQuery::default()).await.ok()?;
        left.into_iter().find(|view| view.id != id)
    })
    .await;
    node.stop().await;
    let due = next.due_at.unwrap();
    assert!(due > Utc::now() + Duration::from_secs(300), "{due}");
}

/// Either way of naming the end. Another series goes on.
pub(super) async fn an_occurrence_after_the_end_of_its_series_is_removed_without_running<
    S: SqlBench,
>(
    w: &World<S>,
) {
    let hours_ago = |hours| Utc::now() - HOUR * hours;
    let job = |repeat: &str| {
        NewJob::of("note", repeat)
            .due(hours_ago(5))
            .repeat_text(repeat)
    };
    let ends = "R/PT1H/2020-01-01T00:00:00Z";
    let until = job("R/PT1H").repeat_until(hours_ago(6));
    let bed = Bed::new(w);
    let node = bed.node(quick()).handler("note", noting(&bed.notes));
    let node = node.start().await.unwrap();
    bed.create(vec![job(ends), until, job("R1/PT1H")]).await;
    bed.until_left(0).await;
    assert_eq!(bed.notes.all(), ["R1/PT1H"]);
    node.stop().await;
}

/// The end of a series takes an occurrence that never began. One that has begun has its retries.
pub(super) async fn an_occurrence_that_has_begun_is_retried_after_the_end_of_its_series<
    S: SqlBench,
>(
    w: &World<S>,
) {
    let bed = Bed::new(w);
    let notes = bed.notes.clone();
    let note = move |job: Running<String>| {
        notes.add(job.payload);
        let is_first = notes.all().len() == 1;
        async move {
            if is_first {
                return Err(HandlerError::retry("not yet"));
            }
            Ok(Outcome::Done)
        }
    };
    let node = bed.node(quick()).handler("note", note);
    let node = node.start().await.unwrap();
    let job = NewJob::of("note", "begun")
        .due(Utc::now())
        .repeat_text("R/PT1H")
        .repeat_until(Utc::now() + Duration::from_secs(2))
        .retry_policy_text("3s");
    bed.create(vec![job]).await;
    bed.until_left(0).await;
    assert_eq!(bed.notes.all(), ["begun", "begun"]);
    node.stop().await;
}
