//! `jobwire migrate`.

use jobwire_core::PgStore;
use jobwire_core::store::SCHEMA_VERSION;
use jobwire_tests::{Scratch, shared};

use super::{fails, jobwire, succeeds};

#[tokio::test]
async fn tables_come_and_go_on_postgresql() {
    let home = Scratch::new();
    let url = shared::postgres().await.create_database().await;
    let program = |arguments: &[&str]| jobwire(&home, arguments).args(["--database", &url]);
    let said = fails(program(&["migrate", "status"]), 1).await;
    assert!(
        said.contains("schema version 0") && said.contains("migrate up"),
        "{said}"
    );
    let said = succeeds(program(&["migrate", "up"])).await;
    let up = format!("schema version {SCHEMA_VERSION} (it was 0)");
    assert!(said.contains(&up), "{said}");
    let said = succeeds(program(&["migrate", "up"])).await;
    assert!(said.contains("nothing to do"), "{said}");
    let said = fails(program(&["migrate", "down", "--to", "9999"]), 2).await;
    assert!(said.contains("which is below 9999"), "{said}");
    let said = succeeds(program(&["migrate", "status"])).await;
    assert!(said.contains("ready") && said.contains(":***@"), "{said}");

    let said = fails(program(&["migrate", "down"]), 2).await;
    assert!(said.contains("--yes"), "{said}");
    let migrations = sqlx::migrate!("../migrations/postgres");
    let up = migrations
        .iter()
        .filter(|one| one.migration_type.is_up_migration());
    let mut versions: Vec<i64> = up.map(|one| one.version).collect();
    assert_eq!(versions.last(), Some(&i64::from(SCHEMA_VERSION)));
    while let Some(version) = versions.pop() {
        let said = succeeds(program(&["migrate", "down", "--yes"])).await;
        let done = format!("schema version {} (it was {version})", version - 1);
        assert!(said.contains(&done), "{said}");
    }
    fails(program(&["migrate", "status"]), 1).await;
    succeeds(program(&["migrate", "up"])).await;
}

#[tokio::test]
async fn a_mistyped_path_makes_no_sqlite_file_unless_the_command_creates_one() {
    let home = Scratch::new();
    for arguments in [
        &["migrate", "status"][..],
        &["migrate", "down", "--yes"],
        &["order"],
        &["order", "strict"],
        &["lanes", "list"],
        &["nodes"],
        &["jobs", "list"],
    ] {
        let program = jobwire(&home, arguments).args(["--database", "sqlite:jobwier.db"]);
        let said = fails(program, 1).await;
        assert!(
            said.contains("no such file: jobwier.db")
                && said.contains("create the file with `jobwire migrate up`")
                && !said.contains("Sqlite"),
            "{arguments:?}: {said}"
        );
        assert!(!home.join("jobwier.db").exists(), "{arguments:?}");
    }
    let up = ["migrate", "up", "--database", "sqlite:jobwire.db"];
    succeeds(jobwire(&home, &up)).await;
    assert!(home.join("jobwire.db").exists());
}

#[tokio::test]
async fn tables_of_a_newer_program_are_left_alone() {
    let home = Scratch::new();
    let url = shared::postgres().await.create_database().await;
    let store = PgStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    sqlx::query("INSERT INTO jobwire.schema_version (version, readable_by) VALUES (99, 99)")
        .execute(store.pool())
        .await
        .unwrap();
    for direction in [
        &["migrate", "up"][..],
        &["migrate", "down", "--to", "0", "--yes"],
        &["migrate", "status"],
    ] {
        let said = fails(jobwire(&home, direction).args(["--database", &url]), 1).await;
        assert!(said.contains("upgrade it"), "{said}");
    }
}

#[tokio::test]
async fn a_sqlite_file_can_be_migrated_by_hand_too() {
    let home = Scratch::new();
    succeeds(jobwire(&home, &["migrate", "up"])).await;
    assert!(home.join("jobwire.db").exists());
    succeeds(jobwire(&home, &["migrate", "down", "--to", "0", "--yes"])).await;
    fails(jobwire(&home, &["migrate", "status"]), 1).await;
    // Any other command migrates the database by itself.
    succeeds(jobwire(&home, &["jobs", "list"])).await;
    succeeds(jobwire(&home, &["migrate", "status"])).await;
}
