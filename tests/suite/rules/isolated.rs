//! Rule 9: a handler may isolate its transaction more strictly. That transaction cannot see the
//! next job of the instance, which is hinted after the commit. No sweeps run here.

use std::sync::Arc;

use jobwire_core::{HandlerOptions, Handlers, NewJob, Node, Outcome, PgStore, Running};
use tokio::sync::Semaphore;

use super::world::{unswept, until_led};
use crate::world::{Notes, World};

#[tokio::test]
async fn a_sibling_that_a_stricter_transaction_does_not_see_is_hinted_after_it() {
    let world = World::new().await;
    let (notes, gate) = (Notes::default(), Arc::new(Semaphore::new(0)));
    let mut handlers = Handlers::default();
    let (noted, opens) = (notes.clone(), gate.clone());
    handlers.add_with(
        "strict",
        HandlerOptions::default().in_transaction(),
        move |job: Running<String>| {
            let (notes, gate) = (noted.clone(), opens.clone());
            async move {
                let mut tx = job.transaction::<PgStore>().await?;
                sqlx::raw_sql(
                    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM jobwire.job",
                )
                .execute(&mut *tx)
                .await?;
                notes.add(job.job.payload.get());
                gate.acquire().await?.forget();
                Ok(Outcome::Done)
            }
        },
    );
    let node = Node::builder(world.store.clone(), world.transport()).options(unswept());
    let node = node.handlers(handlers).start().await.unwrap();
    until_led(&world.store).await;
    for n in 1..=3 {
        // The holder of the instance took its snapshot before this job is created.
        let job = NewJob::of("strict", &n.to_string()).instance("case");
        world.jobs.create(job).await.unwrap();
        notes.until(1).await;
    }
    gate.add_permits(3);
    world.until_empty().await;
    assert_eq!(notes.all(), ["\"1\"", "\"2\"", "\"3\""]);
    node.stop().await;
}
