use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use jobwire_core::chrono_tz::Tz;
use jobwire_core::job::periodic::Declared;
use jobwire_core::store::{Origin, PeriodicView};
use jobwire_core::{JobQuery, JobState, NewJob, PeriodicJob, PgStore, Store};
use jobwire_harness::eventually;
use jobwire_harness::world::{SOON, quick};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::bed::{Bed, noting};
use super::world::{Bench, SqlBench, World, node};

fn periodic(name: &str, schedule: &str) -> PeriodicJob {
    PeriodicJob::new(name, schedule, NewJob::of("work", &17).priority(4))
}

async fn view<S: Bench>(w: &World<S>, name: &str) -> PeriodicView {
    let all = w.store.periodic_jobs().await.unwrap();
    all.into_iter().find(|view| view.name == name).unwrap()
}

/// Returns a date as the database reads it.
fn date<S: SqlBench>(w: &World<S>, at: DateTime<Utc>) -> String {
    match w.store.name() {
        "sqlite" => at.timestamp_micros().to_string(),
        _ => format!("timestamptz '{}'", at.to_rfc3339()),
    }
}

/// Makes a schedule due at a date.
async fn set_due<S: SqlBench>(w: &World<S>, name: &str, at: DateTime<Utc>) {
    let date = date(w, at);
    let sql = format!("UPDATE {{s}}periodic_job SET next_due = {date} WHERE name = '{name}'");
    assert_eq!(w.store.execute(&sql).await, 1);
}

async fn due_names<S: Bench>(w: &World<S>) -> Vec<String> {
    w.store.due_periodic_jobs(None, 10).await.unwrap().names
}

pub(super) async fn a_periodic_job_exists_once_and_a_smaller_version_changes_nothing<S: Bench>(
    w: &World<S>,
) {
    let old = [
        periodic("b", "R/PT1H"),
        periodic("a", "0 2 * * *[Europe/Berlin]").version(1),
    ];
    let declare =
        |jobs: Vec<PeriodicJob>| async move { w.store.declare_periodic_jobs(&jobs).await.unwrap() };
    let (one, other) = tokio::join!(declare(old.to_vec()), declare(old.to_vec()));
    let created = |declared: &[Declared]| declared.iter().all(|d| *d == Declared::Created);
    assert!(created(&one) != created(&other), "{one:?} {other:?}");
    let all = w.store.periodic_jobs().await.unwrap();
    let names: Vec<&str> = all.iter().map(|view| &*view.name).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(all[0].schedule, "0 2 * * *[Europe/Berlin]");
    assert_eq!((all[0].version, all[0].paused), (1, false));
    assert!(all[0].template.contains("\"work\"") && all[0].last_due.is_none());
    assert!(all[0].next_due.unwrap() > Utc::now() - chrono::Duration::minutes(1));

    // Two releases meet during a deploy: the newer one is kept, whichever starts last.
    let new = vec![periodic("a", "0 3 * * *[Europe/Berlin]").version(2)];
    assert_eq!(declare(new.clone()).await, [Declared::Changed]);
    assert_eq!(
        declare(old.to_vec()).await,
        [Declared::Same, Declared::Outdated]
    );
    assert_eq!(declare(new).await, [Declared::Same]);
    let kept = view(w, "a").await;
    assert_eq!(kept.schedule, "0 3 * * *[Europe/Berlin]");
    assert_ne!(kept.next_due, all[0].next_due);
    // Another job on the same dates keeps the next one.
    let before = view(w, "b").await.next_due;
    let job = PeriodicJob::new("b", "R/PT1H", NewJob::of("other", &()));
    assert_eq!(declare(vec![job]).await, [Declared::Changed]);
    let after = view(w, "b").await;
    assert!(after.template.contains("other") && after.next_due == before);

    let bad = [periodic("c", "R/PT1H"), periodic("d", "hourly")];
    let refused = w.store.declare_periodic_jobs(&bad).await.unwrap_err();
    assert!(
        refused.to_string().contains("periodic job `d`"),
        "{refused}"
    );
    assert_eq!(w.store.periodic_jobs().await.unwrap().len(), 2);
}

pub(super) async fn a_due_job_is_created_with_the_advance_of_its_schedule<S: SqlBench>(
    w: &World<S>,
) {
    let jobs = [periodic("hourly", "R/PT1H"), periodic("daily", "@daily")];
    w.store.declare_periodic_jobs(&jobs).await.unwrap();
    assert!(due_names(w).await.is_empty());
    let missed = DateTime::from_timestamp(Utc::now().timestamp() / 3600 * 3600 - 7200, 0).unwrap();
    set_due(w, "hourly", missed).await;
    assert_eq!(due_names(w).await, ["hourly"]);
    assert_eq!(w.lead(node()).await.next_periodic, Some(missed));

    let fired = w.store.fire_periodic_job("hourly").await.unwrap();
    assert!(fired.advanced && fired.ready.len() == 1);
    let job = w.view(fired.ready[0].hint.id).await.unwrap();
    assert_eq!((job.state, job.priority), (JobState::Executable, 4));
    assert_eq!(job.due_at, Some(missed));
    let after = view(w, "hourly").await;
    assert!(after.next_due.unwrap() > Utc::now() && after.last_due.is_some());
    let again = w.store.fire_periodic_job("hourly").await.unwrap();
    assert!(!again.advanced && again.ready.is_empty());
    assert!(!w.store.fire_periodic_job("none").await.unwrap().advanced);
    let due = w.store.due_periodic_jobs(None, 10).await.unwrap();
    assert!(due.names.is_empty() && due.next_due == after.next_due);
    assert!(
        w.hold(node(), &fired.ready[0].hint)
            .await
            .job
            .due_at
            .is_some()
    );
}

pub(super) async fn an_operator_pauses_resumes_runs_and_removes<S: SqlBench>(w: &World<S>) {
    let jobs = [periodic("hourly", "R/PT1H[catch-up=all]")];
    w.store.declare_periodic_jobs(&jobs).await.unwrap();
    assert!(w.store.pause_periodic_job("hourly", true).await.unwrap());
    set_due(w, "hourly", Utc::now() - chrono::Duration::days(9)).await;
    assert!(due_names(w).await.is_empty());
    assert!(!w.store.fire_periodic_job("hourly").await.unwrap().advanced);
    // A deploy does not end a pause.
    let changed = [periodic("hourly", "R/PT1H[catch-up=all]").version(3)];
    w.store.declare_periodic_jobs(&changed).await.unwrap();
    assert!(view(w, "hourly").await.paused);
    let triggered = w
        .store
        .run_periodic_job("hourly", Origin::Hook)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(triggered.ready[0].hint.id, triggered.job);
    assert_eq!(
        w.view(triggered.job).await.unwrap().state,
        JobState::Executable
    );
    // The time of the pause is not caught up.
    assert!(w.store.pause_periodic_job("hourly", false).await.unwrap());
    let resumed = view(w, "hourly").await;
    assert!(!resumed.paused && resumed.next_due.unwrap() > Utc::now());
    assert!(w.store.pause_periodic_job("hourly", false).await.unwrap());
    assert_eq!(view(w, "hourly").await.changed_at, resumed.changed_at);
    assert!(w.store.remove_periodic_job("hourly").await.unwrap());
    assert!(w.store.periodic_jobs().await.unwrap().is_empty());
    assert!(!w.store.remove_periodic_job("hourly").await.unwrap());
    assert!(!w.store.pause_periodic_job("hourly", true).await.unwrap());
    assert!(
        w.store
            .run_periodic_job("hourly", Origin::Hook)
            .await
            .unwrap()
            .is_none()
    );
}

/// A later program may know more forms of a schedule, and columns may be written by hand.
pub(super) async fn a_schedule_that_can_not_be_read_stops_no_other<S: SqlBench>(w: &World<S>) {
    let jobs = ["a", "b", "c"].map(|name| periodic(name, "R/PT1H"));
    w.store.declare_periodic_jobs(&jobs).await.unwrap();
    for name in ["a", "b", "c"] {
        set_due(w, name, Utc::now() - chrono::Duration::minutes(5)).await;
    }
    for change in [
        "schedule = 'a form of a later program' WHERE name = 'a'",
        "template = '{}' WHERE name = 'b'",
    ] {
        let sql = format!("UPDATE {{s}}periodic_job SET {change}");
        assert_eq!(w.store.execute(&sql).await, 1);
    }
    for name in ["a", "b"] {
        let refused = w.store.fire_periodic_job(name).await.unwrap_err();
        assert!(!refused.is_transient(), "{refused}");
        let said = refused.to_string();
        assert!(said.contains(&format!("periodic job `{name}`")), "{said}");
    }
    // Both stay due. They tell why, and pauses and resumptions do not hide it.
    assert_eq!(due_names(w).await, ["a", "b", "c"]);
    assert!(w.store.fire_periodic_job("c").await.unwrap().advanced);
    let fault = async |name: &str| view(w, name).await.fault(w.store.calendars());
    for (name, part) in [("a", "`schedule`"), ("b", "`type`")] {
        let said = fault(name).await.unwrap().to_string();
        assert!(said.contains(part), "{said}");
        assert!(view(w, name).await.next_due.unwrap() < Utc::now());
        assert!(w.store.pause_periodic_job(name, true).await.unwrap());
        assert!(
            w.store
                .fire_periodic_job(name)
                .await
                .unwrap()
                .ready
                .is_empty()
        );
        let resumed = w.store.pause_periodic_job(name, false).await;
        assert!(resumed.is_err() == (name == "a"), "{resumed:?}");
    }
    assert_eq!(fault("c").await, None);
    // A declaration, also one with the same text, gives it its next date.
    let stop = "UPDATE {s}periodic_job SET next_due = NULL WHERE name = 'c'";
    assert_eq!(w.store.execute(stop).await, 1);
    let said = fault("c").await.unwrap().to_string();
    assert!(said.contains("declare it again"), "{said}");
    let declared = w.store.declare_periodic_jobs(&jobs).await.unwrap();
    assert_eq!(declared, [Declared::Changed; 3]);
    for name in ["a", "b", "c"] {
        let view = view(w, name).await;
        assert!(view.next_due.unwrap() > Utc::now(), "{view:?}");
        assert_eq!(fault(name).await, None);
    }
    let declared = w.store.declare_periodic_jobs(&jobs).await.unwrap();
    assert_eq!(declared, [Declared::Same; 3]);
    // An operator may resume it as well.
    w.store.execute(stop).await;
    assert!(w.store.pause_periodic_job("c", false).await.unwrap());
    assert!(view(w, "c").await.next_due.is_some());
    // One that has ended stays so.
    let ended = [periodic("d", "R/PT1H/2020-01-01T00:00:00Z")];
    let declare = async || w.store.declare_periodic_jobs(&ended).await.unwrap();
    assert_eq!(declare().await, [Declared::Created]);
    assert_eq!(declare().await, [Declared::Same]);
    assert_eq!(
        (fault("d").await, view(w, "d").await.next_due),
        (None, None)
    );
}

/// A node that is too old for a row changes nothing, so a newer one finds its date.
pub(super) async fn a_schedule_that_can_be_read_again_creates_its_job_without_a_declaration<
    S: SqlBench,
>(
    w: &World<S>,
) {
    let declared = [periodic("a", "R/PT1H")];
    w.store.declare_periodic_jobs(&declared).await.unwrap();
    let due = Utc::now() - chrono::Duration::minutes(5);
    set_due(w, "a", due).await;
    let before = view(w, "a").await;
    for (spoil, correct) in [
        (
            "schedule = 'a form of a later program'",
            format!("schedule = '{}'", before.schedule),
        ),
        (
            "template = '{}'",
            format!("template = '{}'", before.template),
        ),
    ] {
        let set = |what: &str| format!("UPDATE {{s}}periodic_job SET {what}");
        w.store.execute(&set(spoil)).await;
        w.store.fire_periodic_job("a").await.unwrap_err();
        assert_eq!(view(w, "a").await.next_due, before.next_due);
        w.store.execute(&set(&correct)).await;
    }
    let fired = w.store.fire_periodic_job("a").await.unwrap();
    assert!(fired.advanced && fired.ready.len() == 1, "{fired:?}");
    assert!(view(w, "a").await.next_due.unwrap() > Utc::now());
}

/// A new constraint may refuse all jobs, so no date is lost.
pub(super) async fn a_schedule_whose_job_the_database_refuses_keeps_its_date<S: SqlBench>(
    w: &World<S>,
) {
    let jobs = ["a", "b"].map(|name| periodic(name, "R/PT1H"));
    w.store.declare_periodic_jobs(&jobs).await.unwrap();
    let refused = PeriodicJob::new("a", "R/PT1H", NewJob::of("refused", &1));
    w.store.declare_periodic_jobs(&[refused]).await.unwrap();
    let refuse = match w.store.name() {
        "sqlite" => {
            "CREATE TRIGGER no BEFORE INSERT ON job WHEN NEW.type = 'refused'
             BEGIN SELECT RAISE(ABORT, 'no'); END"
        }
        _ => "ALTER TABLE {s}job ADD CONSTRAINT no CHECK (type <> 'refused')",
    };
    w.store.execute(refuse).await;
    for (name, minutes) in [("a", 6), ("b", 5)] {
        set_due(w, name, Utc::now() - chrono::Duration::minutes(minutes)).await;
    }
    let refused = w.store.fire_periodic_job("a").await.unwrap_err();
    assert!(refused.is_row_fault(), "{refused}");
    let due = w.store.due_periodic_jobs(None, 1).await.unwrap();
    assert_eq!(due.names, ["a"]);
    let behind = w.store.due_periodic_jobs(due.last.as_ref(), 1).await;
    assert_eq!(behind.unwrap().names, ["b"]);
    assert_eq!(w.rows("job").await, 0);
    assert!(w.store.fire_periodic_job("b").await.unwrap().advanced);
}

/// The leader goes through them by their places, and leaves out those that wait for a node that
/// knows their calendar.
pub(super) async fn due_schedules_are_read_page_by_page<S: SqlBench>(w: &World<S>) {
    let names = ["b", "a", "d", "c", "e"];
    let jobs = names.map(|name| periodic(name, "R/PT1H"));
    w.store.declare_periodic_jobs(&jobs).await.unwrap();
    let date: DateTime<Utc> = "2020-01-01T00:00:00Z".parse().unwrap();
    for (name, hours) in names.iter().zip([0, 0, 1, 1, 2]) {
        set_due(w, name, date + chrono::Duration::hours(hours)).await;
    }
    let unknown =
        "UPDATE {s}periodic_job SET schedule = 'R/PT1H[calendar=office]' WHERE name = 'a'";
    w.store.execute(unknown).await;
    let (mut after, mut found) = (None, Vec::new());
    loop {
        let page = w.store.due_periodic_jobs(after.as_ref(), 2).await.unwrap();
        assert!(page.names.len() <= 2);
        if page.names.is_empty() {
            assert_eq!(page.last, None);
            break;
        }
        found.extend(page.names);
        after = page.last;
    }
    assert_eq!(found, ["b", "c", "d", "e"]);
    let hours = jobwire_core::WorkingHours::in_zone("UTC").unwrap();
    let hours = hours.open("Mon-Sun", "08:00-17:00").unwrap();
    let calendars = jobwire_core::Calendars::default().with("office", hours);
    let knows = w.store.knowing(calendars.unwrap());
    let page = knows.due_periodic_jobs(None, 2).await.unwrap();
    assert_eq!(page.names, ["a", "b"]);
}

/// A schedule that can't be created now waits, and one that was corrected does not.
pub(super) async fn a_due_schedule_tells_whether_it_was_changed<S: SqlBench>(w: &World<S>) {
    let declare = async |schedule: &str| {
        let jobs = ["a", "b"].map(|name| periodic(name, schedule));
        w.store.declare_periodic_jobs(&jobs).await.unwrap();
        let past = Utc::now() - chrono::Duration::minutes(5);
        set_due(w, "a", past).await;
        set_due(w, "b", past).await;
    };
    let marks = async || {
        let due = w.store.due_periodic_jobs(None, 10).await.unwrap();
        assert_eq!(due.names, ["a", "b"]);
        <[String; 2]>::try_from(due.changed).unwrap()
    };
    declare("R/PT1H").await;
    let first = marks().await;
    declare("R/PT1H").await;
    assert_eq!(marks().await, first);
    assert!(w.store.pause_periodic_job("a", true).await.unwrap());
    assert!(w.store.pause_periodic_job("a", false).await.unwrap());
    set_due(w, "a", Utc::now() - chrono::Duration::minutes(6)).await;
    let resumed = marks().await;
    assert!(resumed[0] != first[0] && resumed[1] == first[1]);
    declare("R/PT2H").await;
    assert_ne!(marks().await[1], first[1]);
}

/// The database's clock was 30 days ahead for one leader cycle.
pub(super) async fn a_clock_that_was_set_back_leaves_no_schedule_in_the_future<S: SqlBench>(
    w: &World<S>,
) {
    let mut jobs = ["ahead", "paused", "near", "other"]
        .map(|name| periodic(name, "@daily"))
        .to_vec();
    jobs.push(periodic("strange", "@daily"));
    w.store.declare_periodic_jobs(&jobs).await.unwrap();
    let all = w.store.periodic_jobs().await.unwrap();
    let first = all[0].next_due.unwrap();
    let later = Utc::now() + chrono::Duration::days(30);
    let set = async |name: &str, last: DateTime<Utc>| {
        let (next, last) = (date(w, later), date(w, last));
        let sql = format!(
            "UPDATE {{s}}periodic_job SET next_due = {next}, last_due = {last} WHERE name = '{name}'"
        );
        assert_eq!(w.store.execute(&sql).await, 1);
    };
    let ahead = Utc::now() + chrono::Duration::hours(20);
    set("ahead", ahead).await;
    set("strange", ahead).await;
    set("near", Utc::now() + chrono::Duration::seconds(30)).await;
    set("other", Utc::now() - chrono::Duration::hours(1)).await;
    assert!(w.store.pause_periodic_job("paused", true).await.unwrap());
    set("paused", ahead).await;
    let spoil = "UPDATE {s}periodic_job SET schedule = 'a later form' WHERE name = 'strange'";
    w.store.execute(spoil).await;
    let before = w.store.periodic_jobs().await.unwrap();

    assert_eq!(w.store.revise_periodic_jobs(10).await.unwrap(), ["ahead"]);
    let after = view(w, "ahead").await;
    assert_eq!(after.last_due, None);
    let next = after.next_due.unwrap();
    // The test may run at midnight.
    assert!(next == first || next == first + chrono::Duration::days(1));
    assert!(w.store.revise_periodic_jobs(10).await.unwrap().is_empty());
    let others = w.store.periodic_jobs().await.unwrap();
    assert_eq!(others[1..], before[1..]);
}

/// Another program may have written any date.
pub(super) async fn a_date_that_no_program_can_read_stops_no_other<S: SqlBench>(w: &World<S>) {
    let jobs = ["a", "b"].map(|name| periodic(name, "R/PT1H"));
    w.store.declare_periodic_jobs(&jobs).await.unwrap();
    let (dates, written) = match w.store.name() {
        "sqlite" => (
            ["9223372036854775807", "-9223372036854775808"],
            "9223372036854775807",
        ),
        _ => (
            ["timestamptz '262142-12-31'", "timestamptz '0001-01-01'"],
            "timestamptz '294276-01-01'",
        ),
    };
    let leader = node();
    for date in dates {
        let sql = format!(
            "UPDATE {{s}}periodic_job SET next_due = {date}, created_at = {written}, changed_at = {written}
             WHERE name = 'a'"
        );
        assert_eq!(w.store.execute(&sql).await, 1);
        set_due(w, "b", Utc::now() - chrono::Duration::minutes(5)).await;
        let declared = w.store.declare_periodic_jobs(&jobs).await.unwrap();
        assert_eq!(declared, [Declared::Same, Declared::Same]);
        assert!(w.lead(leader).await.next_periodic.is_some());
        assert!(due_names(w).await.contains(&"b".to_owned()));
        assert!(w.store.fire_periodic_job("b").await.unwrap().advanced);
        assert_eq!(w.store.periodic_jobs().await.unwrap().len(), 2);
    }
    // A date long ago is one that was missed.
    assert!(w.store.fire_periodic_job("a").await.unwrap().advanced);
    assert!(view(w, "a").await.next_due.unwrap() > Utc::now());

    let sql = format!(
        "INSERT INTO {{s}}suspension (scope, value, since) VALUES ('type', 'other', {written})"
    );
    w.store.execute(&sql).await;
    assert_eq!(w.store.suspensions().await.unwrap().len(), 1);
}

/// Morocco sets its clocks back on 15 February 2026 and ahead on 22 March: 02:30 occurs twice, and
/// is skipped. The first dates are 02:00 and 01:30 UTC, 02:30 of the 14th on its clocks. Leaders die at random
/// moments of their transactions, and two of them may live at once.
pub(super) async fn over_two_changes_of_the_clock_and_killed_leaders_each_date_has_one_job<
    S: SqlBench,
>(
    w: &World<S>,
) {
    let (from, end) = ("2026-02-14T02:00:00Z", "2026-03-24T00:00:00Z");
    let suffix = "[Africa/Casablanca][catch-up=all]";
    let jobs = [
        periodic("nightly", &format!("R/cron(30 2 * * *)/{end}{suffix}")),
        periodic("often", &format!("R/cron(*/30 * * * *)/{end}{suffix}")),
        periodic(
            "daily",
            &format!("R/2026-02-01T02:30:00+01:00/P1D/{end}{suffix}"),
        ),
    ];
    w.store.declare_periodic_jobs(&jobs).await.unwrap();
    let (from, end): (DateTime<Utc>, DateTime<Utc>) = (from.parse().unwrap(), end.parse().unwrap());
    for (name, first) in [
        ("often", from),
        ("nightly", from - chrono::Duration::minutes(30)),
        ("daily", from - chrono::Duration::minutes(30)),
    ] {
        set_due(w, name, first).await;
    }
    let mut random = StdRng::seed_from_u64(46);
    let mut killed = 0;
    // How long the last transaction that created jobs took.
    let mut took = Duration::from_millis(20);
    loop {
        let due = due_names(w).await;
        if due.is_empty() {
            break;
        }
        let mut leaders = Vec::new();
        for name in due.iter().cycle().take(4) {
            let (store, name) = (w.store.clone(), name.clone());
            let fires = async move {
                let began = Instant::now();
                let fired = store.fire_periodic_job(&name).await;
                (fired, began.elapsed())
            };
            // Some live, or a slow machine would get no further.
            let lives = random.random_bool(0.3);
            let patience = if lives {
                Duration::from_secs(300)
            } else {
                took.mul_f64(random.random())
            };
            leaders.push(tokio::spawn(tokio::time::timeout(patience, fires)));
        }
        for leader in leaders {
            match leader.await.unwrap() {
                Ok((Ok(fired), elapsed)) if fired.advanced => took = elapsed,
                Ok(_) => {}
                Err(_) => killed += 1,
            }
        }
    }
    // Twenty transactions create all jobs, and most of the leaders that begin one die.
    assert!(killed >= 10, "only {killed} leaders died");
    let mut dates: Vec<DateTime<Utc>> = Vec::new();
    let filter = JobQuery::default().limit(10_000);
    for job in w.store.find(&filter).await.unwrap() {
        dates.push(job.due_at.unwrap());
    }
    let mut expected = Vec::new();
    let mut often = from;
    while often <= end {
        expected.push(often);
        often += chrono::Duration::minutes(30);
    }
    let zone = Tz::Africa__Casablanca;
    let days: BTreeSet<_> = expected
        .iter()
        .map(|at| at.with_timezone(&zone).date_naive())
        .collect();
    for day in &days {
        let local = day.and_hms_opt(2, 30, 0).unwrap();
        let night = local.and_local_timezone(zone).earliest();
        // What the clock skips: cron runs it after the gap, a calendar day by the old offset.
        let cron = night.unwrap_or_else(|| {
            let after = day.and_hms_opt(3, 0, 0).unwrap();
            after.and_local_timezone(zone).unwrap()
        });
        let calendar = night.unwrap_or_else(|| {
            let moved = day.and_hms_opt(3, 30, 0).unwrap();
            moved.and_local_timezone(zone).unwrap()
        });
        expected.extend([cron, calendar].map(|at| at.with_timezone(&Utc)));
    }
    expected.retain(|at| *at <= end);
    expected.sort_unstable();
    dates.sort_unstable();
    assert!(days.len() > 35 && dates.len() > 1_800);
    assert_eq!(dates, expected);
}

/// The leader's cycles are rare, so only the task itself finds the next date in time. Older schedules that
/// can't be read stay due meanwhile.
pub(super) async fn each_second_of_a_schedule_has_its_job<S: SqlBench>(w: &World<S>) {
    const SECONDS: usize = 4;
    const LONG: Duration = Duration::from_secs(30);
    let bed = Bed::new(w);
    let job = NewJob::of("note", "tick").max_attempts(1);
    let every_second = [PeriodicJob::new("tick", "R/PT1S", job)];
    w.store.declare_periodic_jobs(&every_second).await.unwrap();
    let options = quick().sweep_interval(LONG);
    let node = bed.node(options).handler("note", noting(&bed.notes));
    let node = node.start().await.unwrap();
    let ticks = async |more: usize| {
        let wanted = bed.notes.all().len() + more;
        let within = LONG - Duration::from_secs(5);
        eventually("a job of each second", within, async || {
            (bed.notes.all().len() >= wanted).then_some(())
        })
        .await;
    };
    ticks(SECONDS).await;
    let (old, new) = (date(w, DateTime::UNIX_EPOCH), date(w, Utc::now()));
    let unreadable = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
         INSERT INTO {{s}}periodic_job (name, version, schedule, template, next_due, created_at, changed_at)
         SELECT 'unread-' || i, 0, 'garbage', '{{}}', {old}, {new}, {new} FROM n"
    );
    assert_eq!(w.store.execute(&unreadable).await, 3_000);
    ticks(2 * SECONDS).await;
    node.stop().await;
}

/// Refuses the jobs of a type with the error of a full disk, as a trigger of the application may do.
pub(super) async fn refuse_as_if_the_disk_were_full(w: &World<PgStore>, condition: &str) {
    let function =
        "CREATE OR REPLACE FUNCTION public.full_disk() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$";
    w.store.execute(function).await;
    let trigger = format!(
        "CREATE TRIGGER full_disk BEFORE INSERT ON jobwire.job FOR EACH ROW WHEN ({condition})
         EXECUTE FUNCTION public.full_disk()"
    );
    w.store.execute(&trigger).await;
}

/// More of them are due than are read at once.
#[tokio::test]
async fn an_error_of_a_full_disk_that_is_one_schedules_own_stops_no_other() {
    const TICKS: usize = 4;
    let w = World::<PgStore>::open().await;
    let bed = Bed::new(&w);
    let note = |text: &str| NewJob::of("note", text).max_attempts(1);
    let mut jobs: Vec<PeriodicJob> = (0..150)
        .map(|n| PeriodicJob::new(format!("full-{n}"), "R/PT1H", NewJob::of("full", &n)))
        .collect();
    jobs.push(PeriodicJob::new("tick", "R/PT1S", note("tick")));
    w.store.declare_periodic_jobs(&jobs).await.unwrap();
    let past =
        "UPDATE {s}periodic_job SET next_due = now() - interval '1 hour' WHERE name LIKE 'full-%'";
    assert_eq!(w.store.execute(past).await, 150);
    refuse_as_if_the_disk_were_full(&w, "NEW.type = 'full'").await;
    let node = bed.node(quick()).handler("note", noting(&bed.notes));
    let node = node.start().await.unwrap();
    eventually("a job of each second", SOON, async || {
        (bed.notes.all().len() >= TICKS).then_some(())
    })
    .await;
    let view = view(&w, "full-1").await;
    assert_eq!(view.last_due, None, "it stays due");
    node.stop().await;
}

/// The disk is full for all. No schedule waits for its next try then.
#[tokio::test]
async fn schedules_go_on_at_once_when_a_full_disk_has_room_again() {
    let w = World::<PgStore>::open().await;
    let bed = Bed::new(&w);
    let jobs =
        ["a", "b", "c"].map(|name| PeriodicJob::new(name, "R/PT1S", NewJob::of("note", name)));
    w.store.declare_periodic_jobs(&jobs).await.unwrap();
    refuse_as_if_the_disk_were_full(&w, "true").await;
    let node = bed.node(quick()).handler("note", noting(&bed.notes));
    let node = node.start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(bed.notes.all().is_empty());
    w.store
        .execute("DROP TRIGGER full_disk ON jobwire.job")
        .await;
    // The pause of the task is five seconds at most, and the first wait of a schedule ten.
    eventually("a job of each", Duration::from_secs(7), async || {
        let notes = bed.notes.all();
        let all = ["a", "b", "c"]
            .iter()
            .all(|name| notes.iter().any(|note| note == name));
        all.then_some(())
    })
    .await;
    node.stop().await;
}
