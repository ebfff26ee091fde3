//! A private MariaDB server, for engines on other databases than PostgreSQL.

use crate::{Scratch, Server, Signal, eventually, need, port};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const START: Duration = Duration::from_secs(60);
const PACKAGE: &str = "mariadb-server";
/// The user of engines and tests, with all rights.
const USER: &str = "engine";
const DATABASE: &str = "engine";

/// A server with one database, its own directory and loopback port.
#[derive(Debug)]
pub struct MariaDb {
    // Before the directory: fields drop in this order.
    _server: Server,
    scratch: Scratch,
    port: u16,
    password: String,
}

impl MariaDb {
    /// Creates a server and starts it.
    ///
    /// # Panics
    /// If MariaDB is missing and cannot be installed, or does not start.
    pub async fn start() -> MariaDb {
        let scratch = Scratch::new();
        let data = scratch.join("data");
        let mut install = program("mariadb-install-db");
        install
            .arg("--no-defaults")
            .arg(format!("--datadir={}", data.display()))
            // Servers that start at once delete each other's temporary tables.
            .arg(format!("--tmpdir={}", scratch.path().display()))
            .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
            .args(as_root());
        let output = tokio::process::Command::from(install).output().await;
        let output = output.unwrap_or_else(|error| panic!("mariadb-install-db: {error}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "mariadb-install-db failed:\n{said}"
        );
        let port = port::free();
        let mut command = program("mariadbd");
        command
            .current_dir(scratch.path())
            .arg("--no-defaults")
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--tmpdir={}", scratch.path().display()))
            .arg(format!("--socket={}", scratch.join("socket").display()))
            .arg(format!("--pid-file={}", scratch.join("pid").display()))
            .arg(format!("--port={port}"))
            .args(["--bind-address=127.0.0.1", "--skip-name-resolve"])
            .args(["--innodb-buffer-pool-size=64M", "--performance-schema=OFF"])
            .args(as_root());
        let mut server = Server::start("MariaDB", command).farewell(Signal::SIGTERM);
        let password = uuid::Uuid::new_v4().simple().to_string();
        let socket = scratch.join("socket");
        eventually("MariaDB to take connections", START, || {
            server.assert_running();
            let socket = socket.clone();
            async move { client(&socket, "SELECT 1").await.ok() }
        })
        .await;
        let create = format!(
            "CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
             CREATE USER '{USER}'@'127.0.0.1' IDENTIFIED BY '{password}';
             GRANT ALL ON *.* TO '{USER}'@'127.0.0.1'"
        );
        let created = client(&socket, &create).await;
        created.unwrap_or_else(|error| panic!("the database of MariaDB: {error}"));
        MariaDb {
            _server: server,
            scratch,
            port,
            password,
        }
    }

    /// Returns the URL of its database.
    #[must_use]
    pub fn url(&self) -> String {
        let MariaDb { port, password, .. } = self;
        format!("mariadb://{USER}:{password}@127.0.0.1:{port}/{DATABASE}")
    }

    /// Runs statements, and returns the rows of their answers.
    ///
    /// # Panics
    /// If the server refuses one.
    pub async fn query(&self, sql: &str) -> Vec<Vec<String>> {
        let sql = format!("USE {DATABASE}; {sql}");
        let answer = client(&self.scratch.join("socket"), &sql).await;
        let answer = answer.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let rows = answer.lines();
        rows.map(|row| row.split('\t').map(str::to_owned).collect())
            .collect()
    }

    /// Returns the number that a query counts.
    ///
    /// # Panics
    /// As [`MariaDb::query`], and if the answer is no number.
    pub async fn count(&self, sql: &str) -> i64 {
        let rows = self.query(sql).await;
        let first = rows.first().and_then(|row| row.first());
        let number = first.and_then(|text| text.parse().ok());
        number.unwrap_or_else(|| panic!("{sql}: {rows:?}"))
    }
}

/// Runs statements with the client.
async fn client(socket: &std::path::Path, sql: &str) -> Result<String, String> {
    let mut client = program("mariadb");
    client
        .args(["--no-defaults", "--user=root", "--batch"])
        .args(["--skip-column-names", "--execute", sql])
        .arg(format!("--socket={}", socket.display()));
    let output = tokio::process::Command::from(client).output().await;
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// The server refuses to run as root unless it is told to.
fn as_root() -> Option<&'static str> {
    nix::unistd::Uid::effective()
        .is_root()
        .then_some("--user=root")
}

fn program(name: &str) -> Command {
    let places = || vec![PathBuf::from("/usr/sbin"), PathBuf::from("/usr/bin")];
    Command::new(need::directory_of(name, PACKAGE, places).join(name))
}
