//! The stream of committed rows.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use jobwire_tap::{Change, Changes, Event, TapError, Value};
use jobwire_tests::{Postgres, eventually};

use super::world::{Published, address, terminate, until_no_slot};
use crate::world::{SOON, proxy_before};

#[tokio::test]
async fn committed_rows_arrive_with_their_columns_and_the_time_of_their_commit() {
    let db = Published::new(Changes::InsertsAndUpdates).await;
    let mut tap = db.tap(Published::options()).await;
    let before = SystemTime::now() - Duration::from_secs(5);
    db.run("INSERT INTO t VALUES (1, 10, 'one'), (2, 20, NULL)")
        .await;
    let rows = tap.rows(2).await.remove(0);
    assert_eq!((&*rows.table.schema, &*rows.table.name), ("public", "t"));
    assert_eq!(rows.table.columns, ["id", "note"]);
    assert_eq!(rows.rows[0].change, Change::Insert);
    assert_eq!(rows.rows[0].text(1), Some("one"));
    assert_eq!(rows.rows[1].values[1], Value::Null);
    assert!(rows.committed_at > before && rows.sent_at >= rows.committed_at);
    assert!(matches!(tap.next().await, Event::Commit(_)));
    db.run("UPDATE t SET note = 'two' WHERE id = 2").await;
    let rows = tap.rows(1).await.remove(0);
    assert_eq!(rows.rows[0].change, Change::Update);
    assert_eq!(rows.rows[0].text(1), Some("two"));
    // A deletion is not published.
    db.run("DELETE FROM t; INSERT INTO t VALUES (3, 30, 'three')")
        .await;
    assert_eq!(tap.ids(1).await, ["3"]);
}

#[tokio::test]
async fn what_a_savepoint_undid_is_not_reported() {
    let db = Published::new(Changes::Inserts).await;
    let mut tap = db.tap(Published::options()).await;
    db.run(
        "BEGIN; INSERT INTO t VALUES (1); SAVEPOINT a; INSERT INTO t VALUES (2); ROLLBACK TO a;
         SAVEPOINT b; INSERT INTO t VALUES (3); RELEASE b; INSERT INTO t VALUES (4); COMMIT",
    )
    .await;
    db.run("BEGIN; INSERT INTO t VALUES (5); ROLLBACK").await;
    db.run("INSERT INTO t VALUES (6)").await;
    assert_eq!(tap.ids(4).await, ["1", "3", "4", "6"]);
}

#[tokio::test]
async fn a_large_transaction_is_passed_on_in_small_events() {
    let db = Published::new(Changes::Inserts).await;
    let options = Published::options();
    let most = options.rows;
    let mut tap = db.tap(options).await;
    db.run("INSERT INTO t SELECT n, n, repeat('x', 100) FROM generate_series(1, 200000) n")
        .await;
    let (mut rows, mut largest) = (0, 0);
    loop {
        match tap.next().await {
            Event::Rows(more) => {
                rows += more.rows.len();
                largest = largest.max(more.rows.len());
            }
            Event::Commit(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(rows, 200_000);
    assert!(largest <= most, "{largest}");
}

#[tokio::test]
async fn a_tap_that_is_dropped_leaves_no_slot() {
    let db = Published::new(Changes::Inserts).await;
    let tap = db.tap(Published::options()).await;
    assert_eq!(db.slots().await, 1);
    drop(tap);
    until_no_slot(&db.store).await;
}

#[tokio::test]
async fn a_lost_connection_is_a_gap_and_the_tap_stands_again() {
    let db = Published::new(Changes::Inserts).await;
    let mut tap = db.tap(Published::options()).await;
    for round in 0..3 {
        assert_eq!(terminate(&db.store).await, 1);
        let gap = tap.next().await;
        let Event::Gap(error) = gap else {
            panic!("{gap:?}");
        };
        assert_eq!(error.code(), Some("57P01"), "{error}");
        assert!(!error.is_lasting());
        tap.until_standing().await;
        db.run(&format!("INSERT INTO t VALUES ({round})")).await;
        assert_eq!(tap.ids(1).await, [round.to_string()]);
    }
    assert_eq!(db.slots().await, 1);
}

#[tokio::test]
async fn a_receiver_that_hangs_loses_the_slot_and_no_wal_is_kept_for_it() {
    let db = Published::new(Changes::Inserts).await;
    let mut options = Published::options();
    options.stall = Duration::from_secs(1);
    let mut tap = db.tap(options).await;
    db.run("INSERT INTO t SELECT n FROM generate_series(1, 200000) n")
        .await;
    // Nothing is taken meanwhile.
    until_no_slot(&db.store).await;
    let mut rows = 0;
    loop {
        match tap.next().await {
            Event::Rows(more) => rows += more.rows.len(),
            Event::Gap(TapError::Stalled(_)) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(rows < 200_000, "{rows}");
    tap.until_standing().await;
    db.run("INSERT INTO t VALUES (0)").await;
    assert_eq!(tap.ids(1).await, ["0"]);
}

#[tokio::test]
async fn a_silent_server_is_noticed() {
    let db = Published::new(Changes::Inserts).await;
    let proxy = proxy_before(&db.url).await;
    let mut options = Published::options();
    options.silence = Duration::from_secs(3);
    options.connect = Duration::from_secs(3);
    let mut tap = super::world::Watcher(
        jobwire_tap::Tap::open(address(&proxy.url(&db.url)), options).unwrap(),
    );
    tap.until_standing().await;
    // Its connections carry nothing any more, and nobody is told.
    proxy.forget();
    let gap = tap.next().await;
    assert!(matches!(gap, Event::Gap(TapError::Silent(_))), "{gap:?}");
    tap.until_standing().await;
    db.run("INSERT INTO t VALUES (1)").await;
    assert_eq!(tap.ids(1).await, ["1"]);
    // The server closes the other connection on its side, too.
    eventually("one slot", SOON, || async {
        (db.slots().await == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_idle_tap_stays_and_confirms_what_others_write() {
    let db = Published::new(Changes::Inserts).await;
    let mut options = Published::options();
    options.silence = Duration::from_secs(2);
    let mut tap = db.tap(options).await;
    let lag = "SELECT coalesce(max(pg_current_wal_lsn() - confirmed_flush_lsn), 1e12)::bigint
               FROM pg_replication_slots WHERE database = current_database()";
    db.run("CREATE TABLE other (id int); INSERT INTO other SELECT generate_series(1, 20000)")
        .await;
    // The table is not published: only keepalives tell of the position.
    eventually("the position to be confirmed", SOON, || async {
        let lag: i64 = sqlx::query_scalar(lag)
            .fetch_one(db.store.pool())
            .await
            .ok()?;
        (lag < 100_000).then_some(())
    })
    .await;
    crate::world::pass(Duration::from_secs(5)).await;
    db.run("INSERT INTO t VALUES (1)").await;
    assert_eq!(tap.ids(1).await, ["1"]);
}

#[tokio::test]
async fn a_row_that_is_too_large_ends_the_connection_and_not_the_tap() {
    let db = Published::new(Changes::Inserts).await;
    let mut options = Published::options();
    options.max_message = 10_000;
    let mut tap = db.tap(options).await;
    db.run("INSERT INTO t VALUES (1, 1, repeat('x', 20000))")
        .await;
    let gap = tap.next().await;
    assert!(
        matches!(gap, Event::Gap(TapError::TooLarge { .. })),
        "{gap:?}"
    );
    tap.until_standing().await;
    db.run("INSERT INTO t VALUES (2)").await;
    assert_eq!(tap.ids(1).await, ["2"]);
}

#[tokio::test]
async fn creating_the_slot_waits_for_open_transactions_and_is_given_up_in_time() {
    // On a server of its own: transactions of all databases count.
    let postgres = Postgres::start().await;
    let db = Published::on(postgres.create_database().await, Changes::Inserts).await;
    let mut open = db.store.pool().begin().await.unwrap();
    sqlx::query("INSERT INTO t VALUES (1)")
        .execute(&mut *open)
        .await
        .unwrap();
    let mut options = Published::options();
    options.create = Duration::from_millis(500);
    let mut tap = super::world::Watcher(jobwire_tap::Tap::open(address(&db.url), options).unwrap());
    let mut gaps = BTreeSet::new();
    for _ in 0..3 {
        match tap.next().await {
            Event::Gap(error) => gaps.extend(error.code().map(str::to_owned)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(gaps, BTreeSet::from(["57014".to_owned()]));
    // An attempt that was given up keeps no slot.
    assert!(db.slots().await <= 1);
    open.commit().await.unwrap();
    tap.until_standing().await;
    db.run("INSERT INTO t VALUES (2)").await;
    assert_eq!(tap.ids(1).await, ["2"]);
}
