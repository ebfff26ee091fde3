//! A node whose number of slots follows its load.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jobwire_core::{
    Client, CommitHook, Elastic, HookOptions, InProcessTransport, NewJob, Node, Outcome, Running,
    Transport,
};
use jobwire_harness::eventually;
use jobwire_harness::world::{SOON, quick};
use tokio::sync::Semaphore;

use super::world::{SqlBench, World};

/// The handlers wait for a gate, so hints wait for slots while the processors are idle. A node looks once a
/// second, and then grows by one: so it takes two seconds from the third slot to the fifth. A node
/// that begins with more slots is quicker.
pub(super) async fn an_elastic_node_grows_while_hints_wait<S: SqlBench>(w: &World<S>) {
    let transport = InProcessTransport::new();
    let hook = CommitHook::start(transport.publisher(), HookOptions::default());
    let client = Client::new(w.store.clone(), hook.clone());
    let starts = Arc::<Mutex<Vec<Instant>>>::default();
    let gate = Arc::new(Semaphore::new(0));
    let waits = {
        let (gate, starts) = (gate.clone(), starts.clone());
        move |_: Running<u64>| {
            let (gate, starts) = (gate.clone(), starts.clone());
            async move {
                starts.lock().unwrap().push(Instant::now());
                gate.acquire().await?.forget();
                Ok(Outcome::Done)
            }
        }
    };
    // Other tests of this process may use the processors meanwhile: it then grows a moment later.
    let elastic = Elastic::from_min(2).cpu_below(100);
    let node = Node::builder(w.store.clone(), Arc::new(transport))
        .options(quick().concurrency(5).elastic(Some(elastic)))
        .hook(hook)
        .handler("wait", waits)
        .start()
        .await
        .unwrap();
    let mut tx = client.begin().await.unwrap();
    let jobs = (0..20_u64).map(|number| NewJob::of("wait", &number));
    tx.create_many(jobs.collect()).await.unwrap();
    let begun = Instant::now();
    tx.commit().await.unwrap();
    // It begins with two, and reaches five while none of them ends.
    eventually("five jobs at once", SOON, async || {
        (starts.lock().unwrap().len() == 5).then_some(())
    })
    .await;
    let grew = starts.lock().unwrap()[4] - begun;
    assert!(grew > Duration::from_millis(1_900), "within {grew:?}");
    gate.add_permits(20);
    eventually("all jobs", SOON, async || {
        (w.rows("job").await == 0).then_some(())
    })
    .await;
    assert_eq!(starts.lock().unwrap().len(), 20);
    node.stop().await;
}
