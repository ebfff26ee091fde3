//! The version of the schema, and the check that it fits the program.

use super::Result;
use crate::store::error::StoreError;

/// Whether the database's schema fits this program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchemaStatus {
    /// The schema fits.
    Ready {
        /// The schema's version.
        version: i32,
        /// The server's version, for people.
        server: String,
    },
    /// There are no Jobwire tables, or they are older than this program needs.
    Outdated {
        /// The version in the database; 0 without tables.
        found: i32,
        /// The version that this program needs.
        wanted: i32,
    },
    /// A newer program wrote the schema, and older ones can't work with it.
    TooNew {
        /// The version in the database.
        found: i32,
        /// The oldest version that a program must know to work with it.
        readable_by: i32,
        /// The version that this program knows.
        known: i32,
    },
}

/// The schema version of this program's newest migration.
pub const SCHEMA_VERSION: i32 = 20;

/// Evaluates the newest row of `schema_version`.
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
    /// Returns an error unless the schema fits.
    ///
    /// # Errors
    /// [`StoreError::Schema`] with the remedy.
    pub fn ready(&self) -> Result<()> {
        match self {
            Self::Ready { .. } => Ok(()),
            Self::Outdated { found: 0, .. } => Err(StoreError::Schema(
                "the database has no Jobwire tables; run `PgStore::migrate` or `SqliteStore::migrate` \
                 (command `jobwire migrate up`)"
                    .to_owned(),
            )),
            Self::Outdated { found, wanted } => Err(StoreError::Schema(format!(
                "the database has schema version {found}, this program needs {wanted}; run \
                 `PgStore::migrate` or `SqliteStore::migrate` (command `jobwire migrate up`)"
            ))),
            Self::TooNew {
                found,
                readable_by,
                known,
            } => Err(StoreError::Schema(format!(
                "the database has schema version {found}, which needs a program that knows version \
                 {readable_by} or newer; this program knows {known}: upgrade it"
            ))),
        }
    }
}
