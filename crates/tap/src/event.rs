//! The events of a tap: rows of committed transactions, and changes of its state.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

use crate::error::TapError;

/// A report of a tap.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A replication slot stands. Every change that commits from now on is reported, until the next
    /// [`Gap`](Self::Gap). Earlier changes may be missing: look for them once.
    Standing,
    /// No replication slot stands, for this reason. Changes are not reported until
    /// [`Standing`](Self::Standing). The tap tries again and reports each failure.
    Gap(TapError),
    /// Rows of a committed transaction. A large transaction takes many events.
    Rows(Rows),
    /// The end of the rows of a transaction.
    Commit(Commit),
}

/// Rows of one table from one committed transaction, in the order in which they were written.
#[derive(Clone, Debug)]
pub struct Rows {
    /// The table.
    pub table: Arc<Table>,
    /// The rows.
    pub rows: Vec<Row>,
    /// The time of the commit, by the database's clock.
    pub committed_at: SystemTime,
    /// The time at which the server sent the last of the rows, by its clock.
    pub sent_at: SystemTime,
}

impl Rows {
    /// Returns the values of a column, one for each row that has it as text.
    pub fn texts(&self, column: &str) -> impl Iterator<Item = &str> {
        let at = self.table.column(column);
        let rows = self.rows.iter();
        rows.filter_map(move |row| row.text(at?))
    }
}

/// A table, with its published columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The schema.
    pub schema: String,
    /// The name.
    pub name: String,
    /// The names of the published columns, in the order of the values.
    pub columns: Vec<String>,
}

impl Table {
    /// Returns the position of a column.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column == name)
    }
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The kind of change.
    pub change: Change,
    /// The values of the published columns after the change.
    pub values: Vec<Value>,
}

impl Row {
    /// Returns a value as text; `None` for NULL and for a value that was not sent.
    #[must_use]
    pub fn text(&self, column: usize) -> Option<&str> {
        match self.values.get(column)? {
            Value::Text(text) => std::str::from_utf8(text).ok(),
            Value::Null | Value::Unchanged => None,
        }
    }
}

/// The change that wrote a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was inserted.
    Insert,
    /// It was updated.
    Update,
}

/// The value of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// NULL.
    Null,
    /// A large value that an update did not change. The server does not send it.
    Unchanged,
    /// The value as text: dates in ISO form and UTC, bytes in hexadecimal form.
    Text(Bytes),
}

impl Value {
    /// Returns the number of bytes of the text.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Null | Self::Unchanged => 0,
        }
    }
}

/// The end of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The position after the transaction in the WAL.
    pub position: u64,
    /// The time of the commit, by the database's clock.
    pub committed_at: SystemTime,
}
