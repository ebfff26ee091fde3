//! `jobwire periodic`, and the periodic jobs of `jobwire run`.

use std::time::Instant;

use jobwire_core::{JobState, Store};
use jobwire_tests::{Scratch, eventually, http};
use serde_json::Value;

use super::home::{Base, Home};
use super::{SOON, all, execute, fails, jobwire, start, store, succeeds};

const FILE: &str = r#"
[[periodic]]
name = "clean-up"
schedule = "0 2 * * *[Europe/Berlin]"
version = 2
job = { type = "noop", payload = { keep = 30 }, priority = 4 }
"#;

pub(super) async fn periodic_jobs_are_declared_and_operated<S: Base>(home: &Home<S>) {
    let file = home.write("periodic.toml", FILE);
    let file = file.display().to_string();
    let periodic = |arguments: &[&str]| jobwire(home, &[&["periodic"], arguments].concat());
    let said = succeeds(periodic(&["declare", &file, "--check"])).await;
    assert!(said.contains("1 periodic job, all valid"), "{said}");
    // The same answer as that of the declaration: no program knows this calendar.
    let odd = FILE.replace("[Europe/Berlin]", "[Europe/Berlin][calendar=nope]");
    let odd = home.write("odd.toml", odd).display().to_string();
    for arguments in [&["declare", &odd, "--check"][..], &["declare", &odd]] {
        let said = fails(periodic(arguments), 1).await;
        assert!(
            said.contains("`clean-up`") && said.contains("`nope`"),
            "{said}"
        );
    }
    let said = succeeds(periodic(&["list"])).await;
    assert!(said.contains("no periodic jobs"), "{said}");
    for told in ["`clean-up` is created", "`clean-up` is as declared"] {
        let said = succeeds(periodic(&["declare", &file])).await;
        assert!(said.contains(told), "{said}");
    }
    let old = home.write("old.toml", FILE.replace("version = 2", "version = 1"));
    let said = succeeds(periodic(&["declare", &old.display().to_string()])).await;
    assert!(said.contains("larger version"), "{said}");
    let said = succeeds(periodic(&["pause", "clean-up"])).await;
    assert!(said.contains("`clean-up` is paused"), "{said}");

    let said = succeeds(periodic(&["list", "--json"]).env("JOBWIRE_LOG", "off")).await;
    let listed: Value = serde_json::from_str(&said).unwrap();
    let one = &listed[0];
    assert_eq!(one["name"], "clean-up");
    assert_eq!(one["schedule"], "0 2 * * *[Europe/Berlin]");
    assert_eq!((&one["paused"], &one["version"]), (&true.into(), &2.into()));
    assert_eq!(one["job"]["payload"]["keep"], 30);
    succeeds(periodic(&["resume", "clean-up"])).await;
    let said = succeeds(periodic(&["list"])).await;
    assert!(
        said.contains("active") && said.contains(":00:00Z"),
        "{said}"
    );

    let said = succeeds(periodic(&["run", "clean-up"])).await;
    let jobs = all(&home.store).await;
    assert_eq!(jobs.len(), 1);
    assert!(said.contains(&jobs[0].id.to_string()), "{said}");
    assert_eq!((jobs[0].state, jobs[0].priority), (JobState::Executable, 4));
    let said = succeeds(periodic(&["remove", "clean-up"])).await;
    assert!(said.contains("`clean-up` is removed"), "{said}");
    for action in ["pause", "resume", "run", "remove"] {
        let said = fails(periodic(&[action, "clean-up"]), 1).await;
        assert!(said.contains("no periodic job `clean-up`"), "{said}");
    }
}

pub(super) async fn a_node_declares_its_file_and_runs_each_date<S: Base>(home: &Home<S>) {
    let file = home.write("periodic.toml", FILE.replace("0 2 * * *", "* * * * * *"));
    let file = file.display().to_string();
    let arguments = ["run", "--http", "127.0.0.1:0", "--periodic-jobs", &file];
    let (_node, address) = start(jobwire(home, &arguments)).await;
    eventually("two jobs to be done", SOON, || async {
        let metrics = http::get(&address, "/metrics").await.ok()?;
        let done = metrics.body.lines().find_map(|line| {
            line.strip_prefix(r#"jobwire_jobs_finished_total{type="noop",outcome="done"} "#)
        })?;
        (done.parse::<f64>().ok()? >= 2.0).then_some(())
    })
    .await;
    let kept = home.store.periodic_jobs().await.unwrap();
    assert!(kept[0].last_due.is_some(), "{kept:?}");

    let bad = home.write("bad.toml", FILE.replace("0 2 * * *", "0 2 * *"));
    let bad = bad.display().to_string();
    let said = fails(jobwire(home, &["run", "--periodic-jobs", &bad]), 1).await;
    assert!(
        said.contains("`schedule`") && said.contains("bad.toml"),
        "{said}"
    );
}

/// The row of each is as old as can be, and there are more than the leader reads at a time.
pub(super) async fn schedules_that_can_not_be_created_hold_up_no_other<S: Base>(home: &Home<S>) {
    let file = home.write("periodic.toml", FILE.replace("0 2 * * *", "* * * * * *"));
    let file = file.display().to_string();
    let store = &home.store;
    let put = |name: &str, schedule: &str, of: &str, number: u32| {
        format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {number})
             INSERT INTO {{s}}periodic_job (name, version, schedule, template, next_due, created_at, changed_at)
             SELECT '{name}-' || i, 0, '{schedule}', '{{\"type\":\"{of}\"}}', {{past}}, {{past}}, {{past}} FROM n"
        )
    };
    store
        .execute(&put("unread", "garbage", "noop", 1_100))
        .await;
    store
        .execute(&put("undated", "R/PT1H[calendar=nowhere]", "noop", 1_100))
        .await;
    store.execute(&put("barred", "R/PT1H", "barred", 250)).await;
    let is_barred = "NEW.type = 'barred'";
    store.refuse("INSERT", "job", is_barred, "barred").await;
    let arguments = ["run", "--http", "127.0.0.1:0", "--periodic-jobs", &file];
    let (node, address) = start(jobwire(home, &arguments)).await;
    let of = async |name: &str| {
        let all = store.periodic_jobs().await.unwrap();
        all.into_iter().find(|view| view.name == name).unwrap()
    };
    eventually("a job of the honest schedule", SOON, || async {
        of("clean-up").await.last_due.map(drop)
    })
    .await;
    // All that can't be created stay due. Few lines tell of all.
    let all = store.periodic_jobs().await.unwrap();
    let due = all.iter().filter(|view| view.next_due == all[0].next_due);
    assert_eq!((due.count(), all.len()), (2_450, 2_451));
    let lines = node.lines().all();
    let told = lines
        .iter()
        .filter(|line| line.contains("can't be created"));
    assert!((1..10).contains(&told.count()), "{lines:?}");
    // A pass that created no job at all does not tell of these: the database might be the reason.
    eventually("the barred schedules to be named", SOON, || async {
        let alive = http::get(&address, "/healthz").await.ok()?;
        let ready = http::get(&address, "/readyz").await.ok()?;
        (alive.body.contains("periodic job barred-") && ready.body.contains("barred-"))
            .then_some(())
    })
    .await;
    let said = succeeds(jobwire(home, &["periodic", "list"])).await;
    assert!(said.contains("faulty"), "{said}");
    assert!(
        said.contains("periodic job `unread-1` creates no jobs"),
        "{said}"
    );
    let said = succeeds(jobwire(home, &["doctor"])).await;
    assert!(
        said.contains("1100 periodic jobs create no jobs, first `unread-"),
        "{said}"
    );
    assert!(said.contains("for the calendar `nowhere`"), "{said}");
}

#[tokio::test]
async fn missed_dates_are_caught_up_in_slices() {
    let home = Scratch::new();
    let file = home.write("periodic.toml", FILE.replace("0 2 * * *", "* * * * * *"));
    let file = file.display().to_string();
    succeeds(jobwire(&home, &["migrate", "up"])).await;
    let store = store(&home).await;
    let put = "INSERT INTO periodic_job (name, version, schedule, template, next_due, created_at, changed_at)
         VALUES ('old', 0, 'R/PT1S[catch-up=all]', '{\"type\":\"noop\"}', 1577836800000000, 1, 1)";
    execute(&store, put).await;
    let arguments = ["run", "--http", "127.0.0.1:0", "--periodic-jobs", &file];
    let started = Instant::now();
    let (node, _) = start(jobwire(&home, &arguments)).await;
    let due = async |name: &str| {
        let all = store.periodic_jobs().await.unwrap();
        let view = all.into_iter().find(|view| view.name == name).unwrap();
        (view.next_due.unwrap(), view.last_due)
    };
    let first = eventually("a date", SOON, || async { due("clean-up").await.1 }).await;
    // Five seconds later: one slice, or two if a cycle has begun.
    eventually("more dates", SOON, || async {
        let last = due("clean-up").await.1?;
        (last >= first + chrono::Duration::seconds(5)).then_some(())
    })
    .await;
    let slices = (due("old").await.0.timestamp() - 1_577_836_800) / 100;
    // The leader makes one in ten seconds.
    let at_most = 2 + i64::try_from(started.elapsed().as_secs() / 10).unwrap();
    assert!((1..=at_most).contains(&slices), "{slices}");
    let line = node.wait_for_line("many missed dates", SOON).await;
    assert!(line.contains("missed=") && line.contains("old"), "{line}");
    // The next slice follows.
    eventually("the next slice", SOON, || async {
        let now = (due("old").await.0.timestamp() - 1_577_836_800) / 100;
        (now > slices).then_some(())
    })
    .await;
}

const CALENDARS: &str = r#"
[[calendar]]
name = "office"
time_zone = "Europe/Berlin"
hours = { Mon = "09:00-17:00" }
"#;

pub(super) async fn jobs_are_due_in_the_working_time_of_a_file<S: Base>(home: &Home<S>) {
    let calendars = home.write("calendars.toml", CALENDARS);
    let calendars = calendars.display().to_string();
    let lines = home.write(
        "jobs.jsonl",
        "{\"type\":\"noop\",\"due_in\":\"PT8H[calendar=office]\"}\n\
         {\"type\":\"noop\",\"repeat\":\"0 3 * * *[Europe/Berlin][calendar=office]\"}\n",
    );
    let lines = lines.display().to_string();
    let enqueue = |more: &[&str]| jobwire(home, &[&["enqueue", &lines], more].concat());
    let said = fails(enqueue(&[]), 1).await;
    assert!(
        said.contains("`due_in`") && said.contains("`office`"),
        "{said}"
    );
    succeeds(enqueue(&["--calendars", &calendars])).await;
    let mut dates = Vec::new();
    for job in all(&home.store).await {
        let due = job
            .due_at
            .unwrap()
            .with_timezone(&jobwire_core::chrono_tz::Europe::Berlin);
        dates.push(due.format("%a %H:%M").to_string());
    }
    dates.sort_unstable();
    // Eight hours from now end at the end of a Monday, unless it is a Monday now.
    assert!(
        dates.iter().all(|date| date.starts_with("Mon ")),
        "{dates:?}"
    );
    assert!(dates.contains(&"Mon 09:00".to_owned()), "{dates:?}");

    let bad = home.write("bad.toml", CALENDARS.replace("09:00-17:00", "9-17"));
    let bad = bad.display().to_string();
    let said = fails(enqueue(&["--calendars", &bad]), 1).await;
    assert!(said.contains("calendar 1: field `hours`"), "{said}");
}
