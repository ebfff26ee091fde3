//! What a tap needs of the server: settings, rights, a publication, TLS.

use jobwire_core::store::postgres::{About, tap_publication};
use jobwire_core::{PgStore, Store, TapMode};
use jobwire_tap::{Changes, Event, PgPublication, PublishedTable, TapError, TlsMode, preflight};
use jobwire_tests::{Authority, Postgres, shared};

use super::world::{Published, Tapped, Watcher, address, run, seldom};
use crate::world::{World, pass, patient};

async fn findings(store: &PgStore) -> Vec<(About, String)> {
    let found = store.examine_tap().await.unwrap();
    let say = |finding: jobwire_tap::Finding| {
        assert!(finding.blocks, "{finding:?}");
        (
            finding.about,
            format!("{}; {}", finding.found, finding.remedy),
        )
    };
    found.into_iter().map(say).collect()
}

#[tokio::test]
async fn a_database_that_is_set_up_lacks_nothing() {
    let world = World::new().await;
    let before = findings(&world.store).await;
    assert_eq!(before.len(), 1, "{before:?}");
    assert!(
        before[0]
            .1
            .contains("`jobwire_tap` does not exist; CREATE PUBLICATION")
    );
    // A second call repairs what is there.
    for _ in 0..2 {
        world.store.create_tap().await.unwrap();
        assert_eq!(findings(&world.store).await, []);
    }
    run(
        &world.store,
        "ALTER PUBLICATION jobwire_tap DROP TABLE jobwire.timer_job",
    )
    .await;
    let broken = findings(&world.store).await;
    assert!(
        broken[0].1.contains("lacks the table jobwire.timer_job"),
        "{broken:?}"
    );
    world.store.create_tap().await.unwrap();
    assert_eq!(findings(&world.store).await, []);
    world.store.drop_tap().await.unwrap();
    assert!(!world.store.has_tap().await.unwrap());
}

#[tokio::test]
async fn a_server_without_logical_wal_and_a_user_without_the_right_are_named() {
    let postgres = Postgres::start_with(&["wal_level=replica"]).await;
    let url = postgres.create_database().await;
    let store = patient(&url).await;
    store.migrate().await.unwrap();
    run(
        &store,
        "CREATE ROLE plain LOGIN PASSWORD 'secret'; GRANT ALL ON SCHEMA jobwire TO plain",
    )
    .await;
    let mut plain = address(&url);
    plain.user = "plain".to_owned();
    plain.password = Some("secret".to_owned());
    let found = preflight(&plain, &tap_publication()).await.unwrap();
    let said: Vec<String> = found
        .iter()
        .map(|f| format!("{}; {}", f.found, f.remedy))
        .collect();
    for part in [
        "wal_level is `replica`",
        "restart the server",
        "ALTER ROLE \"plain\" REPLICATION",
        "CREATE PUBLICATION \"jobwire_tap\"",
    ] {
        assert!(
            said.iter().any(|line| line.contains(part)),
            "{part}: {said:?}"
        );
    }
    // The statement for the owner is part of the error.
    let refused = tap_publication().create(&plain).await.unwrap_err();
    assert_eq!(refused.code(), Some("42501"), "{refused}");

    // With the setting `on` a job starts within seconds all the same.
    store.create_tap().await.unwrap();
    let world = World::on(url).await;
    let mut options = seldom();
    options.tap = TapMode::On;
    let tapped = Tapped::with(world, options).await;
    pass(std::time::Duration::from_secs(2)).await;
    tapped.create("without a tap").await;
    assert_eq!(tapped.notes.until(1).await, ["without a tap"]);
    tapped.node.stop().await;
}

#[tokio::test]
async fn a_publication_that_breaks_updates_is_found() {
    let db = Published::new(Changes::Inserts).await;
    let address = address(&db.url);
    let wanted = PgPublication::new("watched", Changes::Inserts)
        .table(PublishedTable::new("public", "t").columns(["id", "note"]));
    assert_eq!(preflight(&address, &wanted).await.unwrap(), []);
    db.run("INSERT INTO t VALUES (1, 1, 'one')").await;
    for (publication, part) in [
        (
            "FOR TABLE t (note) WITH (publish = 'insert, update')",
            "primary key",
        ),
        (
            "FOR TABLE t WHERE (amount > 5) WITH (publish = 'update')",
            "selects rows by columns",
        ),
        (
            "FOR TABLE t (note, amount) WITH (publish = 'delete')",
            "primary key",
        ),
    ] {
        db.run(&format!("CREATE PUBLICATION others {publication}"))
            .await;
        let found = preflight(&address, &wanted).await.unwrap();
        let hits: Vec<_> = found
            .iter()
            .filter(|f| f.blocks && f.about == jobwire_tap::About::OtherPublication)
            .filter(|f| f.found.contains(part) && f.found.contains("`others`"))
            .collect();
        assert_eq!(hits.len(), 1, "{publication}: {found:?}");
        // The server does refuse it.
        let change = if publication.contains("delete") {
            "DELETE FROM t"
        } else {
            "UPDATE t SET amount = 2"
        };
        let refused = sqlx::query(change)
            .execute(db.store.pool())
            .await
            .unwrap_err();
        let code = refused
            .as_database_error()
            .and_then(|e| e.code().map(|c| c.into_owned()));
        assert_eq!(code.as_deref(), Some("42P10"), "{publication}");
        db.run("DROP PUBLICATION others").await;
    }
    for harmless in [
        "FOR TABLE t (id, note) WITH (publish = 'insert, update')",
        "FOR TABLE t WHERE (id > 5)",
        "FOR TABLE t (note) WHERE (amount > 5) WITH (publish = 'insert')",
        "FOR ALL TABLES",
    ] {
        db.run(&format!("CREATE PUBLICATION others {harmless}"))
            .await;
        assert_eq!(
            preflight(&address, &wanted).await.unwrap(),
            [],
            "{harmless}"
        );
        db.run("UPDATE t SET amount = amount + 1").await;
        db.run("DROP PUBLICATION others").await;
    }
}

/// A publication of inserts has no effect on updates, though it selects rows by other columns.
#[tokio::test]
async fn the_taps_own_publication_breaks_nothing() {
    let world = World::new().await;
    world.store.create_tap().await.unwrap();
    run(
        &world.store,
        "SELECT jobwire.create_job(type => 'note'); UPDATE jobwire.job SET hints = 5; DELETE FROM jobwire.job",
    )
    .await;
    world.store.migrate_down(0).await.unwrap();
    world.store.close().await;
}

#[tokio::test]
async fn a_publication_that_does_not_exist_is_named() {
    let db = Published::new(Changes::Inserts).await;
    let mut options = Published::options();
    options.publication = "nowhere".to_owned();
    let mut tap = Watcher(jobwire_tap::Tap::open(address(&db.url), options).unwrap());
    let gap = tap.next().await;
    let Event::Gap(error @ TapError::NoPublication(_)) = gap else {
        panic!("{gap:?}");
    };
    assert!(error.is_lasting() && error.to_string().contains("`nowhere`"));
}

#[tokio::test]
async fn a_wrong_password_is_lasting_and_not_shown() {
    let db = Published::new(Changes::Inserts).await;
    let mut wrong = address(&db.url);
    wrong.password = Some("hunter2".to_owned());
    let mut tap = Watcher(jobwire_tap::Tap::open(wrong, Published::options()).unwrap());
    let gap = tap.next().await;
    let Event::Gap(error @ TapError::Login(_)) = gap else {
        panic!("{gap:?}");
    };
    assert!(error.is_lasting());
    let said = format!("{error} {error:?} {:?}", address(&db.url));
    assert!(
        said.contains("28P01") && !said.contains("hunter2"),
        "{said}"
    );
}

#[tokio::test]
async fn the_stream_is_encrypted_and_the_server_verified() {
    let authority = Authority::new();
    let postgres = Postgres::start_with_tls(&authority.server()).await;
    let db = Published::on(postgres.create_database().await, Changes::Inserts).await;
    let mut trusted = address(&db.url);
    trusted.tls.mode = TlsMode::VerifyFull;
    let open = |address| Watcher(jobwire_tap::Tap::open(address, Published::options()).unwrap());
    // Nobody vouches for this authority.
    let gap = open(trusted.clone()).next().await;
    assert!(matches!(gap, Event::Gap(TapError::Tls(_))), "{gap:?}");
    let root = std::fs::read_to_string(authority.certificate()).unwrap();
    trusted.tls.root = Some(root.into());
    for mode in [TlsMode::VerifyFull, TlsMode::VerifyCa, TlsMode::Require] {
        trusted.tls.mode = mode;
        let mut tap = open(trusted.clone());
        tap.until_standing().await;
        let encrypted: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_replication r USING (pid) WHERE s.ssl",
        )
        .fetch_one(db.store.pool())
        .await
        .unwrap();
        assert!(encrypted >= 1, "{mode:?}");
    }
    let plain = Postgres::start().await;
    let mut elsewhere = address(&plain.url("postgres"));
    elsewhere.tls.mode = TlsMode::Require;
    let gap = open(elsewhere).next().await;
    let Event::Gap(TapError::Tls(why)) = gap else {
        panic!("{gap:?}");
    };
    assert!(why.contains("does not offer TLS"), "{why}");
}

#[tokio::test]
async fn a_unix_socket_carries_the_stream() {
    let postgres = Postgres::start().await;
    let db = Published::on(postgres.create_database().await, Changes::Inserts).await;
    let directory: String = sqlx::query_scalar("SHOW unix_socket_directories")
        .fetch_one(db.store.pool())
        .await
        .unwrap();
    let mut local = address(&db.url);
    local.host = directory;
    let mut tap = Watcher(jobwire_tap::Tap::open(local, Published::options()).unwrap());
    tap.until_standing().await;
    db.run("INSERT INTO t VALUES (1)").await;
    assert_eq!(tap.ids(1).await, ["1"]);
}

#[tokio::test]
async fn sqlite_has_no_tap_and_says_so() {
    let store = crate::world::patient_file("sqlite::memory:").await;
    let offer = format!("{:?}", store.tap().await.unwrap());
    assert!(offer.contains("no commit tap"), "{offer}");
    let _ = shared::postgres().await;
}
