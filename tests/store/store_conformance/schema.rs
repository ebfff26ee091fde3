use jobwire_core::store::{SCHEMA_VERSION, SchemaStatus};

use super::world::{SqlBench, World, node, work};

pub(super) async fn migrations_go_down_and_up_again<S: SqlBench>(w: &World<S>) {
    // A second upgrade changes nothing.
    w.store.up().await;
    let hint = w.one(work()).await;
    w.store.down().await;
    let gone = w.store.check().await.unwrap();
    assert!(
        matches!(gone, SchemaStatus::Outdated { found: 0, .. }),
        "{gone:?}"
    );
    assert!(
        gone.ready()
            .unwrap_err()
            .to_string()
            .contains("jobwire migrate up")
    );
    w.store.up().await;
    assert!(w.store.check().await.unwrap().ready().is_ok());
    assert!(w.store.get(hint.id).await.unwrap().is_none());
    let hint = w.one(work()).await;
    w.hold(node(), &hint).await;
}

pub(super) async fn an_empty_database_is_outdated<S: SqlBench>(_: &World<S>) {
    let empty = World::<S>::empty().await;
    let status = empty.store.check().await.unwrap();
    assert!(
        matches!(
            status,
            SchemaStatus::Outdated {
                found: 0,
                wanted: SCHEMA_VERSION
            }
        ),
        "{status:?}"
    );
}

pub(super) async fn a_newer_schema_is_refused_only_if_it_says_so<S: SqlBench>(w: &World<S>) {
    let [next, second] = [SCHEMA_VERSION + 1, SCHEMA_VERSION + 2];
    let insert = "INSERT INTO {s}schema_version (version, readable_by) VALUES";
    w.store.execute(&format!("{insert} ({next}, 1)")).await;
    let status = w.store.check().await.unwrap();
    assert!(
        matches!(status, SchemaStatus::Ready { version, .. } if version == next),
        "{status:?}"
    );
    w.store
        .execute(&format!("{insert} ({second}, {second})"))
        .await;
    let status = w.store.check().await.unwrap();
    assert!(
        matches!(status, SchemaStatus::TooNew { found, .. } if found == second),
        "{status:?}"
    );
    assert!(status.ready().is_err());
}
