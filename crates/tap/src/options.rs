//! The options of a tap.

use std::time::Duration;

use crate::error::TapError;

/// Maximum length of [`TapOptions::slot_prefix`]: the server allows 63 characters for the name.
const LONGEST_PREFIX: usize = 40;

/// The options of a tap, with their defaults.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TapOptions {
    /// The PostgreSQL publication whose tables are streamed. Default `jobwire_tap`.
    pub publication: String,
    /// The beginning of the replication slot's name; the rest is random. Lower-case letters,
    /// digits and `_`, at most 40. Default `jobwire_tap`.
    pub slot_prefix: String,
    /// The name of the connection in the server's views. Default `jobwire-tap`.
    pub application_name: String,
    /// The time without any message after which the connection is closed. The server is told to
    /// send a keepalive after a third of it. Default 30 s, at least 1 s.
    pub silence: Duration,
    /// The time for which an event may wait for the receiver. After that the connection is closed,
    /// so that the server keeps no WAL for a receiver that hangs. Default 60 s.
    pub stall: Duration,
    /// The maximum time to connect, and for each answer before the stream starts. Default 10 s.
    pub connect: Duration,
    /// The maximum time to create the replication slot, which waits for every transaction that
    /// writes at that moment. Default 60 s.
    pub create: Duration,
    /// The first pause after a lost connection. Each failure doubles it, up to `longest_pause`.
    /// Default 100 ms.
    pub pause: Duration,
    /// The longest pause between two attempts. Default 10 s.
    pub longest_pause: Duration,
    /// Maximum number of rows in one event. Default 256.
    pub rows: usize,
    /// Maximum number of events that wait for the receiver. Default 16.
    pub events: usize,
    /// Maximum size of one message of the server, in bytes. A row is one message. A larger one ends
    /// the connection. Default 1 MiB.
    pub max_message: usize,
}

impl Default for TapOptions {
    fn default() -> Self {
        Self {
            publication: "jobwire_tap".to_owned(),
            slot_prefix: "jobwire_tap".to_owned(),
            application_name: "jobwire-tap".to_owned(),
            silence: Duration::from_secs(30),
            stall: Duration::from_secs(60),
            connect: Duration::from_secs(10),
            create: Duration::from_secs(60),
            pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(10),
            rows: 256,
            events: 16,
            max_message: 1024 * 1024,
        }
    }
}

impl TapOptions {
    /// Checks the options that the server would refuse.
    pub(crate) fn check(&self) -> Result<(), TapError> {
        let in_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let prefix = &self.slot_prefix;
        if prefix.is_empty() || prefix.len() > LONGEST_PREFIX || !prefix.chars().all(in_name) {
            return Err(TapError::Setting(format!(
                "the prefix of the replication slot is `{}`; use 1 to {LONGEST_PREFIX} lower-case \
                 letters, digits or `_`",
                prefix.escape_debug()
            )));
        }
        let is_name = |text: &str| !text.is_empty() && text.len() <= 63 && !text.contains('\0');
        if !is_name(&self.publication) || !is_name(&self.application_name) {
            return Err(TapError::Setting(
                "the names of the publication and of the application have 1 to 63 bytes".to_owned(),
            ));
        }
        if self.silence < Duration::from_secs(1) {
            return Err(TapError::Setting(format!(
                "`silence` is {:?}; it must be at least 1 s",
                self.silence
            )));
        }
        Ok(())
    }

    /// Returns the `wal_sender_timeout` of the session. The server sends a keepalive after half of
    /// it.
    pub(crate) fn server_timeout(&self) -> Duration {
        self.silence * 2 / 3
    }

    /// Returns the longest time between two confirmed positions. The server ends a connection from
    /// which it receives nothing for `wal_sender_timeout`.
    pub(crate) fn confirm_every(&self) -> Duration {
        self.silence / 6
    }

    /// Returns the pause that follows `pause`.
    pub(crate) fn next_pause(&self, pause: Duration) -> Duration {
        (pause * 2).min(self.longest_pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_server_would_refuse_are_refused_at_once() {
        for prefix in ["", "Tap", "tap-1", "tap'; DROP", &"t".repeat(41)] {
            let options = TapOptions {
                slot_prefix: prefix.to_owned(),
                ..TapOptions::default()
            };
            assert!(options.check().is_err(), "{prefix}");
        }
        assert!(TapOptions::default().check().is_ok());
    }

    #[test]
    fn the_server_is_answered_before_it_gives_up() {
        let options = TapOptions::default();
        assert!(options.confirm_every() * 2 < options.server_timeout());
        assert!(options.server_timeout() < options.silence);
    }
}
