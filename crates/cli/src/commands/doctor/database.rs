//! Checks the database.

use std::path::Path;

use jobwire_core::PgStore;
use jobwire_core::store::SchemaStatus;
use jobwire_core::store::postgres::address::host_elsewhere;
use jobwire_core::store::postgres::examine::Examination;
use url::Url;

use super::finding::Findings;
use super::{batches, calendars, events, lanes, leases, limits, nodes, suspensions, tap};
use crate::connect::Database;
use crate::error::Error;
use crate::settings::Settings;

/// The oldest PostgreSQL on which the statements work (`pg_xact_status` of 64-bit ids).
const OLDEST: i32 = 130_000;
/// The difference of clocks, in seconds, from which measured latencies are wrong.
const CLOCK: f64 = 0.1;

pub(super) async fn examine(settings: &Settings, findings: &mut Findings) {
    let url = &settings.database_url;
    if let Some(path) = missing_file(url.expose()) {
        findings.remark(
            "database",
            format!("{url}: there is no file {path} yet"),
            "nothing to do: `jobwire run` and `jobwire enqueue` create it",
        );
        return;
    }
    let database = match Database::connect(settings, false).await {
        Ok(database) => database,
        Err(error) => return findings.error("database", error),
    };
    findings.fine("database", format!("{url} is reachable"));
    match &database {
        Database::Postgres(store) => postgres(settings, store, findings).await,
        Database::Sqlite(_) => sqlite(&database, findings).await,
    }
    if let Ok(SchemaStatus::Ready { .. }) = database.status().await {
        lanes::examine(settings, &*database.store(), findings).await;
        nodes::examine(settings, &*database.store(), findings).await;
        leases::examine(&*database.store(), findings).await;
        suspensions::examine(&*database.store(), findings).await;
        limits::examine(&*database.store(), findings).await;
        batches::examine(&*database.store(), findings).await;
        calendars::examine(&*database.store(), findings).await;
        events::examine(settings, &*database.store(), findings).await;
    }
    database.store().close().await;
}

/// Returns the path of the SQLite database if its file does not exist.
fn missing_file(url: &str) -> Option<String> {
    let name = url.strip_prefix("sqlite:")?.trim_start_matches("//");
    let path = name.split('?').next().unwrap_or_default();
    let in_memory = path == ":memory:" || name.contains("mode=memory");
    let parent = Path::new(path).parent().filter(|p| *p != Path::new(""));
    // Without its directory the file can't be created, and the connection reports the error.
    let possible = parent.is_none_or(Path::is_dir);
    (!in_memory && possible && !Path::new(path).exists()).then(|| path.to_owned())
}

async fn sqlite(database: &Database, findings: &mut Findings) {
    schema(database.status().await, findings, true);
    findings.remark(
        "durability",
        "SQLite serves one machine: one process at a time writes",
        "for several nodes use PostgreSQL (--database postgres://…)",
    );
}

fn schema(
    status: Result<SchemaStatus, jobwire_core::StoreError>,
    findings: &mut Findings,
    by_itself: bool,
) {
    match status {
        Ok(SchemaStatus::Ready { version, .. }) => {
            findings.fine(
                "schema",
                format!("version {version}, which fits this program"),
            );
        }
        Ok(SchemaStatus::Outdated { found, wanted }) if by_itself => findings.remark(
            "schema",
            format!("version {found}; this program needs {wanted}"),
            "nothing to do: the next `jobwire run` updates it",
        ),
        Ok(status) => {
            if let Err(error) = status.ready() {
                findings.error("schema", error);
            }
        }
        Err(error) => findings.error("schema", Error::Store(error)),
    }
}

async fn postgres(settings: &Settings, store: &PgStore, findings: &mut Findings) {
    let facts = match store.examine().await {
        Ok(facts) => facts,
        Err(error) => return findings.error("server", Error::Store(error)),
    };
    server(settings, &facts, findings);
    encryption(settings, &facts, findings);
    clock(&facts, findings);
    let blind = facts
        .missing_rights
        .iter()
        .any(|(_, right)| right == "USAGE")
        || facts
            .missing_rights
            .iter()
            .any(|(object, _)| object.ends_with("schema_version"));
    // A node refuses the database for its encoding, whatever its schema.
    if !blind && is_readable(&facts) {
        schema(jobwire_core::Store::check(store).await, findings, false);
    }
    rights(&facts, findings);
    foreign_objects(&facts, findings);
    connections(settings, &facts, findings);
    durability(&facts, findings);
    tap::examine(settings, store, findings).await;
}

fn is_readable(facts: &Examination) -> bool {
    facts.encoding == "UTF8"
}

fn server(settings: &Settings, facts: &Examination, findings: &mut Findings) {
    let (major, minor) = (facts.version / 10_000, facts.version % 10_000);
    let version = format!("PostgreSQL {major}.{minor}");
    if facts.version < OLDEST {
        findings.wrong("server", version, "upgrade it to version 13 or newer");
    } else {
        findings.fine("server", format!("{version}, as user {}", facts.user));
    }
    if !is_readable(facts) {
        findings.wrong(
            "encoding",
            format!(
                "{}: the database can hold texts that no node can read, so no node starts",
                facts.encoding
            ),
            "move the tables to a database with ENCODING 'UTF8'",
        );
    }
    if !facts.plain_backslashes {
        findings.wrong(
            "server",
            "standard_conforming_strings is off: jobs with `repeat` can't be created from SQL",
            "ALTER ROLE … SET standard_conforming_strings = on, for this user and for those that create jobs",
        );
    }
    if facts.in_recovery {
        findings.wrong(
            "server",
            "it is a standby, which accepts no writes",
            "name the primary in --database",
        );
    }
    let asked = Url::parse(settings.database_url.expose())
        .ok()
        .and_then(|url| url.port())
        .map_or(5432, i32::from);
    if facts.server_port.is_some_and(|port| port != asked) {
        findings.fine(
            "server",
            format!(
                "the URL names port {asked}, the server itself listens on {}: a forwarded port, or \
                 a pooler, which must keep a session for each connection",
                facts.server_port.unwrap_or_default()
            ),
        );
    }
    if facts.isolation != "read committed" {
        findings.remark(
            "server",
            format!("default_transaction_isolation is {}", facts.isolation),
            "ALTER ROLE … SET default_transaction_isolation = 'read committed'; Jobwire's own statements set READ COMMITTED themselves, but your transactions may fail under a stricter level, with the jobs that they create",
        );
    }
}

/// Reports triggers, rules and foreign keys that are not Jobwire's. One that keeps a row from being deleted
/// keeps its job from ending.
fn foreign_objects(facts: &Examination, findings: &mut Findings) {
    for object in &facts.foreign_objects {
        findings.remark(
            "schema",
            format!("Jobwire's tables have a {object}, which is not Jobwire's"),
            "drop it if it can refuse or skip a row: a job whose row can't be deleted runs again and again",
        );
    }
}

/// Reports the encryption that the server sees. Behind a pooler, the server sees another
/// connection.
fn encryption(settings: &Settings, facts: &Examination, findings: &mut Findings) {
    let host = host_elsewhere(settings.database_url.expose());
    match (&facts.encryption, host.ok().flatten()) {
        (Some(version), _) => {
            findings.fine("encryption", format!("{version}, as the server sees it"));
        }
        (None, None) => findings.fine("encryption", "none; the connection stays on this machine"),
        (None, Some(host)) => findings.remark(
            "encryption",
            format!(
                "the server's connection is not encrypted, and '{host}' is another machine: the \
                 password and every job can be read on the network"
            ),
            "set `sslmode=verify-full` in --database and switch `ssl` on at the server (behind a \
             pooler: between it and the server)",
        ),
    }
}

fn clock(facts: &Examination, findings: &mut Findings) {
    let ahead = facts.clock_ahead;
    let round_trip = facts.round_trip.as_secs_f64() * 1000.0;
    if ahead.abs() - facts.round_trip.as_secs_f64() / 2.0 > CLOCK {
        findings.remark(
            "clock",
            format!("the database's clock is {ahead:+.3} s off this machine's"),
            "let both follow the same time servers (NTP); jobs run by the database's clock, so \
             measured latencies are wrong by this much",
        );
    } else {
        findings.fine(
            "clock",
            format!("{ahead:+.3} s off this machine's; one round trip takes {round_trip:.1} ms"),
        );
    }
}

fn rights(facts: &Examination, findings: &mut Findings) {
    if !facts.schema_exists {
        if !facts.may_create_schema {
            findings.wrong(
                "rights",
                format!("user {} may not create the schema `jobwire`", facts.user),
                "GRANT CREATE ON DATABASE … TO this user, or run `jobwire migrate up` as a user \
                 that has this right",
            );
        }
        return;
    }
    if facts.missing_rights.is_empty() {
        return findings.fine("rights", "every table and sequence can be used");
    }
    for (object, right) in &facts.missing_rights {
        findings.wrong(
            "rights",
            format!("user {} lacks {right} on {object}", facts.user),
            format!(
                "GRANT {right} ON {} TO \"{}\"",
                object
                    .replacen("table ", "TABLE ", 1)
                    .replacen("sequence ", "SEQUENCE ", 1)
                    .replacen("schema ", "SCHEMA ", 1),
                facts.user
            ),
        );
    }
}

fn connections(settings: &Settings, facts: &Examination, findings: &mut Findings) {
    let needed = i64::from(settings.database_connections.0) + 1;
    let free = (facts.connections_allowed - facts.connections_open).max(0);
    let found = format!(
        "{} of {} in use; a node takes up to {needed}",
        facts.connections_open, facts.connections_allowed
    );
    if free < needed {
        findings.wrong(
            "connections",
            found,
            "raise max_connections on the server, or lower database_connections",
        );
    } else if free < needed * 3 {
        findings.remark(
            "connections",
            found,
            format!("there is room for {} more nodes", free / needed),
        );
    } else {
        findings.fine("connections", found);
    }
}

fn durability(facts: &Examination, findings: &mut Findings) {
    match facts.synchronous_commit.as_str() {
        "off" => findings.remark(
            "durability",
            "synchronous_commit is off: a crash of the server loses the commits of its last \
             moments, both created and completed jobs",
            "ALTER ROLE … SET synchronous_commit = on, unless this is intended",
        ),
        mode => findings.fine("durability", format!("synchronous_commit is {mode}")),
    }
}
