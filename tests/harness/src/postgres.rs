//! A private PostgreSQL server for tests.

use crate::{
    Identity, Scratch, Server, ServerClock, Signal, database, eventually, need, port, processes,
};
use nix::unistd::{Uid, User};
use sqlx::{Connection, PgConnection};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(60);

/// Settings for tests. `fsync` keeps its default, on, so that tests measure and survive the same as
/// a user's server.
const SETTINGS: [&str; 8] = [
    "listen_addresses=127.0.0.1",
    "shared_preload_libraries=pg_stat_statements",
    // Every test has its own database; the statistics of one must not evict those of another.
    "pg_stat_statements.max=100000",
    "max_connections=200",
    "wal_level=logical",
    // The order of exclusive jobs is judged by the commit times of their transactions.
    "track_commit_timestamp=on",
    // In the data directory, which is removed with the server even if that is killed.
    "dynamic_shared_memory_type=mmap",
    "log_line_prefix=%m [%p] ",
];

/// A way to stop the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Disconnects the clients, rolls back and writes a checkpoint.
    Fast,
    /// Ends at once; the next start recovers.
    Immediate,
}

/// A cluster with its own directory and loopback port. Both stay the same after [`Postgres::stop`],
/// [`Postgres::kill`] and [`Postgres::start_again`].
#[derive(Debug)]
pub struct Postgres {
    // Before the directory: fields drop in this order.
    server: Option<Server>,
    scratch: Scratch,
    programs: PathBuf,
    user: Option<User>,
    port: u16,
    password: String,
    /// Additional settings, which override [`SETTINGS`].
    more: Vec<String>,
    clock: ServerClock,
}

impl Postgres {
    /// Creates a cluster and starts it. Its superuser is `postgres`, with a password that the URLs
    /// contain.
    ///
    /// # Panics
    /// If PostgreSQL is missing and cannot be installed, or does not start.
    pub async fn start() -> Postgres {
        Postgres::start_with(&[]).await
    }

    /// Starts a server with additional settings (`name=value`).
    pub async fn start_with(settings: &[&str]) -> Postgres {
        let mut postgres = Postgres::stopped(settings);
        postgres.make_cluster().await;
        postgres.start_again().await;
        postgres
    }

    fn stopped(settings: &[&str]) -> Postgres {
        Postgres {
            server: None,
            scratch: Scratch::new(),
            programs: need::directory_of("initdb", "postgresql", debian_directories),
            user: unprivileged_user(),
            port: port::free(),
            password: uuid::Uuid::new_v4().simple().to_string(),
            more: settings.iter().map(|&setting| setting.to_owned()).collect(),
            clock: ServerClock::default(),
        }
    }

    /// Starts a server that accepts TLS with this certificate, beside plain connections.
    pub async fn start_with_tls(identity: &Identity) -> Postgres {
        let mut postgres = Postgres::stopped(&[]);
        postgres.make_cluster().await;
        for (setting, file, name) in [
            ("ssl_cert_file", &identity.certificate, "server.pem"),
            ("ssl_key_file", &identity.key, "server.key"),
        ] {
            let text = std::fs::read(file)
                .unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display()));
            let copy = postgres.scratch.write(name, text);
            // The server refuses a key that other users may read.
            let private = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(&copy, private).expect("rights of a copy");
            postgres.give_away(&copy);
            postgres.more.push(format!("{setting}={}", copy.display()));
        }
        postgres.more.push("ssl=on".to_owned());
        postgres.start_again().await;
        postgres
    }

    /// Starts a server whose [`clock`](Self::clock) can be set ahead while it runs.
    ///
    /// # Panics
    /// As [`Postgres::start`], and if there is no C compiler.
    pub async fn start_with_clock() -> Postgres {
        let mut postgres = Postgres::stopped(&[]);
        postgres.make_cluster().await;
        postgres.clock = ServerClock::new(&postgres.scratch);
        postgres.start_again().await;
        postgres
    }

    /// Returns the server's clock.
    #[must_use]
    pub fn clock(&self) -> &ServerClock {
        &self.clock
    }

    /// Starts a standby of this server, with a port of its own and a copy of the current data. It
    /// follows through `address` (`host:port`), this server's own or a proxy's. It is read-only
    /// until [`Postgres::promote`].
    pub async fn start_standby(&self, address: &str) -> Postgres {
        let mut standby = Postgres {
            server: None,
            scratch: Scratch::new(),
            programs: self.programs.clone(),
            user: unprivileged_user(),
            port: port::free(),
            password: self.password.clone(),
            more: self.more.clone(),
            clock: self.clock.clone(),
        };
        standby.give_away(standby.scratch.path());
        let (host, port) = address.split_once(':').unwrap_or((address, "5432"));
        let mut copy = standby.command("pg_basebackup");
        copy.env("PGPASSWORD", &self.password)
            .args(["--host", host, "--port", port, "--username=postgres"])
            .args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync"])
            .arg("--pgdata")
            .arg(standby.data());
        let output = tokio::process::Command::from(copy).output().await;
        let output = output.unwrap_or_else(|error| panic!("cannot start pg_basebackup: {error}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "pg_basebackup failed:\n{said}");
        standby.start_again().await;
        standby
    }

    /// Promotes a standby, and returns when it accepts writes.
    pub async fn promote(&self) {
        let url = self.url("postgres");
        let mut connection = PgConnection::connect(&url)
            .await
            .unwrap_or_else(|error| panic!("the standby does not answer: {error}"));
        let promoted = sqlx::query_scalar("SELECT pg_promote(true, 120)");
        let promoted: bool = promoted
            .fetch_one(&mut connection)
            .await
            .unwrap_or_else(|error| panic!("the standby can't be promoted: {error}"));
        assert!(promoted, "the standby was not promoted in time");
        let _ = connection.close().await;
    }

    async fn make_cluster(&self) {
        let password = self.scratch.write("password", &self.password);
        for path in [self.scratch.path(), &password] {
            self.give_away(path);
        }
        let mut initdb = self.command("initdb");
        initdb
            .args(["--username=postgres", "--auth=scram-sha-256", "--no-sync"])
            .args(["--encoding=UTF8", "--locale=C"])
            .arg(format!("--pwfile={}", password.display()))
            .arg("--pgdata")
            .arg(self.data());
        let output = tokio::process::Command::from(initdb).output().await;
        let output = output.unwrap_or_else(|error| panic!("cannot start initdb: {error}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "initdb failed:\n{said}");
    }

    /// Returns a command of PostgreSQL, run as another user if this process is root: PostgreSQL
    /// refuses to run as root.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command
            .current_dir(self.scratch.path())
            .stdin(Stdio::null());
        if let Some(user) = &self.user {
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        }
        command
    }

    fn give_away(&self, path: &Path) {
        if let Some(user) = &self.user {
            chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
                .unwrap_or_else(|error| panic!("cannot give {} away: {error}", path.display()));
        }
    }

    fn data(&self) -> PathBuf {
        self.scratch.join("data")
    }

    /// Returns the superuser's URL of a database.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        let Postgres { password, port, .. } = self;
        format!("postgres://postgres:{password}@127.0.0.1:{port}/{database}")
    }

    /// Returns the address, for a proxy.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Creates an empty database and returns its URL.
    pub async fn create_database(&self) -> String {
        database::create(&self.url("postgres")).await
    }

    /// Returns the server's log since its last start.
    #[must_use]
    pub fn log(&self) -> Vec<String> {
        self.server
            .as_ref()
            .map(|server| server.output().all())
            .unwrap_or_default()
    }

    /// Starts it after [`Postgres::stop`] or [`Postgres::kill`], with the same data on the same
    /// port, and returns when it answers.
    pub async fn start_again(&mut self) {
        let url = self.url("postgres");
        let mut postgres = self.command("postgres");
        postgres.arg("-D").arg(self.data());
        postgres.args(["-p", &self.port.to_string()]);
        postgres.arg("-k").arg(self.scratch.path());
        for setting in SETTINGS {
            postgres.args(["-c", setting]);
        }
        for setting in &self.more {
            postgres.args(["-c", setting]);
        }
        postgres.envs(self.clock.environment());
        // Dropping the server stops it immediately, with its backends.
        let server = Server::start("PostgreSQL", postgres).farewell(Signal::SIGQUIT);
        let server = self.server.insert(server);
        eventually("PostgreSQL to take connections", START, || {
            server.assert_running();
            let url = &url;
            async move { PgConnection::connect(url).await.ok()?.close().await.ok() }
        })
        .await;
    }

    /// Stops it in an orderly way or immediately.
    pub async fn stop(&mut self, how: Stop) {
        if let Some(mut server) = self.server.take() {
            server.signal(match how {
                Stop::Fast => Signal::SIGINT,
                Stop::Immediate => Signal::SIGQUIT,
            });
            server.exit(STOP).await;
        }
    }

    /// Kills one process of the server, as the kernel does when memory is short. The server
    /// recovers by itself.
    pub fn kill_process(&self, id: i32) {
        processes::kill(nix::unistd::Pid::from_raw(id));
    }

    /// Kills the server and every backend at the same moment, as a power cut would.
    pub async fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            // A stopped postmaster can neither start backends nor react to their deaths.
            server.signal(Signal::SIGSTOP);
            // Backends have their own sessions, so a kill of the group does not reach them.
            let backends = processes::children_of(server.id());
            for &backend in &backends {
                processes::kill(backend);
            }
            server.kill();
            eventually("the backends to be gone", STOP, || {
                let left = backends
                    .iter()
                    .any(|&backend| processes::is_running(backend));
                std::future::ready((!left).then_some(()))
            })
            .await;
        }
    }
}

impl Drop for Postgres {
    /// Removes the segment of shared memory that a killed server leaves; its next start would have
    /// removed it. The last line but one of its pid file names it.
    fn drop(&mut self) {
        let Ok(file) = std::fs::read_to_string(self.data().join("postmaster.pid")) else {
            return;
        };
        let segment = file
            .lines()
            .nth(6)
            .and_then(|line| line.split_whitespace().nth(1));
        if let (None, Some(segment)) = (&self.server, segment) {
            let _ = Command::new("ipcrm").args(["-m", segment]).output();
        }
    }
}

/// Returns the directories of PostgreSQL's programs, newest version first. Debian keeps each major
/// version's programs out of `PATH`.
fn debian_directories() -> Vec<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    let mut versions: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .filter(|(_, programs)| programs.join("postgres").exists())
        .collect();
    versions.sort_by_key(|&(version, _)| std::cmp::Reverse(version));
    versions.into_iter().map(|(_, programs)| programs).collect()
}

/// Returns the user to run PostgreSQL as, if this process is root.
pub(crate) fn unprivileged_user() -> Option<User> {
    if !Uid::effective().is_root() {
        return None;
    }
    let user = ["postgres", "nobody"]
        .into_iter()
        .find_map(|name| User::from_name(name).ok().flatten());
    assert!(
        user.is_some(),
        "PostgreSQL refuses to run as root, and there is neither a user `postgres` nor a user `nobody`"
    );
    user
}
