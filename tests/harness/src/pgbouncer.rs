//! PgBouncer, a pooler in front of PostgreSQL.

use crate::{Scratch, Server, Signal, eventually, need, port, postgres};
use std::net::TcpStream;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use url::Url;

const START: Duration = Duration::from_secs(60);

/// The server session that a client keeps while it is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// A client keeps one session of the server.
    Sessions,
    /// A client keeps no session between two transactions.
    Transactions,
}

/// A PgBouncer with default settings but for [`Pooling`]. It ends when it is dropped.
#[derive(Debug)]
pub struct PgBouncer {
    // Before the directory: fields drop in this order.
    _server: Server,
    _scratch: Scratch,
    port: u16,
}

impl PgBouncer {
    /// Starts a PgBouncer in front of the server of `url`, for every database there.
    ///
    /// # Panics
    /// If PgBouncer is missing and cannot be installed, or does not start.
    pub async fn start(url: &str, pooling: Pooling) -> PgBouncer {
        let server = Url::parse(url).unwrap_or_else(|error| panic!("not a URL: {error}"));
        let programs = need::directory_of("pgbouncer", "pgbouncer", || {
            vec![PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")]
        });
        let scratch = Scratch::new();
        let port = port::free();
        let mode = match pooling {
            Pooling::Sessions => "session",
            Pooling::Transactions => "transaction",
        };
        let settings = format!(
            "[databases]\n* = host={} port={} user={} password={}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\npool_mode = {mode}\n",
            server.host_str().unwrap_or("127.0.0.1"),
            server.port().unwrap_or(5432),
            server.username(),
            server.password().unwrap_or_default(),
        );
        let file = scratch.write("pgbouncer.ini", &settings);
        let mut command = Command::new(programs.join("pgbouncer"));
        command.current_dir(scratch.path()).arg(&file);
        // PgBouncer refuses to run as root.
        if let Some(user) = postgres::unprivileged_user() {
            let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());
            for path in [scratch.path(), &file] {
                chown(path, Some(uid), Some(gid))
                    .unwrap_or_else(|error| panic!("cannot give {} away: {error}", path.display()));
            }
            command.uid(uid).gid(gid);
        }
        let mut server = Server::start("PgBouncer", command).farewell(Signal::SIGTERM);
        eventually("PgBouncer to take connections", START, || {
            server.assert_running();
            std::future::ready(TcpStream::connect(("127.0.0.1", port)).ok())
        })
        .await;
        PgBouncer {
            _server: server,
            _scratch: scratch,
            port,
        }
    }

    /// Returns `url` of a database, through this PgBouncer.
    #[must_use]
    pub fn url(&self, url: &str) -> String {
        let mut url = Url::parse(url).unwrap_or_else(|error| panic!("not a URL: {error}"));
        let host = url.set_host(Some("127.0.0.1"));
        host.unwrap_or_else(|error| panic!("{url} cannot have a host: {error}"));
        let _ = url.set_port(Some(self.port));
        url.into()
    }
}
