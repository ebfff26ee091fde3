//! `jobwire jobs change`, `unlock` and `end`, and the records of jobs: `attempts`, `errors` and
//! `incidents`.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::store::attempts::AttemptQuery;
use jobwire_core::store::{LockTerms, RowTerms};
use jobwire_core::{Hint, JobId, JobState, NodeId};
use jobwire_tests::{Signal, eventually};
use serde_json::{Value, json};

use super::home::{Base, Home, Place};
use super::{SOON, all, fails, jobwire, lines, start, succeeds};

async fn answer(home: &impl Place, arguments: &[&str]) -> Value {
    let said = succeeds(jobwire(home, arguments).env("JOBWIRE_LOG", "off")).await;
    serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"))
}

/// Creates a job, and returns its id.
async fn create<S: Base>(home: &Home<S>, line: &str) -> String {
    let file = lines(home, line, 1);
    succeeds(jobwire(home, &["enqueue", &file])).await;
    let jobs = all(&home.store).await;
    jobs.last().unwrap().id.to_string()
}

/// Returns these fields of a job, as `jobs show` has them.
async fn shown(home: &impl Place, id: &str, fields: &[&str]) -> Value {
    let job = answer(home, &["jobs", "show", id, "--json"]).await;
    fields.iter().map(|field| job[field].clone()).collect()
}

pub(super) async fn each_change_of_a_job_is_made_and_shown<S: Base>(home: &Home<S>) {
    const DUE: &str = "2091-01-31T08:00:00Z";
    let id = create(home, r#"{"type":"noop"}"#).await;
    let fields = ["state", "retries", "due_at", "exception_message"];
    for (change, expected) in [
        (
            &["--suspend"][..],
            json!(["suspended", 3, Value::Null, Value::Null]),
        ),
        (
            &["--activate"],
            json!(["executable", 3, Value::Null, Value::Null]),
        ),
        (&["--due", DUE], json!(["timer", 3, DUE, Value::Null])),
        (&["--retries", "7"], json!(["timer", 7, DUE, Value::Null])),
        (&["--suspend"], json!(["suspended", 7, DUE, Value::Null])),
        // It waits for its date again.
        (&["--activate"], json!(["timer", 7, DUE, Value::Null])),
        (
            &["--make-executable"],
            json!(["executable", 7, DUE, Value::Null]),
        ),
        (
            &["--dead-letter", "not needed"],
            json!(["dead-letter", 0, DUE, "not needed"]),
        ),
    ] {
        let arguments = [&["jobs", "change", &*id], change].concat();
        let said = succeeds(jobwire(home, &arguments)).await;
        assert!(said.contains("1 job changed"), "{change:?}: {said}");
        assert_eq!(shown(home, &id, &fields).await, expected, "{change:?}");
    }
    let suspend = ["jobs", "change", &id, "--suspend"];
    let said = fails(jobwire(home, &suspend), 1).await;
    assert!(
        said.contains("0 jobs changed")
            && said.contains("is a dead letter, to which")
            && said.contains(&format!("jobwire jobs retry {id} --retries N")),
        "{said}"
    );
    let other = create(home, r#"{"type":"other"}"#).await;
    let change = async |change: &str, code: i32| {
        let change = jobwire(home, &["jobs", "change", &other, change]);
        match code {
            0 => succeeds(change).await,
            code => fails(change, code).await,
        }
    };
    change("--suspend", 0).await;
    let said = change("--make-executable", 1).await;
    let activate = format!(
        "is suspended, and this does not apply to it; `jobwire jobs change {other} --activate`"
    );
    assert!(said.contains(&activate), "{said}");
    change("--activate", 0).await;
    let said = change("--activate", 1).await;
    assert!(
        said.contains("is not suspended: its state is executable"),
        "{said}"
    );
    for list in ["errors", "incidents"] {
        let none = ["jobs", list, "--type", "nothing"];
        let said = succeeds(jobwire(home, &none)).await;
        assert_eq!(said, format!("no {list}"));
    }
    let all_of_type = ["jobs", "change", "--all", "--type", "noop", "--suspend"];
    create(home, r#"{"type":"noop"}"#).await;
    let said = fails(jobwire(home, &all_of_type), 2).await;
    assert!(
        said.contains("1 job (1 executable) matches and would be changed")
            && said.contains("--yes"),
        "{said}"
    );
    let confirmed = [&all_of_type[..], &["--yes"]].concat();
    let said = succeeds(jobwire(home, &confirmed)).await;
    assert!(said.contains("1 job changed"), "{said}");
}

pub(super) async fn an_unlocked_job_has_no_holder_and_keeps_its_attempts<S: Base>(home: &Home<S>) {
    let id = create(home, r#"{"type":"noop"}"#).await;
    let job: JobId = id.parse().unwrap();
    let store = &home.store;
    let stuck = NodeId::generate();
    let terms = LockTerms {
        owner: stuck,
        lease: Duration::from_secs(1_800),
        types: vec!["noop".to_owned()].into(),
        scope: Arc::default(),
        rows: RowTerms::default(),
    };
    let locked = store.lock(&terms, &[Hint::new(job)]).await.unwrap();
    assert_eq!(locked.jobs.len(), 1, "{:?}", locked.refused);
    let fields = ["state", "retries", "lock_owner"];
    let held = json!(["executable", 3, stuck]);
    assert_eq!(shown(home, &id, &fields).await, held);
    let suspend = ["jobs", "change", &id, "--suspend"];
    let said = fails(jobwire(home, &suspend), 1).await;
    assert!(said.contains("is running"), "{said}");
    assert_eq!(shown(home, &id, &fields).await, held);

    let said = fails(jobwire(home, &["jobs", "delete", &id]), 1).await;
    assert!(
        said.contains("stop it with `jobwire jobs cancel`"),
        "{said}"
    );

    let unlock = ["jobs", "unlock", &id];
    let said = succeeds(jobwire(home, &unlock)).await;
    assert!(said.contains("1 job unlocked"), "{said}");
    let free = json!(["executable", 3, Value::Null]);
    assert_eq!(shown(home, &id, &fields).await, free);
    let said = fails(jobwire(home, &unlock), 1).await;
    assert!(said.contains("has no lock"), "{said}");
    // A cancelled job does not become ready again.
    let locked = store.lock(&terms, &[Hint::new(job)]).await.unwrap();
    assert_eq!(locked.jobs.len(), 1, "{:?}", locked.refused);
    store.cancel(job).await.unwrap();
    let said = succeeds(jobwire(home, &unlock)).await;
    assert!(
        said.contains("0 jobs unlocked") && said.contains("had been cancelled, so it was deleted"),
        "{said}"
    );
    let nobody = JobId::generate().to_string();
    let said = fails(jobwire(home, &["jobs", "unlock", &nobody]), 1).await;
    assert!(said.contains("there is no job"), "{said}");
}

/// The node of a program records the attempts of the types that its setting names.
pub(super) async fn attempts_errors_and_incidents_of_a_job_are_shown<S: Base>(home: &Home<S>) {
    // This job can only fail for good.
    let bad = r#"{"type":"http","payload":{"url":"ftp://example.org/"}}"#;
    let id = create(home, bad).await;
    let run = ["run", "--http", "127.0.0.1:0", "--attempt-types", "http"];
    let (mut node, _) = start(jobwire(home, &run)).await;
    let store = &home.store;
    eventually("the job to become a dead letter", SOON, async || {
        (all(store).await[0].state == JobState::DeadLetter).then_some(())
    })
    .await;
    node.signal(Signal::SIGTERM);
    assert!(node.exit(SOON).await.success());

    let attempts = answer(home, &["jobs", "attempts", &id, "--json"]).await;
    assert_eq!(attempts.as_array().map(Vec::len), Some(1), "{attempts}");
    let attempt = &attempts[0];
    assert_eq!(
        (&attempt["job"], &attempt["type"], &attempt["outcome"]),
        (&json!(id), &json!("http"), &json!("dead-letter"))
    );
    let message = attempt["message"].as_str().unwrap();
    assert!(message.contains("scheme"), "{message}");
    let said = succeeds(jobwire(home, &["jobs", "attempts", &id])).await;
    assert!(
        said.contains("outcome") && said.contains("dead-letter") && said.contains("scheme"),
        "{said}"
    );
    let nobody = JobId::generate().to_string();
    let said = succeeds(jobwire(home, &["jobs", "attempts", &nobody])).await;
    assert!(said.contains("`attempt_types`"), "{said}");

    let errors = answer(home, &["jobs", "errors", "--json"]).await;
    assert_eq!(errors.as_array().map(Vec::len), Some(1), "{errors}");
    let group = &errors[0];
    assert_eq!(
        json!([
            group["type"],
            group["message"],
            group["jobs"],
            group["attempts"]
        ]),
        json!(["http", message, 1, 1])
    );
    let others = answer(home, &["jobs", "errors", "--json", "--type", "noop"]).await;
    assert_eq!(others, json!([]));
    let said = succeeds(jobwire(home, &["jobs", "errors", "--type", "http"])).await;
    assert!(
        said.contains("attempts") && said.contains("scheme"),
        "{said}"
    );

    let incidents = ["jobs", "incidents", "--json", "--id", &id];
    let open = answer(home, &incidents).await;
    assert_eq!(
        json!([open[0]["job"], open[0]["message"], open[0]["resolution"]]),
        json!([id, message, Value::Null])
    );
    let said = succeeds(jobwire(home, &["jobs", "incidents", "--type", "http"])).await;
    assert!(said.contains("open") && said.contains(&id), "{said}");
    succeeds(jobwire(home, &["jobs", "retry", &id])).await;
    assert_eq!(answer(home, &incidents).await, json!([]));
    let resolved = [&incidents[..], &["--resolved"]].concat();
    let resolved = answer(home, &resolved).await;
    assert_eq!(resolved.as_array().map(Vec::len), Some(1), "{resolved}");
    assert_eq!(resolved[0]["resolution"], "revived");
}

/// The node of a program records attempts, and the list shows them page by page.
pub(super) async fn attempts_of_all_jobs_are_listed_by_filter_and_page<S: Base>(home: &Home<S>) {
    for line in [
        r#"{"type":"noop","process_instance":"a","tenant":"t"}"#,
        r#"{"type":"noop","process_instance":"b"}"#,
        r#"{"type":"noop"}"#,
        r#"{"type":"http","payload":{"url":"ftp://example.org/"},"tenant":"t"}"#,
    ] {
        let file = lines(home, line, 1);
        succeeds(jobwire(home, &["enqueue", &file])).await;
    }
    let said = succeeds(jobwire(home, &["jobs", "attempts"])).await;
    assert!(
        said.contains("no recorded attempts match") && said.contains("`attempt_types`"),
        "{said}"
    );
    let types = ["--attempt-types", "http,noop"];
    let run = [&["run", "--http", "127.0.0.1:0"], &types[..]].concat();
    let (mut node, _) = start(jobwire(home, &run)).await;
    let store = &home.store;
    eventually("all attempts to be recorded", SOON, async || {
        let query = AttemptQuery::default();
        let recorded = store.find_attempts(&query).await.unwrap();
        (recorded.len() == 4).then_some(())
    })
    .await;
    node.signal(Signal::SIGTERM);
    assert!(node.exit(SOON).await.success());

    let list = async |filter: &[&str]| {
        let arguments = [&["jobs", "attempts", "--json"], filter].concat();
        answer(home, &arguments).await.as_array().cloned().unwrap()
    };
    let newest = list(&[]).await;
    let fences = |of: &[Value]| of.iter().map(|a| a["fence"].clone()).collect::<Vec<_>>();
    assert_eq!(newest.len(), 4, "{newest:?}");
    let mut oldest = list(&["--sort", "oldest"]).await;
    oldest.reverse();
    assert_eq!(fences(&oldest), fences(&newest));
    // Page by page, behind the cursor of the last line.
    let cursor = newest[1]["cursor"].as_str().unwrap();
    let rest = list(&["--after", cursor, "--limit", "1"]).await;
    assert_eq!(fences(&rest), fences(&newest[2..3]));

    let node = newest[0]["node"].as_str().unwrap();
    let started = newest[0]["started_at"].as_str().unwrap();
    let id = newest[0]["job"].as_str().unwrap();
    for (filter, found) in [
        (&["--type", "noop"][..], 3),
        (&["--type", "noop", "--type", "http"], 4),
        (&["--instance", "a"], 1),
        (&["--without-instance"], 2),
        (&["--tenant", "t"], 2),
        (&["--tenant-like", "t%", "--outcome", "dead-letter"], 1),
        (&["--outcome", "done,retry"], 3),
        (&["--node", node], 4),
        (&["--started-after", "2020-01-01T00:00:00Z"], 4),
        (&["--started-before", "2020-01-01T00:00:00Z"], 0),
        (&["--id", id], 1),
    ] {
        assert_eq!(list(filter).await.len(), found, "{filter:?}");
    }
    let said = succeeds(jobwire(home, &["jobs", "attempts", "--limit", "3"])).await;
    let next = format!(
        "3 attempts; the next page: --after {}",
        newest[2]["cursor"].as_str().unwrap()
    );
    assert_eq!(said.lines().last(), Some(&*next), "{said}");
    assert!(said.starts_with("started"), "{said}");
    let after = [
        "jobs",
        "attempts",
        "--limit",
        "3",
        "--after",
        newest[2]["cursor"].as_str().unwrap(),
    ];
    let said = succeeds(jobwire(home, &after)).await;
    assert!(said.ends_with("1 attempt; this is the last page"), "{said}");

    // By its id, a job's attempts have no filters.
    let said = fails(
        jobwire(home, &["jobs", "attempts", id, "--type", "noop"]),
        2,
    )
    .await;
    assert!(said.contains(&format!("jobs attempts --id {id}")), "{said}");
    let reversed = ["--started-after", started, "--started-before", started];
    let said = fails(
        jobwire(home, &[&["jobs", "attempts"], &reversed[..]].concat()),
        2,
    )
    .await;
    assert!(
        said.contains("`started_before`") && said.contains("give a later date"),
        "{said}"
    );
    let said = fails(
        jobwire(
            home,
            &["jobs", "attempts", "--sort", "oldest", "--after", cursor],
        ),
        2,
    )
    .await;
    assert!(said.contains("keep the order from page to page"), "{said}");
    let engine = ["engine", "jobs", "attempts", "--type", "noop"];
    let said = fails(jobwire(home, &engine), 2).await;
    assert!(said.contains("the engine keeps the history"), "{said}");
}

pub(super) async fn a_definition_is_ended_with_its_instances<S: Base>(home: &Home<S>) {
    for line in [
        r#"{"type":"noop","process_definition":"order:1"}"#,
        r#"{"type":"noop","process_definition":"order:1","process_instance":"a"}"#,
        r#"{"type":"noop","process_definition":"order:1","due_at":"2091-01-01T00:00:00Z"}"#,
        r#"{"type":"noop","process_definition":"order:2"}"#,
    ] {
        create(home, line).await;
    }
    let end = ["jobs", "end", "--definition", "order:1"];
    let said = fails(jobwire(home, &end), 2).await;
    assert!(said.contains("--yes"), "{said}");
    let ended = answer(home, &[&end[..], &["--yes", "--json"]].concat()).await;
    assert_eq!(ended["deleted"].as_array().map(Vec::len), Some(3));
    assert_eq!(ended["running"], json!([]));
    let left = all(&home.store).await;
    let definitions: Vec<_> = left
        .iter()
        .map(|job| job.process_definition.as_deref())
        .collect();
    assert_eq!(definitions, [Some("order:2")]);
}
