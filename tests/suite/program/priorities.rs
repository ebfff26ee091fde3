//! The gaps between the priorities of nodes that `doctor` names.

use jobwire_core::job::scope::Scope;
use jobwire_core::store::Membership;
use jobwire_core::{Lane, NodeId, Store};
use jobwire_tests::Scratch;

use super::{fails, jobwire, store, succeeds};

#[tokio::test]
async fn priorities_that_no_living_node_takes_are_named() {
    let home = Scratch::new();
    succeeds(jobwire(&home, &["migrate", "up"])).await;
    let store = store(&home).await;
    let node = |scope| Membership {
        id: NodeId::generate(),
        revision: 1,
        types: vec!["noop".to_owned()],
        lanes: vec![Lane::default()],
        scope,
        host: "host".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        transport: "in-process".to_owned(),
    };
    let low = node(Scope::default().max_priority(9));
    store.write_node(&low).await.unwrap();
    let high = node(Scope::default().min_priority(100));
    store.write_node(&high).await.unwrap();
    let said = succeeds(jobwire(&home, &["doctor"])).await;
    let gap = "no living node takes priorities 10 to 99 of the types noop";
    assert!(said.contains(gap), "{said}");
    let said = succeeds(jobwire(&home, &["nodes"])).await;
    assert!(said.contains("priorities: ..9"), "{said}");
    assert!(said.contains("priorities: 100.."), "{said}");
    let range = ["config", "--min-priority", "5", "--max-priority", "-5"];
    let said = fails(jobwire(&home, &range), 2).await;
    assert!(said.contains("is 5, more than `max_priority` -5"), "{said}");
}
