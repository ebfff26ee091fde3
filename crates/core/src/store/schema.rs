//! Whether the tables fit the program.

use super::Result;
use crate::store::error::StoreError;

/// Does the database's schema fit this program?
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchemaStatus {
    /// It does.
    Ready {
        /// The schema's version.
        version: i32,
        /// The server's own version, for people.
        server: String,
    },
    /// No Jobwire tables, or older ones than this program works with.
    Outdated {
        /// What is there.
        found: i32,
        /// What this program brings.
        wanted: i32,
    },
    /// Written by a newer program that older ones can't work with.
    TooNew {
        /// What is there.
        found: i32,
        /// The oldest program that may still work with it.
        readable_by: i32,
        /// What this program knows.
        known: i32,
    },
}

/// The schema version that this program brings.
pub const SCHEMA_VERSION: i32 = 3;

/// Judge the newest row of `schema_version`.
pub(super) fn schema_status(newest: Option<(i32, i32)>, server: String) -> SchemaStatus {
    match newest {
        Some((version, readable_by)) if readable_by > SCHEMA_VERSION => SchemaStatus::TooNew {
            found: version,
            readable_by,
            known: SCHEMA_VERSION,
        },
        Some((version, _)) if version >= SCHEMA_VERSION => SchemaStatus::Ready { version, server },
        older => SchemaStatus::Outdated {
            found: older.map_or(0, |(version, _)| version),
            wanted: SCHEMA_VERSION,
        },
    }
}

impl SchemaStatus {
    /// Go on, or say what to do.
    ///
    /// # Errors
    /// [`StoreError::Schema`] with the remedy.
    pub fn ready(&self) -> Result<()> {
        match self {
            Self::Ready { .. } => Ok(()),
            Self::Outdated { found: 0, .. } => Err(StoreError::Schema(
                "the database has no Jobwire tables; run `jobwire migrate up`".to_owned(),
            )),
            Self::Outdated { found, wanted } => Err(StoreError::Schema(format!(
                "the database has schema version {found}, this program needs {wanted}; run `jobwire migrate up`"
            ))),
            Self::TooNew {
                found,
                readable_by,
                known,
            } => Err(StoreError::Schema(format!(
                "the database has schema version {found}, written for programs that know version {readable_by} or \
                 newer; this one knows {known}: upgrade it"
            ))),
        }
    }
}
