//! Checks whether the server has all that a tap needs.

use std::collections::{BTreeMap, BTreeSet};

use crate::address::Address;
use crate::error::TapError;
use crate::publication::{Changes, PgPublication, PublishedTable, quoted, statements};
use crate::session::{Row, Session};

/// A problem that the check found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The part of the database that has the problem.
    pub about: About,
    /// The problem.
    pub found: String,
    /// The remedy.
    pub remedy: String,
    /// Whether the problem keeps the tap from standing, or causes errors in other programs.
    pub blocks: bool,
}

/// The part of the database that a [`Finding`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum About {
    /// The server, its settings, or the rights of the user.
    Server,
    /// The publication of the tap.
    Publication,
    /// A publication of another program. It makes the server refuse changes of the tables, with or
    /// without a tap.
    OtherPublication,
}

/// Selects version, settings and counts of the server, in one row.
const SERVER: &str = "
SELECT current_setting('server_version_num'), current_setting('wal_level'), current_user,
    (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user)
        OR EXISTS (SELECT FROM pg_roles WHERE rolname = 'rds_replication' AND pg_has_role(oid, 'USAGE')),
    current_setting('max_replication_slots'), (SELECT count(*) FROM pg_replication_slots),
    current_setting('max_wal_senders'), (SELECT count(*) FROM pg_stat_replication), pg_is_in_recovery()";

/// Checks whether a tap can stand on this PostgreSQL publication. Returns the problems. Changes
/// nothing, and needs no right to replicate.
///
/// Also checks the publications of other programs. A publication that makes the server refuse
/// updates of these tables (SQLSTATE 42P10) is a problem that blocks.
///
/// # Errors
/// The connection failed, or the server refused a statement.
pub async fn preflight(
    address: &Address,
    wanted: &PgPublication,
) -> Result<Vec<Finding>, TapError> {
    let mut session = statements(address).await?;
    let mut findings = Vec::new();
    let rows = session.query(SERVER).await?;
    let server = rows.first().ok_or_else(|| short("the server"))?;
    let version: i64 = number(server, 0);
    check_server(server, wanted, &mut findings);
    check_publication(&mut session, version, wanted, &mut findings).await?;
    check_others(&mut session, version, wanted, &mut findings).await?;
    Ok(findings)
}

fn short(what: &str) -> TapError {
    TapError::Protocol(format!("the answer about {what} is empty"))
}

fn text(row: &Row, column: usize) -> &str {
    row.get(column)
        .and_then(Option::as_deref)
        .unwrap_or_default()
}

fn number(row: &Row, column: usize) -> i64 {
    text(row, column).parse().unwrap_or(0)
}

fn is_true(row: &Row, column: usize) -> bool {
    text(row, column) == "t"
}

fn blocks(
    findings: &mut Vec<Finding>,
    about: About,
    found: impl Into<String>,
    remedy: impl Into<String>,
) {
    findings.push(Finding {
        about,
        found: found.into(),
        remedy: remedy.into(),
        blocks: true,
    });
}

fn check_server(server: &Row, wanted: &PgPublication, findings: &mut Vec<Finding>) {
    let version = number(server, 0);
    let (oldest, why) = if wanted.selects() {
        (150_000, "publications of chosen columns and rows")
    } else {
        (130_000, "the stream")
    };
    if version < oldest {
        blocks(
            findings,
            About::Server,
            format!("the server is PostgreSQL {}", version / 10_000),
            format!(
                "upgrade it to version {} or newer, for {why}",
                oldest / 10_000
            ),
        );
    }
    if is_true(server, 8) {
        blocks(
            findings,
            About::Server,
            "the server is a standby",
            "use the address of the primary",
        );
    }
    let level = text(server, 1);
    if level != "logical" {
        blocks(
            findings,
            About::Server,
            format!("wal_level is `{level}`, and the tap needs `logical`"),
            "ALTER SYSTEM SET wal_level = 'logical', then restart the server (a reload does not suffice)",
        );
    }
    if !is_true(server, 3) {
        let user = text(server, 2);
        blocks(
            findings,
            About::Server,
            format!("user {user} may not replicate"),
            format!(
                "ALTER ROLE \"{}\" REPLICATION, as a superuser",
                user.replace('"', "\"\"")
            ),
        );
    }
    let full = |of: usize, used: usize| number(server, used) >= number(server, of);
    if full(4, 5) {
        let (most, used) = (text(server, 4), text(server, 5));
        blocks(
            findings,
            About::Server,
            format!(
                "all replication slots are taken: max_replication_slots is {most}, {used} exist"
            ),
            "drop unused slots (pg_replication_slots), or raise max_replication_slots and restart \
             the server",
        );
    }
    if full(6, 7) {
        let (most, used) = (text(server, 6), text(server, 7));
        blocks(
            findings,
            About::Server,
            format!("all WAL senders are taken: max_wal_senders is {most}, {used} run"),
            "raise max_wal_senders and restart the server",
        );
    }
}

/// A table of an existing publication: its columns, and the condition of its rows.
struct Published {
    columns: BTreeSet<String>,
    rows: Option<String>,
}

async fn check_publication(
    session: &mut Session,
    version: i64,
    wanted: &PgPublication,
    findings: &mut Vec<Finding>,
) -> Result<(), TapError> {
    let name = &wanted.name;
    let select = format!(
        "SELECT pubinsert, pubupdate FROM pg_publication WHERE pubname = {}",
        quoted(name)
    );
    let rows = session.query(&select).await?;
    let Some(publication) = rows.first() else {
        blocks(
            findings,
            About::Publication,
            format!("the publication `{name}` does not exist"),
            wanted.create_statement(),
        );
        return Ok(());
    };
    let updates = wanted.changes == Changes::InsertsAndUpdates;
    if !is_true(publication, 0) || updates && !is_true(publication, 1) {
        blocks(
            findings,
            About::Publication,
            format!("the publication `{name}` does not publish all changes"),
            wanted.alter_statements(),
        );
    }
    let published = tables(session, version, name).await?;
    for table in &wanted.tables {
        let key = (table.schema.clone(), table.name.clone());
        check_table(wanted, table, published.get(&key), findings);
    }
    Ok(())
}

async fn tables(
    session: &mut Session,
    version: i64,
    publication: &str,
) -> Result<BTreeMap<(String, String), Published>, TapError> {
    // Before version 15 all columns and rows are published.
    let (columns, condition) = if version >= 150_000 {
        ("(SELECT unnest(p.attnames))", "p.rowfilter")
    } else {
        (
            "(SELECT attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid \
             JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = p.schemaname AND c.relname = p.tablename AND a.attnum > 0 AND NOT a.attisdropped)",
            "NULL",
        )
    };
    let select = format!(
        "SELECT p.schemaname, p.tablename, c.name, {condition} FROM pg_publication_tables p, LATERAL {columns} AS c(name) WHERE p.pubname = {}",
        quoted(publication)
    );
    let mut tables = BTreeMap::new();
    for row in session.query(&select).await? {
        let key = (text(&row, 0).to_owned(), text(&row, 1).to_owned());
        let table = tables.entry(key).or_insert_with(|| Published {
            columns: BTreeSet::new(),
            rows: row.get(3).cloned().flatten(),
        });
        table.columns.insert(text(&row, 2).to_owned());
    }
    Ok(tables)
}

fn check_table(
    wanted: &PgPublication,
    table: &PublishedTable,
    published: Option<&Published>,
    findings: &mut Vec<Finding>,
) {
    let what = format!("{}.{}", table.schema, table.name);
    let publication = &wanted.name;
    let Some(published) = published else {
        return blocks(
            findings,
            About::Publication,
            format!("the publication `{publication}` lacks the table {what}"),
            wanted.alter_statements(),
        );
    };
    let missing: Vec<&str> = table
        .columns
        .iter()
        .map(String::as_str)
        .filter(|column| !published.columns.contains(*column))
        .collect();
    if !missing.is_empty() {
        blocks(
            findings,
            About::Publication,
            format!(
                "the publication `{publication}` lacks columns of {what}: {}",
                missing.join(", ")
            ),
            wanted.alter_statements(),
        );
    }
    let condition = |rows: &Option<String>| rows.as_deref().map(plain);
    if condition(&table.rows) != condition(&published.rows) {
        findings.push(Finding {
            about: About::Publication,
            found: format!(
                "the publication `{publication}` selects other rows of {what} than the tap asks for"
            ),
            remedy: wanted.alter_statements(),
            blocks: false,
        });
    }
}

/// Returns a condition without the casts, spaces and parentheses that the server adds.
fn plain(condition: &str) -> String {
    let bare = condition.replace("::text", "").to_ascii_lowercase();
    bare.chars()
        .filter(|c| !c.is_whitespace() && !matches!(c, '(' | ')'))
        .collect()
}

/// Selects publications of updates or deletions of these tables, with the reason why the server
/// refuses such a change. There are three reasons: the publication lacks a column that identifies
/// a row, its condition names another column, or no columns identify a row.
const OTHERS: &str = "
SELECT p.pubname, n.nspname, c.relname, CASE
    WHEN i.columns IS NULL THEN 'identity'
    WHEN {columns} IS NOT NULL AND NOT i.columns <@ {columns} THEN 'columns'
    WHEN NOT {filtered} <@ i.columns THEN 'rows' END AS reason
FROM pg_publication p
JOIN pg_publication_tables t ON t.pubname = p.pubname
JOIN pg_namespace n ON n.nspname = t.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
CROSS JOIN LATERAL (SELECT CASE c.relreplident
    WHEN 'f' THEN ARRAY(SELECT attnum FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped)
    ELSE (SELECT string_to_array(x.indkey::text, ' ')::int2[] FROM pg_index x WHERE x.indrelid = c.oid
          AND CASE c.relreplident WHEN 'd' THEN x.indisprimary WHEN 'i' THEN x.indisreplident ELSE false END)
    END AS columns) i
WHERE (p.pubupdate OR p.pubdelete) AND (n.nspname, c.relname) IN ({tables})";

async fn check_others(
    session: &mut Session,
    version: i64,
    wanted: &PgPublication,
    findings: &mut Vec<Finding>,
) -> Result<(), TapError> {
    if wanted.tables.is_empty() {
        return Ok(());
    }
    let tables: Vec<String> = wanted
        .tables
        .iter()
        .map(|table| format!("({}, {})", quoted(&table.schema), quoted(&table.name)))
        .collect();
    let (columns, filtered) = if version >= 150_000 {
        (
            "string_to_array(r.prattrs::text, ' ')::int2[]",
            "ARRAY(SELECT (regexp_matches(r.prqual::text, ':varattno ([0-9]+)', 'g'))[1]::int2)",
        )
    } else {
        ("NULL::int2[]", "ARRAY[]::int2[]")
    };
    let select = OTHERS
        .replace("{tables}", &tables.join(", "))
        .replace("{columns}", columns)
        .replace("{filtered}", filtered);
    for row in session.query(&select).await? {
        let (publication, schema, table) = (text(&row, 0), text(&row, 1), text(&row, 2));
        let (reason, remedy) = match text(&row, 3) {
            "columns" => (
                "lacks columns of its primary key",
                "add the columns of the primary key to that publication, or let it publish inserts \
                 only",
            ),
            "rows" => (
                "selects rows by columns outside its primary key",
                "remove the condition from that publication, or let it publish inserts only",
            ),
            "identity" => (
                "publishes changes of rows without an identity",
                "give the table a primary key or REPLICA IDENTITY, or let that publication publish \
                 inserts only",
            ),
            _ => continue,
        };
        blocks(
            findings,
            About::OtherPublication,
            format!(
                "the server refuses to update or delete rows of {schema}.{table} (SQLSTATE 42P10 \
                 or 55000): the publication `{publication}` {reason}"
            ),
            remedy,
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(values: [&str; 9]) -> Row {
        values
            .iter()
            .map(|value| Some((*value).to_owned()))
            .collect()
    }

    fn found(values: [&str; 9]) -> Vec<Finding> {
        let wanted = PgPublication::new("tap", Changes::Inserts)
            .table(PublishedTable::new("jobwire", "job").columns(["id"]));
        let mut findings = Vec::new();
        check_server(&server(values), &wanted, &mut findings);
        findings
    }

    #[test]
    fn a_server_that_has_everything_has_no_finding() {
        let all = ["150018", "logical", "tap", "t", "10", "3", "10", "3", "f"];
        assert_eq!(found(all), []);
    }

    #[test]
    fn each_missing_thing_is_named_with_its_remedy() {
        let none = ["140009", "replica", "tap", "f", "2", "2", "1", "1", "t"];
        let findings = found(none);
        let said: Vec<String> = findings
            .iter()
            .map(|finding| format!("{}; {}", finding.found, finding.remedy))
            .collect();
        for (part, remedy) in [
            ("PostgreSQL 14", "version 15"),
            ("standby", "primary"),
            ("wal_level is `replica`", "restart the server"),
            (
                "user tap may not replicate",
                "ALTER ROLE \"tap\" REPLICATION",
            ),
            ("max_replication_slots is 2", "raise max_replication_slots"),
            ("max_wal_senders is 1", "raise max_wal_senders"),
        ] {
            let named = said
                .iter()
                .any(|line| line.contains(part) && line.contains(remedy));
            assert!(named, "{part}, {remedy}: {said:?}");
        }
        assert!(findings.iter().all(|finding| finding.blocks));
    }

    #[test]
    fn a_condition_is_the_same_however_the_server_shows_it() {
        let ours = "hints = 0 AND origin = 'sql'";
        assert_eq!(
            plain(ours),
            plain("((hints = 0) AND (origin = 'sql'::text))")
        );
        assert_ne!(plain(ours), plain("(hints = 0)"));
    }
}
