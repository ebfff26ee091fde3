//! A PostgreSQL publication: the tables, columns, rows and changes that the server streams.
//!
//! The word is PostgreSQL's, and has nothing to do with the publishing of hints.

use std::fmt::Write as _;

use crate::address::Address;
use crate::error::TapError;
use crate::session::{Purpose, Session};

/// Maximum size of an answer to a statement, in bytes.
pub(crate) const ANSWER: usize = 1024 * 1024;
/// Maximum time for a statement.
pub(crate) const WITHIN: std::time::Duration = std::time::Duration::from_secs(10);

/// The wanted state of a PostgreSQL publication.
///
/// ```
/// use jobwire_tap::{Changes, PgPublication, PublishedTable};
///
/// let wanted = PgPublication::new("shop_tap", Changes::Inserts)
///     .table(PublishedTable::new("public", "orders").columns(["id"]).rows("paid"));
/// assert_eq!(
///     wanted.create_statement(),
///     r#"CREATE PUBLICATION "shop_tap" FOR TABLE "public"."orders" ("id") WHERE (paid) WITH (publish = 'insert')"#
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PgPublication {
    /// The name.
    pub name: String,
    /// The changes that are streamed.
    pub changes: Changes,
    /// The tables.
    pub tables: Vec<PublishedTable>,
}

/// The changes that are streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// Inserted rows. The publication then has no effect on updates and deletions.
    Inserts,
    /// Inserted and updated rows. Such a publication needs the columns of the primary key and no
    /// condition of rows; with others the server refuses the updates of all programs.
    InsertsAndUpdates,
}

/// A table of a publication.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublishedTable {
    /// The schema.
    pub schema: String,
    /// The name.
    pub name: String,
    /// The columns that are streamed. If empty, all columns are. Needs PostgreSQL 15.
    pub columns: Vec<String>,
    /// The condition of the rows that are streamed, in SQL. Without one, all rows are. Needs
    /// PostgreSQL 15.
    pub rows: Option<String>,
}

impl PublishedTable {
    /// Returns a table, with all columns and rows.
    #[must_use]
    pub fn new(schema: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            schema: schema.into(),
            name: name.into(),
            columns: Vec::new(),
            rows: None,
        }
    }

    /// Streams these columns only.
    #[must_use]
    pub fn columns<C: Into<String>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.columns = columns.into_iter().map(Into::into).collect();
        self
    }

    /// Streams only rows for which this condition holds. The condition becomes part of a statement,
    /// so it must not contain input from outside.
    #[must_use]
    pub fn rows(mut self, condition: impl Into<String>) -> Self {
        self.rows = Some(condition.into());
        self
    }

    fn clause(&self) -> String {
        let mut clause = format!("{}.{}", name(&self.schema), name(&self.name));
        if !self.columns.is_empty() {
            let columns: Vec<String> = self.columns.iter().map(|column| name(column)).collect();
            let _ = write!(clause, " ({})", columns.join(", "));
        }
        if let Some(rows) = &self.rows {
            let _ = write!(clause, " WHERE ({rows})");
        }
        clause
    }
}

impl PgPublication {
    /// Returns a publication without tables.
    #[must_use]
    pub fn new(name: impl Into<String>, changes: Changes) -> Self {
        Self {
            name: name.into(),
            changes,
            tables: Vec::new(),
        }
    }

    /// Adds a table.
    #[must_use]
    pub fn table(mut self, table: PublishedTable) -> Self {
        self.tables.push(table);
        self
    }

    /// Returns whether the publication needs PostgreSQL 15, for chosen columns or a condition.
    #[must_use]
    pub fn selects(&self) -> bool {
        let selects = |table: &PublishedTable| !table.columns.is_empty() || table.rows.is_some();
        self.tables.iter().any(selects)
    }

    /// Returns the statement that creates the publication.
    #[must_use]
    pub fn create_statement(&self) -> String {
        format!(
            "CREATE PUBLICATION {} FOR TABLE {} WITH ({})",
            name(&self.name),
            self.list(),
            self.option()
        )
    }

    /// Returns the statements that give an existing publication these tables and changes.
    #[must_use]
    pub fn alter_statements(&self) -> String {
        let publication = name(&self.name);
        format!(
            "ALTER PUBLICATION {publication} SET TABLE {}; ALTER PUBLICATION {publication} SET ({})",
            self.list(),
            self.option()
        )
    }

    fn list(&self) -> String {
        let tables: Vec<String> = self.tables.iter().map(PublishedTable::clause).collect();
        tables.join(", ")
    }

    fn option(&self) -> &'static str {
        match self.changes {
            Changes::Inserts => "publish = 'insert'",
            Changes::InsertsAndUpdates => "publish = 'insert, update'",
        }
    }

    /// Creates the publication, or gives an existing one these tables and changes. Needs the right
    /// CREATE on the database, and the tables must belong to the user.
    ///
    /// # Errors
    /// The server's error, if a right or a table is missing.
    pub async fn create(&self, address: &Address) -> Result<(), TapError> {
        let mut session = statements(address).await?;
        let found = exists(&mut session, &self.name).await?;
        let create = if found {
            self.alter_statements()
        } else {
            self.create_statement()
        };
        session.query(&create).await?;
        Ok(())
    }

    /// Removes the publication, if it exists. A tap that streams it then reports a gap.
    ///
    /// # Errors
    /// The server's error, if it belongs to another user.
    pub async fn drop(&self, address: &Address) -> Result<(), TapError> {
        let mut session = statements(address).await?;
        let drop = format!("DROP PUBLICATION IF EXISTS {}", name(&self.name));
        session.query(&drop).await?;
        Ok(())
    }
}

/// Opens a session for statements.
pub(crate) async fn statements(address: &Address) -> Result<Session, TapError> {
    Session::open(address, Purpose::Statements, "jobwire-tap", ANSWER, WITHIN).await
}

async fn exists(session: &mut Session, publication: &str) -> Result<bool, TapError> {
    let exists = format!(
        "SELECT FROM pg_publication WHERE pubname = {}",
        quoted(publication)
    );
    Ok(!session.query(&exists).await?.is_empty())
}

/// Quotes a name for a statement.
fn name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\"").replace('\0', ""))
}

/// Quotes a text for a statement.
pub(crate) fn quoted(text: &str) -> String {
    // This form is right with both values of standard_conforming_strings.
    let escaped = text
        .replace('\0', "")
        .replace('\\', "\\\\")
        .replace('\'', "''");
    format!("E'{escaped}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_texts_cannot_leave_their_quotes() {
        assert_eq!(name("a\"; DROP"), "\"a\"\"; DROP\"");
        assert_eq!(quoted("a'; DROP \\"), "E'a''; DROP \\\\'");
    }

    #[test]
    fn an_existing_publication_gets_the_same_tables() {
        let wanted = PgPublication::new("p", Changes::InsertsAndUpdates)
            .table(PublishedTable::new("s", "t").columns(["id", "lane"]))
            .table(PublishedTable::new("s", "u"));
        assert_eq!(
            wanted.alter_statements(),
            "ALTER PUBLICATION \"p\" SET TABLE \"s\".\"t\" (\"id\", \"lane\"), \"s\".\"u\"; \
             ALTER PUBLICATION \"p\" SET (publish = 'insert, update')"
        );
        assert!(wanted.selects());
    }
}
