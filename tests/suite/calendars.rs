//! Series on business calendars in fleets whose nodes know different calendars.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use chrono::{DateTime, TimeDelta, Utc};
use jobwire_core::calendar::WorkingTime;
use jobwire_core::{BusinessCalendar, Calendars, JobQuery, JobState, JobView, NewJob, Node, Store};
use jobwire_core::{PgStore, Running};
use jobwire_harness::world::{Notes, SOON, World, quick};
use jobwire_tests::eventually;

/// A calendar that is always open, and panics while it is broken.
#[derive(Clone, Default)]
struct Always {
    broken: Arc<AtomicBool>,
}

impl BusinessCalendar for Always {
    fn working_time(&self, at: DateTime<Utc>) -> Option<WorkingTime> {
        assert!(
            !self.broken.load(Ordering::SeqCst),
            "the calendar is broken"
        );
        Some(WorkingTime {
            from: at,
            to: at + TimeDelta::days(1),
        })
    }
}

async fn start(w: &World, store: PgStore, notes: &Notes) -> Node {
    let notes = notes.clone();
    Node::builder(store, w.transport())
        .options(quick())
        .handler("work", move |job: Running<serde_json::Value>| {
            let notes = notes.clone();
            async move {
                notes.add(job.job.id.to_string());
                Ok(())
            }
        })
        .start()
        .await
        .unwrap()
}

/// Waits for the only job, once it waits for its date.
async fn undated(w: &World) -> JobView {
    eventually("an occurrence that waits for its date", SOON, || async {
        let [view] = &w.store.find(&JobQuery::default()).await.ok()?[..] else {
            return None;
        };
        let (view, job, _) = w.store.get(view.id).await.ok()??;
        let waits = job.repeat?.contains("[pending=") && view.state == JobState::Timer;
        waits.then_some(view)
    })
    .await
}

#[tokio::test]
async fn a_series_goes_on_at_a_node_that_knows_its_calendar() {
    let w = World::new().await;
    let notes = Notes::default();
    let calendars = Calendars::default()
        .with("office", Always::default())
        .unwrap();
    let due = Utc::now() - TimeDelta::seconds(1);
    let series = NewJob::of("work", &17)
        .repeat_text("R3/PT0.2S[calendar=office]")
        .due(due);

    let knows_none = start(&w, w.store.clone(), &notes).await;
    w.jobs.create(series).await.unwrap();
    // The first occurrence has its date, so it runs. The next one waits, and spends no attempt.
    let view = undated(&w).await;
    assert_eq!(notes.all().len(), 1);
    assert_eq!((view.failures, view.exception_message), (0, None));
    // An operator's retry doesn't run it either.
    w.jobs.retry(view.id, 3).await.unwrap();
    let again = undated(&w).await;
    assert_eq!((again.id, notes.all().len()), (view.id, 1));

    knows_none.stop().await;
    let knows = start(&w, w.store.clone().with_calendars(calendars), &notes).await;
    w.jobs.retry(view.id, 3).await.unwrap();
    assert_eq!(notes.until(3).await.len(), 3);
    w.until_empty().await;
    assert_eq!(notes.all().len(), 3);
    knows.stop().await;
}

#[tokio::test]
async fn a_job_of_plain_sql_waits_for_a_node_that_knows_its_calendar() {
    let w = World::new().await;
    let notes = Notes::default();
    let calendars = Calendars::default()
        .with("office", Always::default())
        .unwrap();
    let knows_none = start(&w, w.store.clone(), &notes).await;
    sqlx::query(
        "SELECT jobwire.create_job(type => 'work', payload => '17', repeat => 'R2/PT0.2S[calendar=office]')",
    )
    .execute(w.store.pool())
    .await
    .unwrap();
    let view = undated(&w).await;
    assert!(notes.all().is_empty());
    knows_none.stop().await;
    let knows = start(&w, w.store.clone().with_calendars(calendars), &notes).await;
    w.jobs.retry(view.id, 3).await.unwrap();
    assert_eq!(notes.until(2).await.len(), 2);
    w.until_empty().await;
    knows.stop().await;
}

#[tokio::test]
async fn a_calendar_that_panics_costs_no_other_job() {
    let w = World::new().await;
    let notes = Notes::default();
    let office = Always::default();
    let calendars = Calendars::default().with("office", office.clone()).unwrap();
    let node = start(&w, w.store.clone().with_calendars(calendars), &notes).await;
    office.broken.store(true, Ordering::SeqCst);
    let due = Utc::now() - TimeDelta::seconds(1);
    let series = NewJob::of("work", &17)
        .repeat_text("R2/PT0.2S[calendar=office]")
        .due(due);
    w.jobs.create(series).await.unwrap();
    let view = undated(&w).await;
    assert_eq!(notes.all().len(), 1);
    w.jobs.create(NewJob::of("work", &18)).await.unwrap();
    notes.until(2).await;
    office.broken.store(false, Ordering::SeqCst);
    w.jobs.retry(view.id, 3).await.unwrap();
    notes.until(3).await;
    w.until_empty().await;
    node.stop().await;
}
