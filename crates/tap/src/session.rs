//! One session with the server: statements first, then the stream of changes if it is asked for.
//!
//! The wire format (frames, login, positions) comes from the crate `pgwire-replication`. The
//! session of that crate is not used: it trusts other authorities than sqlx does, brings a second
//! library for cryptography, and cannot be closed while the server does not read.

use std::time::Duration;

use bytes::{Buf, Bytes};
use pgwire_replication::Lsn;
use pgwire_replication::protocol::framing::{write_copy_data, write_query, write_startup_message};
use pgwire_replication::protocol::{
    ReplicationCopyData, encode_standby_status_update, parse_copy_data,
};

use crate::address::Address;
use crate::decode::now;
use crate::error::TapError;
use crate::login::log_in;
use crate::messages::{Messages, refusal};

/// Version 3.0 of the protocol.
const PROTOCOL: i32 = 196_608;
/// Maximum number of rows that a statement may return.
const ROWS: usize = 10_000;

/// A row of a statement: the values as text.
pub(crate) type Row = Vec<Option<String>>;

/// The purpose of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Statements only. Needs no right to replicate.
    Statements,
    /// Statements, and the stream of changes.
    Replication,
}

/// A message of the stream.
pub(crate) enum Streamed {
    /// A message of pgoutput, sent at this time.
    Change(Bytes, i64),
    /// Everything before this position was sent. The server may want an answer at once.
    KeepAlive { position: u64, answer: bool },
}

/// See the [module](self).
pub(crate) struct Session {
    messages: Messages,
    /// The maximum time for an answer to a statement.
    within: Duration,
}

impl Session {
    /// Connects and logs in.
    pub(crate) async fn open(
        address: &Address,
        purpose: Purpose,
        application_name: &str,
        max_message: usize,
        within: Duration,
    ) -> Result<Self, TapError> {
        let opening = async {
            let mut messages = Messages::open(address, max_message).await?;
            let mut parameters = vec![
                ("user", address.user.as_str()),
                ("database", address.database.as_str()),
                ("client_encoding", "UTF8"),
                ("application_name", application_name),
            ];
            if purpose == Purpose::Replication {
                parameters.push(("replication", "database"));
            }
            write_startup_message(messages.stream(), PROTOCOL, &parameters).await?;
            log_in(&mut messages, address).await?;
            Ok(Self { messages, within })
        };
        in_time(within, opening).await
    }

    /// Sends a statement and returns its rows.
    pub(crate) async fn query(&mut self, sql: &str) -> Result<Vec<Row>, TapError> {
        self.query_within(sql, self.within).await
    }

    /// Does the same as [`query`](Self::query), with another time limit.
    pub(crate) async fn query_within(
        &mut self,
        sql: &str,
        within: Duration,
    ) -> Result<Vec<Row>, TapError> {
        let answering = async {
            write_query(self.messages.stream(), sql).await?;
            let mut rows = Vec::new();
            let mut refused = None;
            loop {
                let message = self.messages.any().await?;
                match message.tag {
                    b'D' if rows.len() >= ROWS => {
                        return Err(TapError::Protocol(format!("more than {ROWS} rows")));
                    }
                    b'D' => rows.push(row(message.payload)?),
                    b'E' => refused = Some(refusal(&message)),
                    b'Z' => return refused.map_or(Ok(rows), Err),
                    // The columns, the end of a statement, a notice, or a parameter.
                    _ => {}
                }
            }
        };
        in_time(within, answering).await
    }

    /// Starts the stream of a replication slot, which this session has created.
    pub(crate) async fn start(&mut self, slot: &str, publication: &str) -> Result<(), TapError> {
        // The server takes a list of names in double quotes.
        let publication = publication.replace('"', "\"\"").replace('\'', "''");
        let command = format!(
            "START_REPLICATION SLOT {slot} LOGICAL 0/0 \
             (proto_version '1', publication_names '\"{publication}\"')"
        );
        let within = self.within;
        let starting = async {
            write_query(self.messages.stream(), &command).await?;
            loop {
                if self.messages.next().await?.is_copy_both_response() {
                    return Ok(());
                }
            }
        };
        in_time(within, starting).await
    }

    /// Returns the next message of the stream. Nothing is lost if the future is dropped.
    pub(crate) async fn streamed(&mut self) -> Result<Streamed, TapError> {
        loop {
            let message = self.messages.next().await?;
            match message.tag {
                b'd' => {}
                b'c' => return Err(TapError::Protocol("the server ended the stream".to_owned())),
                _ => continue,
            }
            return Ok(match parse_copy_data(message.payload)? {
                ReplicationCopyData::XLogData {
                    data,
                    server_time_micros,
                    ..
                } => Streamed::Change(data, server_time_micros),
                ReplicationCopyData::KeepAlive {
                    wal_end,
                    reply_requested: answer,
                    ..
                } => Streamed::KeepAlive {
                    position: wal_end.as_u64(),
                    answer,
                },
            });
        }
    }

    /// Confirms everything before this position. The server then keeps no WAL before it.
    pub(crate) async fn confirm(&mut self, position: u64) -> Result<(), TapError> {
        let status = encode_standby_status_update(Lsn::from_u64(position), now(), false);
        let within = self.within;
        let writing = async { Ok(write_copy_data(self.messages.stream(), &status).await?) };
        in_time(within, writing).await
    }
}

async fn in_time<T>(
    within: Duration,
    answer: impl Future<Output = Result<T, TapError>>,
) -> Result<T, TapError> {
    let answered = tokio::time::timeout(within, answer).await;
    answered.unwrap_or(Err(TapError::Silent(within)))
}

/// Reads a row of a statement.
fn row(mut payload: Bytes) -> Result<Row, TapError> {
    let short = || TapError::Protocol("a row ends too early".to_owned());
    let columns = payload.try_get_u16().map_err(|_| short())?;
    let values = (0..columns).map(|_| {
        let length = payload.try_get_i32().map_err(|_| short())?;
        let Ok(length) = usize::try_from(length) else {
            return Ok(None);
        };
        if length > payload.len() {
            return Err(short());
        }
        let text = payload.split_to(length);
        Ok(Some(String::from_utf8_lossy(&text).into_owned()))
    });
    values.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_is_cut_off_is_an_error() {
        let mut whole = vec![0, 2];
        whole.extend(3_i32.to_be_bytes());
        whole.extend(b"abc");
        whole.extend((-1_i32).to_be_bytes());
        let read = row(whole.clone().into()).unwrap();
        assert_eq!(read, [Some("abc".to_owned()), None]);
        for end in 0..whole.len() {
            assert!(row(whole[..end].to_vec().into()).is_err(), "{end}");
        }
    }
}
