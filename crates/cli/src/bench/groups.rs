//! The processes of the servers on this machine, found by the names of their executables.

use jobwire_core::store::postgres::address::host_elsewhere;
use jobwire_core::transport::is_loopback;

use super::processes::processes;
use crate::settings::{SecretUrl, Settings};

/// The names of the executables.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Groups {
    pub(super) database: Option<&'static str>,
    pub(super) broker: Option<&'static str>,
}

impl Groups {
    /// Returns the groups on this machine, and a note with the reason for each unmeasured group.
    pub(super) fn of(settings: &Settings) -> (Self, Vec<String>) {
        let mut notes = Vec::new();
        let url = &settings.database_url;
        let database = match url.scheme() {
            "sqlite" => {
                notes.push(
                    "statements, WAL, row versions and CPU of the database are not measured: \
                     SQLite runs inside the nodes"
                        .to_owned(),
                );
                None
            }
            _ => look_for("database", "postgres", database_is_here(url), &mut notes),
        };
        let url = &settings.broker_url;
        let broker = match url.scheme() {
            "amqp" | "amqps" => look_for("broker", "beam.smp", broker_is_here(url), &mut notes),
            "kafka" => look_for("broker", "java", broker_is_here(url), &mut notes),
            _ => {
                notes.push("CPU of the broker is not measured: there is none".to_owned());
                None
            }
        };
        (Self { database, broker }, notes)
    }
}

fn look_for(
    what: &str,
    name: &'static str,
    is_here: bool,
    notes: &mut Vec<String>,
) -> Option<&'static str> {
    let why = if !is_here {
        "it is on another machine".to_owned()
    } else if processes().any(|process| process.name == name) {
        return Some(name);
    } else {
        format!("there is no process `{name}` on this machine")
    };
    notes.push(format!("CPU of the {what} is not measured: {why}"));
    None
}

fn database_is_here(url: &SecretUrl) -> bool {
    host_elsewhere(url.expose()).is_ok_and(|host| host.is_none())
}

/// Returns whether all hosts of the broker are this machine.
fn broker_is_here(url: &SecretUrl) -> bool {
    let url = url.expose();
    let authority = url.split_once("://").map_or("", |(_, rest)| rest);
    let authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
    let hosts = authority.rsplit('@').next().unwrap_or_default();
    hosts.split(',').all(|host| {
        let name = match host.strip_prefix('[') {
            Some(v6) => v6.split(']').next().unwrap_or_default(),
            None => host.split(':').next().unwrap_or_default(),
        };
        name.is_empty() || is_loopback(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_other_machines_are_known() {
        let here = |url: &str| broker_is_here(&SecretUrl::new(url));
        assert!(here("amqp://user:p@ss@127.0.0.1:5672/v") && here("kafka://[::1]:9092,localhost"));
        assert!(!here("amqp://broker.example/") && !here("kafka://localhost,10.0.0.2:9092/p"));
        let here = |url: &str| database_is_here(&SecretUrl::new(url));
        assert!(here("postgres://me@localhost/x") && here("postgres:///x?host=/run/postgresql"));
        assert!(!here("postgres://me@db.example/x"));
    }
}
