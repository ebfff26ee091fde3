//! A node whose number of slots follows its load.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use jobwire_core::{
    Client, CommitHook, Elastic, HookOptions, InProcessTransport, NewJob, Node, Outcome, Running,
    Transport,
};
use jobwire_harness::eventually;
use jobwire_harness::world::{SOON, quick};
use tokio::sync::Semaphore;

use super::world::{SqlBench, World};

/// The handlers wait for a gate, so hints wait for slots while the processors are idle.
pub(super) async fn an_elastic_node_grows_while_hints_wait<S: SqlBench>(w: &World<S>) {
    let transport = InProcessTransport::new();
    let hook = CommitHook::start(transport.publisher(), HookOptions::default());
    let client = Client::new(w.store.clone(), hook.clone());
    let (gate, at_once) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let waits = {
        let (gate, at_once) = (gate.clone(), at_once.clone());
        move |_: Running<u64>| {
            let (gate, at_once) = (gate.clone(), at_once.clone());
            async move {
                at_once.fetch_add(1, Ordering::Relaxed);
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
    tx.commit().await.unwrap();
    // It begins with two, and reaches five while none of them ends.
    eventually("five jobs at once", SOON, async || {
        (at_once.load(Ordering::Relaxed) == 5).then_some(())
    })
    .await;
    gate.add_permits(20);
    eventually("all jobs", SOON, async || {
        (w.rows("job").await == 0).then_some(())
    })
    .await;
    assert_eq!(at_once.load(Ordering::Relaxed), 20);
    node.stop().await;
}
