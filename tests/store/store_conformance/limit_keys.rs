//! Limits of a running node by each kind of key: what they count alone, and what takes turns.

use std::sync::Arc;

use jobwire_core::{HandlerOptions, Limit, NewJob, Node, Outcome, Running};
use jobwire_harness::eventually;
use jobwire_harness::world::{Notes, SOON, quick};
use tokio::sync::Semaphore;

use super::bed::Bed;
use super::world::{SqlBench, World};

/// The kinds of keys, which are also the types of the jobs.
const KINDS: [&str; 4] = ["tenant", "category", "customer", "function"];

/// Returns a job with this key of this kind. Its keys of the other kinds are its own, so a limit
/// that looked at one of them would count no other job with it.
fn job(kind: &str, key: &str, own: usize) -> NewJob {
    let value = |of: &str| match of == kind {
        true => key.to_owned(),
        false => format!("{kind}-{key}-{own}"),
    };
    let custom = serde_json::json!({ "customer": value("customer") });
    NewJob::of(kind, key)
        .tenant(value("tenant"))
        .category(value("category"))
        .custom_values(serde_json::value::to_raw_value(&custom).unwrap())
        .element(value("function"))
}

/// A gate for the handlers of one kind, and the payloads of the jobs that have begun and ended.
#[derive(Clone)]
struct Gate {
    permits: Arc<Semaphore>,
    begun: Notes,
    ended: Notes,
}

/// Starts a node with a handler and a limit of each kind.
async fn start<S: SqlBench>(bed: &Bed<S>, limit: impl Fn(&str) -> Limit) -> (Node, [Gate; 4]) {
    let gates = KINDS.map(|_| Gate {
        permits: Arc::new(Semaphore::new(0)),
        begun: Notes::default(),
        ended: Notes::default(),
    });
    let mut node = bed.node(quick().concurrency(16));
    for (kind, gate) in KINDS.iter().zip(&gates) {
        let options = HandlerOptions::default().limit(limit(kind));
        let gate = gate.clone();
        node = node.handler_with(*kind, options, move |job: Running<String>| {
            let gate = gate.clone();
            async move {
                gate.begun.add(&*job.payload);
                gate.permits.acquire().await?.forget();
                gate.ended.add(job.payload);
                Ok(Outcome::Done)
            }
        });
    }
    (node.start().await.unwrap(), gates)
}

async fn until_waiting<S: SqlBench>(w: &World<S>, jobs: usize) {
    let jobs = i64::try_from(jobs).unwrap();
    eventually("jobs that wait", SOON, async || {
        (w.rows("waiting_job").await == jobs).then_some(())
    })
    .await;
}

/// One job of each key runs, whatever the kind of the key. The others wait for it.
pub(super) async fn a_limit_counts_the_jobs_of_each_key_of_any_kind_alone<S: SqlBench>(
    w: &World<S>,
) {
    let bed = Bed::new(w);
    let (node, gates) = start(&bed, |kind| {
        let one = Limit::running(1);
        match kind {
            "tenant" => one.per_tenant(),
            "category" => one.per_category(),
            "customer" => one.per_custom_value("customer"),
            _ => one.per_key(|job| job.element.clone().unwrap_or_default()),
        }
    })
    .await;
    let keys = ["a", "b", "a", "b", "a"];
    let jobs = |kind| {
        keys.iter()
            .enumerate()
            .map(move |(own, key)| job(kind, key, own))
    };
    bed.create(KINDS.into_iter().flat_map(jobs).collect()).await;
    until_waiting(w, KINDS.len() * 3).await;
    for (kind, gate) in KINDS.iter().zip(&gates) {
        let mut begun = gate.begun.until(2).await;
        begun.sort();
        assert_eq!(begun, ["a", "b"], "by {kind}");
    }
    for gate in &gates {
        gate.permits.add_permits(keys.len());
    }
    bed.until_left(0).await;
    node.stop().await;
    assert_eq!(w.rows("permit").await, 0);
}

/// All jobs of a type share one permit. While ten jobs of one key wait, the job of another key that
/// comes last has its turn before them.
pub(super) async fn keys_of_any_kind_take_turns_under_a_fair_limit<S: SqlBench>(w: &World<S>) {
    const FLOOD: usize = 11;
    let bed = Bed::new(w);
    let (node, gates) = start(&bed, |kind| {
        let one = Limit::running(1);
        match kind {
            "tenant" => one.fair_per_tenant(),
            "category" => one.fair_per_category(),
            "customer" => one.fair_per_custom_value("customer"),
            _ => one.fair_per_key(|job| job.element.clone().unwrap_or_default()),
        }
    })
    .await;
    let flood = |kind| (0..FLOOD).map(move |own| job(kind, "loud", own));
    bed.create(KINDS.into_iter().flat_map(flood).collect())
        .await;
    until_waiting(w, KINDS.len() * (FLOOD - 1)).await;
    let quiet = KINDS.into_iter().map(|kind| job(kind, "quiet", FLOOD));
    bed.create(quiet.collect()).await;
    until_waiting(w, KINDS.len() * FLOOD).await;
    // One of the flood runs already, and another one has a turn before the job that came late.
    let soon = 3;
    for (kind, gate) in KINDS.iter().zip(&gates) {
        gate.permits.add_permits(soon);
        let ended = gate.ended.until(soon).await;
        assert!(
            ended.iter().any(|key| key == "quiet"),
            "by {kind}: {ended:?}"
        );
    }
    for gate in &gates {
        gate.permits.add_permits(FLOOD);
    }
    bed.until_left(0).await;
    node.stop().await;
    assert_eq!(w.rows("permit").await, 0);
}
