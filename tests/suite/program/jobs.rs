//! `jobwire jobs`.

use std::time::Duration;

use jobwire_core::{Client, JobState, NewJob, Store};
use jobwire_tests::{Program, Scratch, eventually, shared};
use serde_json::{Value, json};

use super::home::{Base, Home, Place};
use super::{SOON, all, fails, jobwire, lines, start, succeeds};
use crate::fleet::Fleet;
use crate::world::migrated;

async fn json(home: &impl Place, arguments: &[&str]) -> Value {
    // The harness captures both streams, and a warning about a slow statement is not part of the
    // answer.
    let said = succeeds(jobwire(home, arguments).env("JOBWIRE_LOG", "off")).await;
    serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"))
}

async fn one_job<S: Base>(home: &Home<S>, line: &str) -> String {
    let file = lines(home, line, 1);
    succeeds(jobwire(home, &["enqueue", &file])).await;
    let jobs = all(&home.store).await;
    jobs.last().unwrap().id.to_string()
}

pub(super) async fn a_job_that_waits_for_a_permit_is_shown_with_its_limit<S: Base>(home: &Home<S>) {
    let free = one_job(home, r#"{"type":"noop"}"#).await;
    let waits = one_job(home, r#"{"type":"noop","tenant":"acme"}"#).await;
    let key = "INSERT INTO {s}permit_key (limit_name, key, size, used_at) VALUES ('mail', 'acme', 1, {now})";
    let job = format!(
        "INSERT INTO {{s}}waiting_job (job_id, limit_name, key, type, seq) VALUES ('{waits}', 'mail', 'acme', 'noop', 1)"
    );
    for statement in [key, &job, "UPDATE {s}job SET hints = 1"] {
        home.store.execute(statement).await;
    }
    let said = succeeds(jobwire(home, &["jobs", "list"])).await;
    let line = |id: &str| said.lines().find(|line| line.contains(id)).unwrap();
    assert!(
        line(&waits).contains("waits for limit mail, key acme"),
        "{said}"
    );
    assert!(!line(&free).contains("limit"), "{said}");
    let list = json(home, &["jobs", "list", "--json", "--id", &waits]).await;
    assert_eq!(list[0]["waits_for_permit"]["key"], "acme", "{list}");
    let shown = succeeds(jobwire(home, &["jobs", "show", &waits])).await;
    assert!(
        shown.contains("waits_for_permit") && shown.contains("acme"),
        "{shown}"
    );
    let swept = json(home, &["sweep", "--dry-run", "--json"]).await;
    assert_eq!(
        (&swept["waiting"], &swept["ready"]),
        (&json!(1), &json!(1)),
        "{swept}"
    );
}

pub(super) async fn jobs_are_listed_by_filter_and_page<S: Base>(home: &Home<S>) {
    for line in [
        r#"{"type":"noop","process_instance":"one","tenant":"a","execution":"e2","process_definition":"fee:2:x","custom_values":{"order":17}}"#,
        r#"{"type":"noop","process_instance":"two","lane":"bulk","execution":"e1","process_definition":"fee-pay:1:y","priority":-7}"#,
        r#"{"type":"sleep","due_at":"2091-01-01T00:00:00Z"}"#,
    ] {
        one_job(home, line).await;
    }
    for (filter, expected) in [
        (&["--type", "noop"][..], 2),
        (&["--process-instance", "one"], 1),
        (
            &["--process-instance", "one", "--process-instance", "two"],
            2,
        ),
        (&["--tenant", "a"], 1),
        (&["--lane", "bulk"], 1),
        (&["--state", "timer"], 1),
        (&["--state", "timer,executable"], 3),
        (&["--due-before", "2092-01-01T00:00:00Z"], 1),
        (&["--locked"], 0),
        (&["--locked", "false"], 3),
        (&["--with-exception"], 0),
        (&["--limit", "2"], 2),
        (&["--offset", "2"], 1),
        (&["--type", "none"], 0),
        (&["--type", "noop", "--type", "sleep"], 3),
        (&["--tenant-like", "_", "--retries-left"], 1),
        (&["--without-tenant", "--kind", "timer"], 1),
        (&["--custom-values", r#"{"order":17}"#], 1),
        (&["--priority-at-most", "-7", "--executable"], 1),
        (&["--priority-other-than", "-7"], 2),
        (
            &[
                "--any-of",
                r#"{"texts":[["lane",{"one_of":["bulk"]}]]}"#,
                "--any-of",
                r#"{"states":["timer"]}"#,
            ],
            2,
        ),
        (
            &["--type", "noop", "--any-of", r#"{"states":["timer"]}"#],
            0,
        ),
    ] {
        let arguments = [&["jobs", "list", "--json"], filter].concat();
        let found = json(home, &arguments).await;
        assert_eq!(
            found.as_array().map(Vec::len),
            Some(expected),
            "{filter:?}: {found}"
        );
    }
    let said = succeeds(jobwire(home, &["jobs", "list", "--limit", "2"])).await;
    assert!(said.contains("2 of 3 jobs"), "{said}");
    let (_, cursor) = said.trim_end().rsplit_once("--after ").unwrap();
    let rest = ["jobs", "list", "--after", cursor];
    let said = succeeds(jobwire(home, &[&rest[..], &["--limit", "2"]].concat())).await;
    assert!(
        said.contains("1 of 3 jobs; this is the last page"),
        "{said}"
    );
    let rest = json(home, &[&rest[..], &["--json"]].concat()).await;
    assert_eq!(
        (rest.as_array().map(Vec::len), &rest[0]["type"]),
        (Some(1), &"sleep".into())
    );
    let sorted = ["jobs", "list", "--sort", "priority", "--json"];
    let sorted = json(home, &sorted).await;
    assert_eq!(
        (&sorted[0]["priority"], sorted[0]["cursor"].is_string()),
        (&(-7).into(), true)
    );
    let sorted = ["jobs", "list", "--sort", "execution", "--json"];
    let sorted = json(home, &sorted).await;
    let executions: Vec<&Value> = (0..3_usize).map(|at| &sorted[at]["execution"]).collect();
    assert_eq!(executions, [&json!("e1"), &json!("e2"), &Value::Null]);
    // As texts, the definitions have the opposite order.
    let sorted = ["jobs", "list", "--sort", "definition-key", "--json"];
    let sorted = json(home, &sorted).await;
    let executions: Vec<&Value> = (0..3_usize).map(|at| &sorted[at]["execution"]).collect();
    assert_eq!(executions, [&json!("e2"), &json!("e1"), &Value::Null]);
    let cursor_of_first = sorted[0]["cursor"].as_str().unwrap();
    let behind = ["jobs", "list", "--sort", "definition-key", "--after"];
    let behind = [&behind[..], &[cursor_of_first, "--json"]].concat();
    let behind = json(home, &behind).await;
    assert_eq!(behind[0]["execution"], "e1");
    let said = succeeds(jobwire(home, &["jobs", "count", "--limit", "2"])).await;
    assert_eq!(said.trim(), "more than 2 jobs");
    let counted = json(home, &["jobs", "count", "--type", "noop", "--json"]).await;
    assert_eq!(
        (&counted["jobs"], &counted["more"]),
        (&2.into(), &false.into())
    );
    let said = fails(jobwire(home, &["jobs", "list", "--after", "next"]), 2).await;
    assert!(said.contains("not a cursor"), "{said}");
    let other_order = ["jobs", "list", "--after", cursor, "--sort", "due"];
    let said = fails(jobwire(home, &other_order), 1).await;
    assert!(said.contains("sorted by `due`"), "{said}");
    fails(jobwire(home, &["jobs", "list", "--state", "lost"]), 2).await;
    fails(jobwire(home, &["jobs", "show", "not-an-id"]), 2).await;
}

pub(super) async fn one_job_is_shown_executed_retried_and_deleted<S: Base>(home: &Home<S>) {
    // This job can only fail for good.
    let id = one_job(
        home,
        r#"{"type":"http","payload":{"url":"ftp://example.org/"}}"#,
    )
    .await;
    let shown = json(home, &["jobs", "show", &id, "--json"]).await;
    assert_eq!(shown["payload"]["url"], "ftp://example.org/");
    assert_eq!(shown["state"], "executable");

    let said = fails(jobwire(home, &["jobs", "execute", &id]), 1).await;
    assert!(
        said.contains("became a dead letter") && said.contains("scheme"),
        "{said}"
    );
    let said = succeeds(jobwire(home, &["jobs", "show", &id])).await;
    assert!(said.contains("dead-letter"), "{said}");
    let attempt = format!(
        "INSERT INTO {{s}}attempt (fence, job_id, type, node, started_at, ended_at, outcome, keep_until)
         VALUES (7, '{id}', 'http', '{id}', {{past}}, {{now}}, 'dead-letter', {{now}} + 3600 * {{second}})"
    );
    home.store.execute(&attempt).await;
    let shown = json(home, &["jobs", "show", &id, "--history", "--json"]).await;
    let history = &shown["history"];
    assert_eq!(history["attempts"][0]["outcome"], "dead-letter", "{shown}");
    assert_eq!(
        history["incidents"][0]["resolution"],
        Value::Null,
        "{shown}"
    );
    let said = succeeds(jobwire(home, &["jobs", "show", &id, "--history"])).await;
    assert!(
        said.contains("outcome") && said.contains("resolved"),
        "{said}"
    );
    let said = fails(jobwire(home, &["jobs", "execute", &id]), 1).await;
    assert!(said.contains("jobwire jobs retry"), "{said}");

    let said = succeeds(jobwire(home, &["jobs", "retry", &id, "--retries", "5"])).await;
    assert!(said.contains("1 job made executable"), "{said}");
    let jobs = all(&home.store).await;
    assert_eq!((jobs[0].state, jobs[0].retries), (JobState::Executable, 5));

    succeeds(jobwire(home, &["jobs", "delete", &id])).await;
    for action in ["delete", "retry", "show", "execute"] {
        let said = fails(jobwire(home, &["jobs", action, &id]), 1).await;
        assert!(said.contains("there is no job"), "{action}: {said}");
    }
}

pub(super) async fn execute_runs_a_job_and_a_timer_before_its_time<S: Base>(home: &Home<S>) {
    let id = one_job(home, r#"{"type":"noop"}"#).await;
    let said = succeeds(jobwire(home, &["jobs", "execute", &id])).await;
    assert!(said.contains("is done"), "{said}");
    let id = one_job(home, r#"{"type":"noop","due_at":"2091-01-01T00:00:00Z"}"#).await;
    let outcome = json(home, &["jobs", "execute", &id, "--json"]).await;
    assert_eq!(outcome["outcome"], "done");
    let id = one_job(home, r#"{"type":"mine"}"#).await;
    let said = fails(jobwire(home, &["jobs", "execute", &id]), 1).await;
    assert!(said.contains("no handler for the type `mine`"), "{said}");
    assert_eq!(all(&home.store).await.len(), 1);
}

pub(super) async fn execute_leaves_an_instance_to_its_turn<S: Base>(home: &Home<S>) {
    let first = one_job(home, r#"{"type":"noop","process_instance":"one"}"#).await;
    let second = one_job(home, r#"{"type":"noop","process_instance":"one"}"#).await;
    let said = fails(jobwire(home, &["jobs", "execute", &second]), 1).await;
    assert!(
        said.contains(&format!("{first} of the same process instance comes first")),
        "{said}"
    );
    let jobs = all(&home.store).await;
    assert!(jobs.iter().all(|j| j.lock_owner.is_none()), "{jobs:?}");
    succeeds(jobwire(home, &["jobs", "execute", &first])).await;
    // Only the requested job ran; the next one of its instance was not locked with it.
    assert_eq!(all(&home.store).await.len(), 1);
    succeeds(jobwire(home, &["jobs", "execute", &second])).await;
}

pub(super) async fn all_that_match_are_retried_or_deleted<S: Base>(home: &Home<S>) {
    let file = lines(home, r#"{"type":"http","payload":7}"#, 3);
    succeeds(jobwire(home, &["enqueue", &file])).await;
    let store = &home.store;
    for job in all(store).await {
        fails(jobwire(home, &["jobs", "execute", &job.id.to_string()]), 1).await;
    }
    let said = succeeds(jobwire(
        home,
        &["jobs", "retry", "--all", "--state", "dead-letter"],
    ))
    .await;
    assert!(said.contains("3 jobs made executable"), "{said}");
    for action in ["delete", "cancel"] {
        let all_of_type = ["jobs", action, "--all", "--type", "http"];
        let said = fails(jobwire(home, &all_of_type), 2).await;
        assert!(
            said.contains("3 jobs match") && said.contains("--yes"),
            "{said}"
        );
    }
    succeeds(jobwire(
        home,
        &["jobs", "delete", "--all", "--type", "http", "--yes"],
    ))
    .await;
    assert_eq!(
        store
            .count(&jobwire_core::JobQuery::default())
            .await
            .unwrap(),
        0
    );
    fails(jobwire(home, &["jobs", "retry"]), 2).await;
}

/// One transaction for each job would take 900 round trips and commits.
#[tokio::test]
async fn many_jobs_are_retried_in_few_transactions() {
    let database = shared::postgres().await.create_database().await;
    let store = migrated(&database).await;
    let late = || NewJob::of("http", &()).delay(Duration::from_secs(86_400));
    let jobs = Client::without_hints(store.clone());
    jobs.create_many((0..900).map(|_| late()).collect())
        .await
        .unwrap();
    let retry = ["jobs", "retry", "--all", "--state", "timer"];
    let line = |more: &[&str]| {
        Program::jobwire()
            .args([&retry[..], more].concat())
            .env("JOBWIRE_DATABASE_URL", &database)
            .env("JOBWIRE_BROKER_URL", "none")
    };
    let said = fails(line(&[]), 2).await;
    assert!(
        said.contains("900 jobs (900 timer) match") && said.contains("--yes"),
        "{said}"
    );
    let said = succeeds(line(&["--yes"])).await;
    assert!(said.contains("900 jobs made executable"), "{said}");
    let transactions: i64 =
        sqlx::query_scalar("SELECT count(DISTINCT xmin::text) FROM jobwire.job")
            .fetch_one(store.pool())
            .await
            .unwrap();
    assert!(transactions < 10, "{transactions}");
}

/// A trigger raises an error for one job. That job is named with the reason, and the others are
/// changed.
pub(super) async fn a_job_that_the_database_refuses_stops_no_other<S: Base>(home: &Home<S>) {
    let file = lines(home, r#"{"type":"http","payload":7}"#, 12);
    succeeds(jobwire(home, &["enqueue", &file])).await;
    let store = &home.store;
    let bad = all(store).await[7].id;
    let is_bad = format!("OLD.id = '{bad}'");
    store.refuse("DELETE", "job", &is_bad, "still needed").await;
    let delete = ["jobs", "delete", "--all", "--state", "executable", "--yes"];
    let said = fails(jobwire(home, &delete), 1).await;
    assert!(said.contains("11 jobs deleted"), "{said}");
    let told = format!("job {bad} was not changed: ");
    assert!(
        said.contains(&told) && said.contains("still needed"),
        "{said}"
    );
    let left: Vec<_> = all(store).await.iter().map(|job| job.id).collect();
    assert_eq!(left, [bad]);
}

#[tokio::test]
async fn cancelling_deletes_a_job_that_waits_and_one_that_runs() {
    let database = shared::postgres().await.create_database().await;
    let fleet = Fleet::new(database, shared::rabbitmq().await.space().await).await;
    let recorded = ("JOBWIRE_ATTEMPT_TYPES", "sleep");
    let node = fleet.node(&[recorded]).await;
    let sleeps = NewJob::of("sleep", &serde_json::json!({ "ms": 3_600_000 })).max_attempts(1);
    let later = NewJob::of("noop", &()).delay(Duration::from_secs(3_600));
    let ids = [sleeps.id(), later.id()];
    let mut tx = fleet.jobs.begin().await.unwrap();
    tx.create_many(vec![sleeps, later]).await.unwrap();
    tx.commit().await.unwrap();
    eventually("the job to run", SOON, async || {
        (fleet.leased().await == 1).then_some(())
    })
    .await;
    let [running, waiting] = ids.map(|id| id.to_string());
    let cancel = Program::jobwire()
        .args(["jobs", "cancel", &running, &waiting])
        .env("JOBWIRE_DATABASE_URL", &fleet.database)
        .env("JOBWIRE_BROKER_URL", &fleet.space.url)
        .env("JOBWIRE_AMQP_PREFIX", &fleet.space.prefix);
    let said = succeeds(cancel).await;
    assert!(said.contains("2 jobs deleted"), "{said}");
    for id in ids {
        assert!(fleet.store.get(id).await.unwrap().is_none());
    }
    // The message stops the handler before the next renewal tells its node of the cancel.
    let attempts = fleet.store.attempts(ids[0], 10).await.unwrap();
    let ends: Vec<_> = attempts.iter().map(|a| (&*a.outcome, &a.message)).collect();
    assert_eq!(ends, [("cancelled", &None::<String>)]);
    assert!(fleet.store.errors(None, 10).await.unwrap().is_empty());
    node.wait_for_line("cancelled by an operator", SOON).await;
    let said = node.lines().all().join("\n");
    for failure in ["the attempt failed", "the job failed"] {
        assert!(!said.contains(failure), "{said}");
    }
}

pub(super) async fn a_running_job_is_cancelled_where_no_broker_reaches_its_node<S: Base>(
    home: &Home<S>,
) {
    let id = one_job(home, r#"{"type":"sleep","payload":{"ms":3600000}}"#).await;
    let run = [
        "run",
        "--http",
        "127.0.0.1:0",
        "--lease",
        "3s",
        "--sweep-interval",
        "1s",
    ];
    let (_node, _) = start(jobwire(home, &run)).await;
    let store = &home.store;
    eventually("the job to run", SOON, async || {
        all(store).await[0].lock_owner.map(drop)
    })
    .await;
    let cancel = ["jobs", "cancel", "--all", "--id", &id, "--locked", "--yes"];
    let said = succeeds(jobwire(home, &cancel)).await;
    assert!(said.contains("1 job deleted"), "{said}");
    assert!(all(store).await.is_empty());
}

pub(super) async fn ids_beside_filters_are_refused<S: Base>(home: &Home<S>) {
    let id = one_job(home, r#"{"type":"noop"}"#).await;
    for action in ["delete", "retry", "cancel"] {
        let both = ["jobs", action, &id, "--type", "http"];
        let said = fails(jobwire(home, &both), 2).await;
        assert!(
            said.contains("ids") && said.contains("filters") && said.contains("not both"),
            "{action}: {said}"
        );
    }
    assert_eq!(all(&home.store).await.len(), 1);
}

pub(super) async fn retrying_all_means_dead_letters_unless_more_is_named_and_confirmed<S: Base>(
    home: &Home<S>,
) {
    let file = lines(home, r#"{"type":"http","payload":7}"#, 2);
    succeeds(jobwire(home, &["enqueue", &file])).await;
    let store = &home.store;
    for job in all(store).await {
        fails(jobwire(home, &["jobs", "execute", &job.id.to_string()]), 1).await;
    }
    let later = lines(
        home,
        r#"{"type":"noop","due_at":"2091-01-01T00:00:00Z"}"#,
        3,
    );
    succeeds(jobwire(home, &["enqueue", &later])).await;
    let states = async || {
        let mut states: Vec<JobState> = all(store).await.iter().map(|job| job.state).collect();
        states.sort_unstable_by_key(|state| state.as_str());
        states
    };
    let said = succeeds(jobwire(home, &["jobs", "retry", "--all"])).await;
    assert!(said.contains("2 jobs made executable"), "{said}");
    use JobState::{Executable, Timer};
    assert_eq!(
        states().await,
        [Executable, Executable, Timer, Timer, Timer]
    );
    let named = ["jobs", "retry", "--all", "--state", "timer,dead-letter"];
    let said = fails(jobwire(home, &named), 2).await;
    assert!(
        said.contains("3 jobs (3 timer)") && said.contains("--yes"),
        "{said}"
    );
    assert_eq!(
        states()
            .await
            .iter()
            .filter(|state| **state == Timer)
            .count(),
        3
    );
    let said = succeeds(jobwire(home, &[&named[..], &["--yes"]].concat())).await;
    assert!(said.contains("3 jobs made executable"), "{said}");
}

#[tokio::test]
async fn an_event_is_executed_once_the_tables_exist() {
    let home = Scratch::new();
    let url = shared::postgres().await.create_database().await;
    let program = |arguments: &[&str]| jobwire(&home, arguments).env("JOBWIRE_DATABASE_URL", &url);
    let said = fails(program(&["jobs", "list"]), 1).await;
    assert!(said.contains("jobwire migrate up"), "{said}");
    succeeds(program(&["migrate", "up"])).await;
    let file = lines(
        &home,
        r#"{"type":"event","process_instance":"p","element":"e","payload":{"position":1}}"#,
        1,
    );
    succeeds(program(&["enqueue", &file])).await;
    let said = succeeds(program(&["jobs", "list", "--json"]).env("JOBWIRE_LOG", "off")).await;
    let jobs: Value = serde_json::from_str(&said).unwrap();
    let id = jobs[0]["id"].as_str().unwrap();
    let said = succeeds(program(&["jobs", "execute", id])).await;
    assert!(said.contains("is done"), "{said}");
}

pub(super) async fn an_instance_and_start_timers_are_ended<S: Base>(home: &Home<S>) {
    for line in [
        r#"{"type":"noop","process_instance":"one"}"#,
        r#"{"type":"noop","process_instance":"one","due_at":"2091-01-01T00:00:00Z"}"#,
        r#"{"type":"noop","process_definition":"d","due_at":"2091-01-01T00:00:00Z"}"#,
        r#"{"type":"noop","process_definition":"d"}"#,
    ] {
        one_job(home, line).await;
    }
    let said = fails(jobwire(home, &["jobs", "end", "--instance", "one"]), 2).await;
    let list = "2 jobs would be deleted; check with `jobwire jobs list --instance one` first";
    assert!(said.contains(list) && said.contains("--yes"), "{said}");
    let timers = ["jobs", "end", "--start-timers", "d"];
    let said = fails(jobwire(home, &timers), 2).await;
    assert!(said.contains("1 job would be deleted"), "{said}");
    let end = ["jobs", "end", "--json", "--yes"];
    let ended = json(home, &[&end[..], &["--instance", "one"]].concat()).await;
    assert_eq!(ended["deleted"].as_array().map(Vec::len), Some(2));
    assert_eq!(all(&home.store).await.len(), 2);
    let said = succeeds(jobwire(
        home,
        &["jobs", "end", "--yes", "--start-timers", "d"],
    ))
    .await;
    assert!(said.contains("1 job deleted"), "{said}");
    let left = all(&home.store).await;
    assert_eq!((left.len(), left[0].state), (1, JobState::Executable));
}

/// The command prints the refused job. A log line beside it would say the same.
pub(super) async fn a_fault_of_a_job_is_told_once<S: Base>(home: &Home<S>) {
    let line = r#"{"type":"http","payload":7,"unique_key":"k"}"#;
    let id = one_job(home, line).await;
    fails(jobwire(home, &["jobs", "execute", &id]), 1).await;
    one_job(home, line).await;
    let said = fails(jobwire(home, &["jobs", "retry", &id]), 1).await;
    assert_eq!(said.matches("unique key").count(), 1, "{said}");
    assert!(!said.contains("WARN"), "{said}");
}

pub(super) async fn start_timers_are_replaced_by_those_of_a_file<S: Base>(home: &Home<S>) {
    for line in [
        r#"{"type":"noop","process_definition":"d","due_at":"2091-01-01T00:00:00Z"}"#,
        r#"{"type":"noop","process_definition":"d","process_instance":"i","due_at":"2091-01-01T00:00:00Z"}"#,
    ] {
        one_job(home, line).await;
    }
    let before = all(&home.store).await;
    let old = before.iter().find(|job| job.process_instance.is_none());
    let old = old.unwrap().id.to_string();
    let good = r#"{"type":"start","repeat":"R/2091-01-01T00:00:00Z/PT1H"}"#;
    let _ = home.write("timers.jsonl", format!("{good}\n{{\"type\":\"start\"}}\n"));
    let replace = [
        "jobs",
        "replace-timers",
        "--definition",
        "d",
        "timers.jsonl",
    ];
    let said = fails(jobwire(home, &replace), 2).await;
    let told = "1 start timer would be deleted, and those of the file created";
    assert!(said.contains(told) && said.contains("--yes"), "{said}");
    let replace = [&replace[..], &["--yes", "--json"]].concat();
    let said = fails(jobwire(home, &replace), 1).await;
    assert!(said.contains("timers.jsonl:2: field `due_at`"), "{said}");
    assert_eq!(all(&home.store).await.len(), 2, "nothing was changed");

    let _ = home.write("timers.jsonl", format!("{good}\n\n{good}\n"));
    let replaced = json(home, &replace).await;
    assert_eq!(replaced["deleted"], json!([old]));
    let after = all(&home.store).await;
    let new: Vec<_> = after.iter().filter(|job| job.job_type == "start").collect();
    assert_eq!((after.len(), new.len()), (3, 2));
    assert_eq!(new[0].process_definition.as_deref(), Some("d"));
    let mut ids: Vec<String> = new.iter().map(|job| job.id.to_string()).collect();
    ids.sort_unstable();
    let mut created: Vec<&str> = replaced["created"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(Value::as_str)
        .collect();
    created.sort_unstable();
    assert_eq!(created, ids);
    let _ = home.write("timers.jsonl", "\n");
    let said = fails(jobwire(home, &replace), 1).await;
    assert!(said.contains("jobwire jobs end --start-timers"), "{said}");
}

/// As after the deployment of a new version, whose id differs.
pub(super) async fn all_versions_of_a_definition_are_ended_and_their_start_timers_replaced<
    S: Base,
>(
    home: &Home<S>,
) {
    let due = r#""due_at":"2091-01-01T00:00:00Z""#;
    for line in [
        format!(
            r#"{{"type":"start","process_definition":"invoice:3:4711","tenant":"acme",{due}}}"#
        ),
        format!(
            r#"{{"type":"start","process_definition":"invoice:4:5120","tenant":"acme",{due}}}"#
        ),
        format!(r#"{{"type":"start","process_definition":"invoice:4:5121",{due}}}"#),
        r#"{"type":"noop","process_definition":"invoice:4:5120","tenant":"acme"}"#.to_owned(),
    ] {
        one_job(home, &line).await;
    }
    let new = r#"{"type":"new","process_definition":"invoice:5:6000","repeat":"R/PT1H"}"#;
    let _ = home.write("timers.jsonl", format!("{new}\n"));
    let acme = ["--definition-key", "invoice", "--tenant", "acme"];
    let replace = [&["jobs", "replace-timers", "timers.jsonl"], &acme[..]].concat();
    let said = fails(jobwire(home, &replace), 2).await;
    let told = "2 start timers would be deleted, and those of the file created; check with \
                `jobwire jobs list --definition-key invoice --tenant acme --without-instance --kind timer`";
    assert!(said.contains(told), "{said}");
    let replace = [&replace[..], &["--yes", "--json"]].concat();
    let replaced = json(home, &replace).await;
    assert_eq!(replaced["deleted"].as_array().map(Vec::len), Some(2));
    let jobs = all(&home.store).await;
    let new = jobs.iter().find(|job| job.job_type == "new").unwrap();
    assert_eq!(new.process_definition.as_deref(), Some("invoice:5:6000"));
    assert_eq!(new.tenant.as_deref(), Some("acme"));

    let _ = home.write("timers.jsonl", "{\"type\":\"new\",\"due_in\":\"PT1H\"}\n");
    let said = fails(jobwire(home, &replace), 1).await;
    assert!(
        said.contains("timers.jsonl:1: field `process_definition` is ``"),
        "{said}"
    );
    let both = [
        "jobs",
        "replace-timers",
        "--definition",
        "d",
        "--definition-key",
        "d",
    ];
    let said = fails(jobwire(home, &both), 2).await;
    assert!(said.contains("cannot be used with"), "{said}");

    let end = ["jobs", "end", "--json", "--yes"];
    let timers = ["--start-timers-of-key", "invoice", "--tenant", "acme"];
    let ended = json(home, &[&end[..], &timers].concat()).await;
    assert_eq!(ended["deleted"], replaced["created"]);
    let said = fails(jobwire(home, &[&["jobs", "end"], &acme[..]].concat()), 2).await;
    let list = "1 job would be deleted; check with `jobwire jobs list --definition-key invoice --tenant acme`";
    assert!(said.contains(list), "{said}");
    let ended = json(home, &[&end[..], &acme].concat()).await;
    assert_eq!(ended["deleted"].as_array().map(Vec::len), Some(1));
    let said = succeeds(jobwire(
        home,
        &[&["jobs", "end", "--yes"], &acme[..]].concat(),
    ))
    .await;
    let other = "remark: jobs of the key `invoice` without a tenant exist; leave --tenant out";
    assert!(
        said.contains("0 jobs deleted") && said.contains(other),
        "{said}"
    );
    let of_key = ["--definition-key", "invoice"];
    let ended = json(home, &[&end[..], &of_key].concat()).await;
    assert_eq!(ended["deleted"].as_array().map(Vec::len), Some(1));
    assert!(all(&home.store).await.is_empty());
    for wrong in [
        &["jobs", "end", "--tenant", "acme"][..],
        &["jobs", "end", "--instance", "i", "--tenant", "acme"],
        &[
            "jobs",
            "end",
            "--definition-key",
            "a",
            "--start-timers",
            "b",
        ],
    ] {
        fails(jobwire(home, wrong), 2).await;
    }
}
