//! A replication slot of one session. It ends with the session, so it never keeps WAL after its
//! connection has ended.

use std::time::Duration;

use rand::Rng;

use crate::address::Address;
use crate::error::TapError;
use crate::options::TapOptions;
use crate::publication::quoted;
use crate::session::{Purpose, Session, Streamed};

/// A session whose replication slot stands and whose stream has begun.
pub(crate) struct Slot {
    session: Session,
    /// The position up to which everything was received.
    received: u64,
    /// The last position that was confirmed to the server.
    confirmed: u64,
}

impl Slot {
    /// Connects, creates the replication slot and begins the stream. Waits for every transaction
    /// that writes at this moment.
    pub(crate) async fn stand(address: &Address, options: &TapOptions) -> Result<Self, TapError> {
        let (purpose, name) = (Purpose::Replication, &options.application_name);
        let (limit, within) = (options.max_message, options.connect);
        let mut session = Session::open(address, purpose, name, limit, within).await?;
        session.query(&settings(options)).await?;
        ensure_publication(&mut session, &options.publication).await?;
        let slot = format!(
            "{}_{:016x}",
            options.slot_prefix,
            rand::rng().random::<u64>()
        );
        // A function, because the command CREATE_REPLICATION_SLOT has no time limit: the server's
        // process would keep waiting, with its slot, after this program has given up.
        let create =
            format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', true)");
        let within = options.create + Duration::from_secs(5);
        session.query_within(&create, within).await?;
        session.query("SET statement_timeout = 0").await?;
        session.start(&slot, &options.publication).await?;
        Ok(Self {
            session,
            received: 0,
            confirmed: 0,
        })
    }

    /// Returns the next change and the time at which it was sent. Nothing is lost if the future is
    /// dropped.
    pub(crate) async fn next(&mut self, silence: Duration) -> Result<Streamed, TapError> {
        let next = tokio::time::timeout(silence, self.session.streamed()).await;
        next.unwrap_or(Err(TapError::Silent(silence)))
    }

    /// Records that everything up to this position was received.
    pub(crate) fn received(&mut self, position: u64) {
        self.received = self.received.max(position);
    }

    /// Returns whether the last position is not yet confirmed.
    pub(crate) fn has_news(&self) -> bool {
        self.received > self.confirmed
    }

    /// Confirms the last position to the server.
    pub(crate) async fn confirm(&mut self) -> Result<(), TapError> {
        self.session.confirm(self.received).await?;
        self.confirmed = self.received;
        Ok(())
    }
}

/// Returns the settings of the session. They limit the time for which the server keeps a silent
/// connection, and give the values of rows the same form on every server.
fn settings(options: &TapOptions) -> String {
    format!(
        "SET wal_sender_timeout = {}; SET statement_timeout = {}; SET lock_timeout = 0; \
         SET datestyle = 'ISO, YMD'; SET intervalstyle = 'iso_8601'; SET timezone = 'UTC'; \
         SET bytea_output = 'hex'; SET extra_float_digits = 1",
        options.server_timeout().as_millis(),
        options.create.as_millis(),
    )
}

/// Checks that the publication exists. The server itself would report a missing one only at the
/// first change.
async fn ensure_publication(session: &mut Session, name: &str) -> Result<(), TapError> {
    let exists = format!(
        "SELECT FROM pg_publication WHERE pubname = {}",
        quoted(name)
    );
    if session.query(&exists).await?.is_empty() {
        return Err(TapError::NoPublication(name.to_owned()));
    }
    Ok(())
}
