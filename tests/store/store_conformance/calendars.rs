//! Business calendars: the dates of new jobs, of series and of schedules, and programs that do not
//! know a calendar.

use std::time::Duration;

use chrono::{DateTime, NaiveTime, TimeDelta, Utc};
use jobwire_core::calendar::WorkingTime;
use jobwire_core::job::periodic::Declared;
use jobwire_core::job::series::next_occurrence;
use jobwire_core::store::Completion;
use jobwire_core::{
    BusinessCalendar, Calendars, Client, JobId, JobState, NewJob, PeriodicJob, WorkingHours,
    chrono_tz,
};

use super::world::{SqlBench, World, done, node, take, work};

/// A calendar that is closed until a date.
struct OpensAt(DateTime<Utc>);

impl BusinessCalendar for OpensAt {
    fn working_time(&self, at: DateTime<Utc>) -> Option<WorkingTime> {
        let from = self.0.max(at);
        let to = from + TimeDelta::days(36_500);
        Some(WorkingTime { from, to })
    }
}

/// Calendars, and the date at which the one of them opens, days from now.
fn opening(days: i64) -> (Calendars, DateTime<Utc>) {
    let seconds = Utc::now().timestamp() + days * 24 * 3600;
    let at = DateTime::from_timestamp(seconds, 0).unwrap();
    let calendars = Calendars::default().with("office", OpensAt(at));
    (calendars.unwrap(), at)
}

fn periodic(schedule: &str) -> PeriodicJob {
    PeriodicJob::new("p", schedule, NewJob::of("work", &17))
}

pub(super) async fn a_new_job_is_dated_where_its_calendar_is_known<S: SqlBench>(w: &World<S>) {
    let (calendars, opens) = opening(3);
    let knows = Client::without_hints(w.store.knowing(calendars));
    let knows_none = Client::without_hints(w.store.clone());
    let hour = Duration::from_secs(3600);
    let in_office = || NewJob::of("work", &17).due_in_calendar("office", hour);
    let id = knows.create(in_office()).await.unwrap();
    let view = w.view(id).await.unwrap();
    assert_eq!(view.due_at, Some(opens + TimeDelta::hours(1)));
    let refused = knows_none
        .create(in_office())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("`due_in`") && refused.contains("`office`"),
        "{refused}"
    );
    // The same in a transaction of another library.
    let mut tx = w.store.begin().await.unwrap();
    let mut hook = knows.hook();
    let id = hook.create(&mut tx, in_office()).await.unwrap();
    hook.commit(tx).await.unwrap();
    assert_eq!(
        w.view(id).await.unwrap().due_at,
        Some(opens + TimeDelta::hours(1))
    );

    let repeated = || NewJob::of("work", &17).repeat_text("R/PT1H[calendar=office]");
    let id = knows.create(repeated()).await.unwrap();
    assert_eq!(w.view(id).await.unwrap().due_at, Some(opens));
    // Nodes date it otherwise.
    let id = knows_none.create(repeated()).await.unwrap();
    let view = w.view(id).await.unwrap();
    assert_eq!((view.due_at, view.state), (None, JobState::Executable));
    // A date that the creator gives stands.
    let due = opens - TimeDelta::days(1);
    let id = knows.create(repeated().due(due)).await.unwrap();
    assert_eq!(w.view(id).await.unwrap().due_at, Some(due));
    for (job, part) in [
        (in_office().due(due), "beside `due_at`"),
        (NewJob::of("t", &1).due_in_text("soon"), "`due_in`"),
        (
            NewJob::of("t", &1).due_in_text("PT8H[calendar=a b]"),
            "calendar's name",
        ),
    ] {
        let refused = knows.create(job).await.unwrap_err().to_string();
        assert!(refused.contains(part), "{refused}");
    }
    let plain = NewJob::of("work", &17).due_in_text("P1D");
    let id = knows_none.create(plain).await.unwrap();
    assert!(w.view(id).await.unwrap().due_at.unwrap() > Utc::now() + TimeDelta::hours(23));
}

/// The year that ends now: it has two changes of the clock.
pub(super) async fn each_working_day_of_a_year_has_one_job<S: SqlBench>(w: &World<S>) {
    let office = WorkingHours::in_zone("Europe/Berlin").unwrap();
    let mut office = office.open("Mon-Fri", "08:00-17:00").unwrap();
    let holidays = ["01-01", "05-01", "10-03", "12-25", "12-26"];
    for day in holidays {
        office = office.closed(day).unwrap();
    }
    let store = w
        .store
        .knowing(Calendars::default().with("office", office).unwrap());
    let schedule = "0 8 * * *[Europe/Berlin][catch-up=all][calendar=office][closed=skip]";
    store
        .declare_periodic_jobs(&[periodic(schedule)])
        .await
        .unwrap();
    let zone: chrono_tz::Tz = chrono_tz::Europe::Berlin;
    let eight = NaiveTime::from_hms_opt(8, 0, 0).unwrap();
    let today = Utc::now().with_timezone(&zone).date_naive();
    let days = (1..=366).rev().map(|ago| today - TimeDelta::days(ago));
    let working = days.filter(|day| {
        let weekend = ["Sat", "Sun"].contains(&&*day.format("%a").to_string());
        !weekend && !holidays.contains(&&*day.format("%m-%d").to_string())
    });
    let moments = working.map(|day| {
        let local = day.and_time(eight).and_local_timezone(zone);
        local.unwrap().with_timezone(&Utc)
    });
    let expected: Vec<DateTime<Utc>> = moments.collect();
    assert!(expected.len() > 240, "{}", expected.len());
    let first = match w.store.name() {
        "sqlite" => expected[0].timestamp_micros().to_string(),
        _ => format!("timestamptz '{}'", expected[0].to_rfc3339()),
    };
    let set = format!("UPDATE {{s}}periodic_job SET next_due = {first}");
    assert_eq!(w.store.execute(&set).await, 1);
    let mut created = 0;
    loop {
        let fired = store.fire_periodic_job("p").await.unwrap();
        if !fired.advanced {
            break;
        }
        created += fired.ready.len();
    }
    let mut dates: Vec<DateTime<Utc>> = Vec::new();
    let query = jobwire_core::JobQuery::default().limit(1_000);
    for view in w.store.find(&query).await.unwrap() {
        dates.push(view.due_at.unwrap());
    }
    dates.sort_unstable();
    // This day's date may have come, too.
    dates.retain(|date| date.with_timezone(&zone).date_naive() < today);
    assert_eq!(dates, expected);
    assert!(created == dates.len() || created == dates.len() + 1);
}

pub(super) async fn a_schedule_waits_for_a_node_that_knows_its_calendar<S: SqlBench>(w: &World<S>) {
    let (calendars, opens) = opening(2);
    let knows = w.store.knowing(calendars);
    let schedule = "R/PT1H[calendar=office]";
    let refused = w.store.declare_periodic_jobs(&[periodic(schedule)]).await;
    let refused = refused.unwrap_err().to_string();
    for part in ["periodic job `p`", "`schedule`", "no calendar `office`"] {
        assert!(refused.contains(part), "{refused}");
    }
    knows
        .declare_periodic_jobs(&[periodic(schedule)])
        .await
        .unwrap();
    let listed = w.store.periodic_jobs().await.unwrap();
    assert_eq!(listed[0].next_due, Some(opens));
    // A program without the calendar may declare it, as long as no date is to be computed.
    let same = w.store.declare_periodic_jobs(&[periodic(schedule)]).await;
    assert_eq!(same.unwrap(), [Declared::Same]);
    let changed = [periodic("R/PT2H[calendar=office]")];
    assert!(w.store.declare_periodic_jobs(&changed).await.is_err());

    let past = match w.store.name() {
        "sqlite" => "{now} - {second}",
        _ => "{now} - interval '1 second'",
    };
    let set = format!("UPDATE {{s}}periodic_job SET next_due = {past}");
    assert_eq!(w.store.execute(&set).await, 1);
    let before = w.store.periodic_jobs().await.unwrap();
    let failed = w
        .store
        .fire_periodic_job("p")
        .await
        .unwrap_err()
        .to_string();
    assert!(failed.contains("no calendar `office`"), "{failed}");
    assert_eq!(w.store.periodic_jobs().await.unwrap(), before);
    assert_eq!(w.store.rows("job").await, 0);
    let fired = knows.fire_periodic_job("p").await.unwrap();
    assert!(fired.advanced && fired.ready.len() == 1);
    assert_eq!(
        w.store.periodic_jobs().await.unwrap()[0].next_due,
        Some(opens)
    );

    assert!(w.store.pause_periodic_job("p", true).await.unwrap());
    assert!(w.store.pause_periodic_job("p", false).await.is_err());
    assert!(knows.pause_periodic_job("p", false).await.unwrap());
}

pub(super) async fn a_series_is_dated_by_the_first_store_that_knows_its_calendar<S: SqlBench>(
    w: &World<S>,
) {
    let (calendars, opens) = opening(2);
    let repeat = "R3/PT1H[calendar=office]";
    let due = Utc::now() - TimeDelta::seconds(1);
    let hint = w.one(work().repeat_text(repeat).due(due)).await;
    let worker = node();
    let job = w.hold(worker, &hint).await;
    // A node without the calendar leaves the date open.
    let undated = next_occurrence(&job.job, job.job.ready_at, &Calendars::default()).unwrap();
    let id = undated.id();
    let completion = Completion {
        next: Some(Box::new(undated)),
        ..done(&job)
    };
    let completed = w.store.complete(worker, &[completion], &take(worker)).await;
    assert_eq!(completed.unwrap().applied, [hint.id]);
    let (_, undated, _) = w.store.get(id).await.unwrap().unwrap();
    let text = undated.repeat.unwrap_or_default();
    assert!(
        text.starts_with("R2/") && text.contains("[pending=after@"),
        "{text}"
    );
    // One with the calendar computes the date that the first one could not.
    let dated = next_occurrence(&job.job, job.job.ready_at, &calendars).unwrap();
    let id = dated.id();
    w.create(vec![dated]).await;
    assert_eq!(w.view(id).await.unwrap().due_at, Some(opens));
}

pub(super) async fn jobs_that_wait_for_a_calendar_are_counted<S: SqlBench>(w: &World<S>) {
    let soon = Utc::now() + TimeDelta::minutes(4);
    let dated = work().repeat_text("R/PT1H[calendar=office]").due(soon);
    let jobs = vec![work(), work().due(soon), dated, work()];
    let ids: Vec<JobId> = jobs.iter().map(NewJob::id).collect();
    w.create(jobs).await;
    assert_eq!(w.store.pending_jobs(10).await.unwrap(), []);
    let wait = async |table: &str, id: JobId, calendar: &str| {
        let text = format!("R/PT1H[calendar={calendar}][pending=after@2027-01-01T00:00:00Z]");
        let set = format!("UPDATE {{s}}{table} SET repeat = '{text}' WHERE id = '{id}'");
        assert_eq!(w.store.execute(&set).await, 1);
    };
    wait("job", ids[0], "office").await;
    wait("timer_job", ids[1], "office").await;
    wait("job", ids[3], "shop").await;
    let pending = w.store.pending_jobs(10).await.unwrap();
    let counts: Vec<(&str, i64)> = pending.iter().map(|of| (&*of.calendar, of.jobs)).collect();
    assert_eq!(counts, [("office", 2), ("shop", 1)]);
    let created = [w.view(ids[0]).await, w.view(ids[1]).await];
    let first = created
        .into_iter()
        .flatten()
        .map(|job| job.created_at)
        .min();
    assert_eq!(Some(pending[0].since), first);
    assert_eq!(w.store.pending_jobs(1).await.unwrap(), pending[..1]);
}
