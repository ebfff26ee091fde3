//! `jobwire doctor`.

use std::time::Duration;

use jobwire_core::event::stream::EventStream;
use jobwire_core::job::scope::Scope;
use jobwire_core::store::attempts::AttemptsKept;
use jobwire_core::store::{LockTerms, Membership, RowTerms, SCHEMA_VERSION};
use jobwire_core::{Batch, Hint, NewJob, NodeId, PgStore, Store};
use jobwire_tests::{Scratch, eventually, http, port, shared};
use serde_json::Value;
use url::Url;

use crate::world::World;

use super::home::{Base, Home};
use super::{SOON, fails, fails_saying, jobwire, lines, start, succeeds};

#[tokio::test]
async fn a_good_set_up_passes() {
    let home = Scratch::new();
    let url = shared::postgres().await.create_database().await;
    let space = shared::rabbitmq().await.space().await;
    let program = |arguments: &[&str]| {
        jobwire(&home, arguments)
            .env("JOBWIRE_DATABASE_URL", &url)
            .env("JOBWIRE_BROKER_URL", &space.url)
            .env("JOBWIRE_AMQP_PREFIX", &space.prefix)
    };
    succeeds(program(&["migrate", "up"])).await;
    // The doctor counts a broker that takes seconds to answer as away.
    let said = eventually("the doctor to find no problem", SOON, || async {
        let (status, lines) = program(&["doctor"]).run(SOON).await;
        status.success().then(|| lines.join("\n"))
    })
    .await;
    let schema = format!("schema: version {SCHEMA_VERSION},");
    for part in [
        "PostgreSQL",
        &*schema,
        "every table",
        "lane default is declared",
        "can be received",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    eventually("the same as JSON", SOON, || async {
        let doctor = program(&["doctor", "--json"]).env("JOBWIRE_LOG", "off");
        let (_, lines) = doctor.run(SOON).await;
        let said = lines.join("\n");
        let findings: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
        let findings = findings.as_array().unwrap();
        findings.iter().all(|f| f["level"] != "wrong").then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_embedded_set_up_passes_and_nothing_is_made() {
    let home = Scratch::new();
    let said = succeeds(jobwire(&home, &["doctor"])).await;
    assert!(said.contains("there is no file jobwire.db yet"), "{said}");
    assert!(!home.join("jobwire.db").exists());
    succeeds(jobwire(&home, &["migrate", "up"])).await;
    let said = succeeds(jobwire(&home, &["doctor"])).await;
    let schema = format!("schema: version {SCHEMA_VERSION},");
    assert!(said.contains(&schema), "{said}");
}

/// Another program deleted the only member, and no node runs.
#[tokio::test]
async fn a_batch_without_a_job_is_named() {
    let home = Scratch::new();
    let world = World::new().await;
    let batch = Batch::named("import").jobs([NewJob::of("row", &())]);
    let batch = batch.then(NewJob::of("report", &()));
    let batch = world.jobs.create_batch(batch).await.unwrap();
    let doctor = async || {
        let program = jobwire(&home, &["doctor", "--database", &world.url]);
        program.run(SOON).await.1.join("\n")
    };
    let said = doctor().await;
    assert!(!said.contains("batches:"), "{said}");
    let deleted = sqlx::query("DELETE FROM jobwire.job WHERE type = 'row'");
    deleted.execute(world.store.pool()).await.unwrap();
    let said = doctor().await;
    let named = format!("batches: batch {batch} seems to have no job left");
    assert!(said.contains(&named), "{said}");
    assert!(
        said.contains(&format!("jobwire batches cancel {batch}")),
        "{said}"
    );
}

pub(super) async fn types_that_no_node_serves_are_named_with_their_jobs<S: Base>(home: &Home<S>) {
    let (_node, url) =
        start(jobwire(home, &["run", "--http", "127.0.0.1:0"]).env("JOBWIRE_SWEEP_INTERVAL", "1s"))
            .await;
    for (line, count) in [(r#"{"type":"send-fax"}"#, 3), (r#"{"type":"print"}"#, 1)] {
        succeeds(jobwire(home, &["enqueue", &lines(home, line, count)])).await;
    }
    let said = succeeds(jobwire(home, &["doctor"])).await;
    for part in [
        "3 jobs of type send-fax",
        "1 job of type print",
        "no living node takes",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let alive = eventually("the endpoint to name them", SOON, async || {
        let alive = http::get(&url, "/healthz").await.ok()?;
        assert_eq!(alive.status, 200, "{}", alive.body);
        alive.body.contains("send-fax").then_some(alive.body)
    })
    .await;
    assert!(alive.contains("3 jobs of type send-fax wait"), "{alive}");
    let ready = http::get(&url, "/readyz").await.unwrap();
    assert_eq!(ready.status, 200, "{}", ready.body);
    let health: Value = serde_json::from_str(&ready.body).unwrap();
    assert_eq!(health["unserved"][0]["type"], "send-fax", "{health}");
    assert_eq!(health["unserved"][0]["jobs"], 3, "{health}");
}

pub(super) async fn names_that_no_node_takes_are_named_with_their_jobs<S: Base>(home: &Home<S>) {
    let run = jobwire(home, &["run", "--http", "127.0.0.1:0"]);
    let (_node, url) = start(
        run.env("JOBWIRE_SWEEP_INTERVAL", "1s")
            .env("JOBWIRE_TENANTS", "acme")
            .env("JOBWIRE_CATEGORIES", "fax")
            .env("JOBWIRE_DEPLOYMENTS", "d1"),
    )
    .await;
    for (line, count) in [
        (r#"{"type":"noop","tenant":"initech"}"#, 3),
        (r#"{"type":"noop","category":"mail","tenant":"acme"}"#, 2),
        (r#"{"type":"noop","deployment":"d2"}"#, 1),
        (r#"{"type":"print","tenant":"initech"}"#, 1),
    ] {
        succeeds(jobwire(home, &["enqueue", &lines(home, line, count)])).await;
    }
    let said = succeeds(jobwire(home, &["doctor"])).await;
    for part in [
        "6 jobs of type noop ready, and no living node of that type takes tenant initech (3), \
         category mail (2), deployment d2 (1)",
        "1 job of type print ready, and no living node takes that type",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let alive = eventually("the endpoint to name them", SOON, async || {
        let alive = http::get(&url, "/healthz").await.ok()?;
        alive.body.contains("tenant initech (3)").then_some(alive)
    })
    .await;
    assert_eq!(alive.status, 200, "{}", alive.body);
    let ready = http::get(&url, "/readyz").await.unwrap();
    let health: Value = serde_json::from_str(&ready.body).unwrap();
    let scope = &health["unserved"][0]["scopes"][0];
    assert_eq!(
        (&scope["tenant"], &scope["jobs"]),
        (&"initech".into(), &3.into()),
        "{health}"
    );
    assert!(scope.get("category").is_none(), "{health}");
    assert!(health["unserved"][1].get("scopes").is_none(), "{health}");
}

#[tokio::test]
async fn what_is_away_is_said_with_a_remedy() {
    let home = Scratch::new();
    let nobody = port::free();
    let database = format!("postgres://me:secret@127.0.0.1:{nobody}/jobs");
    let broker = format!("amqp://me:secret@127.0.0.1:{nobody}/%2F");
    let said = fails(
        jobwire(
            &home,
            &["doctor", "--database", &database, "--broker", &broker],
        ),
        1,
    )
    .await;
    assert!(
        said.contains("WRONG  database") && said.contains("WRONG  broker"),
        "{said}"
    );
    assert!(
        said.contains("check that the server runs") && said.contains("--broker"),
        "{said}"
    );
    assert!(!said.contains("secret"), "{said}");
}

#[tokio::test]
async fn missing_tables_and_missing_rights_are_listed() {
    let home = Scratch::new();
    let url = shared::postgres().await.create_database().await;
    let doctor = |database: &str| jobwire(&home, &["doctor", "--database", database]);
    fails_saying(|| doctor(&url), 1, &["run `jobwire migrate up`"]).await;

    let store = PgStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let user = format!("reader_{}", uuid::Uuid::new_v4().simple());
    let grants = format!(
        "CREATE ROLE {user} LOGIN PASSWORD 'secret';
         GRANT USAGE ON SCHEMA jobwire TO {user};
         GRANT SELECT ON ALL TABLES IN SCHEMA jobwire TO {user};
         GRANT INSERT, UPDATE, DELETE ON jobwire.job TO {user};"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(grants))
        .execute(store.pool())
        .await
        .unwrap();
    let mut theirs = Url::parse(&url).unwrap();
    theirs.set_username(&user).unwrap();
    theirs.set_password(Some("secret")).unwrap();
    let parts = [
        "lacks INSERT on table jobwire.timer_job",
        "GRANT DELETE ON TABLE jobwire.job_lease TO",
        "lacks USAGE on sequence jobwire.fence_seq",
        "lacks UPDATE on sequence jobwire.fence_seq",
    ];
    let said = fails_saying(|| doctor(theirs.as_str()), 1, &parts).await;
    assert!(!said.contains("on table jobwire.job\n"), "{said}");

    let revoke = format!("REVOKE USAGE ON SCHEMA jobwire FROM {user}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(revoke))
        .execute(store.pool())
        .await
        .unwrap();
    let part = "GRANT USAGE ON SCHEMA jobwire";
    fails_saying(|| doctor(theirs.as_str()), 1, &[part]).await;
}

#[tokio::test]
async fn a_forgotten_broker_is_found_by_the_nodes_that_have_one() {
    let home = Scratch::new();
    let url = shared::postgres().await.create_database().await;
    let store = PgStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    sqlx::query(
        "INSERT INTO jobwire.node (id, revision, types, lanes, host, version, transport)
         VALUES (gen_random_uuid(), 1, '{noop}', '{default}', 'elsewhere', '0.1.0', 'rabbitmq')",
    )
    .execute(store.pool())
    .await
    .unwrap();
    let doctor = jobwire(&home, &["doctor"]).args(["--database", &url]);
    let said = fails(doctor, 1).await;
    for part in ["1 node alive with a broker", "set --broker"] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

/// Such a database can hold bytes that no node can read. Jobs with them would stop statements that read
/// other jobs, too.
#[tokio::test]
async fn a_database_in_another_encoding_is_refused() {
    let home = Scratch::new();
    let server = PgStore::connect(shared::postgres().await.url())
        .await
        .unwrap();
    for encoding in ["SQL_ASCII", "WIN1252"] {
        let name = format!("coded_{}", uuid::Uuid::new_v4().simple());
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
            "CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
        )))
        .execute(server.pool())
        .await
        .unwrap();
        let mut url = Url::parse(shared::postgres().await.url()).unwrap();
        url.set_path(&name);
        let doctor = jobwire(&home, &["doctor"]).args(["--database", url.as_str()]);
        let said = fails(doctor, 1).await;
        let named = format!("encoding: {encoding}");
        for part in [&*named, "ENCODING 'UTF8'"] {
            assert!(said.contains(part), "{part} in {said}");
        }
        let migrates = jobwire(&home, &["migrate", "up"]).args(["--database", url.as_str()]);
        let said = fails(migrates, 1).await;
        for part in [encoding, "ENCODING 'UTF8'"] {
            assert!(said.contains(part), "{part} in {said}");
        }
        let store = PgStore::connect(url.as_str()).await.unwrap();
        let refused = Store::check(&store).await.unwrap_err().to_string();
        assert!(refused.contains("ENCODING 'UTF8'"), "{refused}");
        let tables: i64 =
            sqlx::query_scalar("SELECT count(*) FROM pg_namespace WHERE nspname = 'jobwire'")
                .fetch_one(store.pool())
                .await
                .unwrap();
        assert_eq!(tables, 0, "nothing was migrated");
    }
}

/// A trigger that skips the deletion of a job lets it run again and again.
#[tokio::test]
async fn objects_of_others_on_the_tables_are_named_and_old_backslashes_are_wrong() {
    let home = Scratch::new();
    let url = shared::postgres().await.create_database().await;
    let store = PgStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let stream = EventStream::new("/jobs".to_owned());
    Store::switch_event_stream(&store, Some(&stream))
        .await
        .unwrap();
    // The events wait for a broker.
    let said = fails(jobwire(&home, &["doctor"]).args(["--database", &url]), 1).await;
    assert!(!said.contains("not Jobwire's"), "{said}");

    sqlx::raw_sql(
        "CREATE FUNCTION public.skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER keeper BEFORE DELETE ON jobwire.job FOR EACH ROW EXECUTE FUNCTION public.skip();
         CREATE RULE keep AS ON DELETE TO jobwire.timer_job DO INSTEAD NOTHING;
         CREATE TABLE public.invoice (job uuid CONSTRAINT its_job REFERENCES jobwire.dead_letter_job (id));
         DO $$ BEGIN
             EXECUTE format('ALTER DATABASE %I SET standard_conforming_strings = off', current_database());
         END $$",
    )
    .execute(store.pool())
    .await
    .unwrap();
    let said = fails(jobwire(&home, &["doctor"]).args(["--database", &url]), 1).await;
    for part in [
        "trigger keeper of jobwire.job",
        "rule keep of jobwire.timer_job",
        "foreign key its_job of invoice",
        "standard_conforming_strings is off",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

pub(super) async fn jobs_that_wait_for_a_calendar_are_named<S: Base>(home: &Home<S>) {
    let line = r#"{"type":"noop","due_in":"PT2M"}"#;
    succeeds(jobwire(home, &["enqueue", &lines(home, line, 2)])).await;
    let late = "R/PT1H[calendar=office]";
    home.store.execute(&format!(
            "UPDATE {{s}}timer_job SET repeat = 'R/PT1H[calendar=shop][pending=after@2027-01-01T00:00:00Z]';
             INSERT INTO {{s}}periodic_job (name, version, schedule, template, next_due, created_at, changed_at)
             VALUES ('p', 1, '{late}', '{{}}', {{past}}, {{past}}, {{past}});"
        ),
    )
    .await;
    let calendar =
        "[[calendar]]\nname = \"shop\"\ntime_zone = \"UTC\"\nhours = { Mon = \"09:00-17:00\" }\n";
    let file = home.write("calendars.toml", calendar);
    let doctor = jobwire(home, &["doctor"]).env("JOBWIRE_CALENDARS", file.display().to_string());
    let said = succeeds(doctor).await;
    for part in [
        "2 jobs wait for the calendar `shop`",
        "these settings know the calendar: give all nodes the same ones",
        "1 periodic job waits for the calendar `office`",
        "register the calendar on all nodes",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

/// A node died that had a lease of an hour, or another program wrote the lease.
pub(super) async fn long_leases_of_unknown_nodes_are_named<S: Base>(home: &Home<S>) {
    let lock = async |owner: NodeId, seconds: u64| {
        let terms = LockTerms {
            owner,
            lease: Duration::from_secs(seconds),
            types: vec!["noop".to_owned()].into(),
            scope: std::sync::Arc::default(),
            rows: RowTerms::default(),
        };
        let created = succeeds(jobwire(
            home,
            &["enqueue", &lines(home, r#"{"type":"noop"}"#, 2)],
        ));
        let created = created.await;
        let hints = created
            .lines()
            .filter_map(|id| Some(Hint::new(id.parse().ok()?)));
        let hints: Vec<Hint> = hints.collect();
        let locked = home.store.lock(&terms, &hints).await.unwrap();
        assert_eq!(locked.jobs.len(), 2);
    };
    let [dead, brief] = [NodeId::generate(), NodeId::generate()];
    lock(dead, 3_600).await;
    lock(brief, 30).await;
    let said = succeeds(jobwire(home, &["doctor"])).await;
    let named = "leases: 2 jobs locked for up to 35";
    assert!(said.contains(named), "{said}");
    let remedy = format!("jobwire jobs list --lock-owner {dead}");
    assert!(said.contains(&remedy), "{said}");
    assert!(!said.contains(&brief.to_string()), "{said}");
    // The node lives.
    let node = Membership {
        id: dead,
        revision: 1,
        types: vec![],
        lanes: vec![],
        scope: Scope::default(),
        host: "host".to_owned(),
        version: "1".to_owned(),
        transport: "in-process".to_owned(),
        attempts_kept: AttemptsKept::new(),
    };
    home.store.write_node(&node).await.unwrap();
    let said = succeeds(jobwire(home, &["doctor"])).await;
    assert!(!said.contains("leases:"), "{said}");
}
