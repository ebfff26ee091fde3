//! `jobwire priorities`, `jobs change --priority`, and the gaps that `doctor` names.

use jobwire_core::job::scope::Scope;
use jobwire_core::store::Membership;
use jobwire_core::store::attempts::AttemptsKept;
use jobwire_core::{Batch, BatchId, Client, JobState, Lane, LaneRule, NewJob, NodeId};
use serde_json::Value;

use super::home::{Base, Home};
use super::{all, fails, jobwire, lines, succeeds};

pub(super) async fn rules_are_set_overridden_listed_and_cleared<S: Base>(home: &Home<S>) {
    let store = &home.store;
    let urgent = LaneRule::to("urgent").min_priority(100);
    store.set_lane_rules(&[urgent]).await.unwrap();
    let priorities = |arguments: &[&str]| jobwire(home, &[&["priorities"], arguments].concat());
    let said = succeeds(priorities(&["list"])).await;
    assert!(said.contains("no rules"), "{said}");
    let said = succeeds(priorities(&["set", "-5", "--type", "noop"])).await;
    assert!(said.contains("of type `noop`: priority -5"), "{said}");
    let noop = lines(home, r#"{"type":"noop","element":"e"}"#, 2);
    succeeds(jobwire(home, &["enqueue", &noop])).await;
    let jobs = all(store).await;
    assert_eq!((jobs[0].priority, jobs[0].lane.as_str()), (-5, "default"));

    let id = jobs[0].id.to_string();
    let change = ["jobs", "change", &id, "--priority", "-6"];
    succeeds(jobwire(home, &change)).await;
    assert_eq!(all(store).await[0].priority, -6);
    let cascade = [
        "override",
        "100",
        "--type",
        "noop",
        "--element",
        "e",
        "--cascade",
    ];
    let said = succeeds(priorities(&cascade)).await;
    assert!(said.contains("2 existing jobs changed"), "{said}");
    for job in all(store).await {
        assert_eq!((job.priority, job.lane.as_str()), (100, "urgent"));
        assert_eq!(job.state, JobState::Executable);
    }

    let said = succeeds(priorities(&["list", "--json"]).env("JOBWIRE_LOG", "off")).await;
    let listed: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(listed[0]["rule"], "override");
    assert_eq!(listed[0]["element"], "e");
    assert_eq!(listed[1]["priority"], -5);
    let clear = ["clear-override", "--type", "noop", "--element", "e"];
    for told in ["cleared the priority", "nothing to do"] {
        let said = succeeds(priorities(&clear)).await;
        assert!(said.contains(told), "{said}");
    }
    let said = fails(priorities(&["set", "1", "--type", ""]), 1).await;
    assert!(said.contains("field `type` is empty"), "{said}");
}

pub(super) async fn the_jobs_of_a_batch_get_another_priority<S: Base>(home: &Home<S>) {
    let client = Client::without_hints(home.store.clone());
    let jobs = (0..3).map(|n| NewJob::of("noop", &n));
    let batch = Batch::named("import").jobs(jobs);
    let batch = client.create_batch(batch).await.unwrap().to_string();
    client.create(NewJob::of("noop", &3)).await.unwrap();
    let change = ["priorities", "change", "-10", "--batch", &batch];
    for told in ["3 existing jobs changed", "0 existing jobs changed"] {
        let said = succeeds(jobwire(home, &change)).await;
        assert!(said.contains(told), "{said}");
    }
    let mut priorities: Vec<i64> = all(&home.store).await.iter().map(|j| j.priority).collect();
    priorities.sort_unstable();
    assert_eq!(priorities, [-10, -10, -10, 0]);
    let nobody = BatchId::generate().to_string();
    let none = ["priorities", "change", "-10", "--batch", &nobody];
    let said = fails(jobwire(home, &none), 1).await;
    assert!(said.contains("there is no batch"), "{said}");
}

pub(super) async fn priorities_that_no_living_node_takes_are_named<S: Base>(home: &Home<S>) {
    let store = &home.store;
    let node = |scope| Membership {
        id: NodeId::generate(),
        revision: 1,
        types: vec!["noop".to_owned()],
        lanes: vec![Lane::default()],
        scope,
        host: "host".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        transport: "in-process".to_owned(),
        attempts_kept: AttemptsKept::new(),
    };
    let low = node(Scope::default().max_priority(9));
    store.write_node(&low).await.unwrap();
    let high = node(Scope::default().min_priority(100));
    store.write_node(&high).await.unwrap();
    let said = succeeds(jobwire(home, &["doctor"])).await;
    let gap = "no living node takes priorities 10 to 99 of the types noop";
    assert!(said.contains(gap), "{said}");
    let said = succeeds(jobwire(home, &["nodes"])).await;
    assert!(said.contains("priorities: ..9"), "{said}");
    assert!(said.contains("priorities: 100.."), "{said}");
    let range = ["config", "--min-priority", "5", "--max-priority", "-5"];
    let said = fails(jobwire(home, &range), 2).await;
    assert!(said.contains("is 5, more than `max_priority` -5"), "{said}");
}
