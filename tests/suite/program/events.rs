//! `jobwire events`.

use jobwire_tests::Scratch;

use super::home::{Base, Home};
use super::{fails, jobwire, succeeds};

const BROKER: [&str; 4] = [
    "--database",
    "sqlite:jobs.db",
    "--broker",
    "amqp://127.0.0.1:1",
];

pub(super) async fn the_stream_is_switched_on_shown_and_switched_off<S: Base>(home: &Home<S>) {
    let broker = ["--database", home.url(), "--broker", "amqp://127.0.0.1:1"];
    let run = |arguments: &[&str]| {
        let all = [&["events"], arguments, &broker].concat();
        jobwire(home, &all)
    };
    let shown = succeeds(run(&["status"])).await;
    assert!(shown.contains("the event stream is off"), "{shown}");
    let on = succeeds(run(&[
        "on",
        "--kinds",
        "succeeded,failed",
        "--types",
        "a",
        "--keep",
        "2h",
    ]));
    let on = on.await;
    let name = home.url().rsplit([':', '/']).next().unwrap();
    let name = name.split('?').next().unwrap();
    assert!(on.contains(&format!("source   jobwire/{name}")), "{on}");
    let shown = succeeds(run(&["status"])).await;
    for line in ["kinds    succeeded, failed", "types    a", "waiting  0"] {
        assert!(shown.contains(line), "{shown}");
    }
    let shown = succeeds(run(&["status", "--json"])).await;
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["on"], true);
    assert_eq!(shown["keep_seconds"], 7200);
    let off = succeeds(run(&["off"])).await;
    assert!(off.contains("the event stream is off"), "{off}");
}

#[tokio::test]
async fn a_stream_that_cannot_work_is_refused_with_the_remedy() {
    let home = Scratch::new();
    let migrate = ["migrate", "up", "--database", "sqlite:jobs.db"];
    succeeds(jobwire(&home, &migrate)).await;
    let said = fails(jobwire(&home, &["events", "on"]), 2).await;
    assert!(
        said.contains("broker_url") && said.contains("--broker"),
        "{said}"
    );
    let started = [&["events", "on", "--kinds", "started"][..], &BROKER].concat();
    let said = fails(jobwire(&home, &started), 2).await;
    assert!(
        said.contains("`started`") && said.contains("succeeded"),
        "{said}"
    );
}
