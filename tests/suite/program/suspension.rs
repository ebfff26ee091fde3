//! `jobwire suspend`, `activate`, `pause`, `resume` and `suspensions`.

use jobwire_core::JobState;
use jobwire_core::store::SUSPENSION_TYPE;
use jobwire_tests::Scratch;
use serde_json::{Value, json};

use super::home::{Base, Home, Place};
use super::{all, fails, jobwire, lines, succeeds};

async fn answer(home: &impl Place, arguments: &[&str]) -> Value {
    let said = succeeds(jobwire(home, arguments).env("JOBWIRE_LOG", "off")).await;
    serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"))
}

async fn says(home: &impl Place, arguments: &[&str], parts: &[&str]) {
    let said = succeeds(jobwire(home, arguments)).await;
    for part in parts {
        assert!(said.contains(part), "{arguments:?}: {part} in {said}");
    }
}

pub(super) async fn what_stands_still_is_told_and_ends_with_another_command<S: Base>(
    home: &Home<S>,
) {
    let file = lines(home, r#"{"type":"noop","tenant":"acme"}"#, 2);
    succeeds(jobwire(home, &["enqueue", &file])).await;
    says(home, &["suspensions"], &["nothing is suspended or paused"]).await;

    let lane = ["--lane", "default"];
    let pause = [&["pause"], &lane[..]].concat();
    says(home, &pause, &["lane default is paused"]).await;
    says(home, &pause, &["lane default is paused already"]).await;
    says(home, &["jobs", "list"], &["nobody: lane default is paused"]).await;
    says(home, &["lanes", "list"], &["paused", "yes"]).await;
    let suspended = answer(home, &["suspend", "--tenant", "acme", "--json"]).await;
    assert_eq!(suspended["moved"], 2, "{suspended}");
    assert_eq!(suspended["running"], 0, "{suspended}");
    // Born during the suspension: the first reason is told.
    succeeds(jobwire(home, &["enqueue", &file])).await;
    says(
        home,
        &["jobs", "list"],
        &["nobody: tenant acme is suspended"],
    )
    .await;

    let listed = answer(home, &["suspensions", "--json"]).await;
    let rows = listed.as_array().unwrap();
    let row = |at: usize| {
        let row = &rows[at];
        json!([
            row["state"],
            row["scope"],
            row["value"],
            row["moved"],
            row["waiting"]
        ])
    };
    assert_eq!(row(0), json!(["paused", "lane", "default", 0, 2]));
    assert_eq!(row(1), json!(["suspended", "tenant", "acme", 2, 2]));
    let said = jobwire(home, &["doctor"])
        .run(super::SOON)
        .await
        .1
        .join("\n");
    for part in [
        "lane default is paused since",
        "jobwire resume --lane default",
        "tenant acme is suspended since",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }

    // The lane is still paused, so nothing is hinted yet.
    let activate = ["activate", "--tenant", "acme"];
    says(
        home,
        &activate,
        &["tenant acme is no longer suspended: 2 jobs came back, no waiting job is hinted"],
    )
    .await;
    let nothing = "nothing was changed: no suspension of tenant acme exists";
    says(home, &activate, &[nothing]).await;
    let resumed = answer(home, &["resume", "--lane", "default", "--json"]).await;
    assert_eq!(resumed["hinted"], 4, "{resumed}");
    says(home, &["suspensions"], &["nothing is suspended or paused"]).await;
}

pub(super) async fn the_jobs_that_an_activation_brings_back_are_counted_also_timers<S: Base>(
    home: &Home<S>,
) {
    let timer = r#"{"type":"noop","tenant":"acme","due_at":"2091-01-01T00:00:00Z"}"#;
    succeeds(jobwire(home, &["enqueue", &lines(home, timer, 2)])).await;
    let scope = ["--tenant", "acme", "--json"];
    let suspended = answer(home, &[&["suspend"], &scope[..]].concat()).await;
    assert_eq!(suspended["moved"], 2, "{suspended}");
    let activated = answer(home, &[&["activate"], &scope[..]].concat()).await;
    assert_eq!(
        (&activated["moved"], &activated["hinted"]),
        (&json!(2), &json!(0)),
        "{activated}"
    );
    succeeds(jobwire(home, &[&["suspend"], &scope[..2]].concat())).await;
    let said = succeeds(jobwire(home, &[&["activate"], &scope[..2]].concat())).await;
    assert!(
        said.contains("2 jobs came back, no waiting job is hinted") && !said.contains("sweeper"),
        "{said}"
    );
}

pub(super) async fn a_scope_without_a_job_is_remarked_and_a_definition_is_exact<S: Base>(
    home: &Home<S>,
) {
    let line = r#"{"type":"noop","process_definition":"invoice:3:4711","process_instance":"i"}"#;
    succeeds(jobwire(home, &["enqueue", &lines(home, line, 1)])).await;
    let none = "remark: no job belongs to it now";
    let versions = "jobs of other versions exist, such as `invoice:3:4711`";
    let suspend = ["suspend", "--definition", "invoice"];
    says(home, &suspend, &["0 jobs moved", none, versions]).await;
    says(
        home,
        &["suspend", "--tenant", "acme"],
        &["0 jobs moved", none],
    )
    .await;
    let suspend = ["suspend", "--process-definition", "invoice:3:4711"];
    says(home, &suspend, &["1 job moved"]).await;
    // It belongs to the scope, and is suspended already.
    let said = succeeds(jobwire(home, &suspend)).await;
    assert!(
        said.contains("0 jobs moved") && !said.contains("remark"),
        "{said}"
    );
    let list = [
        "jobs",
        "list",
        "--definition",
        "invoice:3:4711",
        "--instance",
        "i",
    ];
    says(home, &list, &["1 job"]).await;

    let end = ["jobs", "end", "--definition", "invoice", "--yes"];
    let none = "remark: no job belongs to this scope";
    says(home, &end, &["0 jobs deleted", none, versions]).await;
    assert_eq!(all(&home.store).await.len(), 1);
}

pub(super) async fn one_element_of_a_definition_is_suspended_and_activated<S: Base>(
    home: &Home<S>,
) {
    for element in ["pay", "send"] {
        let line = format!(
            r#"{{"type":"noop","process_definition":"invoice:3:4711","element":"{element}"}}"#
        );
        succeeds(jobwire(home, &["enqueue", &lines(home, &line, 1)])).await;
    }
    let scope = ["--definition", "invoice:3:4711", "--element", "pay"];
    let command = |word| [&[word], &scope[..]].concat();
    let is_suspended = "element pay of invoice:3:4711 is suspended";
    says(home, &command("suspend"), &[is_suspended, "1 job moved"]).await;
    let line = r#"{"type":"noop","process_definition":"invoice:3:4711","element":"pay"}"#;
    succeeds(jobwire(home, &["enqueue", &lines(home, line, 2)])).await;
    let nobody = format!("nobody: {is_suspended}");
    says(home, &["jobs", "list"], &[&nobody]).await;
    let listed = answer(home, &["suspensions", "--json"]).await;
    let mut listed = listed[0].clone();
    listed.as_object_mut().unwrap().remove("since");
    let row = json!({
        "state": "suspended", "scope": "element", "value": "pay", "definition": "invoice:3:4711",
        "moved": 1, "waiting": 2,
    });
    assert_eq!(listed, row);
    says(home, &["suspensions"], &["pay of invoice:3:4711"]).await;
    let said = jobwire(home, &["doctor"]).run(super::SOON).await.1;
    let remedy = "to end it: jobwire activate --definition invoice:3:4711 --element pay";
    assert!(said.iter().any(|line| line.contains(remedy)), "{said:?}");

    // The whole definition is another scope.
    let whole = ["activate", "--definition", "invoice:3:4711"];
    says(
        home,
        &whole,
        &["no suspension of definition invoice:3:4711"],
    )
    .await;
    let ended = "element pay of invoice:3:4711 is no longer suspended: 1 job came back, 3 waiting";
    says(home, &command("activate"), &[ended]).await;

    let of_old = ["suspend", "--definition", "invoice", "--element", "pay"];
    let none = "remark: no job belongs to it now";
    says(home, &of_old, &[none, "such as `invoice:3:4711`"]).await;
    // A definition without a version has no others.
    let plain = r#"{"type":"noop","process_definition":"order","element":"pay"}"#;
    succeeds(jobwire(home, &["enqueue", &lines(home, plain, 1)])).await;
    let unknown = ["suspend", "--definition", "order", "--element", "send"];
    let said = succeeds(jobwire(home, &unknown)).await;
    assert!(said.contains(none), "{said}");
    assert!(!said.contains("other versions"), "{said}");
    let at = ["--at", "2091-01-31T08:00:00Z"];
    let planned = [&command("suspend")[..], &at].concat();
    says(
        home,
        &planned,
        &["suspend element pay of invoice:3:4711 at 2091"],
    )
    .await;
    let list = ["jobs", "list", "--type", SUSPENSION_TYPE, "--json"];
    let jobs = succeeds(jobwire(home, &list)).await;
    assert!(jobs.contains("2091-01-31"), "{jobs}");
}

pub(super) async fn all_versions_of_a_definition_are_suspended_and_activated<S: Base>(
    home: &Home<S>,
) {
    let create = async |definition: &str, tenant: &str| {
        let line =
            format!(r#"{{"type":"noop","process_definition":"{definition}","tenant":{tenant}}}"#);
        succeeds(jobwire(home, &["enqueue", &lines(home, &line, 1)])).await;
    };
    create("invoice:3:4711", r#""acme""#).await;
    create("invoice:4:5120", r#""acme""#).await;
    create("invoice:4:5121", "null").await;
    let scope = ["--definition-key", "invoice", "--tenant", "acme"];
    let command = |word| [&[word], &scope[..]].concat();
    let is_suspended = "definition-key invoice of tenant acme is suspended";
    says(home, &command("suspend"), &[is_suspended, "2 jobs moved"]).await;
    // A version that is deployed during the suspension.
    create("invoice:5:6000", r#""acme""#).await;
    let nobody = format!("nobody: {is_suspended}");
    says(home, &["jobs", "list"], &[&nobody]).await;
    let listed = answer(home, &["suspensions", "--json"]).await;
    let mut listed = listed[0].clone();
    listed.as_object_mut().unwrap().remove("since");
    let row = json!({
        "state": "suspended", "scope": "definition-key", "value": "invoice", "tenant": "acme",
        "moved": 2, "waiting": 1,
    });
    assert_eq!(listed, row);
    let said = jobwire(home, &["doctor"]).run(super::SOON).await.1;
    let remedy = "to end it: jobwire activate --definition-key invoice --tenant acme";
    assert!(said.iter().any(|line| line.contains(remedy)), "{said:?}");
    let planned = [&command("activate")[..], &["--at", "2091-01-31T08:00:00Z"]].concat();
    let told = "activate definition-key invoice of tenant acme at 2091";
    says(home, &planned, &[told]).await;

    let ended =
        "definition-key invoice of tenant acme is no longer suspended: 2 jobs came back, 3 waiting";
    says(home, &command("activate"), &[ended]).await;
    let none = "remark: no job belongs to it now";
    let suspend = [
        "suspend",
        "--definition-key",
        "invoice",
        "--tenant",
        "globex",
    ];
    let other = "remark: jobs of the key `invoice` of tenant `acme` exist; give --tenant";
    says(home, &suspend, &[none, other]).await;

    for (line, said) in [
        (
            &["suspend", "--definition-key", "invoice:3:4711"][..],
            "which has no colon: `invoice`",
        ),
        (
            &["suspend", "--definition-key", "invoice", "--tenant", ""],
            "--tenant has 0 bytes",
        ),
        (
            &["suspend", "--definition-key", "invoice", "--element", "pay"],
            "cannot be used with",
        ),
        (
            &["activate", "--definition-key", "d", "--definition", "d"],
            "cannot be used with",
        ),
        (
            &["pause", "--definition-key", "invoice"],
            "use `jobwire suspend --definition-key`",
        ),
    ] {
        let refused = fails(jobwire(home, line), 2).await;
        assert!(refused.contains(said), "{line:?}: {refused}");
    }
}

pub(super) async fn a_change_at_a_date_is_a_timer_job<S: Base>(home: &Home<S>) {
    let at = ["--at", "2091-01-31T08:00:00Z", "--json"];
    let planned = answer(home, &[&["resume", "--all"], &at[..]].concat()).await;
    let store = &home.store;
    let jobs = all(store).await;
    assert_eq!(planned["job"], json!(jobs[0].id));
    assert_eq!(
        (jobs[0].state, &*jobs[0].job_type),
        (JobState::Timer, SUSPENSION_TYPE)
    );
    assert_eq!(
        jobs[0].due_at.unwrap().to_rfc3339(),
        "2091-01-31T08:00:00+00:00"
    );
    assert!(store.suspensions().await.unwrap().is_empty());
    let past = ["pause", "--all", "--at", "2001-01-31T08:00:00Z"];
    says(
        home,
        &past,
        &["pause everything at once, because 2001-01-31"],
    )
    .await;
}

#[tokio::test]
async fn a_scope_that_says_nothing_or_too_much_is_refused() {
    let home = Scratch::new();
    for (arguments, part) in [
        (&["pause"][..], "--category"),
        (&["suspend", "--lane", "bulk"], "use `jobwire pause --lane`"),
        (&["suspend", "--all"], "use `jobwire pause --all`"),
        (
            &["pause", "--tenant", "acme"],
            "use `jobwire suspend --tenant`",
        ),
        (&["pause", "--all", "--lane", "bulk"], "cannot be used with"),
        (
            &["suspend", "--element", "pay"],
            "give both: --definition NAME --element ELEMENT",
        ),
        (
            &["activate", "--element", "pay", "--tenant", "acme"],
            "cannot be used with",
        ),
        (
            &["suspend", "--instance", "i", "--definition", "d"],
            "cannot be used with",
        ),
        (
            &["suspend", "--definition", "d", "--type", "t"],
            "cannot be used with",
        ),
        (
            &["suspend", "--definition", "d", "--element", ""],
            "--element has 0 bytes",
        ),
        (
            &["suspend", "--definition", "", "--element", "pay"],
            "--definition has 0 bytes",
        ),
        (
            &["pause", "--element", "pay"],
            "use `jobwire suspend --element`",
        ),
        (&["suspend"], "--definition"),
        (&["resume", "--category", ""], "1 to 1024"),
        (&["pause", "--lane", "a b"], "--lane: `a b` is not a lane's"),
        (
            &["activate", "--tenant", "t", "--at", "tomorrow"],
            "time zone",
        ),
    ] {
        let said = fails(jobwire(&home, arguments), 2).await;
        assert!(said.contains(part), "{arguments:?}: {part} in {said}");
    }
}
