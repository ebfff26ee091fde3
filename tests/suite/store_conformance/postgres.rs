//! What only PostgreSQL has: rows that somebody else has locked this instant.

use jobwire_core::PgStore;
use jobwire_core::store::Refusal;

use super::world::{World, ids, node, take, work};

#[tokio::test]
async fn a_row_that_is_busy_for_an_instant_is_tried_again() {
    let w = World::<PgStore>::open().await;
    let hints = w
        .ready(vec![work(), work().instance("a"), work().instance("a")])
        .await;
    let mut other = w.store.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM jobwire.job WHERE id = ANY($1) FOR UPDATE")
        .bind([hints[0].id.0, hints[1].id.0])
        .execute(&mut *other)
        .await
        .unwrap();
    assert_eq!(w.refusal(node(), &hints[0]).await, Some(Refusal::Busy));
    // No younger sibling overtakes the first one.
    assert_eq!(w.refusal(node(), &hints[2]).await, Some(Refusal::Busy));
    other.rollback().await.unwrap();
    assert_eq!(w.hold(node(), &hints[0]).await.job.id, hints[0].id);
    assert_eq!(w.hold(node(), &hints[2]).await.job.id, hints[1].id);
}

#[tokio::test]
async fn a_busy_sibling_is_hinted_by_whoever_finishes() {
    let w = World::<PgStore>::open().await;
    let hints = w
        .ready(vec![work().instance("a"), work().instance("a")])
        .await;
    let worker = node();
    let job = w.hold(worker, &hints[0]).await;
    let mut other = w.store.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM jobwire.job WHERE id = $1 FOR UPDATE")
        .bind(hints[1].id.0)
        .execute(&mut *other)
        .await
        .unwrap();
    let settled = w.complete(worker, &job, &take(worker)).await;
    assert!(settled.next.is_empty());
    assert_eq!(ids(&settled.ready), [hints[1].id]);
    other.rollback().await.unwrap();
}
