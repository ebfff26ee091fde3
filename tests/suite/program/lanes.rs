//! `jobwire lanes`.

use jobwire_core::job::scope::Scope;
use jobwire_core::store::Membership;
use jobwire_core::store::attempts::AttemptsKept;
use jobwire_core::{Lane, NodeId};
use serde_json::Value;

use super::home::{Base, Home, Place};
use super::{all, fails, jobwire, lines, start, succeeds, until_empty};

const RULES: &str = r#"
[[rule]]
lane = "critical"
min_priority = 100

[[rule]]
lane = "mail"
type = "noop"
tenant = "a"
"#;

async fn listed(home: &impl Place) -> Value {
    let said =
        succeeds(jobwire(home, &["lanes", "list", "--json"]).env("JOBWIRE_LOG", "off")).await;
    serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"))
}

fn file(home: &impl Place, text: &str) -> String {
    let directory = home.directory();
    directory.write("rules.toml", text).display().to_string()
}

pub(super) async fn rules_are_set_from_a_file_and_listed_and_obeyed<S: Base>(home: &Home<S>) {
    let rules = file(home, RULES);
    let said = succeeds(jobwire(home, &["lanes", "set", &rules, "--check"])).await;
    assert!(
        said.contains("2 rules") && said.contains("nothing was changed"),
        "{said}"
    );
    assert_eq!(listed(home).await["rules"], serde_json::json!([]));
    let said = succeeds(jobwire(home, &["lanes", "set", &rules])).await;
    assert!(
        said.contains("2 rules") && said.contains("do not receive critical, mail"),
        "{said}"
    );
    for line in [
        r#"{"type":"noop","tenant":"a"}"#,
        r#"{"type":"noop","priority":100}"#,
        r#"{"type":"noop"}"#,
    ] {
        let jobs = lines(home, line, 2);
        succeeds(jobwire(home, &["enqueue", &jobs])).await;
    }
    let found = listed(home).await;
    assert_eq!(found["rules"][1]["type"], "noop", "{found}");
    let ready = |lane: &str| {
        let lanes = found["lanes"].as_array().unwrap();
        let line = lanes.iter().find(|l| l["lane"] == lane).unwrap();
        (line["ready"].as_i64(), line["weight"].as_i64())
    };
    assert_eq!(ready("mail"), (Some(2), None));
    assert_eq!(ready("critical"), (Some(2), None));
    assert_eq!(ready("default"), (Some(2), Some(1)));
    let said = succeeds(jobwire(
        home,
        &["lanes", "list", "--lanes", "mail=3,default"],
    ))
    .await;
    for part in ["100 and more", "mail", "oldest ready", "critical"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let none = file(home, "rule = []\n");
    succeeds(jobwire(home, &["lanes", "set", &none])).await;
    let said = succeeds(jobwire(home, &["lanes", "list"])).await;
    assert!(said.contains("no rules"), "{said}");
}

pub(super) async fn bad_rules_are_refused_with_every_mistake_and_change_nothing<S: Base>(
    home: &Home<S>,
) {
    let rules = file(home, RULES);
    succeeds(jobwire(home, &["lanes", "set", &rules])).await;
    let bad = file(
        home,
        "[[rule]]\nlane = \"a b\"\n[[rule]]\nlane = \"x\"\nmin_priority = 2\nmax_priority = 1\n[[rule]]\nlane = \"y\"\n[[rule]]\nlane = \"z\"\n",
    );
    let said = fails(jobwire(home, &["lanes", "set", &bad]), 1).await;
    for part in [
        "rules.toml",
        "rule 1: `lane`",
        "rule 2: `min_priority`",
        "rule 4: is never reached: rule 3",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert_eq!(
        listed(home).await["rules"].as_array().map(Vec::len),
        Some(2)
    );
    let said = fails(jobwire(home, &["lanes", "set", "no-such-file.toml"]), 2).await;
    assert!(said.contains("no-such-file.toml"), "{said}");
}

pub(super) async fn a_lane_is_drained_and_a_running_node_finds_what_moved<S: Base>(home: &Home<S>) {
    let jobs = lines(home, r#"{"type":"noop","lane":"old"}"#, 25);
    succeeds(jobwire(home, &["enqueue", &jobs])).await;
    let later = lines(
        home,
        r#"{"type":"noop","lane":"old","due_at":"2091-01-01T00:00:00Z"}"#,
        1,
    );
    succeeds(jobwire(home, &["enqueue", &later])).await;
    let (node, _) = start(jobwire(
        home,
        &["run", "--http", "127.0.0.1:0", "--sweep-interval", "1s"],
    ))
    .await;
    // The doctor names the problem.
    let said = succeeds(jobwire(home, &["doctor"])).await;
    assert!(
        said.contains("25 jobs ready in lane old, which no living node receives")
            && said.contains("jobwire lanes move old default"),
        "{said}"
    );
    node.wait_for_line("no living node receives", super::SOON)
        .await;
    let said = succeeds(jobwire(
        home,
        &["lanes", "move", "old", "default", "--rate", "100"],
    ))
    .await;
    assert!(
        said.contains("26 jobs moved from old to default: 25 ready, 1 timer"),
        "{said}"
    );
    let store = &home.store;
    jobwire_tests::eventually("the ready jobs to run", super::SOON, async || {
        (all(store).await.len() == 1).then_some(())
    })
    .await;
    let left = all(store).await;
    assert_eq!(left[0].lane.as_str(), "default");
    store.delete(left[0].id).await.unwrap();
    until_empty(store, super::SOON).await;
    drop(node);
    let said = fails(jobwire(home, &["lanes", "move", "old", "old"]), 2).await;
    assert!(said.contains("named twice"), "{said}");
    fails(
        jobwire(home, &["lanes", "move", "old", "new", "--rate", "0"]),
        2,
    )
    .await;
}

/// The settings of the program name the lane, the living node does not receive it.
pub(super) async fn a_job_that_no_living_node_takes_is_shown_with_the_reason<S: Base>(
    home: &Home<S>,
) {
    let file = home.write(
        "jobs.jsonl",
        "{\"type\":\"noop\",\"lane\":\"bulk\"}\n\
         {\"type\":\"fax\"}\n\
         {\"type\":\"noop\",\"process_instance\":\"one\",\"lane\":\"default\"}\n\
         {\"type\":\"noop\",\"process_instance\":\"one\",\"lane\":\"default\"}\n",
    );
    let file = file.display().to_string();
    succeeds(jobwire(home, &["enqueue", &file])).await;
    let store = &home.store;
    store.execute("UPDATE {s}job SET hints = 1").await;
    let lanes = |arguments: &[&str]| {
        jobwire(home, arguments)
            .env("JOBWIRE_LANES", "default,bulk")
            .env("JOBWIRE_LOG", "off")
    };
    let swept = async || {
        let said = succeeds(lanes(&["sweep", "--dry-run", "--json"])).await;
        let found: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
        ["ready", "instance_held", "unserved", "unreceived"].map(|class| found[class].clone())
    };
    // Without a living node the settings count.
    assert_eq!(swept().await, [2, 1, 1, 0]);
    let said = succeeds(lanes(&["doctor"])).await;
    let fine = "nothing waits in a lane that nodes with these settings do not receive";
    assert!(said.contains(fine), "{said}");
    let said = succeeds(lanes(&["jobs", "list"])).await;
    assert!(!said.contains("no living node"), "{said}");

    let node = member(&["noop"], "default");
    store.write_node(&node).await.unwrap();
    assert_eq!(swept().await, [1, 1, 1, 1]);
    let said = succeeds(lanes(&["sweep", "--dry-run"])).await;
    let row = said.lines().find(|line| line.contains("lane that no node"));
    assert!(row.is_some_and(|row| row.contains(" 1 ")), "{said}");
    let said = succeeds(lanes(&["doctor"])).await;
    let wrong = "1 job ready in lane bulk, which no living node receives";
    assert!(said.contains(wrong), "{said}");
    let said = succeeds(lanes(&["jobs", "list"])).await;
    for reason in [
        "nobody: no living node receives lane bulk",
        "nobody: no living node serves type fax",
        "nobody: waits for another job of its instance",
    ] {
        assert_eq!(said.matches(reason).count(), 1, "{reason} in {said}");
    }
    let said = succeeds(lanes(&["jobs", "list", "--json", "--type", "fax"])).await;
    let listed: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert_eq!(
        listed[0]["waits_because"], "no living node serves type fax",
        "{said}"
    );
}

/// Returns the row of a living node.
fn member(types: &[&str], lane: &str) -> Membership {
    Membership {
        id: NodeId::generate(),
        revision: 1,
        types: types.iter().map(|name| (*name).to_owned()).collect(),
        lanes: vec![Lane::unchecked(lane)],
        scope: Scope::default(),
        host: "elsewhere".to_owned(),
        version: "0.0.0".to_owned(),
        transport: "in-process".to_owned(),
        attempts_kept: AttemptsKept::new(),
    }
}

pub(super) async fn moving_to_a_lane_that_no_living_node_receives_warns<S: Base>(home: &Home<S>) {
    let file = lines(home, r#"{"type":"noop"}"#, 2);
    succeeds(jobwire(home, &["enqueue", &file])).await;
    let said = succeeds(jobwire(home, &["lanes", "move", "default", "blk"])).await;
    assert!(
        said.contains("no living node receives") && said.contains("blk"),
        "{said}"
    );
    // The rows of living nodes decide, not the settings of this program.
    home.store.write_node(&member(&[], "bulk")).await.unwrap();
    let said = succeeds(jobwire(home, &["lanes", "move", "blk", "bulk"])).await;
    assert!(!said.contains("no living node receives"), "{said}");
    let said = succeeds(jobwire(home, &["nodes"])).await;
    assert!(
        said.contains("elsewhere") && said.contains("alive"),
        "{said}"
    );
    let said = succeeds(jobwire(home, &["nodes", "--json"]).env("JOBWIRE_LOG", "off")).await;
    let nodes: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(nodes[0]["lanes"], serde_json::json!(["bulk"]));
    assert_eq!(nodes[0]["tenants"], serde_json::Value::Null);
}
